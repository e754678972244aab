"""Dumps of the flight recorder: found by content, read as plain data, never run; what cannot be read is a gap."""

from __future__ import annotations

import gzip
import io
import json
import os
import pickle
import tarfile
import time
from pathlib import Path

import pytest

from denpex.ingest import load, pickled
from denpex.ingest.untar import unpack
from tests.unit.flights import ALL, START, Recorder, S
from tests.unit.test_ingest_spool import Spool

GLOO = sorted((Path(__file__).parent / "dumps").glob("gloo_*"))


def recorder(calls=3):
    found = Recorder({ALL: [0, 1]})
    for number in range(calls):
        found.call(number, done=number < calls - 1)
    return found


def only(path):
    snapshot = load([path])
    assert len(snapshot.flight) == 1, snapshot.gaps
    return snapshot.flight[0]


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("nccl_trace_rank_3", 3), ("comm_lib_trace_rank_12", 12), ("rank_3.json", 3), ("mydump7", 7), ("0.rank_5", 5),
        ("job4711_rank_2.pickle", 2), ("fr.11.pkl", 11),
    ],
)  # fmt: skip
def test_a_dump_is_known_by_its_content_and_its_rank_by_its_name(tmp_path, name, rank):
    (tmp_path / name).write_bytes(recorder().pickle())
    (tmp_path / "train.log").write_text("step 1\n")
    assert only(tmp_path).rank == rank
    assert only(tmp_path / name).rank == rank


def test_json_and_pickle_say_the_same(tmp_path):
    for place, data in (("a", recorder().pickle()), ("b", json.dumps(recorder().dump()).encode())):
        (tmp_path / place).mkdir()
        (tmp_path / place / "rank_1").write_bytes(data)
        os.utime(tmp_path / place / "rank_1", ns=(START, START))
    assert only(tmp_path / "a") == only(tmp_path / "b")
    dump = only(tmp_path / "a")
    assert dump.written_ns == START
    assert dump.last_ns == START + 2 * S
    assert dump.from_start
    assert dump.library == "nccl"
    (group,) = dump.groups
    assert group.ranks == (0, 1)
    assert [(c.seq, c.call, c.done) for c in group.calls] == [
        (1, "all_reduce Float[16]", True), (2, "all_reduce Float[16]", True), (3, "all_reduce Float[16]", False),
    ]  # fmt: skip


def test_real_dumps_of_gloo_are_read(tmp_path):
    for path in GLOO:
        data = path.read_bytes()
        assert pickled.loads(data) == pickle.loads(data)
        (tmp_path / path.name).write_bytes(data)
    dumps = load([tmp_path]).flight
    assert [dump.rank for dump in dumps] == [0, 1, 2, 3]
    last = {dump.rank: {g.name: g.calls[-1].seq for g in dump.groups} for dump in dumps}
    assert last == {0: {"1": 4, "0": 5}, 1: {"1": 4, "0": 5}, 2: {"2": 4, "0": 4}, 3: {"2": 4, "0": 5}}
    assert {dump.library for dump in dumps} == {"gloo"}


def test_the_digest_is_bounded_and_keeps_the_last_of_every_group(tmp_path):
    rare = ("7", "rare")
    found = Recorder({ALL: [0, 1], rare: [0, 1]})
    for number in range(20):
        found.call(number, group=rare)
    for number in range(1980):
        found.call(100 + number)
    (tmp_path / "rank_0").write_bytes(found.pickle())
    groups = {group.name: group.calls for group in only(tmp_path).groups}
    assert [call.seq for call in groups["7"]] == list(range(13, 21))
    assert groups["0"][-1].seq == 1980
    assert 200 < len(groups["0"]) < 300


def test_a_coalesced_call_is_one_collective_and_sends_are_none(tmp_path):
    found = Recorder({ALL: [0, 1]})
    found.call(0, "_all_gather_base", size=4, done=False)
    found.call(0, "coalesced", collective_seq_id=1)
    found.send(1)
    found.sequence[ALL] = 1
    found.call(2, "all_to_all", size=5)
    (tmp_path / "rank_0").write_bytes(found.pickle())
    (group,) = only(tmp_path).groups
    assert [(c.seq, c.call, c.done) for c in group.calls] == [
        (1, "_all_gather_base Float[4] + coalesced", True), (2, "all_to_all", True),
    ]  # fmt: skip


def test_an_archive_keeps_when_a_dump_was_written(tmp_path):
    data = recorder().pickle()
    for name, mode in (("a.tar", "w"), ("b.tgz", "w:gz")):
        with tarfile.open(tmp_path / name, mode) as tar:
            info = tarfile.TarInfo("fr/rank_1")
            info.size, info.mtime = len(data), 1_796_130_700
            tar.addfile(info, io.BytesIO(data))
        assert only(tmp_path / name).written_ns == 1_796_130_700 * S


def test_what_a_node_hands_out_keeps_when_it_was_written(tmp_path):
    flow = io.BytesIO()
    with tarfile.open(fileobj=flow, mode="w") as tar:
        info = tarfile.TarInfo("7.0.1/user/fr/0.rank_1")
        info.size, info.mtime = 3, 1_796_130_700
        tar.addfile(info, io.BytesIO(b"abc"))
    flow.seek(0)
    unpack(flow, "7.0.1", tmp_path / "out")
    assert (tmp_path / "out/user/fr/0.rank_1").stat().st_mtime == 1_796_130_700


