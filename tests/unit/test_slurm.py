"""What Slurm's commands print is understood, on releases with accounting and without, whatever jobs are called."""

import json
from pathlib import Path

import pytest

from denpex import slurm
from denpex.errors import SlurmError
from denpex.model import Job

BIN = str(Path(__file__).parents[1] / "fakebin")

# Rows as 22.05.8 gave them on the lab cluster.
REQUEUED = [
    {"JobIDRaw": "7", "State": "REQUEUED", "ExitCode": "4:0", "DerivedExitCode": "0:0", "Submit": "1796127650",
     "Start": "1796127650", "End": "1796127664", "NodeList": "n1", "UID": "1001", "User": "alice", "NNodes": "1",
     "JobName": "we|ird name", "TimelimitRaw": "60"},
    {"JobIDRaw": "7.batch", "State": "FAILED", "ExitCode": "4:0", "Start": "1796127650", "End": "1796127657",
     "NodeList": "n1", "NTasks": "1", "JobName": "batch", "NNodes": "1"},
    {"JobIDRaw": "7", "State": "FAILED", "ExitCode": "4:0", "DerivedExitCode": "0:0", "Submit": "1796127664",
     "Start": "1796127790", "End": "1796127796", "NodeList": "n1", "UID": "1001", "User": "alice", "NNodes": "1",
     "JobName": "we|ird name", "TimelimitRaw": "60"},
    {"JobIDRaw": "7.batch", "State": "FAILED", "ExitCode": "4:0", "Start": "1796127790", "End": "1796127796",
     "NodeList": "n1", "NTasks": "1", "JobName": "batch", "NNodes": "1"},
]  # fmt: skip


