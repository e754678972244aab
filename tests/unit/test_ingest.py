"""Plain inputs: what a file's name, content and container make of it."""

import bz2
import gzip
import io
import lzma
import os
import tarfile

import pytest

from denpex import hostlist
from denpex.errors import InputError
from denpex.ingest import load, names, slurmtext
from denpex.model import Job, StreamKind


def streams(snapshot):
    return {source.info.name: source for source in snapshot.streams}


def data(snapshot, name):
    return streams(snapshot)[name].load().data


@pytest.mark.parametrize(
    ("name", "kind", "rank", "node"),
    [
        ("rank_3.log", "out", 3, None),
        ("rank-12.out", "out", 12, None),
        ("rank3.err", "err", 3, None),
        ("train.rank_7.log.gz", "out", 7, None),
        ("rank_3_stderr.log", "err", 3, None),
        ("task_2.out", "out", 2, None),
        ("attempt_0/5/stderr.log", "err", 5, None),
        ("local_rank_3.log", "mixed", None, None),
        ("job.log", "mixed", None, None),
        ("error_report.txt", "mixed", None, None),
        ("slurm_stderr.log", "mixed", None, None),
        ("cuda_kernel_bench.log", "mixed", None, None),
        ("slurm-4711.out", "batch", None, None),
        ("slurm-4711_3.out", "batch", None, None),
        ("slurm.txt", "slurm", None, None),
        ("sacct_4711.txt", "slurm", None, None),
        ("slurmctld.log", "slurm", None, None),
        ("node_gpu-01.dmesg", "kernel", None, "gpu-01"),
        ("gpu01.dmesg", "kernel", None, "gpu01"),
        ("dmesg.gpu01.txt", "kernel", None, "gpu01"),
        ("dmesg", "kernel", None, None),
        ("node_gpu01/kern.log.1", "kernel", None, "gpu01"),
        ("node_gpu01/rank_4.log", "out", 4, "gpu01"),
        ("node_cn-234.nvidia-smi.txt", "mixed", None, "cn-234"),
    ],
)
def test_a_name_says_what_a_file_is(name, kind, rank, node):
    found = names.classify(name)
    assert (found.kind, found.rank, found.node) == (StreamKind(kind), rank, node)


def test_numbers_alone_are_ranks_only_where_they_are_dense():
    assert names.numbered(["0.log", "1.log", "2.log"]) == {"0.log": 0, "1.log": 1, "2.log": 2}
    assert names.numbered(["4711.out"]) == {}
    assert names.numbered(["out/0.log", "out/4711.log"]) == {}


@pytest.mark.parametrize(
    "line",
    [
        b"[   12.345678] NVRM: Xid (PCI:0000:02:00): 79\n",
        b"[Sun Feb 23 16:24:18 2025] NVRM: Xid\n",
        b"[May19 19:57] CMCI storm detected\n[  +0.000127] mce: [Hardware Error]\n",
        b"Feb  3 16:24:18 gpu01 kernel: NVRM: Xid\n",
        b"2025-02-23T16:24:18,123456+00:00 gpu01 kernel: NVRM\n",
    ],
)
def test_a_kernel_log_is_known_by_its_lines(tmp_path, line):
    (tmp_path / "node.txt").write_bytes(line * 3)
    assert load([tmp_path]).streams[0].info.kind is StreamKind.KERNEL


def test_training_output_with_dates_is_no_kernel_log(tmp_path):
    (tmp_path / "out.log").write_bytes(b"[2025-02-23 16:24:18,123] INFO step 3\n[rank0]: loss 1.0\n")
    assert load([tmp_path]).streams[0].info.kind is StreamKind.MIXED


def test_a_directory_gives_every_log_and_names_what_it_left_out(tmp_path):
    (tmp_path / "rank_0.log").write_bytes(b"zero\n")
    (tmp_path / "node_n1.dmesg").write_bytes(b"kernel\n")
    (tmp_path / "train.py").write_bytes(b"pass\n")
    snapshot = load([tmp_path])
    assert set(streams(snapshot)) == {"rank_0.log", "node_n1.dmesg"}
    assert snapshot.kernel == ()
    assert any("train.py" in gap.what for gap in snapshot.gaps)


