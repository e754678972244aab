"""The report that `denpex show` prints: a verdict for a person at a terminal, at most ``width`` columns."""

from __future__ import annotations

from typing import Any

from denpex.hostlist import fold, ranges
from denpex.render.lines import Lines
from denpex.render.passages import evidence, timeline
from denpex.render.text import clip, duration, plus_minus

_CONFIDENCE = ((0.95, "very likely"), (0.8, "likely"), (0.6, "probable"), (0.4, "possible"), (0.0, "a guess"))
_REQUEUE = {
    "yes": "yes",
    "no": "no, it would fail again",
    "elsewhere": "yes, on other nodes",
    "after_fix": "after the fix",
}
_NOWHERE = {
    "job": "the whole job; no single rank",
    "external": "outside the job; no rank is accused",
    "none": "nowhere; nothing failed",
    "service": "a service outside the job",
}
_HARDWARE = {
    "suspected": "suspected; one sign is no proof",
    "confirmed": "confirmed by independent signs that root collected",
}
_MOST_STEPS = 12
_MOST_CLOCKS = 16


def report(document: dict[str, Any], *, color: bool, width: int = 80) -> str:
    """Return the report on one verdict (its JSON document, format 1), without a newline at the end."""
    lines = Lines(color, width)
    _headline(lines, document)
    lines.space()
    _answer(lines, document)
    if document["category"] != "none":
        lines.space()
        timeline(lines, document)
    lines.space()
    evidence(lines, document)
    _steps(lines, document)
    lines.space()
    _alternatives(lines, document)
    for gap in _folded_gaps(document["gaps"]):
        lines.section("Gap", gap)
    if document["category"] != "none":
        _clocks(lines, document)
    return lines.text()


def _headline(lines: Lines, d: dict[str, Any]) -> None:
    job = d.get("job") or {}
    name = _job_name(d)
    head = f"Job {name}" if name else "Outside Slurm"
    if job.get("name"):
        head += f" ({clip(job['name'], 24)})"
    facts = [d["state"] or "", f"exit {job['exit']}" if job.get("exit") else ""]
    if job.get("start") and job.get("end"):
        facts.append(f"after {duration(job['end'] - job['start'])}")
    if job.get("nodes"):
        facts.append(f"on {clip(fold(job['nodes']), 40)}")
    known = ", ".join(fact for fact in facts if fact)
    head += f": {known}" if known else ""
    if d["revision"] > 1:
        head += f" (revision {d['revision']})"
    lines.add(head, "dim")
    lines.add(d["title"], "good" if d["category"] == "none" else "bad")


def _job_name(d: dict[str, Any]) -> str:
    array, job = d["array"], d.get("job") or {}
    if array["job"] and array["task"]:
        return f"{array['job']}_{array['task']}"
    if job.get("het_job") and job.get("het_offset"):
        return f"{job['het_job']}+{job['het_offset']}"
    return d["job_id"] or ""


def _answer(lines: Lines, d: dict[str, Any]) -> None:
    word = next(word for least, word in _CONFIDENCE if d["confidence"] >= least)
    by = ", by a language model" if d["source"] == "llm" else ""
    lines.section("Class", f"{d['category']}/{d['failure_class']}, {word} ({d['confidence']:.0%}){by}")
    where, basis = _where(d)
    lines.section("Where", where)
    if basis:
        lines.section("Where", f"known from: {basis}")
    if d["hardware"] != "none":
        lines.section("Hardware", _HARDWARE.get(d["hardware"], d["hardware"]))
    if d["summary"]:
        lines.section("What", d["summary"])
    if d["silent"]:
        lines.section("What", "No rank printed an error.")
    if d["fix"]["text"]:
        lines.section("Fix", d["fix"]["text"])
    if d["fix"]["command"]:
        lines.command("Command", d["fix"]["command"])
    if d["category"] != "none":
        lines.section("Whose", f"{d['route']}; run again: {_REQUEUE.get(d['requeue'], d['requeue'])}")


def _where(d: dict[str, Any]) -> tuple[str, str]:
    """Return the place in words, and how it is known."""
    if d["origin"]:
        return _place(d["origin"]), d["origin"]["basis"]
    tied = d["origins"]
    if tied:
        known = [p["rank"] for p in tied if p["rank"] is not None]
        nodes = fold(p["node"] for p in tied if p["node"])
        who = f"one of ranks {ranges(known)}" + (f" on {nodes}" if nodes else "") if known else f"one of {nodes}"
        return f"{clip(who, 200)}; the evidence does not separate them", tied[0]["basis"]
    return _NOWHERE.get(d["scope"], "not established"), ""


def _place(place: dict[str, Any]) -> str:
    parts = []
    if place["rank"] is not None:
        parts.append(f"rank {place['rank']}")
    if place["node"]:
        parts.append(f"node {place['node']}")
    gpu = place["gpu"]
    if gpu:
        parts.append("GPU " + " ".join(str(gpu[k]) for k in ("index", "pci", "uuid") if gpu[k] is not None))
    if place["step"]:
        parts.append(f"step {place['step']}")
    return ", ".join(parts) or "not established"


def _steps(lines: Lines, d: dict[str, Any]) -> None:
    """List the steps where there are several and one of them failed."""
    numbered = [s for s in d["steps"] if s["id"].isdigit()]
    if len(numbered) < 2 or all(s["state"].startswith("COMPLETED") for s in numbered):
        return
    lines.space()
    for step in d["steps"][:_MOST_STEPS]:
        name = f" {clip(step['name'], 24)}" if step["name"] and step["name"] != step["id"] else ""
        state = f"{step['state']}, exit {step['exit']}" if step["exit"] else step["state"]
        lines.section("Steps", f"{step['id']}{name}: {state}")
    if len(d["steps"]) > _MOST_STEPS:
        lines.section("Steps", f"and {len(d['steps']) - _MOST_STEPS} more (--json)")


def _alternatives(lines: Lines, d: dict[str, Any]) -> None:
    for item in d["alternatives"]:
        place = f" at {_place(item['origin'])}" if item["origin"] else ""
        lines.section("Not", f"{item['failure_class']}{place} ({item['confidence']:.0%}): {item['why_not']}")


def _folded_gaps(gaps: list[dict[str, str]]) -> list[str]:
    """Put gaps that differ only in where they are into one line."""
    places: dict[tuple[str, str], list[str]] = {}
    for gap in gaps:
        places.setdefault((gap["what"], gap["closed_by"]), []).append(gap["where"])
    result = []
    for (what, closed_by), where in places.items():
        named = clip(fold(w for w in where if w), 60)
        result.append(what + (f" ({named})" if named else "") + (f"; closed by: {closed_by}" if closed_by else ""))
    return result


def _clocks(lines: Lines, d: dict[str, Any]) -> None:
    clocks = d.get("clocks") or []
    if not clocks:
        return
    shown = [f"{c['node']} {plus_minus(c['offset_s']['lo'], c['offset_s']['hi'])}" for c in clocks[:_MOST_CLOCKS]]
    if len(clocks) > _MOST_CLOCKS:
        shown.append(f"and {len(clocks) - _MOST_CLOCKS} more (--json)")
    lines.section("Clocks", "already added to each node's own times:")
    lines.items("Clocks", shown)
