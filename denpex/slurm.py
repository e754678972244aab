"""Asks Slurm about jobs: the only place that runs Slurm's commands.

Accounting (``sacct``) is asked first; where there is no slurmdbd, or it does not answer, the controller (``scontrol``,
``squeue``), which remembers a job for MinJobAge after its end. Fields and options are those of Slurm 22.05 and later.
Times are asked for as seconds since 1970 (SLURM_TIME_FORMAT=%s: sacct(1), scontrol(1)).
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from denpex.errors import SlurmError
from denpex.hostlist import expand
from denpex.model import Job, Step

TIMEOUT_S = 10
_SWEEP_TIMEOUT_S = 120
_DAY_S = 86400

# Base states after which a run goes on no more (squeue(1), JOB STATE CODES; REQUEUED is sacct's word for a run that
# ended by going back to the queue).
OVER = frozenset(
    {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
        "REQUEUED", "TIMEOUT",
    }
)  # fmt: skip

# What users name freely stands between fields that they cannot shape, and the separator is drawn anew for each
# question: so no name can pretend to be another row.
_FIELDS = (
    "JobIDRaw", "JobID", "Cluster", "State", "ExitCode", "DerivedExitCode", "Submit", "Start", "End", "NodeList",
    "NTasks", "TimelimitRaw", "UID", "User", "Account", "Partition", "QOS", "WorkDir", "JobName", "NNodes",
)  # fmt: skip
_SQUEUE = "%A|%F|%K|%T|%V|%S|%e|%U|%N"

_ID = re.compile(r"(\d{1,12})(?:\.([A-Za-z0-9_+]{1,20}))?")
_ARRAY = re.compile(r"(\d{1,12})_(\d{1,10})")
_HET = re.compile(r"(\d{1,12})\+(\d{1,6})")
_STATE = re.compile(r"([A-Z_]{2,20})(?: by (\d{1,10}))?")
_NO_ACCOUNTING = "accounting storage is disabled"


def expand_hostlist(text: str) -> tuple[str, ...]:
    """Return the node names of ``n[01-03,7],login``; () where there are none."""
    return expand(text)


def is_over(job: Job) -> bool:
    """Tell whether this run of the job has ended."""
    return job.state in OVER and job.end is not None


def never_started(job: Job) -> bool:
    """Tell whether the run ended before it got a node."""
    return not job.nodes and job.state in OVER


def job(
    job_id: str,
    start: float | None = None,
    cluster: str | None = None,
    *,
    at: float | None = None,
    slurm_bin: str = "",
    timeout: float = TIMEOUT_S,
) -> Job | None:
    """Return what Slurm knows of one run of the job with this raw number, its steps included; None: nothing.

    A requeued job has several runs: ``start`` (seconds since 1970, as Slurm has it) says which; None takes the newest,
    or with ``at`` the newest that had started by then.
    The run may still be going on, by what accounting knows (``is_over``). ``slurm_bin`` is the directory of Slurm's
    commands ("" = PATH), ``timeout`` seconds for each command.

    Raises SlurmError where neither accounting nor the controller can be asked.
    """
    if not re.fullmatch(r"\d{1,12}", job_id):
        raise SlurmError(f"Slurm cannot be asked about the job {job_id[:40]!r}: that is not a job number")
    try:
        found = [run for run in _sacct(["-j", job_id], slurm_bin, timeout) if run.job_id == job_id]
    except SlurmError as problem:
        try:
            found = _scontrol(job_id, slurm_bin, timeout)
        except SlurmError:
            raise problem from None
    else:
        if not found:
            # Not yet in accounting, or never to be.
            try:
                found = _scontrol(job_id, slurm_bin, timeout)
            except SlurmError:
                found = []
    if cluster:
        found = [run for run in found if run.cluster in (None, cluster)]
    if start is not None:
        found = [run for run in found if run.start == start]
    elif at is not None:
        found = [run for run in found if run.start is not None and run.start <= at]
    return max(found, key=lambda run: run.start or run.end or run.submit or 0.0) if found else None


def ended_since(t: float, *, now: float, slurm_bin: str = "", timeout: float = _SWEEP_TIMEOUT_S) -> list[Job]:
    """Return every run of every user that ended at ``t`` (seconds since 1970) or later, without its steps.

    Without accounting, what the controller still remembers. Raises SlurmError.
    """
    # An end in the future: what was cancelled before it might start is eligible only then. sacct(1), --endtime.
    back = max(int(now - t), 0) + 60
    window = ["-a", "-X", "-S", f"now-{back}seconds", "-E", f"now+{3650 * _DAY_S}seconds"]
    try:
        runs = _sacct(window, slurm_bin, timeout)
    except SlurmError as problem:
        try:
            runs = _squeue(slurm_bin, timeout)
        except SlurmError:
            raise problem from None
    return [run for run in runs if is_over(run) and run.end is not None and run.end >= t]


def _sacct(choice: Sequence[str], slurm_bin: str, timeout: float) -> list[Job]:
    mark = f"<{secrets.token_hex(8)}>"
    text = _run(
        ["sacct", "-D", "-P", "-n", f"--delimiter={mark}", "-o", ",".join(_FIELDS), *choice], slurm_bin, timeout
    )
    return runs_of(rows_of(text, mark))


def rows_of(text: str, mark: str) -> list[dict[str, str]]:
    """Split sacct's parsable output at ``mark``; a value may hold line breaks, except the first and last of a row."""
    cells = text.split(mark)
    width = len(_FIELDS) - 1
    rows = []
    first = cells[0]
    for at in range(1, len(cells) - width + 1, width):
        last, _, following = cells[at + width - 1].partition("\n")
        rows.append(dict(zip(_FIELDS, (first, *cells[at : at + width - 1], last), strict=True)))
        first = following
    return rows