def test_a_file_that_is_named_is_read_whatever_its_name(tmp_path):
    path = tmp_path / "what-my-colleague-sent"
    path.write_bytes(b"RuntimeError: boom\n")
    assert data(load([path]), path.name) == b"RuntimeError: boom\n"


def test_several_paths_with_the_same_names_stay_apart(tmp_path):
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "job.log").write_text(folder)
    snapshot = load([tmp_path / "a", tmp_path / "b"])
    assert {name: source.load().data for name, source in streams(snapshot).items()} == {
        "a/job.log": b"a",
        "b/job.log": b"b",
    }


@pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lambda raw: lzma.compress(raw, lzma.FORMAT_XZ)])
def test_compressed_files_are_unpacked_also_in_several_parts(tmp_path, pack):
    (tmp_path / "rank_1.log.gz").write_bytes(pack(b"first\n" * 300_000) + pack(b"second\n"))
    found = load([tmp_path]).streams[0]
    assert found.info.rank == 1
    assert found.load().data == b"first\n" * 300_000 + b"second\n"


def test_a_compressed_file_that_breaks_off_gives_what_it_has(tmp_path):
    text = b"".join(b"step %d\n" % number for number in range(20_000))
    packed = gzip.compress(text)
    (tmp_path / "rank_1.log.gz").write_bytes(packed[: len(packed) // 2])
    found = load([tmp_path]).streams[0].load().data
    assert len(found) > 1000
    assert text.startswith(found)


def archive(members, mode="w:"):
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode=mode) as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return buffer.getvalue()


@pytest.mark.parametrize("mode", ["w:", "w:gz", "w:bz2", "w:xz"])
def test_an_archive_is_read_like_a_directory(tmp_path, mode):
    members = {"./logs/rank_0.log": b"zero\n", "./logs/rank_1.log.gz": gzip.compress(b"one\n"), "logs/x.bin": b"\0"}
    (tmp_path / "logs.tar").write_bytes(archive(members, mode))
    snapshot = load([tmp_path / "logs.tar"])
    assert data(snapshot, "logs/rank_0.log") == b"zero\n"
    assert data(snapshot, "logs/rank_1.log.gz") == b"one\n"
    assert [source.info.rank for source in snapshot.streams] == [0, 1]


def test_standard_input_is_read_also_as_an_archive(monkeypatch):
    class Stdin:
        buffer = io.BytesIO(archive({"rank_0.log": b"zero\n"}, "w:gz"))

    monkeypatch.setattr("sys.stdin", Stdin)
    from pathlib import Path

    assert data(load([Path("-")]), "rank_0.log") == b"zero\n"


def test_utf16_is_read_and_a_byte_order_mark_is_left_out(tmp_path):
    (tmp_path / "a.log").write_bytes("Fehler: größer\n".encode("utf-16"))
    (tmp_path / "b.log").write_bytes(b"\xef\xbb\xbfplain\n")
    snapshot = load([tmp_path])
    assert data(snapshot, "a.log").decode() == "Fehler: größer\n"
    assert streams(snapshot)["b.log"].load().pieces == ((0, 3),)
    assert data(snapshot, "b.log") == b"plain\n"


def test_the_job_number_comes_from_the_output_files_name(tmp_path):
    (tmp_path / "slurm-4711.out").write_bytes(b"x\n")
    assert load([tmp_path]).job.job_id == "4711"
    (tmp_path / "slurm-4711.out").rename(tmp_path / "slurm-4711_3.out")
    job = load([tmp_path]).job
    assert (job.job_id, job.array_job, job.array_task) == (None, "4711", "3")


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda path: path / "nowhere", "there is no file or directory"),
        (lambda path: path, "no log was found"),
        (lambda path: os.mkfifo(path / "fifo") or path / "fifo", "it is a pipe"),
        (lambda path: (path / "a.log").write_bytes(b"\x7fELF\2\1\1" + bytes(50)) and path / "a.log", "it is not text"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_sentence(tmp_path, make, words):
    with pytest.raises(InputError, match=words):
        load([make(tmp_path)])


SCONTROL = """JobId=4711 JobName=train a b
   UserId=alice(1001) GroupId=users(100) MCS_label=N/A
   JobState=TIMEOUT Reason=TimeLimit Dependency=(null)
   Requeue=1 Restarts=2 BatchFlag=1 Reboot=0 ExitCode=0:15
   RunTime=00:10:00 TimeLimit=1-00:10:00 TimeMin=N/A
   StartTime=2025-02-23T16:24:18 EndTime=2025-02-23T16:34:18 Deadline=N/A
   NodeList=gpu[01-03,07]
   NumNodes=4 NumCPUs=8
"""

SACCT = """JobID|JobIDRaw|JobName|State|ExitCode|DerivedExitCode|NodeList|Start
4711|4711|train|CANCELLED by 1001|0:0|1:0|n[1-2]|2025-02-23T16:24:18
4711.batch|4711.batch|batch|CANCELLED|0:15||n1|2025-02-23T16:24:18
4711.0|4711.0|python|FAILED|1:0||n[1-2]|2025-02-23T16:24:19
"""

COLUMNS = """JobID           JobName      State ExitCode
------------ ---------- ---------- --------
4711              train OUT_OF_ME+      0:0
4711.0           python     FAILED      1:0
"""


def test_scontrol_is_understood():
    job = slurmtext.read(SCONTROL, Job())
    assert (job.job_id, job.name, job.user, job.uid) == ("4711", "train a b", "alice", 1001)
    assert (job.state, job.exit, job.restart, job.time_limit_s) == ("TIMEOUT", "0:15", 2, 87000)
    assert job.nodes == ("gpu01", "gpu02", "gpu03", "gpu07")
    assert job.end - job.start == 600


def test_sacct_is_understood_with_its_steps():
    job = slurmtext.read(SACCT, Job())
    assert (job.job_id, job.state, job.cancelled_by, job.derived) == ("4711", "CANCELLED", 1001, "1:0")
    assert [(step.id, step.state, step.exit, step.nodes) for step in job.steps] == [
        ("batch", "CANCELLED", "0:15", ("n1",)),
        ("0", "FAILED", "1:0", ("n1", "n2")),
    ]


def test_sacct_in_columns_is_understood():
    job = slurmtext.read(COLUMNS, Job())
    assert (job.job_id, job.exit, job.steps[0].state) == ("4711", "0:0", "FAILED")
    assert job.state == "OUT_OF_MEMORY"


def test_a_note_in_the_same_form_is_understood():
    job = slurmtext.read(
        "StepId=7.0\nState=TIMEOUT (from: CANCELLED)\nNodes=4 (32 ranks)\ntask 3: exit code 1\n", Job()
    )
    assert (job.job_id, job.state, job.nodes) == ("7", "TIMEOUT", ())


def test_another_job_in_the_same_text_is_not_mixed_in():
    assert slurmtext.read(SACCT, Job(job_id="12")).state == ""


@pytest.mark.parametrize("text", ["", "|||\n", "\0" * 100, "=" * 100_000, "A=" + " " * 1_000_000, "x" * 500_000 + "="])
def test_no_text_breaks_the_reader_of_slurm_text(text):
    assert slurmtext.read(text, Job()).job_id is None


@pytest.mark.parametrize(
    ("text", "nodes"),
    [
        ("n1", ("n1",)),
        ("n[1-3]", ("n1", "n2", "n3")),
        ("gpu[01-02,10],login", ("gpu01", "gpu02", "gpu10", "login")),
        ("r[1-2]n[1-2]", ("r1n1", "r1n2", "r2n1", "r2n2")),
        ("None assigned", ()),
        ("(null)", ()),
        ("n[1-", ()),
        ("n[a-b]", ()),
        ("", ()),
    ],
)
def test_node_lists_are_expanded(text, nodes):
    assert hostlist.expand(text) == nodes


def test_a_hostile_node_list_is_bounded():
    assert len(hostlist.expand("n[0-999999999]")) == hostlist.MAX_NODES
    assert len(hostlist.expand("n" + "[0-99999]" * 50)) == hostlist.MAX_NODES
