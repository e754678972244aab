"""Who did not come to a collective by the flight recorders, and who only waits: the graph of who waits for whom."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median

from denpex.engine.recorder import FRESH_NS, Clue, Group, Kind, written
from denpex.hostlist import ranges
from denpex.model import FlightDump


@dataclass
class _Wait:
    """A collective that some ranks of a group wait in and others have not come to."""

    group: Group
    seq: int
    waiting: list[int]
    missing: list[int]  # known not to have come, by a dump that is younger than the others' wait
    unknown: list[int]


def _wait(group: Group, dumps: Mapping[int, FlightDump]) -> _Wait | None:
    """Return the first collective of a group that is waited in, None where there is none."""
    least = min(group.last.values())
    if len(group.last) == len(group.members) and least == max(group.last.values()):
        return None
    waited = [(n, rank) for rank in group.tracks for n in group.pending(rank) if n > least]
    if not waited:
        return None
    seq = min(waited)[0]
    waiting = sorted({rank for n, rank in waited if group.last[rank] >= seq and seq in group.at[rank]})
    # The moment of their wait, by the clock that most ranks have.
    since = int(median(group.at[rank][seq].created_ns - group.shift.get(rank, 0) for rank in waiting))
    lacking = group.lacking(seq)
    missing = [rank for rank in lacking if written(dumps[rank]) >= since + group.shift.get(rank, 0) + FRESH_NS]
    unknown = sorted((group.members - group.last.keys()) | (set(lacking) - set(missing)))
    return _Wait(group, seq, waiting, missing, unknown)


def absent(groups: Iterable[Group], dumps: Mapping[int, FlightDump]) -> tuple[list[Clue], set[int]]:
    """Return the clues of who did not come, with the ranks that waited for them."""
    waits = [wait for group in groups if (wait := _wait(group, dumps)) is not None and wait.missing]
    for_whom: dict[int, set[int]] = {}
    for wait in waits:
        for rank in wait.waiting:
            for_whom.setdefault(rank, set()).update(wait.missing)
    clues: list[Clue] = []
    further: set[int] = set()
    missed = {rank for wait in waits for rank in wait.missing}
    to_blame = {rank for rank in missed if rank not in for_whom and not dumps[rank].sends}
    if missed and not to_blame and not any(dumps[rank].sends for rank in missed):
        return _deadlock(for_whom, waits, dumps), set()
    for wait in waits:
        guilty = [rank for rank in wait.missing if rank in to_blame]
        if guilty:
            clues += _of_wait(wait, guilty, len(to_blame) == 1, dumps)
            further.update(wait.waiting)
    return clues, further - {clue.rank for clue in clues}


def _of_wait(wait: _Wait, guilty: list[int], only: bool, dumps: Mapping[int, FlightDump]) -> list[Clue]:
    group, count = wait.group, len(wait.group.members)
    clues = [_missing(wait, rank, only and not wait.unknown, dumps) for rank in guilty]
    if 2 * len(wait.missing) < count:
        return clues
    # Half or more did not come: either they are what failed, or the others ran ahead, out of their own order.
    fits = {rank: group.in_period(rank, wait.seq) for rank in wait.waiting}
    if len(wait.waiting) == 1 and fits[wait.waiting[0]] is False:
        return [_ahead(wait, dumps)]
    if 2 * len(wait.missing) > count:
        return []
    if all(fits.values()):
        return clues
    return [*(_missing(wait, rank, False, dumps) for rank in guilty), *(_early(wait, r, dumps) for r in wait.waiting)]


def _missing(wait: _Wait, rank: int, alone: bool, dumps: Mapping[int, FlightDump]) -> Clue:
    group, calls = wait.group, wait.group.tracks[rank]
    last = calls[-1] if calls else None
    call = group.at[wait.waiting[0]][wait.seq]
    what = f"collective {wait.seq} of group {group.name} ({call.call})"
    entry = f", entry {last.record}: rank {rank}'s last in group {group.name} is collective {last.seq}" if last else ""
    text = f"flight recorder{entry or f': rank {rank} has no collective of group {group.name}'}; "
    text += f"rank {ranges(wait.waiting)} waited in {what}"
    reason = f"its flight recorder does not have {what}, in which rank {ranges(wait.waiting)} waited"
    return Clue(Kind.MISSING, rank, alone, reason, text, dumps[rank], last)


def _early(wait: _Wait, rank: int, dumps: Mapping[int, FlightDump]) -> Clue:
    """Return the clue against a rank that waits for as many others as wait with it: it may have come too early."""
    call = wait.group.at[rank][wait.seq]
    what = f"collective {wait.seq} of group {wait.group.name} ({call.call})"
    text = f"flight recorder, entry {call.record}: rank {rank} waited in {what}; rank {ranges(wait.missing)} has none"
    reason = f"it may have called {what} too early: as many ranks have it as have not"
    return Clue(Kind.MISSING, rank, False, reason, text, dumps[rank], call)


def _ahead(wait: _Wait, dumps: Mapping[int, FlightDump]) -> Clue:
    rank = wait.waiting[0]
    call = wait.group.at[rank][wait.seq]
    # Where the others went on elsewhere they had another way before them; where they did not they may be stuck.
    went_on = all(dumps[other].last_ns > call.created_ns + FRESH_NS for other in wait.missing)
    what = f"{call.call} as collective {wait.seq} of group {wait.group.name}"
    text = (
        f"flight recorder, entry {call.record}: rank {rank} alone called {what}, which its own calls before "
        "do not foretell"
    )
    reason = f"it alone called {what}, against the order of its calls before"
    return Clue(Kind.AHEAD, rank, went_on and not wait.unknown, reason, text, dumps[rank], call)


def _deadlock(for_whom: Mapping[int, set[int]], waits: Sequence[_Wait], dumps: Mapping[int, FlightDump]) -> list[Clue]:
    """Return the clues of a circle: everyone who is missed waits for another who is missed."""
    path = [min(rank for wait in waits for rank in wait.missing)]
    while (after := min(for_whom[path[-1]])) not in path:
        path.append(after)
    circle = path[path.index(after) :]
    chain = " for ".join(f"rank {rank} waits" for rank in circle)
    clues = []
    for rank in circle:
        wait = next(w for w in waits if rank in w.waiting)
        call = wait.group.at[rank][wait.seq]
        text = (
            f"flight recorder, entry {call.record}: a deadlock: {chain} for rank {circle[0]}, in different groups; "
            f"rank {rank} in collective {wait.seq} of group {wait.group.name} ({call.call})"
        )
        reason = f"{chain} for rank {circle[0]}, each in another group's collective"
        clues.append(Clue(Kind.DEADLOCK, rank, False, reason, text, dumps[rank], call))
    return clues


def undumped(group: Group, used: Mapping[int, FlightDump], all_dumps: Mapping[int, FlightDump]) -> list[Clue]:
    """Return the clues against ranks without a dump, where all others of the group wait in one collective.

    NCCL's watchdog has every rank dump when one times out; gloo's dumps are the program's own doing.
    """
    undone = sorted(group.members - all_dumps.keys())
    if group.library != "nccl" or not undone or 2 * len(undone) >= len(group.members):
        return []
    last = set(group.last.values())
    if len(last) != 1 or len(group.last) + len(undone) < len(group.members):
        return []
    seq = last.pop()
    if any(seq not in group.pending(rank) for rank in group.last):
        return []
    if any(written(used[rank]) < group.tracks[rank][-1].created_ns + FRESH_NS for rank in group.last):
        return []
    call = group.tracks[min(group.last)][-1]
    what = f"collective {seq} of group {group.name} ({call.call})"
    return [
        Clue(
            Kind.UNDUMPED,
            rank,
            False,
            f"all others dumped their flight recorder while they waited in {what}, and it did not",
            f"flight recorder: rank {ranges(sorted(group.last))} waited in {what}; of rank {rank} there is no dump",
            used[min(group.last)],
            call,
        )
        for rank in undone
    ]