def runs_of(rows: Iterable[dict[str, str]]) -> list[Job]:
    """Build the runs; steps follow their job's row, and those of another run of the job are told apart by that."""
    runs: list[Job] = []
    steps: list[Step] = []

    def close() -> None:
        if runs and steps:
            runs[-1] = replace(runs[-1], steps=tuple(steps))
        steps.clear()

    for row in rows:
        found = _ID.fullmatch(row["JobIDRaw"])
        if not found:
            continue
        if found[2] is None:
            close()
            runs.append(_job(row, found[1]))
        elif runs and runs[-1].job_id == found[1]:
            steps.append(_step(row, found[2]))
    close()
    return [replace(run, restart=_restarts(run, runs)) for run in runs]


def _job(row: dict[str, str], raw: str) -> Job:
    state, by = _state(row["State"])
    array, het = _ARRAY.fullmatch(row["JobID"]), _HET.fullmatch(row["JobID"])
    minutes = row["TimelimitRaw"]
    made = Job(
        job_id=raw,
        cluster=row["Cluster"] or None,
        array_job=array[1] if array else None,
        array_task=array[2] if array else None,
        het_job=het[1] if het else None,
        het_offset=het[2] if het else None,
        name=row["JobName"],
        user=row["User"],
        uid=int(row["UID"]) if row["UID"].isdecimal() else None,
        account=row["Account"],
        partition=row["Partition"],
        qos=row["QOS"],
        state=state,
        exit=exit_of(row["ExitCode"]),
        derived=exit_of(row["DerivedExitCode"]),
        submit=time_of(row["Submit"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        time_limit_s=int(minutes) * 60 if minutes.isdecimal() else None,
        nodes=nodes_of(row["NodeList"]),
        work_dir=row["WorkDir"],
        cancelled_by=by,
    )
    return keyed(made)


def keyed(run: Job) -> Job:
    """Give a run that never started its end as its start, as JobComp does: a run is known by its start."""
    return replace(run, start=run.end) if never_started(run) and run.end is not None else run


def _step(row: dict[str, str], name: str) -> Step:
    state, _ = _state(row["State"])
    return Step(
        id=name,
        name=row["JobName"],
        state=state,
        exit=exit_of(row["ExitCode"]),
        derived=exit_of(row["DerivedExitCode"]),
        start=time_of(row["Start"]),
        end=time_of(row["End"]),
        nodes=nodes_of(row["NodeList"]),
        ntasks=int(row["NTasks"]) if row["NTasks"].isdecimal() else None,
    )


def _restarts(run: Job, runs: Sequence[Job]) -> int | None:
    """Count the runs before this one: each ended at the moment at which the next is counted as submitted.

    sacct has a field for it only since 24.11. None where the job is only one run, and the node's prolog knows.
    """
    before = {other.end: other for other in runs if other.job_id == run.job_id and other.end is not None}
    count, at = 0, run.submit
    while at is not None and at in before and before[at] is not run and count < len(runs):
        count, at = count + 1, before[at].submit
    return count or None


def _scontrol(job_id: str, slurm_bin: str, timeout: float) -> list[Job]:
    text = _run(["scontrol", "-o", "show", "job", job_id], slurm_bin, timeout)
    return [run for line in text.splitlines() if (run := job_of_line(line)) is not None and run.job_id == job_id]


def job_of_line(line: str) -> Job | None:
    """Read a line of ``scontrol -o show job``; None where it is none.

    Names and paths in it are the user's and may hold ``Key=Value`` too: a key that occurs twice is not believed.
    """
    pairs: dict[str, list[str]] = {}
    for found in re.finditer(r"(?:^|(?<= ))([A-Za-z][A-Za-z:/_]{0,30})=(\S*)", line):
        pairs.setdefault(found[1], []).append(found[2])
    known = {key: values[0] for key, values in pairs.items() if len(values) == 1}
    if not line.startswith("JobId=") or not _ID.fullmatch(known.get("JobId", "")):
        return None
    user = re.fullmatch(r"([\w.@-]{1,64})\((\d{1,10})\)", known.get("UserId", ""))
    state, _ = _state(known.get("JobState", ""))
    restarts = known.get("Restarts", "")
    made = Job(
        job_id=known["JobId"],
        restart=int(restarts) if re.fullmatch(r"\d{1,6}", restarts) else None,
        array_job=_number(known.get("ArrayJobId")),
        array_task=_number(known.get("ArrayTaskId")),
        het_job=_number(known.get("HetJobId")),
        het_offset=_number(known.get("HetJobOffset")),
        name=known.get("JobName", ""),
        user=user[1] if user else "",
        uid=int(user[2]) if user else None,
        account=_given(known.get("Account")),
        partition=_given(known.get("Partition")),
        qos=_given(known.get("QOS")),
        state=state,
        exit=exit_of(known.get("ExitCode", "")),
        derived=exit_of(known.get("DerivedExitCode", "")),
        submit=time_of(known.get("SubmitTime", "")),
        start=time_of(known.get("StartTime", "")),
        end=time_of(known.get("EndTime", "")),
        time_limit_s=limit_of(known.get("TimeLimit", "")),
        nodes=nodes_of(known.get("NodeList", "")),
        work_dir=known.get("WorkDir", ""),
    )
    return keyed(made)


def _squeue(slurm_bin: str, timeout: float) -> list[Job]:
    """Ask the controller for the jobs that it remembers, by fields that no user can shape."""
    text = _run(["squeue", "-h", "-a", "-t", "all", "-o", _SQUEUE], slurm_bin, timeout)
    runs = []
    for line in text.splitlines():
        cells = line.split("|")
        if len(cells) != _SQUEUE.count("|") + 1 or not _ID.fullmatch(cells[0]):
            continue
        raw, array, task, state, submit, start, end, uid, nodes = cells
        is_task = task.isdecimal()
        made = Job(
            job_id=raw,
            array_job=array if is_task else None,
            array_task=task if is_task else None,
            state=_state(state)[0],
            submit=time_of(submit),
            start=time_of(start),
            end=time_of(end),
            uid=int(uid) if uid.isdecimal() else None,
            nodes=nodes_of(nodes),
        )
        runs.append(keyed(made))
    return runs


def _state(text: str) -> tuple[str, int | None]:
    found = _STATE.match(text)
    return (found[1], int(found[2]) if found[2] else None) if found else ("", None)


def _number(text: str | None) -> str | None:
    return text if text and re.fullmatch(r"\d{1,12}", text) else None


def _given(text: str | None) -> str:
    return "" if text in (None, "(null)", "N/A") else str(text)


def exit_of(text: str) -> str:
    """Return ``text`` where it is "code:signal", else ""."""
    return text if re.fullmatch(r"\d{1,3}:\d{1,3}", text) else ""


def time_of(text: str) -> float | None:
    """Return seconds since 1970; None for 0, None, Unknown and what is no number."""
    return float(text) if re.fullmatch(r"[1-9]\d{0,11}", text) else None


def nodes_of(text: str) -> tuple[str, ...]:
    """Return the names of a NodeList; () for "None assigned", "(null)" and the like."""
    return () if text.startswith(("None", "(null)", "Unknown")) else expand(text)


def limit_of(text: str) -> int | None:
    """Return the seconds of a time limit, [days-]hours:minutes:seconds or minutes; None: no limit or no number."""
    if re.fullmatch(r"\d{1,9}", text):
        return int(text) * 60
    found = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,3}):(\d\d):(\d\d)", text)
    if not found:
        return None
    days, hours, minutes, seconds = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + minutes) * 60 + seconds


