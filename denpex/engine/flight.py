"""Compares the ranks' flight recorders: who did not come to a collective, who called another one, who waits for whom.

Ranks are compared group by group and number by number. A rank that is missing from one group while it waits in another
is a victim; ranks that wait for each other in a circle are a deadlock. A dump that is older than what it is compared
with says nothing, nor does one that is of another run.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median

from denpex.engine.clock import Clocks
from denpex.engine.flight_waits import absent, undumped
from denpex.engine.ranks import FLIGHT
from denpex.engine.recorder import Clue, Group, Kind, written
from denpex.engine.suspect import MISSING
from denpex.model import Event, FlightCall, FlightDump, FlightGroup, Gap, Role, Source, Stamp

MISMATCH = "collective-mismatch"

# Ranks enqueue one collective at about one time; a dump that is apart by more from all others is of another run.
_APART_NS = 60_000_000_000
_COMPARED = 32  # collectives whose times are compared
_MOST_TIED = 16


@dataclass(frozen=True)
class Account:
    """What the flight recorders of a run say together; ``further``: ranks that waited for those in the clues."""

    clues: tuple[Clue, ...] = ()
    further: frozenset[int] = frozenset()
    dumps: Mapping[int, FlightDump] = field(default_factory=dict)
    gaps: tuple[Gap, ...] = ()


def examine(dumps: Iterable[FlightDump], world: int) -> Account:
    """Return what the dumps of one run say together; ``world`` is the number of ranks as far as it is known."""
    newest: dict[int, FlightDump] = {}
    for dump in sorted(dumps, key=lambda d: (written(d), d.file)):
        newest[dump.rank] = dump
    if not newest:
        return Account()
    world = max(world, max(newest) + 1)
    apart = _apart(newest)
    gaps = tuple(
        Gap(f"{newest[r].file} was set aside: its times are not of the others' run", newest[r].file, "a folder per run")
        for r in sorted(apart)
    )
    used = {rank: dump for rank, dump in newest.items() if rank not in apart}
    groups = _groups(used, world)
    differing = [clue for group in groups for clue in _differing(group, used)]
    if differing:
        return Account(tuple(_unique(differing)), frozenset(), used, gaps)
    clues, further = absent(groups, used)
    clues = clues or [clue for group in groups for clue in undumped(group, used, newest)]
    return Account(tuple(_unique(clues)), frozenset(further), used, gaps)


def events(
    account: Account, clocks: Clocks, node_of: Mapping[tuple[str | None, int], str], nodes: Collection[str]
) -> list[Event]:
    """Return one event for each clue, at the moment of the collective that it is about.

    Only where the run's own ``nodes`` are known does that moment compare with others.
    """
    found = []
    for number, clue in enumerate(account.clues):
        dump, call = clue.dump, clue.call
        node = node_of.get((None, clue.rank)) or (dump.node if dump else None)
        when = clocks.instant(node, Stamp(call.created_ns)) if call is not None and node in nodes else None
        named = MISMATCH if clue.kind in (Kind.DIFFERS, Kind.AHEAD) else MISSING
        found.append(
            Event(
                id="",
                role=Role.ORIGIN if named == MISMATCH else Role.CONTEXT,
                source=Source.TASK,
                text=clue.text,
                failure_class=named,
                pattern=FLIGHT,
                step=dump.step if dump else None,
                rank=clue.rank,
                node=node,
                when=when,
                sequence=number,
                file=dump.file if dump else "",
                fields={"kind": str(clue.kind), "alone": "yes" if clue.alone else "", "reason": clue.reason},
                precedence=1,
            )
        )
    return found


def _unique(clues: Iterable[Clue]) -> list[Clue]:
    """Keep of each rank the first clue of a kind: one hang shows in several groups."""
    found: dict[tuple[int, Kind], Clue] = {}
    for clue in clues:
        found.setdefault((clue.rank, clue.kind), clue)
    return list(found.values())


_Key = tuple[str, str, tuple[int, ...]]


def _by_group(dumps: Mapping[int, FlightDump]) -> dict[_Key, dict[int, FlightGroup]]:
    found: dict[_Key, dict[int, FlightGroup]] = {}
    for rank, dump in dumps.items():
        for group in dump.groups:
            found.setdefault((group.name, group.desc, group.ranks), {})[rank] = group
    return found


def _shifts(group: Mapping[int, FlightGroup]) -> dict[int, int]:
    """Return how much later a rank's times of its last collectives are than the others', in the middle."""
    times: dict[int, list[int]] = {}
    for track in group.values():
        for call in track.calls[-_COMPARED:]:
            times.setdefault(call.seq, []).append(call.created_ns)
    middle = {seq: int(median(listed)) for seq, listed in times.items() if len(listed) > 1}
    found = {}
    for rank, track in group.items():
        late = [call.created_ns - middle[call.seq] for call in track.calls[-_COMPARED:] if call.seq in middle]
        if late:
            found[rank] = int(median(late))
    return found


def _apart(dumps: Mapping[int, FlightDump]) -> set[int]:
    """Return the ranks whose dump is of another time than the others'; of two that differ, both."""
    return {
        rank for group in _by_group(dumps).values() for rank, late in _shifts(group).items() if abs(late) > _APART_NS
    }


