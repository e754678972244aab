"""The completion hooks leave exactly what slurmctld said, at once, and never fail."""

import os
import statistics
import subprocess
import time

import pytest

from denpex import queuefile
from tests.unit.hooksite import HOOKS, site

JOB = {
    "JOBID": "77", "UID": "1001", "GID": "1001", "START": "1796129000", "END": "1796129010", "SUBMIT": "1796128000",
    "NODES": "n[1-2]", "JOBSTATE": "FAILED", "EXITCODE": "1:0", "DERIVED_EC": "0:0", "CLUSTER": "lab",
    "USERNAME": "eve",
       "ARRAYJOBID": "0", "ARRAYTASKID": "4294967294", "BATCH": "yes", "PATH": "/usr/bin:/bin", "LIMIT": "UNLIMITED",
}  # fmt: skip


@pytest.fixture
def node():
    with site() as made:
        yield made


def enqueue(node, hook="jobcomp", **values):
    environ = {"DENPEX_ETC": str(node.etc), **values}
    done = subprocess.run(
        [HOOKS / f"{hook}.sh"], env=environ, cwd="/tmp", stdin=subprocess.DEVNULL, capture_output=True, timeout=20,
        check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_file_is_the_hooks_environment_and_says_which_hook_it_was(node):
    hostile = "a=b\nc'\"$(id)`id`\udcff"
    enqueue(node, **JOB, JOBNAME=hostile, WORK_DIR="/home/a b")
    (path,) = node.queue.iterdir()
    assert path.name.startswith("77.")
    assert path.suffix == ".job"
    assert path.stat().st_mode & 0o777 == 0o640
    first, *items = path.read_bytes().rstrip(b"\0").split(b"\0")
    assert first == b"DENPEX_HOOK=jobcomp"
    said = dict(item.split(b"=", 1) for item in items)
    assert said[b"JOBNAME"] == os.fsencode(hostile)
    assert said[b"NODES"] == b"n[1-2]"


def test_the_worker_understands_both(node):
    enqueue(node, **JOB)
    enqueue(node, "epilogctld", SLURM_JOB_ID="78", SLURM_CLUSTER_NAME="lab", SLURM_JOB_EXIT_CODE2="9:0")
    first, second = (queuefile.read(path) for path in queuefile.waiting(node.queue))
    assert (first.hook, first.job.job_id, first.job.state, first.job.nodes) == ("jobcomp", "77", "FAILED", ("n1", "n2"))
    assert (second.hook, second.job.job_id, second.job.exit) == ("epilogctld", "78", "9:0")


def test_every_event_has_a_file_of_its_own(node):
    for _ in range(20):
        enqueue(node, **JOB)
    assert len(list(node.queue.iterdir())) == 20


FAULTS = {
    "no queue": lambda node: node.queue.rmdir(),
    "a queue that is a file": lambda node: (node.queue.rmdir(), node.queue.write_text("")),
    "a broken node.sh": lambda node: (node.etc / "node.sh").write_text("if then (((\n\0\xff'"),
    "a node.sh that is a pipe": lambda node: ((node.etc / "node.sh").unlink(), os.mkfifo(node.etc / "node.sh")),
    "a queue that cannot be written": lambda node: node.configure(state_dir="/proc/denpex"),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("hook", ["jobcomp", "epilogctld"])
def test_no_fault_fails_a_completion_hook(node, fault, hook):
    FAULTS[fault](node)
    began = time.monotonic()
    enqueue(node, hook, **JOB)
    assert time.monotonic() - began < 2
    if node.queue.is_dir():
        assert not [path for path in node.queue.iterdir() if path.name.startswith(".")]


def test_an_environment_without_a_job_is_left_for_the_worker_to_judge(node):
    enqueue(node)
    (path,) = node.queue.iterdir()
    assert path.name.startswith("0.")


def test_it_starts_no_interpreter_and_is_quick(node):
    took = []
    for _ in range(15):
        began = time.perf_counter()
        enqueue(node, **JOB)
        took.append(time.perf_counter() - began)
    # The bound is 10 ms (scripts/bench/hooks measures it); a busy machine may take some times that.
    assert statistics.median(took) < 0.05
