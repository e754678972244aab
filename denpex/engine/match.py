"""Finds patterns in records: one scan tells which expressions occur, then the named fields are read."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence

from denpex.engine import records
from denpex.model import Library, Match, Pattern, Record, Role, Source

# Both backends read expressions so: ASCII classes, ^ and $ at line ends, "." not at a newline.
FLAGS = re.ASCII | re.MULTILINE

DECISIVE = frozenset({Role.ORIGIN, Role.CASCADE, Role.TEARDOWN})
"""Roles that say what a message is; context, advice and progress may stand beside any of them."""

_LINK = re.compile(r"^[ |+]*(?:During handling of the above exception|The above exception was the direct cause)", FLAGS)

Scan = Callable[[bytes], Iterable[int]]
"""Text -> the numbers of the expressions that occur in it (in the order of `expressions`)."""

Find = Callable[[bytes], Iterable[int]]
"""A stream's bytes -> where one of the expressions of `telling` ends in them, in any order."""


def expressions(library: Library) -> list[str]:
    """Return every expression to be scanned for, in the order that `Matcher` numbers them."""
    return [expression for pattern in library.patterns for expression in pattern.expressions]


def telling(library: Library) -> list[str]:
    """Return the expressions that matter wherever they stand in a stream; of progress only the last lines do.

    Where a launcher's prefix stands on every line, an expression does not fit the bytes at their lines' beginning, nor
    over several lines: for these there are words.
    """
    listed = [e for pattern in library.patterns if pattern.role is not Role.PROGRESS for e in pattern.expressions]
    return [*(e.removeprefix("^") for e in listed), *(re.escape(word.decode()) for word in records.TELLING)]


class Matcher:
    """A library ready to be matched; ``scan`` and ``find`` are one of the two backends (denpex/library.py)."""

    def __init__(self, library: Library, scan: Scan, find: Find) -> None:
        self._scan, self.find = scan, find
        self._pattern_of: list[int] = []
        self._expressions = expressions(library)
        # Compiled when first found: most are never met in one run, and Python compiles slower than the scan runs.
        self._compiled: dict[int, re.Pattern[str]] = {}
        self._patterns = library.patterns
        for number, pattern in enumerate(library.patterns):
            self._pattern_of.extend([number] * len(pattern.expressions))
        self._companions = {
            p.id: [re.compile(e, FLAGS) for e in p.companions] for p in library.patterns if p.companions
        }
        self._exclusions = {
            p.id: [re.compile(e, FLAGS) for e in p.exclusions] for p in library.patterns if p.exclusions
        }

    def match(self, records: Sequence[Record]) -> list[Match]:
        """Return what each record means, in the records' order; a record may have several meanings, or none."""
        found: list[Match] = []
        for record in records:
            # One byte for each character, so that a bounded repeat counts here what it counts in the text.
            numbers = self._scan(record.text.encode("ascii", "replace"))
            if numbers:
                found.extend(self._resolve(record, numbers))
        return found

    def _resolve(self, record: Record, numbers: Iterable[int]) -> list[Match]:
        """Keep the meanings that no other one explains.

        A pattern yields to those that it names; one with "*" yields to every deciding pattern without "*" too.
        """
        hits: dict[int, Match] = {}
        begins: dict[int, int] = {}
        for number in sorted(set(numbers)):
            at = self._pattern_of[number]
            pattern = self._patterns[at]
            if at in hits or not _may_come_from(pattern, record):
                continue
            match = self._expression(number).search(record.text)
            if match is None or not self._stands(pattern, record.text):
                continue
            fields = {name: value for name, value in match.groupdict().items() if value is not None}
            hits[at] = Match(record, pattern, fields)
            begins[at] = match.start()
        ids = {match.pattern.id for match in hits.values()}
        standing = {at: m for at, m in hits.items() if not ids & set(m.pattern.yields_to)}
        if any(m.pattern.role in DECISIVE and "*" not in m.pattern.yields_to for m in standing.values()):
            standing = {at: m for at, m in standing.items() if "*" not in m.pattern.yields_to}
        return _first_of_chain(record.text, standing, begins) if len(standing) > 1 else list(standing.values())

    def _expression(self, number: int) -> re.Pattern[str]:
        compiled = self._compiled.get(number)
        if compiled is None:
            compiled = self._compiled[number] = re.compile(self._expressions[number], FLAGS)
        return compiled

    def _stands(self, pattern: Pattern, text: str) -> bool:
        needed = self._companions.get(pattern.id)
        if needed and not any(expression.search(text) for expression in needed):
            return False
        return not any(expression.search(text) for expression in self._exclusions.get(pattern.id, ()))


def _first_of_chain(text: str, hits: Mapping[int, Match], begins: Mapping[int, int]) -> list[Match]:
    """Keep, of the meanings of a chained traceback, the first exception's: Python prints the cause first."""
    links = [link.start() for link in _LINK.finditer(text)]
    decisive = [begins[at] for at, match in hits.items() if match.pattern.role in DECISIVE]
    if not links or not decisive:
        return list(hits.values())
    end = next((link for link in links if link > min(decisive)), len(text))
    return [m for at, m in hits.items() if m.pattern.role not in DECISIVE or begins[at] < end]


def _may_come_from(pattern: Pattern, record: Record) -> bool:
    """Kernel and scheduler records hold only their own messages; a job's text may quote anything.

    An exception's text that quotes the kernel is the program's word, though: no kernel log has a traceback.
    """
    if record.source is not Source.TASK:
        return record.source is pattern.source
    return pattern.source is not Source.KERNEL or "Traceback (most recent call last)" not in record.text
