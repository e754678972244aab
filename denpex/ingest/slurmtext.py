"""Reads a Job out of Slurm's own words: `scontrol show job`, tables of `sacct`, and notes in the same form."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from typing import Any

from denpex.hostlist import expand
from denpex.model import Job, Step

MAX_TEXT = 4 << 20
_MAX_STEPS = 5000

# Slurm's base states (squeue(1), JOB STATE CODES).
STATES = (
    "BOOT_FAIL", "CANCELLED", "COMPLETED", "COMPLETING", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
    "PENDING", "PREEMPTED", "RUNNING", "SUSPENDED", "TIMEOUT",
)  # fmt: skip

_STATE = re.compile(r"([A-Z_]+)(\+)?(?:\s+by\s+(\d{1,10}))?")
_EXIT = re.compile(r"(\d{1,3}):(\d{1,3})")
_JOB = re.compile(r"(\d{1,12})(?:_(\d{1,9})|\+(\d{1,6}))?(?:\.([A-Za-z0-9_]{1,20}))?")
# Key=Value of scontrol, several in one line; a value reaches to the next key, for some hold spaces.
_NAME = re.compile(r"(?:^|(?<=\s))([A-Za-z][A-Za-z:/_]{0,30})=")
_COLON = re.compile(r"([A-Za-z][A-Za-z _]{1,30}?) ?: +(\S.*)")

_MAX_LINE = 8192

_KEYS = {
    "jobid": "id", "jobidraw": "raw", "stepid": "step", "jobname": "name", "name": "name", "user": "user",
    "userid": "userid", "uid": "uid", "account": "account", "partition": "partition", "qos": "qos", "state": "state",
    "jobstate": "state", "exitcode": "exit", "derivedexitcode": "derived", "submit": "submit", "submittime": "submit",
    "start": "start", "starttime": "start", "end": "end", "endtime": "end", "timelimit": "limit",
    "timelimitraw": "minutes", "nodelist": "nodes", "nodes": "nodes", "workdir": "work_dir", "cluster": "cluster",
    "restarts": "restart", "restart": "restart", "arrayjobid": "array_job", "arraytaskid": "array_task",
    "hetjobid": "het_job", "hetjoboffset": "het_offset", "ntasks": "ntasks", "command": "command",
    "submitline": "command",
}  # fmt: skip


def read(text: str, job: Job) -> Job:
    """Return ``job`` with what ``text`` adds; what is known stays. Times without a zone are of this machine's zone.

    Text that holds nothing of the kind adds nothing; nothing raises.
    """
    text = text[:MAX_TEXT]
    rows = _table(text) or _pairs(text)
    wanted = job.job_id
    for row in rows:
        found = _JOB.fullmatch(row.get("id", ""))
        if found and wanted is not None and found[1] != wanted and row.get("raw", "") != wanted:
            continue
        if found and wanted is None:
            wanted = found[1]
        if found and found[4]:
            if len(job.steps) < _MAX_STEPS:
                job = replace(job, steps=(*job.steps, _step(found[4], row)))
            continue
        job = _with(job, row, found)
    return job


def _table(text: str) -> list[dict[str, str]]:
    """Read sacct's table, separated by ``|`` (-P, -p) or in columns under a line of dashes."""
    lines = text.splitlines()
    for number, line in enumerate(lines[:200]):
        if line.count("|") >= 2 and "jobid" in line.lower():
            return [dict(_row(line.split("|"), row.split("|"))) for row in lines[number + 1 :] if "|" in row]
        rule = lines[number + 1] if number + 1 < len(lines) else ""
        if "jobid" in line.lower() and re.fullmatch(r"\s*-{2,}(?: +-+)*\s*", rule):
            spans = [match.span() for match in re.finditer(r"-+", rule)]
            heads = [line[low:high] for low, high in spans]
            return [dict(_row(heads, [row[low:high] for low, high in spans])) for row in lines[number + 2 :] if row]
    return []


def _row(heads: list[str], cells: list[str]) -> list[tuple[str, str]]:
    pairs = zip(heads, cells, strict=False)
    return [(key, cell.strip()) for head, cell in pairs if (key := _key(head)) and cell.strip()]


def _key(name: str) -> str:
    return _KEYS.get(re.sub(r"[ _:/]", "", name).lower(), "")


def _pairs(text: str) -> list[dict[str, str]]:
    """Read Key=Value (scontrol) and "key: value" notes; each JobId= begins another job."""
    rows: list[dict[str, str]] = [{}]
    for line in text.splitlines():
        for name, value in _line(line[:_MAX_LINE].strip()):
            key = _key(name)
            if not key or not value:
                continue
            if key == "id" and "id" in rows[-1]:
                rows.append({})
            rows[-1].setdefault(key, value)
    for row in rows:
        step = _JOB.match(row.get("step", ""))
        if step and "id" not in row:
            row["id"] = step[1]
    return [row for row in rows if row]


