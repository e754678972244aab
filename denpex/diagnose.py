"""The diagnosis on one page: records -> clock -> timeline -> match -> progress -> infer -> verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from denpex import parallel
from denpex.engine import facts, flight, history, infer, records, timeline, verdict
from denpex.engine.clock import Clocks
from denpex.engine.match import Matcher
from denpex.engine.progress import PACED, Key, Progress, natural
from denpex.errors import InputError
from denpex.model import Event, Gap, KernelRecord, Library, Match, Record, Role, Snapshot, StreamSource, Verdict

# Of one pattern in one stream the first and the last so many are kept: a loop that prints an error is one fact.
_MOST_ALIKE = 64
# The numbers of one stream's events begin so far after those of the stream before: no stream has as many.
_APART = 1 << 32


def diagnose(snapshot: Snapshot, library: Library, matcher: Matcher) -> Verdict:
    """Return the verdict on one run.

    One stream is in memory at a time (of each process that helps); what is kept of it is its events, and of its
    progress how far it went.
    """
    clocks = Clocks(snapshot.clock, snapshot.nodes)
    node_of = timeline.nodes_of_ranks(snapshot)
    account = facts.flown(snapshot)
    nodes = {node.name for node in snapshot.nodes}
    listener = _Listener(matcher, clocks, node_of)
    heard = [listener.kernel(snapshot.kernel)]
    heard += parallel.each(listener.stream, list(enumerate(snapshot.streams, start=1)))
    progress: dict[Key, Progress] = {}
    for one in heard:
        for key, seen in one.progress.items():
            progress.setdefault(key, Progress()).join(seen)
    events = timeline.ordered(
        [
            *facts.task_events(snapshot, clocks),
            *history.events(snapshot),
            *flight.events(account, clocks, node_of, nodes),
            *(event for one in heard for event in one.events),
        ]
    )
    case = facts.build(snapshot, events, progress, clocks, account)
    gaps = (gap for one in heard for gap in one.gaps)
    snapshot = replace(snapshot, gaps=(*snapshot.gaps, *account.gaps, *gaps))
    return verdict.verdict(case, infer.infer(case), snapshot, library, clocks)


@dataclass
class _Heard:
    """What is kept of one stream."""

    events: list[Event] = field(default_factory=list)
    progress: dict[Key, Progress] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def of(self, key: Key) -> Progress:
        """Return the progress of one rank, to be added to."""
        return self.progress.setdefault(key, Progress())


class _Listener:
    """Reads streams."""

    def __init__(self, matcher: Matcher, clocks: Clocks, node_of: timeline.NodeOf) -> None:
        self._matcher, self._clocks, self._node_of = matcher, clocks, node_of

    def kernel(self, messages: Sequence[KernelRecord]) -> _Heard:
        """Return what kernels said; they come before all streams."""
        heard = _Heard()
        self._take(heard, records.from_kernel(messages), 0)
        return heard

    def stream(self, numbered: tuple[int, StreamSource]) -> _Heard:
        """Return what the stream with this number holds."""
        number, source = numbered
        heard = _Heard()
        found = self._records(source, heard.gaps)
        # When each rank last said anything.
        last: dict[Key, Record] = {(record.step, record.rank): record for record in found if record.stamp is not None}
        for key, record in last.items():
            node = record.node or (self._node_of.get((record.step, record.rank)) if record.rank is not None else None)
            heard.of(key).heard(self._clocks.instant(node, record.stamp))
        self._take(heard, found, number * _APART)
        return heard

    def _records(self, source: StreamSource, gaps: list[Gap]) -> list[Record]:
        name = source.info.name
        try:
            data = source.load()
            if data.fault:
                gaps.append(Gap(f"the rest could not be read: {data.fault}", name, "a whole copy of the file"))
            return records.split(source.info, data, self._matcher.find)
        except InputError as error:
            gaps.append(Gap(str(error), name, "a spool that is not removed before the diagnosis"))
            return []

    def _take(self, heard: _Heard, found: list[Record], first: int) -> None:
        """Keep matches as events, numbered from ``first``, and of progress lines how far they went."""
        kept: dict[tuple[str, int | None], _Alike] = {}
        for number, match in enumerate(self._matcher.match(found), first):
            key = (match.pattern.id, match.record.rank)
            if key not in kept:
                # Of progress only the end counts.
                kept[key] = (
                    _Alike(0, PACED) if match.pattern.role is Role.PROGRESS else _Alike(_MOST_ALIKE, _MOST_ALIKE)
                )
            kept[key].add(number, match)
        for alike in kept.values():
            for number, match in alike.ends():
                event = timeline.event(match, self._clocks, number, self._node_of)
                if event.role is Role.PROGRESS:
                    step = natural(event.fields.get("step", ""))
                    heard.of((event.step, event.rank)).add(step, event.when, event.file, event.sequence)
                else:
                    heard.events.append(event)
            if alike.passed_over and match.pattern.role is Role.PROGRESS:
                heard.of((match.record.step, match.record.rank)).count += alike.passed_over


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
