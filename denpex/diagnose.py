"""The diagnosis on one page: records -> clock -> timeline -> match -> progress -> infer -> verdict."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import replace

from denpex.engine import facts, flight, infer, records, timeline, verdict
from denpex.engine.clock import Clocks
from denpex.engine.match import Matcher
from denpex.engine.progress import PACED, Key, Progress, natural
from denpex.errors import InputError
from denpex.model import Event, Gap, Library, Match, Record, Role, Snapshot, StreamSource, Verdict

# Of one pattern in one stream the first and the last so many are kept: a loop that prints an error is one fact.
_MOST_ALIKE = 64


def diagnose(snapshot: Snapshot, library: Library, matcher: Matcher) -> Verdict:
    """Return the verdict on one run.

    One stream is in memory at a time; what is kept of it is its events, and of its progress how far it went.
    """
    clocks = Clocks(snapshot.clock, snapshot.nodes)
    node_of = timeline.nodes_of_ranks(snapshot)
    seen = _Seen(clocks, node_of)
    account = facts.flown(snapshot)
    nodes = {node.name for node in snapshot.nodes}
    gaps: list[Gap] = []
    seen.take(matcher.match(records.from_kernel(snapshot.kernel)))
    for source in snapshot.streams:
        found = _records(source, matcher, gaps)
        seen.hear(found)
        seen.take(matcher.match(found))
    events = timeline.ordered(
        [*facts.task_events(snapshot, clocks), *flight.events(account, clocks, node_of, nodes), *seen.events()]
    )
    case = facts.build(snapshot, events, seen.progress, clocks, account)
    snapshot = replace(snapshot, gaps=(*snapshot.gaps, *account.gaps, *gaps))
    return verdict.verdict(case, infer.infer(case), snapshot, library, clocks)


def _records(source: StreamSource, matcher: Matcher, gaps: list[Gap]) -> list[Record]:
    try:
        data = source.load()
        if data.fault:
            gaps.append(Gap(f"the rest could not be read: {data.fault}", source.info.name, "a whole copy of the file"))
        return records.split(source.info, data, matcher.find)
    except InputError as error:
        gaps.append(Gap(str(error), source.info.name, "a spool that is not removed before the diagnosis"))
        return []


class _Seen:
    """What is kept of the streams that were read."""

    def __init__(self, clocks: Clocks, node_of: timeline.NodeOf) -> None:
        self._clocks = clocks
        self._node_of = node_of
        self._number = itertools.count()
        self._events: list[Event] = []
        self.progress: dict[Key, Progress] = {}

    def events(self) -> list[Event]:
        """Return every event that was kept."""
        return self._events

    def hear(self, found: list[Record]) -> None:
        """Note when each rank of a stream last said anything."""
        last: dict[Key, Record] = {(record.step, record.rank): record for record in found if record.stamp is not None}
        for key, record in last.items():
            node = record.node or (self._node_of.get((record.step, record.rank)) if record.rank is not None else None)
            self._of(key).heard(self._clocks.instant(node, record.stamp))

    def _of(self, key: Key) -> Progress:
        return self.progress.setdefault(key, Progress())

    def take(self, matches: Iterable[Match]) -> None:
        """Keep one stream's matches as events, and of its progress lines how far they went."""
        kept: dict[tuple[str, int | None], _Alike] = {}
        for match in matches:
            key = (match.pattern.id, match.record.rank)
            if key not in kept:
                # Of progress only the end counts.
                kept[key] = (
                    _Alike(0, PACED) if match.pattern.role is Role.PROGRESS else _Alike(_MOST_ALIKE, _MOST_ALIKE)
                )
            kept[key].add(next(self._number), match)
        for alike in kept.values():
            for number, match in alike.ends():
                event = timeline.event(match, self._clocks, number, self._node_of)
                if event.role is Role.PROGRESS:
                    step = natural(event.fields.get("step", ""))
                    self._of((event.step, event.rank)).add(step, event.when, event.file, event.sequence)
                else:
                    self._events.append(event)
            if alike.passed_over and match.pattern.role is Role.PROGRESS:
                self._of((match.record.step, match.record.rank)).count += alike.passed_over


class _Alike:
    """The first and the last of a stream's matches of one pattern and rank."""

    def __init__(self, first: int, last: int) -> None:
        """``first`` and ``last``: how many to keep of either end."""
        self._most = first
        self._first: list[tuple[int, Match]] = []
        self._last: deque[tuple[int, Match]] = deque(maxlen=last)
        self._count = 0

    def add(self, number: int, match: Match) -> None:
        """Take one more, the ``number``-th of all matches."""
        self._count += 1
        if len(self._first) < self._most:
            self._first.append((number, match))
        else:
            self._last.append((number, match))

    def ends(self) -> Iterator[tuple[int, Match]]:
        """Yield what was kept, in order."""
        yield from self._first
        yield from self._last

    @property
    def passed_over(self) -> int:
        """How many were not kept."""
        return self._count - len(self._first) - len(self._last)