def _line(line: str) -> list[tuple[str, str]]:
    keys = list(_NAME.finditer(line))
    if keys:
        ends = [*(key.start() for key in keys[1:]), len(line)]
        return [(key[1], line[key.end() : end].strip()) for key, end in zip(keys, ends, strict=True)]
    note = _COLON.fullmatch(line)
    return [(note[1], note[2])] if note else []


def _step(name: str, row: dict[str, str]) -> Step:
    ntasks = row.get("ntasks", "")
    return Step(
        id=name,
        name=row.get("name", ""),
        state=_state(row.get("state", ""))[0],
        exit=_exit(row.get("exit", "")),
        derived=_exit(row.get("derived", "")),
        start=_time(row.get("start", "")),
        end=_time(row.get("end", "")),
        nodes=_nodes(row.get("nodes", "")),
        ntasks=int(ntasks) if re.fullmatch(r"\d{1,9}", ntasks) else None,
    )


def _with(job: Job, row: dict[str, str], found: re.Match[str] | None) -> Job:
    values: dict[str, Any] = {
        "name": row.get("name", ""),
        "user": row.get("user", ""),
        "exit": _exit(row.get("exit", "")),
        "derived": _exit(row.get("derived", "")),
        "nodes": _nodes(row.get("nodes", "")),
    }
    for key in ("account", "partition", "qos", "work_dir", "cluster", "command"):
        values[key] = row.get(key, "")
    for key in ("submit", "start", "end"):
        values[key] = _time(row.get(key, ""))
    for key in ("array_job", "array_task", "het_job", "het_offset"):
        values[key] = row[key] if re.fullmatch(r"\d{1,12}", row.get(key, "")) else None
    if found:
        values["job_id"] = found[1]
        if found[2]:
            values["array_job"], values["array_task"] = found[1], found[2]
            values["job_id"] = row["raw"] if re.fullmatch(r"\d{1,12}", row.get("raw", "")) else found[1]
        if found[3]:
            values["het_job"], values["het_offset"] = found[1], found[3]
    values["state"], values["cancelled_by"] = _state(row.get("state", ""))
    user = re.fullmatch(r"([\w.-]+)\((\d{1,10})\)", row.get("userid", ""))
    if user:
        values["user"], values["uid"] = user[1], int(user[2])
    elif re.fullmatch(r"\d{1,10}", row.get("uid", "")):
        values["uid"] = int(row["uid"])
    if re.fullmatch(r"\d{1,6}", row.get("restart", "")):
        values["restart"] = int(row["restart"])
    values["time_limit_s"] = _limit(row.get("limit", ""), row.get("minutes", ""))
    news = {k: v for k, v in values.items() if v not in (None, "", ()) and getattr(job, k) in (None, "", ())}
    return replace(job, **news)


def _state(text: str) -> tuple[str, int | None]:
    """Return the base state ("" where it is none) and who cancelled it; narrow columns end in "+"."""
    found = _STATE.match(text)
    if found is None:
        return "", None
    for state in STATES:
        if found[1] == state or (found[2] and len(found[1]) > 3 and state.startswith(found[1])):
            return state, int(found[3]) if found[3] else None
    return "", None


def _exit(text: str) -> str:
    found = _EXIT.match(text)
    return f"{found[1]}:{found[2]}" if found else ""


def _nodes(text: str) -> tuple[str, ...]:
    """Expand a node list; a bare number ("Nodes=4") counts nodes and names none."""
    word = text.split()[0] if text.split() else ""
    return () if word.isdigit() or word in ("None", "(null)", "Unknown") else expand(word)


def _time(text: str) -> float | None:
    if re.fullmatch(r"1\d{9}(\.\d+)?", text):
        return float(text)
    found = re.match(r"(\d{4})-(\d\d)-(\d\d)T(\d\d):(\d\d):(\d\d)", text)
    if not found:
        return None
    try:
        return time.mktime((*(int(part) for part in found.groups()), 0, 0, -1))  # type: ignore[arg-type]
    except (OverflowError, ValueError):
        return None


def _limit(text: str, minutes: str) -> int | None:
    """Return seconds; Slurm writes [days-]hours:minutes:seconds, or minutes alone."""
    if re.fullmatch(r"\d{1,9}", minutes):
        return int(minutes) * 60
    found = re.fullmatch(r"(?:(\d{1,5})-)?(\d{1,5}):(\d\d):(\d\d)", text)
    if not found:
        return None
    days, hours, mins, secs = (int(part or 0) for part in found.groups())
    return ((days * 24 + hours) * 60 + mins) * 60 + secs
