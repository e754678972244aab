"""Slurm's short form of node lists (``gpu[01-03,7],login``): expands it, bounded against hostile input, and folds."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

MAX_NODES = 20_000

_NUMBERED = re.compile(r"(.*?)([0-9]{1,15})")
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


def fold(names: Iterable[str]) -> str:
    """Fold node names as Slurm writes them: n1, n2, n4 -> "n[1-2,4]"; padding with zeros is kept."""
    groups: dict[tuple[str, int], list[int]] = {}
    whole: dict[str, list[str]] = {}
    for name in dict.fromkeys(names):
        match = _NUMBERED.fullmatch(name)
        if match is None:
            whole.setdefault(name, [])
            continue
        prefix, digits = match[1], match[2]
        # Numbers of one width fold together; without a leading zero any width does.
        padded = len(digits) if digits.startswith("0") and len(digits) > 1 else 0
        groups.setdefault((prefix, padded), []).append(int(digits))
    for (prefix, width), numbers in groups.items():
        for other in list(groups):
            # n08, n09, n10: the last has no zero, but the same width.
            if width and other == (prefix, 0):
                same = [n for n in groups[other] if len(str(n)) == width]
                groups[other] = [n for n in groups[other] if len(str(n)) != width]
                numbers.extend(same)
    folded = list(whole)
    for (prefix, width), numbers in groups.items():
        if not numbers:
            continue
        spans = ",".join("-".join(n.zfill(width) for n in span.split("-")) for span in ranges(numbers).split(","))
        folded.append(f"{prefix}[{spans}]" if "," in spans or "-" in spans else f"{prefix}{spans}")
    return ",".join(folded)
