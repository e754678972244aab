"""Asks of many moments at once whether one comes before or after all of them, without comparing every pair."""

from __future__ import annotations

from collections.abc import Iterable

from denpex.model import Instant


class Moments:
    """Moments of ranks; a question may leave one rank out. Linear in the number of clocks, not of ranks."""

    def __init__(self, moments: Iterable[tuple[int, Instant | None]]) -> None:
        self.unknown = False  # of some rank the moment is not known
        self._by_clock: dict[str, list[tuple[int, Instant]]] = {}
        for rank, moment in moments:
            if moment is None:
                self.unknown = True
            else:
                self._by_clock.setdefault(moment.clock, []).append((rank, moment))
        # Of each clock the two earliest: one may be the rank that is left out.
        self._first = {
            clock: sorted(listed, key=lambda pair: pair[1].local_ns) for clock, listed in self._by_clock.items()
        }
        self.count = sum(len(listed) for listed in self._first.values())

    def _earliest(self, clock: str, but: int | None) -> Instant | None:
        return next((moment for rank, moment in self._first[clock] if rank != but), None)

    def all_after(self, when: Instant, margin_ns: int = 0, but: int | None = None) -> bool:
        """Tell whether every moment certainly comes more than ``margin_ns`` after ``when``; False of none."""
        found = False
        for clock in self._first:
            earliest = self._earliest(clock, but)
            if earliest is None:
                continue
            found = True
            gap = earliest.local_ns - when.local_ns if clock == when.clock else earliest.lo_ns - when.hi_ns
            if gap <= margin_ns:
                return False
        return found

    def all_before(self, when: Instant, margin_ns: int = 0, but: int | None = None) -> bool:
        """Tell whether every moment certainly comes more than ``margin_ns`` before ``when``; False of none."""
        found = False
        for clock, listed in self._first.items():
            latest = next((moment for rank, moment in reversed(listed) if rank != but), None)
            if latest is None:
                continue
            found = True
            gap = when.local_ns - latest.local_ns if clock == when.clock else when.lo_ns - latest.hi_ns
            if gap <= margin_ns:
                return False
        return found

    def any_before(self, when: Instant, margin_ns: int = 0, but: int | None = None) -> bool:
        """Tell whether some moment certainly comes more than ``margin_ns`` before ``when``."""
        for clock in self._first:
            earliest = self._earliest(clock, but)
            if earliest is None:
                continue
            gap = when.local_ns - earliest.local_ns if clock == when.clock else when.lo_ns - earliest.hi_ns
            if gap > margin_ns:
                return True
        return False
