"""What the worker answers to whom: runs by job id or by filter, the asker's own unless the asker sees all."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import groupby
from typing import Any

from denpex.errors import UsageError
from denpex.jobid import JobId, parse
from denpex.store import Reader

_FILTERS = ("user", "node", "state", "category", "failure_class", "account", "partition")
_MOST_ROWS = 10_000
_MOST_BYTES = 64 << 20
_SECONDS = 5.0
# SQLite takes 999 values in one question everywhere.
_MOST_WORDS = 400


def answer(reader: Reader, request: dict[str, Any], uid: int, sees_all: bool) -> dict[str, Any]:
    """Answer one request: {"verb": "show", "jobs", "duplicates"} or {"verb": "list", filters}; raises DenpexError.

    ``rows`` are the runs that ``uid`` may see; with ``more`` there are others beyond the most that one answer holds.
    """
    mine: list[Any] = [] if sees_all else [uid]
    # The unary plus keeps SQLite from walking all of the user's jobs to find one by its number.
    own = "1" if sees_all else "+runs.uid = ?" if request.get("verb") == "show" else "runs.uid = ?"
    if request.get("verb") == "show":
        rows: list[dict[str, Any]] = []
        for clause, values in _jobs(parse(str(request.get("jobs", "")))):
            rows += reader.find(
                f"{own} AND {clause}",
                [*mine, *values],
                documents=True,
                limit=_MOST_ROWS,
                limit_bytes=_MOST_BYTES,
                seconds=_SECONDS,
            )
            if len(rows) > _MOST_ROWS:
                raise UsageError(f"more than {_MOST_ROWS} runs are too many at once; ask in parts")
        return {"rows": rows if request.get("duplicates") else latest(rows)}
    if request.get("verb") == "list":
        clauses, values = _filters(request)
        found = reader.find(
            " AND ".join([own, *clauses]),
            [*mine, *values],
            documents=False,
            limit=_MOST_ROWS + 1,
            seconds=_SECONDS,
        )
        return {"rows": found[:_MOST_ROWS], "more": len(found) > _MOST_ROWS}
    raise UsageError(f"the worker does not know the verb {str(request.get('verb'))[:40]!r}")


def latest(rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Keep each job's last run: a requeued job keeps its id."""
    last: dict[tuple[str, str], dict[str, Any]] = {}
    for row in rows:
        key = (row["cluster"], row["job_id"])
        if key not in last or row["start"] >= last[key]["start"]:
            last[key] = row
    return list(last.values())


def _jobs(jobs: list[JobId]) -> Iterator[tuple[str, list[Any]]]:
    """Yield SQL clauses with their values that together mean ``jobs``; many tasks of one array are one clause."""
    for (job, is_task), group in groupby(jobs, key=lambda j: (j.job, j.task is not None)):
        named = list(group)
        if not is_task:
            for one in named:
                if one.offset is None:
                    yield "(runs.job_id = ? OR runs.array_job = ? OR runs.het_job = ?)", [job] * 3
                else:
                    yield "runs.het_job = ? AND runs.het_offset = ?", [job, one.offset]
            continue
        for at in range(0, len(named), _MOST_WORDS):
            tasks = [one.task for one in named[at : at + _MOST_WORDS]]
            yield f"runs.array_job = ? AND runs.array_task IN ({','.join('?' * len(tasks))})", [job, *tasks]


def _filters(request: dict[str, Any]) -> tuple[list[str], list[Any]]:
    clauses: list[str] = []
    values: list[Any] = []
    start, end = _moment(request.get("start")), _moment(request.get("end"))
    if start is not None:
        clauses.append("(runs.ended >= ? OR runs.waiting_since >= ?)")
        values += [start, start]
    if end is not None:
        # A job that never started has start 0; it counts from its submission.
        clauses.append("coalesce(nullif(runs.start, 0), runs.submit, 0) <= ?")
        values.append(end)
    for name in _FILTERS:
        wanted = request.get(name)
        if not isinstance(wanted, list) or not wanted:
            continue
        words = [str(word)[:256] for word in wanted]
        if len(words) > _MOST_WORDS:
            raise UsageError(f"more than {_MOST_WORDS} of {name} are too many at once; ask in parts")
        if name == "node":
            clauses.append("(" + " OR ".join(["instr(',' || runs.nodes || ',', ?)"] * len(words)) + ")")
            values += [f",{word}," for word in words]
            continue
        if name == "state":
            # sacct prints "CANCELLED by 1001".
            clauses.append("(" + " OR ".join(["runs.state = ? OR instr(runs.state, ?) = 1"] * len(words)) + ")")
            values += [text for word in words for text in (word, f"{word} ")]
            continue
        column = f"v.{name}" if name in ("category", "failure_class") else f"runs.{name}"
        marks = ",".join("?" * len(words))
        if name == "user":
            clauses.append(f"(runs.user IN ({marks}) OR CAST(runs.uid AS TEXT) IN ({marks}))")
            values += words * 2
        else:
            clauses.append(f"{column} IN ({marks})")
            values += words
    return clauses, values


def _moment(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    try:
        moment = float(value)
    except OverflowError:
        return None
    return moment if math.isfinite(moment) else None
