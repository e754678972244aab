"""Answers as files on shared storage, for when no worker answers: each can be opened by its job's user alone.

``<answers_dir>/<cluster>/<uid>/<name>``, one for each name of a job (123, and 123_4 or 123+1), holds munge credentials
for that uid: whatever the file's mode, and root's or the storage server's eyes, munged gives the text to that user
only. It goes on doing so after the credential has expired, until munge's key is changed. The directories below
``answers_dir`` cannot be listed, so that others do not even learn which jobs there are.
"""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any

from denpex.answers import latest
from denpex.config import Config
from denpex.credential import RefusedError, makers, seal, unseal
from denpex.errors import ServiceError
from denpex.jobid import JobId, parse
from denpex.spool import is_safe_name
from denpex.store import Reader

_LONGEST = 128 << 20
_MOST_PARTS = 10_000


def write(config: Config, reader: Reader, cluster: str, job_id: str) -> None:
    """Write the answer files of one job, all its runs in each; raises ServiceError or StoreError."""
    rows = reader.find("runs.cluster = ? AND runs.job_id = ?", [cluster, job_id], documents=True)
    top = Path(config.worker.answers_dir)
    try:
        below = _own_directory(top / _safe(cluster))
        for uid in {row["uid"] for row in rows if row["uid"] is not None}:
            directory = _own_directory(below / str(uid))
            mine = [row for row in rows if row["uid"] == uid]
            last = mine[-1]
            part = _part(last)
            parent = last["array_job"] or last["het_job"]
            _put(directory, part or job_id, {"rows": mine}, uid)
            if part and job_id != parent:
                _put(directory, job_id, {"rows": mine}, uid)
            if part:
                names = sorted(path.name for path in directory.glob(f"{parent}[_+]*"))
                _put(directory, parent, {"parts": names[:_MOST_PARTS]}, uid)
    except OSError as error:
        raise ServiceError(f"the answer files in {top} cannot be written: {error.strerror}") from error


def read(config: Config, jobs: str, duplicates: bool) -> list[dict[str, Any]]:
    """Return the rows of the asking user's jobs; others' are as if they were not there. Raises UsageError."""
    top = Path(config.worker.answers_dir)
    believed = makers(config.worker.user)
    try:
        clusters = [_safe(config.cluster)] if config.cluster else sorted(path.name for path in top.iterdir())
    except OSError as error:
        raise ServiceError(f"the answer files in {top} cannot be read: {error.strerror}") from error
    rows = []
    for cluster in clusters:
        directory = top / cluster / str(os.geteuid())
        for job in parse(jobs):
            found = _get(directory / _name(job), believed)
            for part in found.get("parts", []):
                found.setdefault("rows", []).extend(_get(directory / part, believed).get("rows", []))
            rows += found.get("rows", [])
    return rows if duplicates else latest(rows)


def _safe(cluster: str) -> str:
    return cluster if is_safe_name(cluster) else "cluster"


def _part(row: dict[str, Any]) -> str | None:
    """Return the name of an array's task or a component, None for any other job."""
    if row["array_job"] and row["array_task"]:
        return f"{row['array_job']}_{row['array_task']}"
    if row["het_job"] and row["het_offset"]:
        return f"{row['het_job']}+{row['het_offset']}"
    return None


def _name(job: JobId) -> str:
    if job.task is not None:
        return f"{job.job}_{job.task}"
    return job.job if job.offset is None else f"{job.job}+{job.offset}"


def _own_directory(path: Path) -> Path:
    """Make a directory that others may pass through and not list; raises OSError where someone else has made it."""
    path.mkdir(mode=0o711, exist_ok=True)
    found = path.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
        raise PermissionError(1, f"{path} is not a directory of the worker's")
    if stat.S_IMODE(found.st_mode) != 0o711:
        path.chmod(0o711)
    return path


def _put(directory: Path, name: str, content: dict[str, Any], uid: int) -> None:
    aside = directory / f".{name}.{os.getpid()}"
    aside.unlink(missing_ok=True)
    with aside.open("xb") as file:
        file.write(seal(json.dumps(content).encode(), uid))
        os.fchmod(file.fileno(), 0o644)
    aside.replace(directory / name)


def _get(path: Path, believed: set[int]) -> dict[str, Any]:
    """Return one file's content; nothing where it is not there, or not for this user."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
        with open(descriptor, "rb") as file:
            if not stat.S_ISREG(os.fstat(descriptor).st_mode):
                return {}
            text = file.read(_LONGEST)
        content = json.loads(unseal(text, believed, stale=True))
    except (OSError, ValueError, RefusedError):
        return {}
    return content if isinstance(content, dict) else {}
