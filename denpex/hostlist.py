"""Expands Slurm's short form of node lists (``gpu[01-03,7],login``), bounded against hostile input."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_NODES = 20_000

_RANGES = re.compile(r"\d+(?:-\d+)?(?:,\d+(?:-\d+)?)*")


def expand(text: str) -> tuple[str, ...]:
    """Return the node names that ``text`` stands for; () where it is none ("None assigned", "(null)", "")."""
    names: list[str] = []
    for word in _words(text.strip()):
        for name in _expand(word):
            if len(names) >= MAX_NODES:
                return tuple(names)
            names.append(name)
    return tuple(dict.fromkeys(names))


def _words(text: str) -> list[str]:
    """Split at the commas outside brackets."""
    words, depth, start = [], 0, 0
    for at, sign in enumerate(text):
        if sign == "[":
            depth += 1
        elif sign == "]":
            depth -= 1
        elif sign == "," and depth == 0:
            words.append(text[start:at])
            start = at + 1
    words.append(text[start:])
    return [word for word in words if re.fullmatch(r"[\w.\[\],-]+", word)]


def _expand(word: str) -> Iterator[str]:
    head, bracket, rest = word.partition("[")
    if not bracket:
        if head and "]" not in head:
            yield head
        return
    ranges, closed, tail = rest.partition("]")
    if not closed or not _RANGES.fullmatch(ranges):
        return
    for item in ranges.split(","):
        low, _, high = item.partition("-")
        if len(low) > 9 or len(high) > 9:
            return
        for number in range(int(low), int(high or low) + 1):
            for name in _expand(tail) if tail else ("",):
                yield f"{head}{number:0{len(low)}d}{name}"


def ranges(numbers: Iterable[int]) -> str:
    """Fold numbers as Slurm does: 0, 1, 3 -> "0-1,3"."""
    parts: list[list[int]] = []
    for number in sorted(set(numbers)):
        if parts and parts[-1][1] == number - 1:
            parts[-1][1] = number
        else:
            parts.append([number, number])
    return ",".join(str(low) if low == high else f"{low}-{high}" for low, high in parts)
