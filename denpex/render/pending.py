"""The report on a run that has no verdict yet: what is awaited."""

from __future__ import annotations

from typing import Any

from denpex.hostlist import fold
from denpex.render.lines import Lines
from denpex.render.table import shown
from denpex.render.text import clip, duration


def report(row: dict[str, Any], now: float, *, color: bool, width: int = 80) -> str:
    """Return the report on a stored run without a verdict; ``now`` is in seconds since 1970."""
    lines = Lines(color, width)
    name = f" ({clip(row['name'], 24)})" if row["name"] else ""
    state = f": {row['state']}" if row["state"] else ""
    lines.add(f"Job {shown(row)}{name}{state}", "dim")
    lines.add("Not diagnosed yet", "label")
    lines.space()
    if row["awaited"]:
        lines.section("Awaited", f"what the epilog of {clip(fold(row['awaited']), 300)} leaves")
        lines.section("Then", "the diagnosis, in seconds; at the worker's deadline it is made without them")
    else:
        lines.section("Awaited", "the worker: every node has reported, the diagnosis is being made")
    if row["waiting_since"]:
        lines.section("Since", duration(now - row["waiting_since"]))
    return lines.text()
