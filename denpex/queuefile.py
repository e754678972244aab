"""Reads and writes queue files: the completion records that hooks leave for the worker, one file a run.

A file is the hook's environment, NUL-separated ``NAME=VALUE`` as /proc/PID/environ has it, after a first variable
DENPEX_HOOK: ``jobcomp`` (names of jobcomp/script: JOBID, JOBSTATE, START ...), ``epilogctld`` (SLURM_JOB_ID ..., which
know neither state nor, before 23.02, a start) or ``sweep`` (jobcomp's names, written by the worker itself).
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from denpex.errors import SpoolError
from denpex.model import Job
from denpex.slurm import OVER, exit_of, expand_hostlist, keyed, limit_of, time_of

SUFFIX = ".job"
BAD = "bad"
_MAX_BYTES = 4 << 20

# jobcomp/script's ARRAYTASKID of what is no array task (NO_VAL of slurm.h).
_NO_TASK = "4294967294"


@dataclass(frozen=True)
class Ended:
    """What one queue file says. ``job.start`` None: the hook did not know which run it was."""

    path: Path
    hook: str
    job: Job
    goes_on: bool  # the job was only resized
    written: float  # seconds since 1970 by the controller's clock


def waiting(queue: Path) -> Iterator[Path]:
    """Yield the queue files that there are, the oldest name first; raises OSError where the queue cannot be listed."""
    with os.scandir(queue) as entries:
        names = sorted(e.name for e in entries if e.name.endswith(SUFFIX) and not e.name.startswith("."))
    yield from (queue / name for name in names)


def read(path: Path) -> Ended:
    """Read one queue file; raises SpoolError where it says nothing that can be used, and FileNotFoundError."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise SpoolError(f"the queue file {path} cannot be opened: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise SpoolError(f"the queue file {path} is not a regular file")
        data = file.read(_MAX_BYTES + 1)
    if len(data) > _MAX_BYTES:
        raise SpoolError(f"the queue file {path} has more than {_MAX_BYTES} bytes")
    values: dict[str, str] = {}
    for item in data.decode("utf-8", "replace").split("\0"):
        name, equals, value = item.partition("=")
        if equals:
            values.setdefault(name, value)
    hook = values.get("DENPEX_HOOK", "")
    try:
        if hook in ("jobcomp", "sweep"):
            return _jobcomp(path, hook, values, status.st_mtime)
        if hook == "epilogctld":
            return _epilogctld(path, hook, values, status.st_mtime)
    except ValueError as error:
        raise SpoolError(f"the queue file {path} does not describe an ended job: {error}") from None
    raise SpoolError(f"the queue file {path} was written by no hook of Denpex (DENPEX_HOOK={hook[:40]!r})")


def _jobcomp(path: Path, hook: str, values: Mapping[str, str], written: float) -> Ended:
    state = values.get("JOBSTATE", "")
    # jobcomp/script shows the base state: a run that went back to the queue is PENDING there, in accounting REQUEUED.
    if state == "PENDING":
        state = "REQUEUED"
    if state not in OVER and state != "RESIZING":
        raise ValueError(f"its state is {state[:40]!r}")
    array = _number(values.get("ARRAYJOBID"), none="0")
    start, end = time_of(values.get("START", "")), time_of(values.get("END", ""))
    nodes = expand_hostlist(values.get("NODES", ""))
    if start is not None and end is not None and start > end:
        # The time at which it was planned to start.
        start = None
    job = Job(
        job_id=_needed(values.get("JOBID")),
        cluster=values.get("CLUSTER") or None,
        array_job=array,
        array_task=_number(values.get("ARRAYTASKID"), none=_NO_TASK) if array else None,
        het_job=_number(values.get("HETJOBID") or values.get("PACKJOBID"), none="0"),
        het_offset=_number(values.get("HETJOBOFFSET") or values.get("PACKJOBOFFSET"), none=_NO_TASK),
        name=values.get("JOBNAME", ""),
        user=values.get("USERNAME", ""),
        uid=_uid(values.get("UID")),
        account=values.get("ACCOUNT", ""),
        partition=values.get("PARTITION", ""),
        qos=values.get("QOS", ""),
        state=state,
        exit=exit_of(values.get("EXITCODE", "")),
        derived=exit_of(values.get("DERIVED_EC", "")),
        submit=time_of(values.get("SUBMIT", "")),
        start=start,
        end=end,
        time_limit_s=limit_of(values.get("LIMIT", "")),
        nodes=nodes,
        work_dir=values.get("WORK_DIR", ""),
    )
    if job.start is None and (nodes or job.end is None):
        raise ValueError("its START and END do not fit together")
    return Ended(path, hook, keyed(job), state == "RESIZING", written)