def test_dumps_in_a_spool_bear_node_and_step(tmp_path):
    run = Spool(tmp_path).run("n1")
    (run / "user/fr").mkdir()
    (run / "user/fr/0.rank_5").write_bytes(recorder().pickle())
    (run / "user/fr/0.rank_6").write_bytes(b"torn")
    snapshot = load([run])
    dump, torn = snapshot.flight
    assert (torn.rank, torn.groups) == (6, ())
    assert (dump.rank, dump.node, dump.step, dump.file) == (5, "n1", "0", "n1/user/fr/0.rank_5")
    assert any("n1/user/fr/0.rank_6 was not read" in gap.what for gap in snapshot.gaps)


def refused(tmp_path, data, name="nccl_trace_rank_0"):
    """Return why a dump is not read, beside a log that is."""
    (tmp_path / name).write_bytes(data)
    (tmp_path / "train.log").write_text("step 1\n")
    snapshot = load([tmp_path])
    assert [(dump.rank, dump.groups) for dump in snapshot.flight] == [(0, ())]
    (gap,) = (gap for gap in snapshot.gaps if name in gap.what)
    return gap.what


class Call:
    """What is pickled as a call of os.system."""

    def __init__(self, command):
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


@pytest.mark.parametrize("protocol", range(6))
def test_a_pickle_that_calls_something_runs_nothing(tmp_path, protocol):
    mark = tmp_path / "ran"
    bomb = {"entries": [], "pg_config": {}, "x": Call(f"touch {mark}")}
    assert "was not read" in refused(tmp_path, pickle.dumps(bomb, protocol))
    assert not mark.exists()


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (recorder(200).pickle()[:-300], "breaks off"),
        (json.dumps(recorder().dump()).encode()[:-30], "no flight recorder"),
        (b"", "no flight recorder"),
        (b"\x80\x02" + b"(" * 100_000, "nested"),
        (b"\x80\x02]" + b"q\x00h\x00a" * 10 + b".", "no list of entries"),
        (b'{"entries": ' + b"[" * 1_000_000, "no flight recorder"),
        (b'{"entries": 3, "pg_config": {}}', "no list of entries"),
        (b'{"entries": [{"seq_id": 1, "profiling_name": "nccl:all_reduce"}], "pg_config": {}}', "before PyTorch 2.5"),
        (b"\x80\x02X\xff\xff\xff\x7fpg_config.", "breaks off"),
        (b"\x80\x04\x8d" + b"\xff" * 8 + b"pg_config.", "breaks off"),
        (b"\x80\x02}r\xff\xff\xff\xff.", "no list of entries"),
        (b"\x80\x05\x96" + b"\xff" * 7 + b"\x00.", "more than plain data"),
        (b"\x80\x02)\x85\x85}u.", "damaged"),
        (b"\x80\x02}" + b")" + b"\x85" * 50_000 + b"Ns.", "no plain data"),
        (b"\x80\x02" + b"N0" * 10, "more than plain data"),
    ],
)  # fmt: skip
def test_what_is_torn_or_hostile_is_a_gap(tmp_path, data, why):
    started = time.monotonic()
    assert why in refused(tmp_path, data)
    assert time.monotonic() - started < 5


def test_a_hundred_megabytes_of_zeros_are_not_read(tmp_path):
    with open(tmp_path / "nccl_trace_rank_0", "wb") as file:
        file.truncate(100 << 20)
    (tmp_path / "nccl_trace_rank_1.gz").write_bytes(gzip.compress(bytes(100 << 20)))
    (tmp_path / "train.log").write_text("step 1\n")
    snapshot = load([tmp_path])
    assert [(dump.rank, dump.groups) for dump in snapshot.flight] == [(0, ()), (1, ())]
    assert sum("was not read" in gap.what for gap in snapshot.gaps) == 2


def test_values_of_the_wrong_kind_are_left_out(tmp_path):
    wrong = recorder().dump()
    wrong["entries"] += [
        None, 3, [], {"collective_seq_id": "x"}, {"collective_seq_id": 1 << 70},
        {"collective_seq_id": 9, "process_group": None, "input_sizes": [["x"], None, [1 << 90]]},
    ]  # fmt: skip
    wrong["pg_config"] = {"a": None, "b": {"name": "b", "ranks": ["x"]}, "c": {"name": "c", "ranks": 3}}
    (tmp_path / "rank_0.json").write_text(json.dumps(wrong))
    assert only(tmp_path).rank == 0


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("profiling_name", 3), ("profiling_name", ["x"]), ("process_group", ["0", []]), ("input_dtypes", "Float"),
        ("input_dtypes", [[]]), ("input_sizes", 16), ("input_sizes", [["x"]]), ("input_sizes", [[1 << 90]]),
    ],
)  # fmt: skip
def test_an_entry_that_is_damaged_does_not_make_its_rank_differ_from_the_others(tmp_path, key, value):
    whole, damaged = recorder(), recorder()
    damaged.entries[1][key] = value
    (tmp_path / "rank_0").write_bytes(whole.pickle())
    (tmp_path / "nccl_trace_rank_1").write_bytes(damaged.pickle())
    snapshot = load([tmp_path])
    assert {dump.rank: len(dump.groups) for dump in snapshot.flight} == {0: 1, 1: 0}
    assert "its entries are damaged" in snapshot.gaps[0].what


def test_other_json_and_other_pickles_are_no_dumps(tmp_path):
    (tmp_path / "rank_0.json").write_text('{"entries": [], "loss": 1}')
    (tmp_path / "state_1.pkl").write_bytes(pickle.dumps({"entries": [1]}))
    (tmp_path / "nccl_trace_rank_0.log").write_text("step 1\n")
    snapshot = load([tmp_path])
    assert snapshot.flight == ()
    assert [source.info.name for source in snapshot.streams] == ["nccl_trace_rank_0.log"]
    assert [gap.what for gap in snapshot.gaps] == [
        "not read, for their names are not those of logs: rank_0.json, state_1.pkl"
    ]
