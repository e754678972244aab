"""Reads how ranks ended, and which are named, from what srun, torchrun and other ranks print about them."""

from __future__ import annotations

import re
from collections.abc import Iterable

from denpex.engine.progress import natural
from denpex.engine.ranks import OWN, Rank, status
from denpex.model import Event, Role, Source

_SAID = {  # srun prints strsignal()'s words
    "Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Out Of Memory": 9,
    "Illegal instruction": 4, "Floating point exception": 8, "Hangup": 1, "Interrupt": 2,
}  # fmt: skip
_MOST_TASKS = 32_768  # rank numbers beyond are no ranks
TORCHRUN_TABLE = "torchelastic-failure-table"
TORCHRUN = (TORCHRUN_TABLE, "torchelastic-child-failed")
# Slurm says these of a step or job that it ends; tasks whose end srun reports afterwards were ended by that.
_SWEEPS = ("CANCELLED AT", "Job step aborted", "Terminating StepId", "forcing job termination")


def add_accused(events: Iterable[Event], ranks: dict[int, Rank]) -> None:
    """Add ranks that are known only because others name them as missing."""
    for event in events:
        if event.role is Role.CASCADE and event.pattern not in OWN:
            for number in numbers(event.fields.get("accused", "")):
                ranks.setdefault(number, Rank(number, event.step))


def read_torchrun(loose: Iterable[Event], ranks: dict[int, Rank]) -> None:
    """Take exit statuses from torchrun's table of failures, where no task record has them."""
    for event in loose:
        if event.pattern != TORCHRUN_TABLE:
            continue
        named, code = event.fields.get("rank", ""), event.fields.get("exitcode", "")
        number = natural(named)
        if number is not None and number < _MOST_TASKS and re.fullmatch(r"-?\d{1,5}", code):
            value = int(code)
            rank = ranks.setdefault(number, Rank(number, event.step, event.node))
            _ended(rank, value if value >= 0 else None, -value if value < 0 else None, event)


def read_srun(loose: Iterable[Event], ranks: dict[int, Rank], have_tasks: bool) -> None:
    """Take exit statuses from srun's words, where no task record has them."""
    swept: set[str] = set()
    for event in loose:
        if event.source is Source.SLURM and any(word in event.text for word in _SWEEPS):
            swept.add(event.file)
        if event.pattern not in ("srun-task-exit", "slurm-oom-task"):
            continue
        code = event.fields.get("code", "")
        by = _SAID.get("Out Of Memory" if event.pattern == "slurm-oom-task" else event.fields.get("signal", ""))
        host = event.fields.get("host", "")
        if by is None and not re.fullmatch(r"\d{1,3}", code):
            continue
        for number in numbers(event.fields.get("tasks", "")):
            if number not in ranks and have_tasks:
                continue
            rank = ranks.setdefault(number, Rank(number, event.step))
            rank.node = rank.node or (host if re.fullmatch(r"[\w.-]+", host) else None)
            if not rank.end_known:
                _ended(rank, int(code) if by is None else None, by, event)
                rank.swept = event.file in swept and event.pattern != "slurm-oom-task"


def _ended(rank: Rank, code: int | None, by: int | None, event: Event) -> None:
    if rank.end_known:
        return
    rank.end_known = True
    rank.exit_code, rank.signal = status(code, by)
    rank.exit_event = rank.exit_event or event


def numbers(text: str) -> Iterable[int]:
    """Return the rank numbers in "1, 3-5"; what is no rank's number is passed over."""
    found: set[int] = set()
    for part in text.replace(",", " ").split()[:1000]:
        head, _, tail = part.partition("-")
        first, last = natural(head), natural(tail or head)
        if first is not None and last is not None:
            found.update(range(first, min(last, _MOST_TASKS) + 1))
    return sorted(number for number in found if number < _MOST_TASKS)
