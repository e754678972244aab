"""Job ids as sacct takes them: 123, 123_4, 123_[1-3], 123+1, with an optional step, in comma lists."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from denpex.errors import UsageError

_ID = re.compile(
    r"(?P<job>[0-9]{1,18})(?:_(?P<task>[0-9]{1,10})|_\[(?P<tasks>[0-9,-]{1,200})\]|\+(?P<offset>[0-9]{1,6}))?"
    r"(?:\.(?:[0-9]{1,10}|batch|extern|interactive|TBD))?"
)
# More than this in one expression is a slip of the finger.
_MOST = 10_000


class JobId(NamedTuple):
    """One job: its number, and the array task or component of a heterogeneous job (None: all)."""

    job: str
    task: str | None = None
    offset: str | None = None


def parse(text: str) -> list[JobId]:
    """Return the jobs that ``text`` names, each once; raises UsageError.

    A step suffix is accepted and means the whole job: the verdict is the job's.
    """
    found: dict[JobId, None] = {}
    for word in _words(text):
        match = _ID.fullmatch(word)
        if match is None:
            raise UsageError(
                f"{word[:80]!r} is not a job id; 123, 123_4 (array task), 123_[1-3], 123+1 (component) and"
                " comma lists of these are"
            )
        job = _number(match["job"])
        if match["tasks"] is not None:
            found.update((JobId(job, task), None) for task in _tasks(word, match["tasks"]))
        else:
            task, offset = (_number(match[part]) if match[part] else None for part in ("task", "offset"))
            found[JobId(job, task, offset)] = None
        if len(found) > _MOST:
            raise UsageError(f"more than {_MOST} jobs are too many at once; ask in parts")
    return list(found)


def _words(text: str) -> Iterator[str]:
    """Yield the words between commas, except those inside brackets, which belong to an array's tasks."""
    begin, inside = 0, False
    for at, c in enumerate(text):
        if c == "," and not inside:
            yield text[begin:at].strip()
            begin = at + 1
        elif c in "[]":
            inside = c == "["
    yield text[begin:].strip()


def _number(digits: str) -> str:
    """Return a number as Slurm writes it: without leading zeros."""
    return str(int(digits))


def _tasks(word: str, text: str) -> list[str]:
    tasks: list[str] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if first > last:
            raise UsageError(f"{word[:80]!r} is not a job id: {part!r} is no range of array tasks")
        if len(tasks) + last - first >= _MOST:
            raise UsageError(f"{word[:80]!r} names more than {_MOST} array tasks")
        tasks += [str(number) for number in range(first, last + 1)]
    return tasks