def _groups(dumps: Mapping[int, FlightDump], world: int) -> list[Group]:
    found = []
    for (name, desc, ranks), tracks in sorted(_by_group(dumps).items()):
        if not all(track.counted for track in tracks.values()):
            continue
        everyone = desc == "default_pg" or (name == "0" and not desc)
        members = frozenset(ranks or (range(world) if everyone else (r for r, track in tracks.items() if track.calls)))
        calls: dict[int, Sequence[FlightCall]] = {}
        for rank in sorted(members & dumps.keys()):
            own = tracks[rank].calls if rank in tracks else ()
            # A group that has dropped out of the recorder's ring may have come to any number.
            if own or dumps[rank].from_start:
                calls[rank] = own
        if len(members) > 1 and any(calls.values()):
            library = next((dumps[rank].library for rank in calls if dumps[rank].library), "")
            found.append(Group(name, members, calls, _shifts(tracks), library))
    return found


# Different calls under one number.


def _differing(group: Group, dumps: Mapping[int, FlightDump]) -> list[Clue]:
    """Return the clues of the first number under which ranks called different collectives; () where there is none."""
    counts: dict[int, Counter[str]] = {}
    for calls in group.tracks.values():
        for call in calls:
            counts.setdefault(call.seq, Counter())[call.call] += 1
    seq = min((n for n, count in counts.items() if len(count) > 1), default=None)
    if seq is None:
        return []
    called = {rank: found[seq] for rank, found in group.at.items() if seq in found}
    most, number = counts[seq].most_common(1)[0]
    if 2 * number > len(group.members):
        others = [rank for rank, call in called.items() if call.call != most]
        alone = len(others) == 1
    else:
        # No side is the greater one. Of a side that goes on as before and one that does not, the latter is meant.
        kept = {rank: group.in_period(rank, seq) for rank in called}
        broken = [rank for rank, fits in kept.items() if fits is False]
        sure = broken and all(fits for rank, fits in kept.items() if rank not in broken)
        others = broken if sure else list(called)[:_MOST_TIED]
        alone = bool(sure) and len(broken) == 1
    clues = []
    for rank in others:
        call = called[rank]
        rest = most if call.call != most else next(c for c in counts[seq] if c != most)
        text = (
            f"flight recorder, entry {call.record}: rank {rank} called {call.call} as collective {seq} of group "
            f"{group.name}; {counts[seq][rest]} others called {rest}"
        )
        reason = f"its flight recorder has {call.call} as collective {seq} of group {group.name}, others' have {rest}"
        clues.append(Clue(Kind.DIFFERS, rank, alone, reason, text, dumps[rank], call))
    return clues
