"""Every ended run gets exactly one verdict, whatever is lost, late, broken or killed on the way."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from denpex import queuefile
from denpex.config import Config, WorkerConfig
from denpex.errors import InputError, StoreError
from denpex.model import Category, Scope, Verdict
from denpex.store import Reader, Store
from denpex.worker import Worker
from denpex.worker_nodes import collector
from denpex.worker_sweep import prune

FAKEBIN = Path(__file__).parents[1] / "fakebin"
T = 1_796_127_650.0

FAILED = {
    "DENPEX_HOOK": "jobcomp", "JOBID": "7", "EXITCODE": "1:0", "DERIVED_EC": "1:0", "ARRAYJOBID": "0",
    "ARRAYTASKID": "4294967294", "UID": "1001", "START": "1796127600", "END": "1796127650", "SUBMIT": "1796127599",
    "CLUSTER": "c", "NODES": "n[1-2]", "JOBNAME": "train", "JOBSTATE": "FAILED", "USERNAME": "alice",
}  # fmt: skip
ROW = {
    "JobIDRaw": "7", "State": "FAILED", "ExitCode": "1:0", "DerivedExitCode": "1:0", "Submit": "1796127599",
    "Start": "1796127600", "End": "1796127650", "NodeList": "n[1-2]", "UID": "1001", "User": "alice", "NNodes": "2",
    "JobName": "train",
}  # fmt: skip
EPILOGCTLD = {
    "DENPEX_HOOK": "epilogctld", "SLURM_JOB_ID": "7", "SLURM_CLUSTER_NAME": "c", "SLURM_JOB_EXIT_CODE2": "1:0",
    "SLURM_JOB_NODELIST": "n[1-2]",
}  # fmt: skip


class Site:
    """A cluster of two nodes with a shared spool, its accounting a file, and a worker whose clock the test moves."""

    def __init__(self, base: Path) -> None:
        self.base, self.now, self.answers = base, T, 0
        self.config = Config(
            spool_dir=str(base / "spool"),
            state_dir=str(base / "state"),
            run_dir=str(base / "run"),
            slurm_bin=str(FAKEBIN),
            worker=WorkerConfig(deadline=20),
        )
        self.config.queue_dir.mkdir(parents=True)
        self.wrong = ""
        self.store = Store(self.config.database)
        self.begin()

    def begin(self) -> None:
        """Start a worker, as after a kill."""
        self.worker = Worker(self.config, self.store, collector(self.config), self.diagnose)

    def diagnose(self, job, bundles, gaps) -> Verdict:
        """Stand in for the pipeline: what it was given is what it says."""
        self.answers += 1
        if self.wrong:
            raise InputError(self.wrong)
        seen = " ".join(sorted(f"{p.parent.name}{'' if (p / 'DONE').exists() else '-unfinished'}" for p in bundles))
        return Verdict("process-killed", Category.UNKNOWN, "", f"saw {seen}", Scope.JOB, 0.5, job=job, gaps=gaps)

    def sacct(self, *rows) -> None:
        (self.base / "sacct.json").write_text(json.dumps(rows))

    def hook(self, name="7.100.1796127600", base=FAILED, **changes) -> Path:
        path = self.config.queue_dir / f"{name}.job"
        path.write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in {**base, **changes}.items()))
        os.utime(path, (self.now, self.now))
        return path

    def node(self, name, run="7.0.1796127600", done=True) -> None:
        place = self.base / "spool" / "c" / name / run
        place.mkdir(parents=True, exist_ok=True)
        (place / "meta.json").write_text("{}")
        if done:
            (place / "DONE").touch()

    def is_busy(self) -> bool:
        """Tell whether a thread of the worker has something to say that the next step will take."""
        open_ = [run.diagnosing or run.accounting.future for run in self.worker._runs]
        nodes = [n.future for run in self.worker._runs if run.gathering for n in run.gathering._nodes]
        return any(open_) or any(nodes) or self.worker._sweep.is_open

    def steps(self, seconds=0.0) -> None:
        """Let the worker work while its clock goes on by ``seconds``; no thread is left behind by the clock."""
        end = self.now + seconds
        stride = max(0.5, seconds / 100)
        while True:
            until = time.monotonic() + 10
            self.worker.step(self.now)
            while self.is_busy():
                assert time.monotonic() < until, "the worker's threads do not come to rest"
                time.sleep(0.002)
                self.worker.step(self.now)
            self.worker.step(self.now)
            if self.now >= end:
                return
            self.now = min(end, self.now + stride)

    def rows(self) -> list:
        return Reader(self.config.database).find("1", [], documents=True)

    def verdicts(self) -> list[tuple]:
        return [(r["job_id"], r["start"], r["failure_class"], r["revision"]) for r in self.rows() if r["revision"]]

    def queue(self) -> list[str]:
        return [path.name for path in queuefile.waiting(self.config.queue_dir)]


@pytest.fixture
def site(tmp_path, monkeypatch):
    monkeypatch.setattr("denpex.worker.STEPS_S", 0.05)
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    made = Site(tmp_path)
    yield made
    made.worker.close()
    made.store.close()


def test_a_failed_run_is_diagnosed_from_its_nodes_and_then_its_queue_file_is_gone(site):
    site.sacct(ROW, {"JobIDRaw": "7.0", "State": "FAILED", "ExitCode": "1:0"})
    site.node("n1")
    site.node("n2")
    site.hook()
    site.steps(1)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    document = site.rows()[0]["document"]
    assert document["summary"] == "saw n1 n2"
    assert document["steps"][0]["id"] == "0"
    assert document["gaps"] == []
    assert site.queue() == []


CLEAN = {"EXITCODE": "0:0", "DERIVED_EC": "0:0", "JOBSTATE": "COMPLETED"}
CLEAN_ROW = {**ROW, "State": "COMPLETED", "ExitCode": "0:0", "DerivedExitCode": "0:0"}


def test_a_clean_run_gets_its_line_without_asking_nodes(site):
    site.sacct(CLEAN_ROW, {"JobIDRaw": "7.0", "State": "COMPLETED", "ExitCode": "0:0"})
    site.hook(**CLEAN)
    site.steps(1)
    assert site.verdicts() == [("7", 1796127600, "no-failure", 1)]
    assert site.rows()[0]["document"]["gaps"] == []
    assert site.answers == 0


def test_a_clean_run_whose_step_failed_by_accounting_is_diagnosed_in_full(site):
    site.sacct(CLEAN_ROW, {"JobIDRaw": "7.0", "State": "FAILED", "ExitCode": "1:0"})
    site.node("n1")
    site.node("n2")
    site.hook(**CLEAN)
    site.steps(1)
    assert site.answers == 1


def test_a_clean_run_that_accounting_says_nothing_of_has_its_line_with_a_gap(site):
    site.hook(**CLEAN)
    site.steps(5)
    assert site.verdicts() == [("7", 1796127600, "no-failure", 1)]
    assert site.rows()[0]["document"]["gaps"][0]["where"] == "slurmdbd"


def test_a_completed_run_whose_step_failed_is_diagnosed_in_full(site):
    site.sacct({**ROW, "State": "COMPLETED", "ExitCode": "0:0"})
    site.node("n1")
    site.node("n2")
    site.hook(EXITCODE="0:0", JOBSTATE="COMPLETED")
    site.steps(1)
    assert site.answers == 1


def test_while_nodes_are_missing_the_store_says_which_and_after_the_deadline_the_verdict_says_so(site):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2", done=False)
    site.hook()
    site.steps(5)
    assert site.rows()[0]["awaited"] == ["n2"]
    assert site.verdicts() == []
    assert site.queue() == ["7.100.1796127600.job"]
    site.steps(20)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.rows()[0]["document"]["summary"] == "saw n1 n2-unfinished"


def test_a_node_that_left_nothing_is_a_gap_and_a_late_one_revises_the_verdict(site):
    site.sacct(ROW)
    site.node("n1")
    site.hook()
    site.steps(25)
    document = site.rows()[0]["document"]
    assert document["summary"] == "saw n1"
    assert [gap["where"] for gap in document["gaps"]] == ["n2"]
    site.worker.close()
    site.begin()
    site.steps(60)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    site.node("n2")
    site.steps(120)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 2)]
    assert site.rows()[0]["document"]["summary"] == "saw n1 n2"
    answers = site.answers
    site.steps(200)
    assert site.answers == answers
    assert not list((site.base / "state" / "late").glob("*.json"))


def test_a_node_that_never_comes_is_given_up_after_a_day(site):
    site.sacct(ROW)
    site.hook()
    site.steps(25)
    assert list((site.base / "state" / "late").glob("*.json"))
    site.now += 2 * 86400
    site.steps(3)
    assert not list((site.base / "state" / "late").glob("*.json"))
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]


def test_one_jobs_missing_node_does_not_delay_another_job(site):
    site.sacct(ROW, {**ROW, "JobIDRaw": "8", "NodeList": "n1"})
    site.node("n1", "8.0.1796127600")
    site.hook()
    site.hook("8.101.1796127600", JOBID="8", NODES="n1")
    site.steps(2)
    assert [verdict[0] for verdict in site.verdicts()] == ["8"]


def test_killed_between_storing_and_removing_the_queue_file_it_tells_nothing_twice(site):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2")
    path = site.hook()
    kept = path.read_bytes()
    site.steps(1)
    site.worker.close()
    path.write_bytes(kept)
    site.begin()
    site.steps(1)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.answers == 1
    assert site.queue() == []


def test_killed_while_it_waits_it_goes_on(site):
    site.sacct(ROW)
    site.hook()
    site.steps(2)
    site.worker.close()
    site.begin()
    site.node("n1")
    site.node("n2")
    site.steps(2)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]


def test_a_diagnosis_that_kills_the_worker_each_time_ends_as_unknown(site):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2")
    path = site.hook()
    path.with_name(f".{path.name}.tries").write_text("3")
    site.steps(1)
    assert site.verdicts() == [("7", 1796127600, "unknown", 1)]
    assert "broke off" in site.rows()[0]["document"]["gaps"][0]["what"]
    assert list(site.config.queue_dir.iterdir()) == []


def test_a_diagnosis_that_fails_is_tried_three_times_and_then_said_to_be_unknown(site):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2")
    site.wrong = "no such stream"
    site.hook()
    site.steps(5)
    assert site.answers == 3
    assert site.verdicts() == [("7", 1796127600, "unknown", 1)]
    assert "no such stream" in site.rows()[0]["document"]["gaps"][0]["what"]
    assert site.queue() == []


def test_while_the_database_is_dead_the_run_waits_and_then_gets_its_verdict(site, monkeypatch):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2")

    def dead(*_):
        raise StoreError("the disk is full")

    site.hook()
    with monkeypatch.context() as patch:
        patch.setattr(site.store, "save", dead)
        site.steps(30)
        assert site.queue() == ["7.100.1796127600.job"]
    site.steps(30)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.answers == 1


def test_a_full_disk_delays_the_verdict_and_does_not_change_it(site, monkeypatch):
    site.sacct(ROW)
    site.node("n1")

    def full(*_):
        raise OSError(28, "No space left on device")

    site.hook()
    with monkeypatch.context() as patch:
        patch.setattr(site.worker._late, "put", full)
        site.steps(60)
        assert site.verdicts() == []
    site.steps(30)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]


def test_a_broken_queue_file_is_moved_out_of_the_way_and_blocks_nobody(site, capfd):
    (site.config.queue_dir / "1.junk.job").write_bytes(b"\x00\xff garbage")
    site.sacct(CLEAN_ROW)
    site.hook(**CLEAN)
    site.steps(1)
    assert len(site.verdicts()) == 1
    assert [path.name for path in (site.config.queue_dir / "bad").iterdir()] == ["1.junk.job"]
    assert "1.junk.job" in capfd.readouterr().err


def test_a_lost_completion_record_is_found_by_the_sweep_and_what_runs_is_left_alone(site):
    cancelled = {**ROW, "JobIDRaw": "9", "State": "CANCELLED by 1001", "Start": "None", "NodeList": "None assigned"}
    running = {**ROW, "JobIDRaw": "8", "State": "RUNNING", "End": "Unknown"}
    site.sacct(ROW, running, cancelled)
    site.node("n1")
    site.node("n2")
    site.steps(2)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1), ("9", 1796127650, "cancelled-by-user", 1)]
    site.steps(site.config.worker.sweep + 10)
    assert site.answers == 1
    assert len(site.verdicts()) == 2


def test_each_run_of_a_requeued_job_gets_its_own_verdict(site):
    first = {**ROW, "State": "REQUEUED", "End": "1796127640"}
    second = {**ROW, "Submit": "1796127640", "Start": "1796127645"}
    site.sacct(first, second)
    for name in ("n1", "n2"):
        site.node(name)
        site.node(name, "7.1.1796127645")
    site.hook("7.1", JOBSTATE="PENDING", END="1796127640")
    site.hook("7.2", START="1796127645")
    site.steps(2)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1), ("7", 1796127645, "process-killed", 1)]
    assert [row["state"] for row in site.rows()] == ["REQUEUED", "FAILED"]
    assert [row["restart"] for row in site.rows()] == [None, 1]


def test_a_requeue_after_the_end_is_no_second_verdict(site):
    site.sacct({**ROW, "State": "REQUEUED", "End": "1796127657"})
    site.node("n1")
    site.node("n2")
    site.hook("7.1", JOBSTATE="PENDING", END="1796127657")
    site.hook("7.2")
    site.steps(1)
    site.hook("7.3", JOBSTATE="PENDING", END="1796127657")
    site.steps(1)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.rows()[0]["state"] == "FAILED"
    assert site.queue() == []


def test_a_resize_is_no_end(site):
    site.hook(JOBSTATE="RESIZING")
    site.steps()
    assert site.verdicts() == []
    assert site.queue() == []


def test_array_tasks_and_het_components_are_runs_of_their_own(site):
    site.sacct(
        {**ROW, "JobIDRaw": "8", "JobID": "6_1", "NodeList": "n1"},
        {**ROW, "JobIDRaw": "6", "JobID": "6_2", "NodeList": "n1"},
        {**ROW, "JobIDRaw": "10", "JobID": "9+1", "NodeList": "n1"},
    )
    for job in ("8", "6", "10"):
        site.node("n1", f"{job}.0.1796127600")
    site.hook("8.1", JOBID="8", ARRAYJOBID="6", ARRAYTASKID="1", NODES="n1")
    site.hook("6.1", JOBID="6", ARRAYJOBID="6", ARRAYTASKID="2", NODES="n1")
    site.hook("10.1", JOBID="10", HETJOBID="9", HETJOBOFFSET="1", NODES="n1")
    site.steps(1)
    rows = {row["job_id"]: row for row in site.rows()}
    assert {job: (r["array_job"], r["array_task"], r["het_job"], r["het_offset"]) for job, r in rows.items()} == {
        "8": ("6", "1", None, None),
        "6": ("6", "2", None, None),
        "10": (None, None, "9", "1"),
    }
    assert len(site.verdicts()) == 3


@pytest.mark.parametrize(("by", "name"), [("1001", "cancelled-by-user"), ("0", "cancelled-by-administrator")])
def test_what_was_cancelled_before_it_started_is_told_at_once_and_by_whom(site, by, name):
    site.sacct({**ROW, "State": f"CANCELLED by {by}", "Start": "None", "NodeList": "None assigned"})
    site.hook(JOBSTATE="CANCELLED", NODES="", START="0", EXITCODE="0:0", DERIVED_EC="0:0")
    site.steps(1)
    assert site.verdicts() == [("7", 1796127650, name, 1)]
    assert site.answers == 0


def test_who_cancelled_is_corrected_when_accounting_says_so_later(site):
    site.hook(JOBSTATE="CANCELLED", NODES="", START="0", EXITCODE="0:0", DERIVED_EC="0:0")
    site.steps(12)
    assert site.verdicts() == [("7", 1796127650, "cancelled-by-user", 1)]
    assert site.rows()[0]["document"]["gaps"]
    site.sacct({**ROW, "State": "CANCELLED by 0", "Start": "None", "NodeList": "None assigned"})
    site.steps(60)
    assert site.verdicts() == [("7", 1796127650, "cancelled-by-administrator", 2)]


def test_accounting_that_lags_is_waited_for_and_one_that_is_dead_becomes_a_gap(site):
    site.sacct({**ROW, "State": "RUNNING", "End": "Unknown"})
    site.node("n1")
    site.node("n2")
    site.hook()
    site.steps(2)
    assert site.answers == 0
    site.sacct(ROW)
    site.steps(3)
    assert site.rows()[0]["document"]["gaps"] == []
    (site.base / "sacct.fails").write_text("sacct: error: Problem talking to the database: Connection refused")
    for name in ("n1", "n2"):
        site.node(name, "8.0.1796127600")
    site.hook("8.1", JOBID="8")
    site.steps(10)
    assert site.verdicts()[1][0] == "8"
    assert "Connection refused" in site.rows()[1]["document"]["gaps"][0]["what"]


def test_both_hooks_of_one_run_make_one_verdict(site):
    site.sacct(ROW)
    site.node("n1")
    site.node("n2")
    site.hook("7.200.0", EPILOGCTLD)
    site.hook()
    site.steps(2)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.answers == 1
    site.hook("7.300.0", EPILOGCTLD)
    site.steps(2)
    assert site.answers == 1
    assert site.queue() == []


def test_epilogctld_alone_learns_from_accounting_which_run_it_was_and_how_it_ended(site):
    site.sacct({**ROW, "State": "RUNNING", "End": "Unknown"})
    site.node("n1")
    site.node("n2")
    site.hook("7.200.0", EPILOGCTLD)
    site.steps(5)
    assert site.verdicts() == []
    site.sacct(ROW)
    site.steps(12)
    assert site.verdicts() == [("7", 1796127600, "process-killed", 1)]
    assert site.rows()[0]["state"] == "FAILED"


def test_an_earlier_run_is_not_taken_for_the_one_that_epilogctld_means(site):
    site.sacct({**ROW, "Start": "1796120000", "End": "1796120100"})
    site.hook("7.200.0", EPILOGCTLD)
    site.steps(10)
    assert site.queue() == ["7.200.0.job"]


def test_prune_removes_old_bundles_and_the_oldest_above_the_bound(tmp_path):
    for number, age in ((1, 900), (2, 50), (3, 10)):
        run = tmp_path / "c" / "n1" / f"{number}.0.5"
        run.mkdir(parents=True)
        (run / "meta.json").write_bytes(b"x" * 100)
        os.utime(run, (T - age, T - age))
    prune(tmp_path, T, 500, 10**6)
    assert sorted(p.name for p in tmp_path.glob("*/*/*")) == ["2.0.5", "3.0.5"]
    prune(tmp_path, T, 500, 150)
    assert [p.name for p in tmp_path.glob("*/*/*")] == ["3.0.5"]


@pytest.fixture
def etc(tmp_path, monkeypatch):
    (tmp_path / "denpex.yaml").write_text(
        f"state_dir: {tmp_path}/state\nrun_dir: {tmp_path}/run\nspool_dir: {tmp_path}/spool\nslurm_bin: {FAKEBIN}\n"
        "clock:\n  serve: 127.0.0.1:0\n"
    )
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))
    return tmp_path


def start():
    command = [sys.executable, "-m", "denpex", "worker"]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=Path(__file__).parents[2])


def test_the_service_takes_a_file_ends_soon_on_sigterm_and_is_alone(etc):
    worker = start()
    try:
        assert "takes completion records" in worker.stderr.readline()
        second = start()
        _, said = second.communicate(timeout=20)
        assert second.returncode == 1
        assert "another worker" in said
        record = {**FAILED, "EXITCODE": "0:0", "DERIVED_EC": "0:0", "JOBSTATE": "COMPLETED"}
        aside = etc / "aside"
        aside.write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in record.items()))
        aside.rename(etc / "state" / "queue" / "7.1.job")
        assert "job 7 (start 1796127600): none/no-failure" in worker.stderr.readline()
        began = time.monotonic()
        worker.send_signal(signal.SIGTERM)
        assert worker.wait(timeout=10) == 0
        assert time.monotonic() - began < 2
    finally:
        worker.kill()
        worker.communicate()


def test_a_configured_cluster_name_is_the_runs(site):
    site.worker.close()
    site.config = replace(site.config, cluster="mine")
    site.begin()
    site.sacct(CLEAN_ROW)
    site.hook(**CLEAN)
    site.steps(1)
    assert [row["cluster"] for row in site.rows()] == ["mine"]
