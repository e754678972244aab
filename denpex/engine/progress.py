"""How far each rank came: its progress lines, its last output, and the sequence numbers that watchdogs print."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from denpex.model import Event, Instant, Role

# Output that comes this close to a process's end may be a buffer that was flushed on the way out.
_FLUSH_NS = 100_000_000
# So many progress lines give the pace: of a long stream only the end is read line by line.
PACED = 32

Key = tuple[str | None, int | None]
"""(step, rank); rank None where a progress line does not tell whose it is."""


def natural(text: str) -> int | None:
    """Return the number that a field of a message is; None where it is none, or longer than any honest one."""
    return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else None


@dataclass
class Progress:
    """How far a rank came: its highest step, when it said so, and when it last said anything."""

    step: int | None = None
    recent: deque[Instant] = field(default_factory=lambda: deque(maxlen=PACED))
    when: Instant | None = None  # of the last progress line
    settled: Instant | None = None  # of the last one that others followed later than a flush would
    output: Instant | None = None  # of the last output of any kind
    count: int = 0
    last: dict[str, int] = field(default_factory=dict)  # stream -> number of its last progress line

    def add(self, step: int | None, when: Instant | None, file: str, sequence: int) -> None:
        """Note one progress line."""
        self.count += 1
        self.last[file] = max(sequence, self.last.get(file, -1))
        if step is not None:
            self.step = step if self.step is None else max(self.step, step)
        if when is None:
            return
        self.recent.append(when)
        if self.when is not None and when.local_ns - self.when.local_ns > _FLUSH_NS:
            self.settled = self.when
        if self.when is None or when.local_ns >= self.when.local_ns:
            self.when = when

    def heard(self, when: Instant | None) -> None:
        """Note output of any kind."""
        if when is not None and (self.output is None or when.local_ns > self.output.local_ns):
            self.output = when

    def join(self, later: Progress) -> None:
        """Take what was seen of the same rank in streams that come after this one's."""
        for file, sequence in later.last.items():
            self.last[file] = max(sequence, self.last.get(file, -1))
        self.count += later.count
        if later.step is not None:
            self.step = later.step if self.step is None else max(self.step, later.step)
        self.recent.extend(later.recent)
        self.when = _later(self.when, later.when)
        self.settled = _later(self.settled, later.settled)
        self.heard(later.output)

    def followed(self, event: Event, end: Instant | None) -> bool:
        """Tell whether the rank certainly made progress after an event: by place in one stream, else by time."""
        if event.file in self.last:
            return self.last[event.file] > event.sequence
        moment = self.when
        if moment is None or event.when is None or moment.clock != event.when.clock:
            return False
        if end is not None and end.clock == moment.clock and end.local_ns - moment.local_ns < _FLUSH_NS:
            moment = self.settled
        return moment is not None and moment.local_ns > event.when.local_ns

    def pace_ns(self) -> int | None:
        """Return the usual time between the last progress lines, None where too few were seen."""
        if len(self.recent) < 3 or self.recent[0].clock != self.recent[-1].clock:
            return None
        return (self.recent[-1].local_ns - self.recent[0].local_ns) // (len(self.recent) - 1)


def _later(one: Instant | None, other: Instant | None) -> Instant | None:
    if one is None or other is None:
        return one or other
    return other if other.local_ns >= one.local_ns else one


def latest(moments: Iterable[Instant | None]) -> Instant | None:
    """Return the moment that is last in reference time, by the middle of its bounds."""
    known = [moment for moment in moments if moment is not None]
    return max(known, key=lambda m: m.lo_ns + m.hi_ns, default=None)


def behind(steps: Mapping[int, int | None]) -> int | None:
    """Return the only rank whose step is lower than all others', where every rank's is known; else None."""
    known = {rank: step for rank, step in steps.items() if step is not None}
    if len(known) < 2 or len(known) < len(steps):
        return None
    lowest = min(known.values())
    found = [rank for rank, step in known.items() if step == lowest]
    return found[0] if len(found) == 1 and lowest < max(known.values()) else None


@dataclass(frozen=True)
class Collective:
    """What a rank's watchdog says of the collective it gave up on, and of how far it had come."""

    seq: int
    enqueued: int | None
    completed: int | None
    group: str
    event: Event


def collectives(events: Iterable[Event]) -> list[Collective]:
    """Return what watchdog lines say; fields ``seq``, ``enqueued``, ``completed``, ``group`` of their patterns."""
    found = []
    for event in events:
        seq = natural(event.fields.get("seq", ""))
        if event.role is Role.CASCADE and seq is not None:
            enqueued, completed = (natural(event.fields.get(name, "")) for name in ("enqueued", "completed"))
            found.append(Collective(seq, enqueued, completed, event.fields.get("group", ""), event))
    return found


def lagging(waits: Mapping[int, list[Collective]], world: int) -> tuple[int, ...]:
    """Return the ranks that had enqueued less than the others waited for: they are the ones that did not come.

    ``waits``: rank -> its watchdogs' words. () unless all ranks of the world speak of one group by its name, since the
    numbers of different groups do not compare.
    """
    if len(waits) < 2 or len(waits) < world:
        return ()
    groups: set[str] | None = None
    for said in waits.values():
        named = {c.group for c in said}
        groups = named if groups is None else groups & named
    groups = {group for group in groups or () if group}
    if not groups:
        return ()
    group = min(groups)
    waited = max(c.seq for said in waits.values() for c in said if c.group == group)
    reached = {}
    for rank, said in waits.items():
        known = [c.enqueued for c in said if c.group == group and c.enqueued is not None]
        if not known:
            return ()
        reached[rank] = max(known)
    # A rank may enqueue ahead of what it waits for, so that ranks that all came differ in their last number too.
    found = tuple(sorted(rank for rank, value in reached.items() if value < waited))
    return found if 2 * len(found) < len(reached) else ()
