"""Judges a verdict against what was done, and what simpler rules would have said of the same captured output."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from catalog import Plan

SURE = 0.9
BASELINES = ("first error line", "first bad exit", "torchelastic's rule")
_ERROR = re.compile(rb"error|exception|fatal|critical|traceback|abort|failed|killed|timed out", re.IGNORECASE)
_EXCEPTION = re.compile(rb"^(?:\[rank\d+\]: ?)?[A-Za-z_][\w.]*(?:Error|Exception)\b", re.MULTILINE)
_MARKED = re.compile(rb"^\[(?:rank|default)(\d+)\]:")


@dataclass(frozen=True)
class Judged:
    """What one verdict is worth. ``wrong_place``: a rank or node is named that did nothing."""

    origin_right: bool
    class_right: bool
    category_right: bool
    abstained: bool
    wrong_place: bool
    confidence: float

    @property
    def wrong_and_sure(self) -> bool:
        """The worst outcome: somebody innocent named with confidence."""
        return self.wrong_place and self.confidence >= SURE

    @property
    def right(self) -> bool:
        """What the confidence speaks of: that origin and class are both right."""
        return self.origin_right and self.class_right


def judge(plan: Plan, placed: dict[int, dict[str, Any]], document: dict[str, Any]) -> Judged:
    """Judge a verdict's document ({}: there was none)."""
    fault = plan.fault
    if not document:
        return Judged(False, False, False, abstained=True, wrong_place=False, confidence=0.0)
    origin = document.get("origin") or {}
    named = {place["rank"] for place in document.get("origins") or [] if place["rank"] is not None}
    rank, node = origin.get("rank"), origin.get("node")
    nobody = rank is None and node is None and not named
    node_of = {number: place["node"] for number, place in placed.items()}
    guilty = node_of.get(plan.rank)
    on_node = {number for number, where in node_of.items() if where == guilty}
    unknown = document["category"] == "unknown" and nobody
    if fault.origin in ("rank", "gpu"):
        gpu = (origin.get("gpu") or {}).get("index")
        other_gpu = fault.origin == "gpu" and gpu is not None and gpu != placed[plan.rank]["gpu"]
        right = rank == plan.rank and not other_gpu and (fault.origin == "rank" or gpu is not None)
        wrong = other_gpu or rank not in (None, plan.rank) or (rank is None and node not in (None, guilty))
    elif fault.origin == "node":
        right = (node == guilty and (rank is None or len(on_node) == 1)) or named == on_node != set()
        wrong = node is not None and node != guilty
    elif fault.origin == "link":
        nodes = {node_of.get(number) for number in named}
        right = document["scope"] == "link" or (guilty in nodes and len(nodes) == 2)
        wrong = rank is not None or (node is not None and node != guilty)
    else:
        right, wrong = nobody, not nobody
    if fault.may_abstain and nobody:
        right = True
    if fault.needs:
        right = nobody
    class_right = document["failure_class"] in fault.classes or (fault.may_abstain and unknown)
    return Judged(
        origin_right=right,
        class_right=class_right,
        category_right=class_right or document["category"] == fault.category,
        abstained=nobody and fault.origin in ("rank", "gpu", "node", "link"),
        wrong_place=wrong,
        confidence=float(document["confidence"]),
    )


def baselines(keep: Path) -> dict[str, int | None]:
    """Return the rank that each simpler rule names (None: no rank), from the run's own captured files."""
    lines, ends = [], []
    for node in sorted((keep / "spool").glob("*/*")):
        ends += _ends(node)
        for index in sorted(node.glob("user/streams/0.*.idx")):
            lines += _error_lines(index)
    bad = [(when, rank) for when, rank, failed in ends if failed]
    # torchelastic: whole seconds, a time for each failure (of its exception, else of its end), the first listed wins.
    raised = {rank: when for when, rank, is_exception in reversed(lines) if is_exception}
    blamed = [(int(raised.get(rank, when) // 10**9), rank) for when, rank in bad]
    return {
        BASELINES[0]: min(((when, rank) for when, rank, _ in lines), default=(0, None))[1],
        BASELINES[1]: min(bad, default=(0, None))[1],
        BASELINES[2]: min(blamed, default=(0, None))[1],
    }


def _ends(node: Path) -> list[tuple[int, int, bool]]:
    found = []
    for name in ("user/claims.jsonl", "tasks.jsonl"):
        path = node / name
        for line in path.read_bytes().splitlines() if path.exists() else []:
            record = json.loads(line)
            if record.get("event") == "end" and record.get("step") == "0":
                found.append((record["realtime_ns"], record["rank"], bool(record["exit_code"] or record["signal"])))
    return found


def _error_lines(index: Path) -> list[tuple[int, int, bool]]:
    """Return (receive time, rank, whether it is an exception's own line) of a stream's lines that look like errors."""
    rank = int(index.name.split(".")[1])
    stream = index.with_suffix("")
    if not stream.exists():
        return []
    data = stream.read_bytes()
    reads = [line.split() for line in index.read_text(encoding="utf-8").splitlines()]
    stamps = [(int(words[0]), int(words[1])) for words in reads if words and words[0].isdigit()]
    found, offset, at = [], 0, 0
    for line in data.splitlines(keepends=True):
        while at + 1 < len(stamps) and stamps[at + 1][0] <= offset:
            at += 1
        if stamps and _ERROR.search(line):
            marked = _MARKED.match(line)
            found.append((stamps[at][1], int(marked[1]) if marked else rank, bool(_EXCEPTION.match(line))))
        offset += len(line)
    return found