def _epilogctld(path: Path, hook: str, values: Mapping[str, str], written: float) -> Ended:
    array = _number(values.get("SLURM_ARRAY_JOB_ID"), none="0")
    job = Job(
        job_id=_needed(values.get("SLURM_JOB_ID") or values.get("SLURM_JOBID")),
        cluster=values.get("SLURM_CLUSTER_NAME") or None,
        array_job=array,
        array_task=_number(values.get("SLURM_ARRAY_TASK_ID"), none=_NO_TASK) if array else None,
        het_job=_number(values.get("SLURM_HET_JOB_ID"), none="0"),
        het_offset=_number(values.get("SLURM_HET_JOB_OFFSET"), none=_NO_TASK),
        name=values.get("SLURM_JOB_NAME", ""),
        user=values.get("SLURM_JOB_USER", ""),
        uid=_uid(values.get("SLURM_JOB_UID")),
        account=values.get("SLURM_JOB_ACCOUNT", ""),
        partition=values.get("SLURM_JOB_PARTITION", ""),
        exit=exit_of(values.get("SLURM_JOB_EXIT_CODE2", "")),
        derived=_wait_status(values.get("SLURM_JOB_DERIVED_EC", "")),
        start=time_of(values.get("SLURM_JOB_START_TIME", "")),
        nodes=expand_hostlist(values.get("SLURM_JOB_NODELIST", "")),
        work_dir=values.get("SLURM_JOB_WORK_DIR", ""),
    )
    return Ended(path, hook, job, False, written)


def _needed(text: str | None) -> str:
    if text is None or not re.fullmatch(r"[1-9]\d{0,11}", text):
        raise ValueError(f"its job number is {(text or '')[:40]!r}")
    return text


def _number(text: str | None, *, none: str) -> str | None:
    return text if text and text != none and re.fullmatch(r"\d{1,12}", text) else None


def _wait_status(text: str) -> str:
    """Return "code:signal" of a raw wait(2) status, as EpilogSlurmctld gets the derived exit."""
    if not re.fullmatch(r"\d{1,6}", text):
        return ""
    return f"{int(text) >> 8 & 0xFF}:{int(text) & 0x7F}"


def _uid(text: str | None) -> int | None:
    return int(text) if text and re.fullmatch(r"\d{1,10}", text) else None


def set_aside(path: Path) -> Path:
    """Move a file that cannot be used into ``bad/`` beside it, and return its new place; raises OSError."""
    place = path.parent / BAD
    place.mkdir(mode=0o750, exist_ok=True)
    return path.rename(place / path.name)


def enqueue(queue: Path, job: Job) -> Path:
    """Write a queue file for a run whose completion record was lost; raises OSError."""
    values = {
        "DENPEX_HOOK": "sweep",
        "JOBID": job.job_id,
        "CLUSTER": job.cluster,
        "ARRAYJOBID": job.array_job,
        "ARRAYTASKID": job.array_task,
        "HETJOBID": job.het_job,
        "HETJOBOFFSET": job.het_offset,
        "JOBNAME": job.name,
        "USERNAME": job.user,
        "UID": job.uid,
        "ACCOUNT": job.account,
        "PARTITION": job.partition,
        "QOS": job.qos,
        "JOBSTATE": job.state,
        "EXITCODE": job.exit,
        "DERIVED_EC": job.derived,
        "SUBMIT": _whole(job.submit),
        "START": _whole(job.start),
        "END": _whole(job.end),
        "NODES": ",".join(job.nodes),
        "WORK_DIR": job.work_dir,
    }
    text = "".join(f"{name}={str(value).replace(chr(0), '')}\0" for name, value in values.items() if value is not None)
    name = f"{job.job_id}.sweep.{_whole(job.start)}"
    aside = queue / f".{name}"
    aside.write_bytes(text.encode("utf-8", "replace"))
    return aside.rename(queue / f"{name}{SUFFIX}")


def _whole(value: float | None) -> str:
    return str(int(value or 0))


def completed(said: Job, known: Job | None) -> Job:
    """Join what a queue file says with what accounting knows of the same run.

    The record of the job's end is believed where both speak, except that it calls every run that went back to the
    queue the same; accounting says why (preempted, node failure). What only one of them has is taken.
    """
    if known is None:
        return said
    values = {
        name: value
        for name, value in vars(known).items()
        if getattr(said, name) in (None, "", ()) and value not in (None, "", ())
    }
    if said.state == "REQUEUED" and known.state in OVER:
        values["state"] = known.state
    return replace(said, **values)
