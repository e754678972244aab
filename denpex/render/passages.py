"""The two long passages of a report: what happened when, and the evidence."""

from __future__ import annotations

from typing import Any

from denpex.gist import gist, without_source
from denpex.hostlist import fold, ranges
from denpex.render.lines import LABEL, Lines
from denpex.render.text import clip, clock_time, half_width, plus_minus, width_of, wrap

_MOST_EVENTS = 14
_MOST_EVIDENCE = 8
_EVIDENCE_LINES = 6
_LONGEST = 2000  # of a line that is read for its telling part
_AFTER = {"certain": "later: ", "likely": "likely later: ", "undetermined": "order not known: "}

Item = dict[str, Any]


def timeline(lines: Lines, d: Item) -> None:
    """Write what happened when, in corrected time, from the first cited fact on; equal words of ranks folded.

    A consequence whose time is not known stands below, after the fact that it followed.
    """
    by_id = {e["id"]: e for e in d["evidence"]}
    edges = {edge["evidence"]: edge for edge in d["cascade"]}
    timed = [by_id[i] for i in d["timeline"] if i in by_id and by_id[i]["time"]]
    if timed:
        zero = _moment(timed[0])
        bound = half_width(timed[0]["time"]["lo"], timed[0]["time"]["hi"])
        lines.section("When", f"+0 s is {clock_time(zero)} {bound} by the reference clock")
        groups = _fold(timed, edges)
        rows = [(_delay(g[0], zero), _who(g), _where(g), _words(g[0], edges)) for g in groups[:_MOST_EVENTS]]
        _aligned(lines, rows, [g[0]["role"] for g in groups[:_MOST_EVENTS]])
        if len(groups) > _MOST_EVENTS:
            lines.row(f"and {len(groups) - _MOST_EVENTS} more (--json)")
    shown = {e["id"] for e in timed}
    untimed = [by_id[edge["evidence"]] for edge in d["cascade"] if edge["evidence"] in by_id]
    untimed = [e for e in untimed if e["id"] not in shown]
    if untimed:
        lines.section("Then", "consequences, at times that are not known:")
        groups = _fold(untimed, edges)
        rows = [("", _who(g), _where(g), _words(g[0], edges)) for g in groups[:_MOST_EVENTS]]
        _aligned(lines, rows, [g[0]["role"] for g in groups[:_MOST_EVENTS]])
        if len(groups) > _MOST_EVENTS:
            lines.row(f"and {len(groups) - _MOST_EVENTS} more (--json)")


def _aligned(lines: Lines, rows: list[tuple[str, str, str, str]], roles: list[str]) -> None:
    """Write rows whose first three columns are as wide as their widest."""
    wide = [max(width_of(row[at]) for row in rows) for at in range(3)]
    for row, role in zip(rows, roles, strict=True):
        cells = [cell + " " * (room - width_of(cell)) for cell, room in zip(row[:3], wide, strict=True) if room]
        head = "  ".join(cells) + "  "
        lines.row(head + clip(row[3], max(lines.width - width_of(head) - 2, 10)), "bad" if role == "origin" else "")


def _moment(e: Item) -> float:
    return (float(e["time"]["lo"]) + float(e["time"]["hi"])) / 2


def _delay(e: Item, zero: float) -> str:
    return plus_minus(e["time"]["lo"] - zero, e["time"]["hi"] - zero)


def _fold(listed: list[Item], edges: dict[str, Item]) -> list[list[Item]]:
    """Put the consequences of one class and order together, at the first one's place: many ranks say the same."""
    groups: dict[object, list[Item]] = {}
    for e in listed:
        order = edges[e["id"]]["order"] if e["id"] in edges else None
        alike = e["role"] in ("cascade", "teardown") and e["rank"] is not None
        groups.setdefault((e["role"], e["class"], order) if alike else e["id"], []).append(e)
    return list(groups.values())


def _who(group: list[Item]) -> str:
    known = sorted({e["rank"] for e in group if e["rank"] is not None})
    if not known:
        return clip(group[0]["stream"], 16)
    folded = ranges(known)
    if width_of(folded) > 12:
        return f"{len(known)} ranks"
    return f"rank{'s' if len(known) > 1 else ''} {folded}"


def _where(group: list[Item]) -> str:
    nodes = list(dict.fromkeys(e["node"] for e in group if e["node"]))
    folded = fold(nodes)
    return folded if width_of(folded) <= 14 else f"{len(nodes)} nodes" if len(nodes) > 1 else clip(folded, 14)


def _words(e: Item, edges: dict[str, Item]) -> str:
    order = _AFTER.get(edges[e["id"]]["order"], "") if e["id"] in edges else ""
    return order + _telling(e)


def _telling(e: Item) -> str:
    return without_source(gist(e["text"])[:_LONGEST])


def evidence(lines: Lines, d: Item) -> None:
    """Write the cited facts: the number by which others refer to them, the role, where they stand, the words."""
    groups: dict[object, list[Item]] = {}
    for e in d["evidence"]:
        groups.setdefault((e["role"], e["class"], _telling(e)) if e["role"] != "origin" else e["id"], []).append(e)
    for first, *alike in list(groups.values())[:_MOST_EVIDENCE]:
        who = f", rank {first['rank']}" if first["rank"] is not None else ""
        node = f" on {first['node']}" if first["node"] else ""
        place = f"{first['file']}:{first['offset']}" if first["file"] else first["stream"]
        lines.section("Evidence", f"{first['id']} {first['role']}{who}{node}: {place}")
        rows = [row for row in first["text"].splitlines() if row.strip(" ^~=-")]
        if len(rows) > _EVIDENCE_LINES:
            rows = [rows[0], "...", *rows[-(_EVIDENCE_LINES - 2) :]]
        room = lines.width - LABEL - 2
        for row in rows[:-1]:
            lines.row(" " * LABEL + clip(row, room))
        # The last line tells most: it has three lines' room.
        for part in wrap(clip(rows[-1], 3 * room) if rows else "", room):
            lines.row(" " * LABEL + part)
        if alike:
            lines.row(" " * LABEL + clip("the same: " + ", ".join(e["id"] for e in alike), lines.width - LABEL - 2))
    more = len(groups) - _MOST_EVIDENCE
    if more > 0:
        lines.section("Evidence", f"and {more} more (--json)")
