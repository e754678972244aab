"""A completion record becomes a run, whichever hook left it; what makes no sense is refused, never guessed at."""

import os

import pytest

from denpex import queuefile
from denpex.errors import SpoolError
from denpex.model import Job

# As jobcomp/script of 22.05.8 set it for `srun` in a batch job on the lab cluster.
JOBCOMP = {
    "DENPEX_HOOK": "jobcomp", "JOBID": "13", "EXITCODE": "0:0", "DERIVED_EC": "1:0", "ARRAYJOBID": "0",
    "ARRAYTASKID": "4294967294", "UID": "1001", "START": "1796127652", "END": "1796127653", "SUBMIT": "1796127651",
    "CLUSTER": "lab", "NODES": "n[3-4]", "ACCOUNT": "research", "JOBNAME": "wrap", "JOBSTATE": "COMPLETED",
    "PARTITION": "main", "QOS": "normal", "WORK_DIR": "/home/alice", "USERNAME": "alice", "LIMIT": "01:00:00",
}  # fmt: skip

# As prolog_epilog(5) has it for EpilogSlurmctld; no state, and no start before 23.02.
EPILOGCTLD = {
    "DENPEX_HOOK": "epilogctld", "SLURM_JOB_ID": "13", "SLURM_CLUSTER_NAME": "lab", "SLURM_JOB_UID": "1001",
    "SLURM_JOB_NODELIST": "n[3-4]", "SLURM_JOB_EXIT_CODE2": "1:0", "SLURM_JOB_DERIVED_EC": "256",
    "SLURM_JOB_NAME": "wrap", "SLURM_JOB_USER": "alice",
}  # fmt: skip


@pytest.fixture
def said(tmp_path):
    def read(base, **changes):
        path = tmp_path / "13.1.job"
        path.write_bytes(b"".join(f"{k}={v}\0".encode() for k, v in {**base, **changes}.items()))
        return queuefile.read(path)

    return read


def test_jobcomps_names_are_read(said):
    job = said(JOBCOMP).job
    assert (job.job_id, job.cluster, job.state, job.exit, job.derived) == ("13", "lab", "COMPLETED", "0:0", "1:0")
    assert (job.start, job.end, job.submit, job.nodes) == (1796127652, 1796127653, 1796127651, ("n3", "n4"))
    assert (job.uid, job.user, job.time_limit_s) == (1001, "alice", 3600)


def test_no_array_is_no_array_and_a_task_is_its_number(said):
    job = said(JOBCOMP).job
    assert (job.array_job, job.array_task, job.het_job) == (None, None, None)
    job = said(JOBCOMP, JOBID="8", ARRAYJOBID="6", ARRAYTASKID="0").job
    assert (job.job_id, job.array_job, job.array_task) == ("8", "6", "0")
    job = said(JOBCOMP, JOBID="6", ARRAYJOBID="6", JOBSTATE="CANCELLED", NODES="").job
    assert (job.array_job, job.array_task) == ("6", None)


def test_a_het_component_has_its_leader_and_offset_under_either_name(said):
    assert said(JOBCOMP, HETJOBID="9", HETJOBOFFSET="1").job.het_offset == "1"
    assert said(JOBCOMP, PACKJOBID="9", PACKJOBOFFSET="0").job.het_job == "9"


def test_a_run_that_went_back_to_the_queue_is_called_requeued(said):
    assert said(JOBCOMP, JOBSTATE="PENDING").job.state == "REQUEUED"


def test_a_resized_job_goes_on(said):
    assert said(JOBCOMP, JOBSTATE="RESIZING").goes_on
    assert not said(JOBCOMP).goes_on


@pytest.mark.parametrize("start", ["0", "1796200000", "1796127653"])
def test_what_was_cancelled_before_it_started_is_known_by_its_end(said, start):
    job = said(JOBCOMP, JOBSTATE="CANCELLED", NODES="", START=start).job
    assert (job.start, job.end, job.nodes) == (1796127653, 1796127653, ())


def test_epilogctlds_names_are_read_and_leave_the_run_open(said):
    job = said(EPILOGCTLD).job
    assert (job.job_id, job.start, job.state, job.exit, job.derived) == ("13", None, "", "1:0", "1:0")
    assert job.nodes == ("n3", "n4")


@pytest.mark.parametrize(
    "changes",
    [
        {"DENPEX_HOOK": ""},
        {"JOBID": "../../etc/passwd"},
        {"JOBID": "0"},
        {"JOBSTATE": "GARBAGE"},
        {"START": "x", "END": "y"},
        {"START": "1796127660"},
    ],
)
def test_a_record_that_makes_no_sense_is_refused_with_a_sentence(said, changes):
    with pytest.raises(SpoolError, match=r"13\.1\.job"):
        said(JOBCOMP, **changes)


def test_nothing_but_a_regular_file_of_bounded_size_is_read(tmp_path):
    os.mkfifo(tmp_path / "1.job")
    (tmp_path / "2.job").symlink_to("/etc/passwd")
    (tmp_path / "3.job").write_bytes(b"A" * (5 << 20))
    for name in ("1.job", "2.job", "3.job"):
        with pytest.raises(SpoolError):
            queuefile.read(tmp_path / name)


def test_hostile_values_stay_values(said):
    name = "x\nJOBSTATE=COMPLETED\x1b[2J\udcff"
    job = said(JOBCOMP, JOBNAME=name.encode("utf-8", "replace").decode(), JOBSTATE="FAILED").job
    assert job.state == "FAILED"
    assert job.name.startswith("x\nJOBSTATE")


def test_what_the_sweep_writes_reads_back_as_the_same_run(tmp_path):
    job = Job(job_id="8", cluster="lab", array_job="6", array_task="1", het_job=None, name="a b", user="alice",
              uid=1001, state="FAILED", exit="1:0", derived="2:0", submit=1.0, start=1796127652.0, end=1796127653.0,
              nodes=("n01", "n02"), work_dir="/home/alice")  # fmt: skip
    path = queuefile.enqueue(tmp_path, job)
    assert list(queuefile.waiting(tmp_path)) == [path]
    assert queuefile.read(path).job == job


def test_the_jobs_end_is_believed_and_accounting_adds_the_rest():
    said = Job(job_id="7", state="FAILED", exit="4:0", start=1.0)
    known = Job(job_id="7", state="REQUEUED", exit="0:0", start=1.0, cancelled_by=0, account="a")
    joined = queuefile.completed(said, known)
    assert (joined.state, joined.exit, joined.cancelled_by, joined.account) == ("FAILED", "4:0", 0, "a")
    assert queuefile.completed(Job(state="REQUEUED"), Job(state="PREEMPTED")).state == "PREEMPTED"
    assert queuefile.completed(said, None) == said