@pytest.fixture
def fake(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM", str(tmp_path))

    def rows(*found):
        (tmp_path / "sacct.json").write_text(json.dumps(found))
        return tmp_path

    return rows


def ask(job_id, start=None, **options):
    return slurm.job(job_id, start, slurm_bin=BIN, **options)


def test_a_requeued_job_has_two_runs_told_apart_by_their_start_each_with_its_own_steps(fake):
    fake(*REQUEUED)
    first, second = ask("7", 1796127650), ask("7", 1796127790)
    assert (first.state, first.restart, first.steps[0].end) == ("REQUEUED", None, 1796127657)
    assert (second.state, second.restart, second.steps[0].end) == ("FAILED", 1, 1796127796)
    assert len(first.steps) == len(second.steps) == 1
    assert ask("7").start == 1796127790
    assert ask("7", 5) is None
    assert ask("7", at=1796127700).start == 1796127650


def test_a_name_with_separators_and_line_breaks_cannot_pretend_to_be_another_row(fake):
    forged = "x\n999|999|c|CANCELLED by 0|9:9|\n7.5"
    fake({**REQUEUED[0], "JobName": forged, "WorkDir": "/home/|a"}, REQUEUED[1])
    job = ask("7")
    assert (job.name, job.work_dir, job.state) == (forged, "/home/|a", "REQUEUED")
    assert [step.id for step in job.steps] == ["batch"]
    assert ask("999") is None


def test_an_array_task_and_a_het_component_are_known_by_their_raw_number(fake):
    fake(
        {"JobIDRaw": "8", "JobID": "6_1", "State": "FAILED", "Start": "5", "End": "7", "NodeList": "n1"},
        {"JobIDRaw": "8.batch", "JobID": "6_1.batch", "State": "FAILED"},
        {"JobIDRaw": "6", "JobID": "6_2", "State": "FAILED", "Start": "5", "End": "7", "NodeList": "n1"},
        {"JobIDRaw": "10", "JobID": "9+1", "State": "FAILED", "Start": "5", "End": "7", "NodeList": "n4"},
    )
    task, other, component = ask("8"), ask("6"), ask("10")
    assert (task.array_job, task.array_task, len(task.steps)) == ("6", "1", 1)
    assert (other.array_job, other.array_task) == ("6", "2")
    assert (component.het_job, component.het_offset) == ("9", "1")


def test_who_cancelled_is_read_and_what_never_started_is_known_by_its_end(fake):
    fake({"JobIDRaw": "11", "State": "CANCELLED by 1001", "Start": "None", "End": "1796127664",
          "NodeList": "None assigned", "UID": "1001"})  # fmt: skip
    job = ask("11", 1796127664)
    assert (job.state, job.cancelled_by, job.nodes, job.start) == ("CANCELLED", 1001, (), 1796127664)
    assert slurm.never_started(job)
    assert slurm.is_over(job)


def test_a_run_that_accounting_still_takes_for_running_is_not_over(fake):
    fake({**REQUEUED[0], "State": "RUNNING", "End": "Unknown"})
    assert not slurm.is_over(ask("7"))


LINE = (
    "JobId=13 ArrayJobId=12 ArrayTaskId=4 JobName={name} UserId=alice(1001) GroupId=alice(1001) MCS_label=N/A "
    "Account=research QOS=normal JobState=FAILED Reason=NonZeroExitCode Restarts=0 ExitCode=3:0 TimeLimit=1-01:00:00 "
    "SubmitTime=1796127651 StartTime=1796127652 EndTime=1796127653 Partition=main NodeList=n[3-4] BatchHost=n3 "
    "Command=(null) WorkDir={dir} Power= "
)


def test_without_accounting_the_controller_is_asked(fake):
    place = fake()
    (place / "sacct.fails").write_text("Slurm accounting storage is disabled")
    (place / "scontrol.txt").write_text(LINE.format(name="train", dir="/home/alice") + "\n")
    job = ask("13", 1796127652)
    assert (job.state, job.exit, job.nodes, job.uid) == ("FAILED", "3:0", ("n3", "n4"), 1001)
    assert (job.array_job, job.array_task, job.time_limit_s, job.restart) == ("12", "4", 90000, 0)


def test_a_key_that_a_name_repeats_is_not_believed():
    job = slurm.job_of_line(LINE.format(name="x JobState=COMPLETED UserId=root(0)", dir="/a NodeList=n9"))
    assert (job.state, job.user, job.nodes, job.exit) == ("", "", (), "3:0")


def test_where_nobody_answers_the_error_says_what_failed(fake):
    place = fake()
    (place / "sacct.fails").write_text("sacct: error: Problem talking to the database: Connection refused")
    with pytest.raises(SlurmError, match=r"`sacct` failed .*Connection refused"):
        ask("13")
    with pytest.raises(SlurmError, match="slurm_bin"):
        slurm.job("13", slurm_bin="/nonexistent")


def test_a_command_that_hangs_is_given_up(fake):
    (fake() / "sacct.hangs").touch()
    with pytest.raises(SlurmError, match=r"did not answer within 0\.5 s"):
        ask("13", timeout=0.5)


def test_the_last_day_holds_what_ended_and_leaves_out_what_runs_or_was_resized(fake):
    running = {**REQUEUED[0], "JobIDRaw": "20", "State": "RUNNING", "End": "Unknown"}
    resized = {**REQUEUED[0], "JobIDRaw": "21", "State": "RESIZING"}
    old = {**REQUEUED[0], "JobIDRaw": "22", "End": "1796000000"}
    place = fake(*REQUEUED, running, resized, old)
    found = slurm.ended_since(1796100000, now=1796186400, slurm_bin=BIN)
    assert [(job.job_id, job.start, job.steps) for job in found] == [("7", 1796127650, ()), ("7", 1796127790, ())]
    assert "-a -X -S now-86460seconds" in (place / "calls").read_text()


def test_without_accounting_the_last_day_is_what_the_controller_remembers(fake):
    place = fake()
    (place / "sacct.fails").write_text("Slurm accounting storage is disabled")
    (place / "squeue.txt").write_text(
        "11|11|N/A|CANCELLED|1796127651|1796127664|1796127664|1001|\n"
        "8|6|1|FAILED|1796127650|1796127650|1796127652|1001|n1\n"
        "30|30|N/A|RUNNING|1796127650|1796127650|1796130000|1001|n1\n"
    )
    found = slurm.ended_since(1796100000, now=1796186400, slurm_bin=BIN)
    assert [(job.job_id, job.array_task, job.start) for job in found] == [
        ("11", None, 1796127664),
        ("8", "1", 1796127650),
    ]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n[01-03,7]", ("n01", "n02", "n03", "n7")),
        ("a[1-2]-b[3-4],c", ("a1-b3", "a1-b4", "a2-b3", "a2-b4", "c")),
        ("None assigned", ()),
        ("(null)", ()),
        ("", ()),
    ],
)
def test_node_lists_are_expanded_without_asking_slurm(text, names):
    assert slurm.nodes_of(text) == names


def test_an_unchanged_default_job_never_started_only_when_it_is_over():
    assert not slurm.never_started(Job(state="PENDING"))
