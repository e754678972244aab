"""The flight recorders' words, group by group: what each rank called, and what that says against whom."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from denpex.model import FlightCall, FlightDump, Word

# Times of tar members are whole seconds, and a clock is read a little before the dump is written.
FRESH_NS = 1_000_000_000
# A period counts where it held for so many calls, and at least three times.
_PERIOD_SEEN = 8
_PERIOD_CHECKED = 32


class Kind(Word):
    """What the recorders say against a rank."""

    MISSING = "missing"  # it did not enqueue a collective that others wait in
    DIFFERS = "differs"  # it called something else than most
    AHEAD = "ahead"  # it alone called something that does not belong there
    DEADLOCK = "deadlock"  # it is one of a circle of ranks that wait for each other
    UNDUMPED = "undumped"  # all others dumped their recorder while they waited, and it did not


@dataclass(frozen=True)
class Clue:
    """One thing that the recorders say against a rank. ``alone``: of no other rank it can be so."""

    kind: Kind
    rank: int
    alone: bool
    reason: str  # a clause about the rank, "it ..."
    text: str  # what is cited
    dump: FlightDump | None = None  # where it stands
    call: FlightCall | None = None


@dataclass
class Group:
    """One process group over all ranks whose dump can be used."""

    name: str
    members: frozenset[int]
    tracks: dict[int, Sequence[FlightCall]]
    shift: dict[int, int]  # by how much a rank's times are later than the others'
    library: str

    def __post_init__(self) -> None:
        self.last = {rank: calls[-1].seq if calls else 0 for rank, calls in self.tracks.items()}
        self.at = {rank: {call.seq: call for call in calls} for rank, calls in self.tracks.items()}

    def lacking(self, seq: int) -> list[int]:
        """Return the ranks that are known not to have enqueued a collective."""
        return [rank for rank, last in self.last.items() if last < seq]

    def pending(self, rank: int) -> list[int]:
        """Return the numbers of the rank's collectives that may not have completed.

        Gloo calls one that failed retired like one that completed, so that of its calls the last may be waiting.
        """
        calls = self.tracks[rank]
        if self.library != "nccl":
            return [calls[-1].seq] if calls else []
        done = max((call.seq for call in calls if call.done), default=0)
        return [call.seq for call in calls if call.seq > done]

    def in_period(self, rank: int, seq: int) -> bool | None:
        """Tell whether a rank's call is the one that its own calls before foretell; None where they have no period."""
        calls = [call.call for call in self.tracks[rank] if call.seq < seq]
        count = len(calls)
        if count <= _PERIOD_SEEN:
            return None
        for period in range(1, count // 3 + 1):
            checked = min(count - period, max(2 * period, _PERIOD_CHECKED))
            if checked >= _PERIOD_SEEN and all(calls[-i] == calls[-i - period] for i in range(1, checked + 1)):
                return self.at[rank][seq].call == calls[-period]
        return None


def written(dump: FlightDump) -> int:
    """Return until when a dump speaks: when its file was written, at the least its last time."""
    return max(dump.last_ns, dump.written_ns or 0)
