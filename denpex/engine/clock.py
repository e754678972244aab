"""Node clocks: from bounded samples to the interval of reference time that holds a node's local reading.

A sample says that ``reference - local`` lay in [lo, hi] at one moment. Between samples the clock drifts; its rate
against CLOCK_MONOTONIC_RAW is bounded, so that each sample bounds the offset at every other moment too, and the
samples' bounds intersect. Work is done in RAW, which steps of CLOCK_REALTIME do not touch.

Samples of different nodes may only be compared where they have one reference. The one that most nodes measured is
taken; bounds against UTC (chronyc, adjtimex) are carried over by a node that measured both.
"""

from __future__ import annotations

import bisect
import itertools
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from denpex.model import ClockSample, Gap, Instant, NodeInfo, Stamp

# Rate error of CLOCK_MONOTONIC_RAW against the reference: crystals are within 100 ppm; the wander that remains around
# a slope that two distant samples measured is within 2 ppm (Score-P's linear interpolation; Duda et al. 1987).
_DRIFT = 100e-6
_WANDER = 2e-6
# Two samples this far apart measure the slope.
_SLOPE_NS = 30 * 10**9
# Without any sample nothing is known; clocks that nobody sets are rarely off by more than a day.
_UNKNOWN_NS = 86_400 * 10**9
# REALTIME against RAW: a change beyond this within one job is a step, not slewing.
_STEP_NS = 50_000_000
# adjtime(3) slews REALTIME against RAW by at most this.
_SLEW = 600e-6
# Of many samples those nearest to the moment decide; the first and last give the slope.
_NEAREST = 4

_UTC = "utc"
_AGREE = "a clock reference that is itself synchronised"


@dataclass(frozen=True)
class _Anchor:
    """A sample in the RAW domain: ``reference - raw`` lies in [lo, hi] at ``raw``."""

    raw: int
    lo: int
    hi: int
    claimed: bool
    method: str

    @property
    def trust(self) -> tuple[bool, int, int]:
        """Order: root's samples before the user's, measured ones before daemons' words, narrow before wide."""
        return self.claimed, _TRUST.get(self.method, 3), self.hi - self.lo


_TRUST = {"sntp": 0, "chronyc": 1, "adjtimex": 2}


class Clocks:
    """Every node's clock; ``gaps`` are contradictions, steps and nodes without a usable measurement."""

    def __init__(self, samples: Iterable[ClockSample], nodes: Sequence[NodeInfo]) -> None:
        self.gaps: list[Gap] = []
        self._domain = {node.name: f"{node.name}/{node.boot_id}" for node in nodes}
        self._shift: dict[str, list[tuple[int, int]]] = {}
        self._stepped: set[str] = set()
        by_node: dict[str, dict[str, list[_Anchor]]] = {node.name: {} for node in nodes}
        for sample in samples:
            self._take(sample, by_node)
        for node in by_node:
            shifts = self._shift.setdefault(node, [])
            shifts.sort()
            self._report_steps(node)
        self._anchors = self._chosen(by_node)
        self._raws = {node: [anchor.raw for anchor in anchors] for node, anchors in self._anchors.items()}
        self._alone = len(by_node) <= 1
        unmeasured = sorted(node for node in by_node if not self._anchors.get(node))
        if unmeasured and not self._alone:
            self.gaps.append(
                Gap(
                    "the clock was not measured: the order of its events against other nodes' is not known",
                    ",".join(unmeasured),
                    "clock.reference in denpex.yaml",
                )
            )

    def _take(self, sample: ClockSample, by_node: dict[str, dict[str, list[_Anchor]]]) -> None:
        raw = sample.stamp.raw_ns
        if raw is None or sample.lo_ns > sample.hi_ns:
            return
        shift = sample.stamp.realtime_ns - raw
        self._shift.setdefault(sample.node, []).append((raw, shift))
        reference = sample.reference if sample.method == "sntp" and sample.reference else _UTC
        anchor = _Anchor(raw, shift + sample.lo_ns, shift + sample.hi_ns, sample.claimed, sample.method)
        by_node.setdefault(sample.node, {}).setdefault(reference, []).append(anchor)

    def _chosen(self, by_node: Mapping[str, Mapping[str, list[_Anchor]]]) -> dict[str, list[_Anchor]]:
        """Return each node's anchors against one reference that all have in common as far as possible."""
        agreeing = {
            node: {reference: self._agreeing(node, anchors) for reference, anchors in found.items()}
            for node, found in by_node.items()
        }
        covered = Counter(reference for found in agreeing.values() for reference in found)
        if not covered:
            return {node: [] for node in by_node}
        # A measured reference before UTC as daemons see it; then the one of most nodes.
        common = max(covered, key=lambda reference: (covered[reference], reference != _UTC, reference))
        ahead = _difference(agreeing.values(), common, _UTC)
        result: dict[str, list[_Anchor]] = {}
        for node, found in agreeing.items():
            anchors = list(found.get(common, ()))
            if common != _UTC and ahead is not None and not anchors:
                anchors = [
                    _Anchor(a.raw, a.lo + ahead[0], a.hi + ahead[1], a.claimed, a.method) for a in found.get(_UTC, ())
                ]
            result[node] = anchors
        return result

    def _agreeing(self, node: str, anchors: list[_Anchor]) -> list[_Anchor]:
        """Drop anchors that contradict more trusted ones (a reference that lied), and say so."""
        kept: list[_Anchor] = []
        for anchor in sorted(anchors, key=lambda a: a.trust):
            if all(_compatible(anchor, other) for other in _around(kept, anchor.raw)):
                bisect.insort(kept, anchor, key=lambda a: a.raw)
        if len(kept) < len(anchors):
            what = f"{len(anchors) - len(kept)} of {len(anchors)} clock measurements contradict the others"
            self.gaps.append(Gap(f"{what} and were set aside", node, _AGREE))
        return kept

    def _report_steps(self, node: str) -> None:
        for (_, before), (_, after) in itertools.pairwise(self._shift[node]):
            if abs(after - before) > _STEP_NS:
                self._stepped.add(node)
                what = f"the clock was stepped by {(after - before) / 1e9:+.3f} s during the job"
                self.gaps.append(
                    Gap(
                        f"{what}; times were corrected by the monotonic clock",
                        node,
                        "a clock that is slewed (chronyd) instead of stepped",
                    )
                )

    def measured(self, node: str) -> bool:
        """Tell whether the node's clock was measured against the common reference."""
        return bool(self._anchors.get(node))

    def instant(self, node: str | None, stamp: Stamp | None) -> Instant | None:
        """Return the moment of a local reading, or None where there is none."""
        if stamp is None:
            return None
        name = node or ""
        domain = self._domain.get(name, name)
        anchors = self._anchors.get(name)
        if not anchors:
            local = stamp.raw_ns if stamp.raw_ns is not None else stamp.realtime_ns
            kind = domain if stamp.raw_ns is not None else f"{domain}/realtime"
            margin = 0 if self._alone else _UNKNOWN_NS
            return Instant(kind, local, stamp.realtime_ns - margin, stamp.realtime_ns + margin)
        if stamp.raw_ns is not None:
            lo, hi = self._bounds(name, stamp.raw_ns)
            return Instant(domain, stamp.raw_ns, stamp.raw_ns + lo, stamp.raw_ns + hi)
        raw, error = self._raw(name, stamp.realtime_ns)
        lo, hi = self._bounds(name, raw)
        # A clock that is slewed runs forward: its readings order themselves. Of one that was stepped the bounds decide.
        domain += f"/realtime@{stamp.realtime_ns}" if name in self._stepped else "/realtime"
        return Instant(domain, stamp.realtime_ns, raw + lo - error, raw + hi + error)

    def _raw(self, node: str, realtime_ns: int) -> tuple[int, int]:
        """Return the RAW reading of a REALTIME one and its error, by the nearest samples' relation of the two."""
        shifts = self._shift[node]
        near = sorted(shifts, key=lambda pair: abs(pair[0] + pair[1] - realtime_ns))[:2]
        raw, shift = near[0]
        error = abs(near[-1][1] - shift) + int(_SLEW * abs(raw + shift - realtime_ns))
        return realtime_ns - shift, error

    def _bounds(self, node: str, raw: int) -> tuple[int, int]:
        anchors = self._anchors[node]
        at = bisect.bisect_left(self._raws[node], raw)
        near = anchors[max(0, at - _NEAREST) : at + _NEAREST]
        return _at(near, anchors[0], anchors[-1], raw)

    def offsets(self) -> Mapping[str, tuple[int, int]]:
        """Return node -> interval of ``reference - local`` in nanoseconds at the node's last measurement."""
        result = {}
        for node, anchors in sorted(self._anchors.items()):
            if anchors:
                last = anchors[-1].raw
                lo, hi = self._bounds(node, last)
                shift = min(self._shift[node], key=lambda pair: abs(pair[0] - last))[1]
                result[node] = (lo - shift, hi - shift)
        return result


