"""Run directories of a spool: joined over nodes, tolerant of everything, and of nobody else's files."""

import json
import os
import tarfile

import pytest

from denpex.errors import InputError
from denpex.ingest import load, runs, spool, streams, tree
from denpex.model import Job, StreamKind
from denpex.node.sink import Sink, stamp
from denpex.spool import RunId

NS = 10**9


def lines(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write((record if isinstance(record, str) else json.dumps(record)) + "\n")


class Spool:
    """Writes a spool as the hooks would."""

    def __init__(self, root):
        self.root = root

    def run(self, place, job=7, restart=0, opened=1000, done=True, **meta):
        path = self.root / "c1" / place / str(RunId(job, restart, opened))
        (path / "user" / "streams").mkdir(parents=True)
        (path / "tasks").mkdir()
        values = {
            "format": 1,
            "cluster": "c1",
            "node": place,
            "job_id": job,
            "restart": restart,
            "opened": opened,
            "opened_ns": opened * NS,
            "boot_id": f"boot-{place}",
            "uid": os.getuid(),
            "user": "alice",
            "nodelist": "n[1-2]",
            "prolog": True,
            "gpus": [{"index": 0, "minor": 0, "pci": "00000000:01:00.0", "uuid": "GPU-1"}],
            "job_gpus": ["0"],
        }
        (path / "meta.json").write_text(json.dumps(values | meta))
        if done:
            (path / "DONE").write_bytes(b"")
        return path

    def claim(self, path, *records):
        node = path.parent.name
        base = {"step": "0", "node": node, "realtime_ns": 1000 * NS, "raw_ns": 5}
        lines(path / "user" / "claims.jsonl", *(r if isinstance(r, str) else base | r for r in records))


@pytest.fixture
def box(tmp_path):
    return Spool(tmp_path / "spool")


def whats(snapshot):
    return " | ".join(f"{gap.where}: {gap.what}" for gap in snapshot.gaps)


def two_nodes(box):
    paths = [box.run("n1"), box.run("n2")]
    for rank, path in enumerate(paths):
        box.claim(
            path,
            {"event": "start", "rank": rank, "local_rank": 0, "pid": 9, "command": "python t.py", "world": 2},
            {"event": "alive", "rank": rank, "realtime_ns": 1030 * NS},
            {"event": "state", "rank": rank, "state": "T"},
            {"event": "signal", "rank": rank, "signal": 15},
            {"event": "end", "rank": rank, "exit_code": rank, "signal": None, "realtime_ns": 1040 * NS},
            {"event": "clock", "method": "sntp", "reference": "h:1", "lo_ns": -5, "hi_ns": 5, "when": "task"},
        )
        lines(path / "clock.jsonl", {"method": "adjtimex", "lo_ns": 1, "hi_ns": 2, "realtime_ns": 3, "raw_ns": 4})
        record = {
            "seq": 1,
            "facility": 0,
            "level": 3,
            "realtime_ns": 5,
            "raw_ns": 6,
            "text": "NVRM: Xid",
            "source": "kmsg",
        }
        lines(path / "kernel.jsonl", record | {"evidence": True}, record | {"facility": 1, "evidence": True})
        out = path / "user" / "streams" / f"0.{rank}.out"
        sink = Sink(str(out), 1 << 20)
        sink.write(b"hello\n", stamp())
        sink.write(b"world\n", stamp())
        sink.close()
    return paths


def test_the_nodes_of_a_run_become_one_snapshot(box):
    snapshot = spool.read(two_nodes(box), Job())
    assert (snapshot.job.job_id, snapshot.job.cluster, snapshot.job.nodes) == ("7", "c1", ("n1", "n2"))
    assert [(n.name, n.boot_id, n.done, n.gpus[0].uuid, n.job_gpus) for n in snapshot.nodes] == [
        ("n1", "boot-n1", True, "GPU-1", ("0",)),
        ("n2", "boot-n2", True, "GPU-1", ("0",)),
    ]
    first, second = snapshot.tasks
    assert (first.rank, first.node, first.command, first.exit_code, first.signal) == (0, "n1", "python t.py", 0, None)
    assert (second.rank, second.node, second.exit_code, second.claimed) == (1, "n2", 1, True)
    assert second.last_alive.realtime_ns == 1030 * NS
    assert [state for _, state in second.states] == ["T"]
    assert [number for _, number in second.forwarded_signals] == [15]
    assert [(sample.node, sample.claimed) for sample in snapshot.clock] == [
        ("n1", False),
        ("n1", True),
        ("n2", False),
        ("n2", True),
    ]
    assert [(record.node, record.evidence) for record in snapshot.kernel] == [
        ("n1", True),
        ("n1", False),
        ("n2", True),
        ("n2", False),
    ]
    info = snapshot.streams[1].info
    assert (info.name, info.kind, info.step, info.rank, info.node) == ("n2/0.1.out", StreamKind.OUT, "0", 1, "n2")
    assert info.complete is True
    data = snapshot.streams[1].load()
    assert data.data == b"hello\nworld\n"
    assert [offset for offset, _, _ in data.index] == [0, 6]
    assert snapshot.gaps == ()


def test_what_the_scheduler_said_is_not_overwritten(box):
    snapshot = spool.read(two_nodes(box), Job(job_id="7", user="bob", nodes=("n1", "n2", "n3"), state="FAILED"))
    assert (snapshot.job.user, snapshot.job.state) == ("bob", "FAILED")
    assert "n3: the node left no run directory" in whats(snapshot)


def test_what_is_missing_is_stated(box):
    first, second = box.run("n1"), box.run("n2", done=False)
    box.claim(first, {"event": "start", "rank": 0, "world": 4})
    box.claim(second, {"event": "start", "rank": 1, "world": 4}, {"event": "end", "rank": 1, "exit_code": 0})
    (first / "user" / "streams" / "0.0.out").write_bytes(b"hel")
    (first / "user" / "streams" / "0.0.out.idx").write_bytes(b"0 1 2\n")
    lines(first / "gaps.jsonl", {"what": "no kernel log", "where": "n1", "closed_by": "kmsg"})
    snapshot = spool.read([first, second], Job())
    said = whats(snapshot)
    assert "n2: the node's epilog did not finish" in said
    assert "n1: step 0: the end of task 0 was not recorded" in said
    assert "step 0: task 2-3 of 4 was never captured" in said
    assert "the output of task 0 was not captured to its end" in said
    assert "n1: no kernel log" in said
    assert snapshot.streams[0].info.complete is False


def test_a_stream_without_an_index_is_neither_complete_nor_cut(box):
    path = box.run("n1", nodelist="n1")
    (path / "tasks" / "batch.out").write_bytes(b"batch\n")
    snapshot = spool.read([path], Job())
    info = snapshot.streams[0].info
    assert (info.name, info.kind, info.rank, info.complete) == ("n1/batch.out", StreamKind.BATCH, None, None)


def test_what_a_launcher_of_many_ranks_printed_is_no_ranks_own_stream(box):
    path = box.run("n1", nodelist="n1")
    (path / "user" / "streams" / "batch.0.out").write_bytes(b"torchrun\n")
    info = spool.read([path], Job()).streams[0].info
    assert (info.kind, info.step, info.rank) == (StreamKind.BATCH, "batch", None)


@pytest.mark.parametrize(
    ("command", "rank"),
    [
        ("torchrun --nproc-per-node=4 train.py", None),
        ("bash -c 'python -m torch.distributed.run train.py'", None),
        ("/opt/env/bin/accelerate launch train.py", None),
        ("torchrun --nproc-per-node=1 train.py", 0),
        ("python train.py --name torchrun_test", 0),
    ],
)
def test_the_output_of_a_launcher_in_a_step_is_no_ranks_own(box, command, rank):
    path = box.run("n1", nodelist="n1")
    box.claim(path, {"event": "start", "rank": 0, "command": command}, {"event": "end", "rank": 0, "exit_code": 1})
    (path / "user" / "streams" / "0.0.out").write_bytes(b"[rank3]: boom\n")
    info = spool.read([path], Job()).streams[0].info
    assert (info.rank, info.node, info.kind) == (rank, "n1", StreamKind.MIXED if rank is None else StreamKind.OUT)


def test_outside_slurm_a_run_has_no_job_and_no_restart(box):
    job = spool.read([box.run("n1", job_id=None, cluster=None, nodelist=None)], Job()).job
    assert (job.job_id, job.cluster, job.restart, job.nodes) == (None, None, None, ("n1",))


def test_a_node_cannot_speak_for_another_nodes_tasks(box):
    first, second = two_nodes(box)
    box.claim(second, {"event": "end", "rank": 0, "node": "n1", "signal": 9}, {"event": "end", "rank": 0, "signal": 9})
    snapshot = spool.read([first, second], Job())
    assert (snapshot.tasks[0].node, snapshot.tasks[0].signal) == ("n1", None)
    assert "n2: 2 task records speak for tasks of another node" in whats(snapshot)


def test_the_plugins_word_on_a_task_stands_above_the_users(box):
    path = box.run("n1", nodelist="n1")
    base = {"step": "0", "rank": 0, "node": "n1", "realtime_ns": 1, "raw_ns": 1}
    lines(path / "tasks.jsonl", base | {"event": "start"}, base | {"event": "end", "exit_code": None, "signal": 9})
    box.claim(path, {"event": "start", "rank": 0}, {"event": "end", "rank": 0, "exit_code": 0, "signal": None})
    task = spool.read([path], Job()).tasks[0]
    assert (task.claimed, task.exit_code, task.signal) == (False, None, 9)


def test_torn_wrong_and_unknown_content_is_passed_over(box):
    path = box.run("n1", nodelist="n1", gpus="all", job_gpus=[1, "2"], boot_id=7, future={"a": 1})
    box.claim(
        path,
        '{"event": "start", "rank": 0, "st',
        "[1, 2]",
        "\x00\x01",
        "[" * 100_000,
        {"event": "start", "rank": "0"},
        {"event": "start", "rank": -1},
        {"event": "start", "rank": 10**30},
        {"event": "start", "rank": 0, "step": "../../x"},
        {"event": "start", "rank": 0, "realtime_ns": "soon", "pid": [], "gpus": {}, "world": 10**12},
        {"event": "dance", "rank": 0},
        {"event": "end", "rank": 0, "exit_code": "one", "realtime_ns": 10**40},
    )
    lines(path / "clock.jsonl", {"lo_ns": 5, "hi_ns": 1, "realtime_ns": 1}, {"lo_ns": None}, "null")
    lines(path / "kernel.jsonl", {"text": "no time"}, {"realtime_ns": 1, "text": 5})
    lines(path / "gaps.jsonl", {"what": 5}, "x")
    for name in ("nvml.before.json", "nvml.after.json", "epilog.json"):
        (path / name).write_text("[]")
    (path / "user" / "streams" / "0.0.out").write_bytes(b"x" * 10)
    (path / "user" / "streams" / "0.0.out.idx").write_bytes(b"0 1 2\nx y z\n5 1\n3 1 1\ncut 9 2\ntail a b\nend 10 eof")
    snapshot = spool.read([path], Job())
    assert [(task.rank, task.start, task.exit_code) for task in snapshot.tasks] == [(0, None, None)]
    assert snapshot.nodes[0].job_gpus == ("2",)
    assert snapshot.clock == ()
    assert len(snapshot.kernel) == 1
    assert [item[0] for item in snapshot.streams[0].load().index] == [0, 5]
    assert "are not JSON" in whats(snapshot)


def test_a_run_directory_with_nothing_in_it_is_a_node_with_gaps(box):
    path = box.root / "c1" / "n1" / "7.0.1000"
    path.mkdir(parents=True)
    snapshot = spool.read([path], Job(job_id="7", nodes=("n1",)))
    assert snapshot.nodes[0].name == "n1"
    assert "did not finish" in whats(snapshot)


def test_the_directory_of_a_node_names_it_whatever_it_says_itself(box):
    path = box.run("n1", node="n2")
    snapshot = spool.read([path], Job(nodes=("n1", "n2")))
    assert snapshot.nodes[0].name == "n1"
    assert "n1: the run directory says that it is of node n2" in whats(snapshot)


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_files_of_strangers_and_files_with_two_names_are_refused(box, tmp_path):
    path = box.run("n1", nodelist="n1", uid=4242)
    place = path / "user" / "streams"
    secret = tmp_path / "secret"
    secret.write_bytes(b"root:secret\n")
    os.link(secret, place / "0.0.out")
    (place / "0.1.out").symlink_to(secret)
    os.mkfifo(place / "0.2.out")
    (place / "0.3.out").write_bytes(b"a stranger's\n")
    os.chown(place / "0.3.out", 777, 777)
    (place / "0.4.out").write_bytes(b"own\n")
    os.chown(place / "0.4.out", 4242, 4242)
    snapshot = spool.read([path], Job())
    assert {source.info.name: source.load().data for source in snapshot.streams} == {"n1/0.4.out": b"own\n"}
    assert len([gap for gap in snapshot.gaps if "was not read" in gap.what]) == 4
    loaded = load([path])
    kept = {}
    for source in loaded.streams:
        try:
            kept[source.info.name] = source.load().data
        except InputError:
            continue
    assert kept == {"n1/0.4.out": b"own\n"}


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root to give files away")
def test_a_kernel_log_that_the_jobs_user_owns_is_no_evidence(box):
    path = two_nodes(box)[0]
    meta = json.loads((path / "meta.json").read_text())
    (path / "meta.json").write_text(json.dumps(meta | {"uid": 4242}))
    os.chown(path / "kernel.jsonl", 4242, 4242)
    assert [record.evidence for record in spool.read([path], Job()).kernel] == [False, False]


def test_a_whole_spool_or_an_archive_of_it_is_read_like_its_runs(box, tmp_path):
    two_nodes(box)
    box.run("n1", restart=0, opened=500)
    with tarfile.open(tmp_path / "s.tar.gz", "w:gz") as tar:
        tar.add(box.root, "spool")
    for source in (box.root, tmp_path / "s.tar.gz"):
        snapshot = load([source])
        assert [node.name for node in snapshot.nodes] == ["n1", "n2"]
        assert len(snapshot.streams) == 2
        assert b"".join(s.load().data for s in snapshot.streams) == b"hello\nworld\n" * 2
        assert "1 earlier runs of this job were not read" in whats(snapshot)


def test_several_jobs_need_a_choice(box):
    box.run("n1", job=7)
    box.run("n1", job=8)
    with pytest.raises(InputError, match="several jobs"):
        load([box.root])
    assert load([box.root], "8").job.job_id == "8"
    with pytest.raises(InputError, match="no run of job 9"):
        load([box.root], "9")


def test_logs_beside_a_run_are_read_too(box):
    box.run("n1", nodelist="n1")
    (box.root / "slurm.txt").write_text("JobId=7\nJobState=FAILED\n")
    snapshot = load([box.root])
    assert snapshot.job.state == "FAILED"
    assert [source.info.kind for source in snapshot.streams] == [StreamKind.SLURM]


def test_a_long_stream_is_put_together_from_its_head_and_tails(tmp_path):
    sink = Sink(str(tmp_path / "s"), 400)
    whole = b"".join(b"%06d\n" % number for number in range(200))
    for at in range(0, len(whole), 70):
        sink.write(whole[at : at + 70], stamp())
    sink.close()
    blobs = tree.walk(tmp_path).blobs
    data = streams.assemble(blobs["s"], blobs["s.idx"], {0: blobs["s.tail0"], 1: blobs["s.tail1"]})
    assert len(data.pieces) == 2
    for (at, offset), end in zip(data.pieces, [data.pieces[1][0], len(data.data)], strict=True):
        assert data.data[at:end] == whole[offset : offset + end - at]
    assert data.data.endswith(whole[-100:])
    assert streams.end(blobs["s.idx"]) == streams.End(True, len(whole))


def test_cuts_inside_a_stream_keep_their_offsets(tmp_path):
    (tmp_path / "s").write_bytes(b"aaaabbbb")
    (tmp_path / "s.idx").write_bytes(b"0 1 1\ncut 4 100\n100 2 2\nend 104 eof\n")
    blobs = tree.walk(tmp_path).blobs
    data = streams.assemble(blobs["s"], blobs["s.idx"], {})
    assert data.pieces == ((0, 0), (4, 100))


def test_a_run_belongs_to_a_job_by_the_corrected_time_of_its_opening():
    fast, good, later = RunId(7, 0, 1045), RunId(7, 0, 1001), RunId(7, 1, 5000)
    assert runs.choose([runs.Opened(fast, (-45.1, -44.9))], 1000, 1010)[0] == fast
    assert runs.choose([runs.Opened(fast)], 1000, 1010)[0] is None
    assert runs.choose([runs.Opened(good), runs.Opened(later)], 1000, 1100) == (good, "")
    assert runs.choose([runs.Opened(good), runs.Opened(later)], 4990, None) == (later, "")
    assert runs.choose([runs.Opened(RunId(7, 0, 950))], 1000, 1100)[0] is not None
    assert runs.choose([runs.Opened(RunId(7, 0, 930))], 1000, 1100)[0] is None


def test_a_run_that_an_epilog_opened_belongs_to_the_job_that_ended_just_before():
    late = RunId(7, 0, 1130)
    assert runs.choose([runs.Opened(late, by_prolog=False)], 1000, 1100)[0] == late
    assert runs.choose([runs.Opened(late)], 1000, 1100)[0] is None


def test_of_two_runs_that_fit_the_nearest_is_taken_and_that_is_a_gap(box):
    near = box.run("n1", opened=1001)
    box.run("n1", opened=1050)
    box.run("n2", opened=1500)
    lines(near / "clock.jsonl", {"when": "prolog", "lo_ns": -NS, "hi_ns": NS})
    found, gaps = runs.find(box.root, "c1", 7, 1000, 1100)
    assert found == [near]
    assert [(gap.where, gap.what.split(";")[0]) for gap in gaps] == [
        ("n1", "2 run directories fit the job's time"),
        ("n2", "the node has run directories of this job number, but none was opened in the job's time"),
    ]


def test_a_spool_that_is_not_there_is_a_gap(tmp_path):
    found, gaps = runs.find(tmp_path / "none", "c1", 7, 0, None)
    assert (found, len(gaps)) == ([], 1)
