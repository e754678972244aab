"""sacct-style columns: --format with widths, right-justified, cut with a trailing +, header and dashes."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from denpex.errors import UsageError
from denpex.render.text import safe, width_of

Row = dict[str, Any]

_WIDEST = 1000
_WORD = re.compile(r"(?P<name>[A-Za-z_]+)(?:%(?P<width>-?[0-9]{1,4}))?")


class Field(NamedTuple):
    """One column: its head, default width, and how its text comes from a row."""

    name: str
    width: int
    text: Callable[[Row], str]


def shown(row: Row) -> str:
    """Return a run's id as sacct prints it: 123_4 for an array's task, 123+1 for a component."""
    if row.get("array_job") and row.get("array_task"):
        return f"{row['array_job']}_{row['array_task']}"
    if row.get("het_job") and row.get("het_offset"):
        return f"{row['het_job']}+{row['het_offset']}"
    return str(row.get("job_id") or "")


def _plain(key: str) -> Callable[[Row], str]:
    return lambda row: "" if row.get(key) is None else str(row[key])


def _time(key: str) -> Callable[[Row], str]:
    def text(row: Row) -> str:
        value = row.get(key)
        if not value:
            return "Unknown"
        return datetime.fromtimestamp(float(value)).astimezone().strftime("%Y-%m-%dT%H:%M:%S")

    return text


def _awaited(row: Row) -> str:
    return "" if row.get("failure_class") else ",".join(row["awaited"]) or "worker"


FIELDS = tuple(
    Field(*entry)
    for entry in (
        ("JobID", 12, shown),
        ("JobIDRaw", 12, _plain("job_id")),
        ("JobName", 10, _plain("name")),
        ("User", 9, _plain("user")),
        ("UID", 6, _plain("uid")),
        ("Account", 10, _plain("account")),
        ("Partition", 10, _plain("partition")),
        ("Cluster", 10, _plain("cluster")),
        ("State", 10, _plain("state")),
        ("ExitCode", 8, _plain("exit")),
        ("DerivedExitCode", 15, _plain("derived")),
        ("Submit", 19, _time("submit")),
        ("Start", 19, _time("start")),
        ("End", 19, _time("ended")),
        ("NodeList", 15, _plain("nodes")),
        ("Restarts", 8, _plain("restart")),
        ("Category", 25, _plain("category")),
        ("Class", 26, _plain("failure_class")),
        ("Confidence", 10, lambda row: f"{row['confidence']:.2f}" if row.get("confidence") is not None else ""),
        ("Scope", 8, _plain("scope")),
        ("Rank", 5, _plain("rank")),
        ("Node", 10, _plain("node")),
        ("Revision", 8, _plain("revision")),
        ("Title", 40, _plain("title")),
        ("Awaited", 20, _awaited),
    )
)


def parse(text: str) -> list[tuple[Field, int]]:
    """Read a --format list: ``jobid,class%30,node%-8``; names by unique beginning, any case. Raises UsageError."""
    chosen = []
    for word in text.split(","):
        if not word.strip():
            continue
        match = _WORD.fullmatch(word.strip())
        width = int(match["width"]) if match and match["width"] else None
        if match is None or (width is not None and not 1 <= abs(width) <= _WIDEST):
            raise UsageError(
                f"{word.strip()!r} is not a field; class, class%30 (30 columns) and class%-30 (left-justified) are"
            )
        name = match["name"].lower()
        exact = [f for f in FIELDS if f.name.lower() == name]
        found = exact or [f for f in FIELDS if f.name.lower().startswith(name)]
        if len(found) != 1:
            if found:
                raise UsageError(f"{name!r} may be {' or '.join(f.name for f in found)}; write more of it")
            raise UsageError(f"{name!r} is not a field; the fields are {', '.join(f.name for f in FIELDS)}")
        chosen.append((found[0], width if width is not None else found[0].width))
    if not chosen:
        raise UsageError("--format names no field; --helpformat lists them")
    return chosen


def table(
    rows: Sequence[Row], columns: Sequence[tuple[Field, int]], *, header: bool, delimiter: str | None, trailing: bool
) -> list[str]:
    """Return the lines of a table; with a ``delimiter`` as sacct's -p (``trailing``) and -P."""
    if delimiter is not None:
        end = delimiter if trailing else ""
        lines = [delimiter.join(field.name for field, _ in columns) + end] if header else []
        return lines + [delimiter.join(_one_line(field.text(row)) for field, _ in columns) + end for row in rows]
    lines = []
    if header:
        lines = [
            " ".join(_cell(field.name, width) for field, width in columns) + " ",
            " ".join("-" * abs(width) for _, width in columns) + " ",
        ]
    return lines + [
        " ".join(_cell(_one_line(field.text(row)), width) for field, width in columns) + " " for row in rows
    ]


def _one_line(text: str) -> str:
    return " ".join(safe(text).split())


def _cell(text: str, width: int) -> str:
    size = abs(width)
    if width_of(text) > size:
        while width_of(text) > size - 1:
            text = text[:-1]
        text += "+"
    room = " " * (size - width_of(text))
    return text + room if width < 0 else room + text


def help_format() -> str:
    """Return the names of all fields, four a line, as sacct -e prints them."""
    names = [f.name for f in FIELDS]
    return "\n".join("".join(name.ljust(20) for name in names[i : i + 4]).rstrip() for i in range(0, len(names), 4))


def documents(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Return rows as JSON objects, one a run, with the names of the verdict's document where it has them."""
    return [
        {
            "cluster": row["cluster"],
            "job_id": row["job_id"],
            "array": {"job": row["array_job"], "task": row["array_task"]},
            "het": {"job": row["het_job"], "offset": row["het_offset"]},
            "restart": row["restart"],
            "revision": row["revision"],
            "state": row["state"] or None,
            "category": row["category"],
            "failure_class": row["failure_class"],
            "title": row["title"],
            "confidence": None if row["confidence"] is None else round(row["confidence"], 3),
            "scope": row["scope"],
            "rank": row["rank"],
            "node": row["node"],
            "name": row["name"],
            "user": row["user"],
            "account": row["account"],
            "partition": row["partition"],
            "exit": row["exit"] or None,
            "derived": row["derived"] or None,
            "submit": row["submit"],
            "start": row["start"] or None,
            "end": row["ended"],
            "nodes": row["nodes"].split(",") if row["nodes"] else [],
            "awaited": row["awaited"],
        }
        for row in rows
    ]