def _difference(nodes: Iterable[Mapping[str, list[_Anchor]]], reference: str, other: str) -> tuple[int, int] | None:
    """Return the interval of ``reference - other`` from nodes that measured both, None where none did."""
    found: tuple[int, int] | None = None
    for measured in nodes:
        ours, theirs = measured.get(reference), measured.get(other)
        if not ours or not theirs:
            continue
        for a in (ours[0], ours[-1]):
            lo, hi = _at(theirs, theirs[0], theirs[-1], a.raw)
            bounds = (a.lo - hi, a.hi - lo)
            # The weakest statement that all support: two references drift against each other during a job.
            found = bounds if found is None else (min(found[0], bounds[0]), max(found[1], bounds[1]))
    return found


def _around(kept: list[_Anchor], raw: int) -> list[_Anchor]:
    at = bisect.bisect_left(kept, raw, key=lambda a: a.raw)
    return kept[max(0, at - _NEAREST) : at + _NEAREST]


def _compatible(a: _Anchor, b: _Anchor) -> bool:
    reach = int(_DRIFT * abs(a.raw - b.raw)) + 1
    return a.lo - reach <= b.hi and b.lo - reach <= a.hi


def _at(near: Sequence[_Anchor], first: _Anchor, last: _Anchor, raw: int) -> tuple[int, int]:
    """Return bounds of ``reference - raw`` at ``raw``: the intersection of what every anchor allows there."""
    lo = max(a.lo - int(_DRIFT * abs(raw - a.raw)) - 1 for a in near)
    hi = min(a.hi + int(_DRIFT * abs(raw - a.raw)) + 1 for a in near)
    span = last.raw - first.raw
    if span >= _SLOPE_NS:
        # The mean rate between the first and the last lies between these; the true course wanders around it.
        slope_lo, slope_hi = (last.lo - first.hi) / span, (last.hi - first.lo) / span
        for a in near:
            reach = raw - a.raw
            wander = int(_WANDER * abs(reach)) + 1
            bounds = sorted((slope_lo * reach, slope_hi * reach))
            lo = max(lo, a.lo + int(bounds[0]) - wander)
            hi = min(hi, a.hi + int(bounds[1]) + wander)
    if lo > hi:
        # The rate left its bounds (or a measurement lied a little): nothing narrower than both may be claimed.
        return hi, lo
    return lo, hi
