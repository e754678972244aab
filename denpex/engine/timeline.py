"""Puts everything that has a time on one timeline: matched messages become events, earlier where they began earlier."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

from denpex.engine import launchers
from denpex.engine.clock import Clocks
from denpex.model import Event, Instant, Match, Snapshot, Source

_LONGEST_WAIT_MS = 30 * 86_400_000

NodeOf = Mapping[tuple[str | None, int], str]


def event(match: Match, clocks: Clocks, number: int, node_of: NodeOf) -> Event:
    """Return the event that a match is; its node is the rank's by the scheduler where that is known.

    ``number`` counts on within a stream.
    """
    record, pattern = match.record, match.pattern
    node = record.node
    if record.rank is not None:
        # What a log line says of its node is not believed where the scheduler says where the rank ran.
        node = node_of.get((record.step, record.rank)) or record.node or node_of.get((None, record.rank))
    when = clocks.instant(record.node or node, record.stamp)
    waited = _nanoseconds(match.fields.get(pattern.onset, "")) if pattern.onset else 0
    return Event(
        id="",
        role=pattern.role,
        source=_source(match),
        text=record.text,
        failure_class=pattern.failure_class,
        pattern=pattern.id,
        step=record.step,
        rank=record.rank,
        node=node,
        gpu=match.fields.get("pci"),
        when=moved(when, -waited) if when is not None else None,
        waited_ns=waited,
        sequence=number,
        file=record.stream,
        offset=record.offset,
        fields=match.fields,
        recovers=pattern.recovers,
        evidence=record.evidence,
        precedence=0 if "*" in pattern.yields_to else 1,
    )


def _source(match: Match) -> Source:
    """Return the instrument; a kernel message that a job's text quotes is the job's word."""
    if match.pattern.source is Source.KERNEL and match.record.source is not Source.KERNEL:
        return Source.TASK
    return match.pattern.source


def _nanoseconds(milliseconds: str) -> int:
    """Return what a message says it has waited; 0 where that is no sensible number."""
    try:
        value = float(milliseconds)
    except ValueError:
        return 0
    return int(value * 1e6) if 0 < value < _LONGEST_WAIT_MS else 0


def moved(when: Instant, by_ns: int) -> Instant:
    """Return the moment that is so much later."""
    return replace(when, local_ns=when.local_ns + by_ns, lo_ns=when.lo_ns + by_ns, hi_ns=when.hi_ns + by_ns)


def ordered(events: Iterable[Event]) -> tuple[Event, ...]:
    """Return the events in the order of reference time, numbered e1, e2, ...; those without a time come last."""
    listed = sorted(
        events,
        key=lambda e: (e.when is None, (e.when.lo_ns + e.when.hi_ns) // 2 if e.when else 0, e.file, e.sequence),
    )
    return tuple(replace(e, id=f"e{number}") for number, e in enumerate(listed, start=1))


def nodes_of_ranks(snapshot: Snapshot) -> dict[tuple[str | None, int], str]:
    """Return (step, rank) -> node from the tasks' records; (None, rank) for the last step that had the rank.

    A task that is a launcher of several ranks (torchrun) says nothing of where the rank with its own number ran.
    """
    launched = launchers.places(snapshot)
    result: dict[tuple[str | None, int], str] = {}
    for task in snapshot.tasks:
        if (task.step, task.node) not in launched:
            result[task.step, task.rank] = task.node
            result[None, task.rank] = task.node
    return result