def cluster_name(slurm_bin: str = "") -> str:
    """Return what slurm.conf calls the cluster; "" where slurmctld does not say. Raises SlurmError.

    Without accounting, 22.05 to 26.05 leave the completion record's cluster empty.
    """
    shown = _run(["scontrol", "show", "config"], slurm_bin, 10.0)
    found = re.search(r"^ClusterName\s*=\s*(\S+)", shown, re.MULTILINE)
    return found[1] if found else ""


def _run(command: Sequence[str], slurm_bin: str, timeout: float) -> str:
    """Run one of Slurm's commands and return what it printed."""
    name = command[0]
    program = str(Path(slurm_bin) / name) if slurm_bin else shutil.which(name)
    if program is None:
        raise SlurmError(
            f"`{name}` was not found on PATH: set slurm_bin in denpex.yaml to the directory of Slurm's commands"
        )
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("SACCT_", "SQUEUE_", "SLURM_TIME"))
    }
    environment |= {"LC_ALL": "C", "SLURM_TIME_FORMAT": "%s"}
    try:
        done = subprocess.run(
            [program, *command[1:]],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=timeout, env=environment, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        raise SlurmError(f"`{name}` did not answer within {timeout:g} s: Slurm is busy or unreachable") from None
    except OSError as error:
        raise SlurmError(
            f"`{program}` cannot be run: {error.strerror}; slurm_bin in denpex.yaml must name Slurm's directory"
        ) from error
    problem = done.stderr.decode("utf-8", "replace").strip()
    # Some releases only warn that there is no accounting, and end with 0.
    if done.returncode != 0 or (name == "sacct" and _NO_ACCOUNTING in problem.lower()):
        raise SlurmError(
            f"`{name}` failed (status {done.returncode}): {problem.splitlines()[-1] if problem else 'it says nothing'}"
        )
    return done.stdout.decode("utf-8", "replace")
