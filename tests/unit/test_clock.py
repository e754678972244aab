"""Node clocks: no order claim between two nodes that the truth contradicts, and no narrower bound than is known."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denpex.engine.clock import Clocks
from denpex.model import ClockSample, NodeInfo, Stamp

S = 10**9
MS = 10**6
START = 1_796_000_000 * S


class Node:
    """A simulated node: what its clocks read at a true (reference) time."""

    def __init__(self, name, offset_ns, ppm=0.0, wander_ppm=0.0, boot_ns=0, steps=()):
        self.name = name
        self.offset = offset_ns  # reference - local at START
        self.ppm = ppm
        self.wander = wander_ppm
        self.boot = boot_ns
        self.steps = steps  # (time after START, change of REALTIME)

    def read(self, t):
        """Return the local stamp at ``t`` ns after START."""
        # A rate that swings around its mean by at most `wander` ppm, over an hour.
        period = 3600 * S
        swing = self.wander * 1e-6 * period / (2 * math.pi) * math.sin(2 * math.pi * t / period)
        raw = self.boot + int(t * (1 + self.ppm * 1e-6) + swing)
        realtime = START - self.offset + (raw - self.boot)
        for at, change in self.steps:
            if t >= at:
                realtime += change
        return Stamp(realtime, raw)

    def sample(self, t, half_ns, bias=0.0, method="sntp", reference="ref:123", ahead=0, claimed=False):
        """Return a true bounded measurement; ``bias`` in [-1, 1] moves the bounds without losing the truth."""
        stamp = self.read(t)
        true = START + t + ahead - stamp.realtime_ns
        middle = true + int(bias * half_ns)
        return ClockSample(
            self.name, method, middle - half_ns - 1, middle + half_ns + 1, stamp, reference, claimed=claimed
        )


def clocks(nodes, samples):
    return Clocks(samples, tuple(NodeInfo(node.name, boot_id="b") for node in nodes))


offset = st.integers(-60 * S, 60 * S)
nodes_ = st.builds(
    Node,
    name=st.sampled_from(["n1"]),
    offset_ns=offset,
    ppm=st.floats(-90, 90),
    wander_ppm=st.floats(0, 0.9),
    boot_ns=st.integers(0, 10**7).map(lambda s: s * S),
)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(nodes_, min_size=2, max_size=4),
    st.lists(
        st.tuples(st.integers(0, 3), st.integers(0, 7200 * S), st.integers(1000, 50 * MS), st.floats(-1, 1)),
        max_size=12,
    ),
    st.lists(st.tuples(st.integers(0, 3), st.integers(-60 * S, 8000 * S)), min_size=2, max_size=12),
)
def test_a_certain_order_is_never_wrong(nodes, measured, moments):
    """Whatever the clocks' offsets, rates and samples: True and False of Instant.before agree with the truth."""
    for number, node in enumerate(nodes):
        node.name = f"n{number}"
    samples = [nodes[i % len(nodes)].sample(t, half, bias) for i, t, half, bias in measured]
    known = clocks(nodes, samples)
    events = []
    for i, t in moments:
        node = nodes[i % len(nodes)]
        events.append((t, known.instant(node.name, node.read(t))))
    for true_a, a in events:
        assert a.lo_ns <= START + true_a <= a.hi_ns
        for true_b, b in events:
            said = a.before(b)
            if said is not None and true_a != true_b:
                assert said == (true_a < true_b)


@settings(max_examples=100, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 7200 * S), st.integers(-30 * S, 30 * S)), max_size=3),
    st.lists(st.integers(0, 7200 * S), min_size=2, max_size=6),
)
def test_steps_of_the_wall_clock_do_not_touch_the_order_within_a_node(steps, moments):
    node, other = Node("n0", 0, steps=tuple(steps)), Node("n1", 5 * S)
    samples = [n.sample(t, MS) for n in (node, other) for t in (0, 7200 * S)]
    known = clocks([node, other], samples)
    events = [(t, known.instant("n0", node.read(t))) for t in moments]
    for true_a, a in events:
        assert a.lo_ns <= START + true_a <= a.hi_ns
        for true_b, b in events:
            if true_a != true_b:
                assert a.before(b) == (true_a < true_b)


def test_a_step_of_the_wall_clock_is_stated():
    node, other = Node("n1", 0, steps=((3000 * S, 3 * S),)), Node("n2", 0)
    known = clocks([node, other], [n.sample(t, MS) for n in (node, other) for t in (0, 7200 * S)])
    assert any("stepped by +3.000 s" in gap.what and gap.where == "n1" for gap in known.gaps)


def test_samples_at_both_ends_decide_an_order_of_some_milliseconds_in_between():
    """Free-running clocks, 45 s and -3 s off, with +-0.2 ms at both ends of two hours."""
    one, two = Node("n1", -45 * S, ppm=40), Node("n2", 3 * S, ppm=-35)
    known = clocks([one, two], [n.sample(t, 200_000, 0.5) for n in (one, two) for t in (0, 7200 * S)])
    a = known.instant("n1", one.read(3600 * S))
    b = known.instant("n2", two.read(3600 * S + 40 * MS))
    assert a.before(b) is True
    assert a.hi_ns - a.lo_ns < 20 * MS


def test_a_sample_every_minute_makes_drift_irrelevant():
    one = Node("n1", -45 * S, ppm=40)
    two = Node("n2", 0)
    known = clocks([one, two], [n.sample(t * 60 * S, 200_000, 0.5) for n in (one, two) for t in range(120)])
    a = known.instant("n1", one.read(3630 * S))
    assert a.hi_ns - a.lo_ns < MS


def test_far_from_its_only_sample_a_clock_is_known_only_within_its_drift():
    one, two = Node("n1", S, ppm=80), Node("n2", 0)
    known = clocks([one, two], [one.sample(0, MS), two.sample(0, MS)])
    a = known.instant("n1", one.read(7200 * S))
    assert a.lo_ns <= START + 7200 * S <= a.hi_ns
    assert 1000 * MS < a.hi_ns - a.lo_ns < 2000 * MS


def test_without_samples_two_nodes_are_not_ordered_and_one_node_is():
    one, two = Node("n1", S), Node("n2", 0)
    known = clocks([one, two], [])
    assert known.instant("n1", one.read(0)).before(known.instant("n2", two.read(60 * S))) is None
    assert known.instant("n1", one.read(0)).before(known.instant("n1", one.read(60 * S))) is True
    assert any("not measured" in gap.what and gap.where == "n1,n2" for gap in known.gaps)
    alone = clocks([one], [])
    assert not alone.gaps


def test_a_node_that_only_knows_utc_is_placed_by_one_that_measured_both():
    """The cluster's reference is 7 s ahead of UTC; n1 measured both, n2 only UTC (chronyc), n3 only the reference."""
    one, two, three = Node("n1", S), Node("n2", -20 * S), Node("n3", 0)
    samples = [
        one.sample(0, MS, ahead=7 * S),
        one.sample(S, 5 * MS, method="chronyc", reference="utc"),
        two.sample(0, 5 * MS, method="chronyc", reference="utc"),
        three.sample(0, MS, ahead=7 * S),
    ]
    known = clocks([one, two, three], samples)
    a, b = known.instant("n2", two.read(10 * S)), known.instant("n3", three.read(10 * S + 100 * MS))
    assert a.before(b) is True
    assert a.lo_ns <= START + 17 * S <= a.hi_ns


def test_a_node_with_another_reference_is_not_compared():
    one, two = Node("n1", 0), Node("n2", 0)
    known = clocks([one, two], [one.sample(0, MS), two.sample(0, MS, reference="other:123", ahead=30 * S)])
    assert not (known.measured("n1") and known.measured("n2"))
    assert known.instant("n1", one.read(S)).before(known.instant("n2", two.read(2 * S))) is None


def test_a_measurement_that_lies_is_set_aside_and_a_users_word_never_evicts_roots():
    one, two = Node("n1", 0), Node("n2", 0)
    lie = one.sample(60 * S, 1000, ahead=900 * S, claimed=True)
    known = clocks([one, two], [one.sample(0, MS), one.sample(100 * S, MS), two.sample(0, MS), lie])
    a = known.instant("n1", one.read(60 * S))
    assert a.lo_ns <= START + 60 * S <= a.hi_ns
    assert any("contradict" in gap.what and gap.where == "n1" for gap in known.gaps)


def test_a_reading_without_the_monotonic_clock_is_wider_but_right():
    one, two = Node("n1", 3 * S), Node("n2", 0)
    known = clocks([one, two], [n.sample(t, MS) for n in (one, two) for t in (0, 600 * S)])
    stamp = Stamp(one.read(300 * S).realtime_ns)
    a = known.instant("n1", stamp)
    assert a.lo_ns <= START + 300 * S <= a.hi_ns
    exact = known.instant("n1", one.read(300 * S))
    assert a.hi_ns - a.lo_ns > exact.hi_ns - exact.lo_ns


def test_offsets_are_reported_with_their_bounds():
    one, two = Node("n1", -45 * S), Node("n2", 3 * S)
    known = clocks([one, two], [n.sample(t, MS) for n in (one, two) for t in (0, 60 * S)])
    (lo1, hi1), (lo2, hi2) = known.offsets()["n1"], known.offsets()["n2"]
    assert lo1 <= -45 * S <= hi1
    assert lo2 <= 3 * S <= hi2
    assert hi1 - lo1 < 5 * MS


@pytest.mark.parametrize("change", [20 * MS, 3 * S, -3 * S])
def test_readings_of_the_wall_clock_alone_are_never_ordered_by_which_measurement_is_nearer(change):
    """Half way between two measurements, before and after which REALTIME differs from RAW by ``change``."""
    node, other = Node("n1", 0), Node("n2", 0)
    before, after = node.sample(0, MS), node.sample(7200 * S, MS)
    moved = Stamp(after.stamp.realtime_ns + change, after.stamp.raw_ns)
    after = replace(after, stamp=moved, lo_ns=after.lo_ns - change, hi_ns=after.hi_ns - change)
    known = clocks([node, other], [before, after, other.sample(0, MS)])
    a, b = (known.instant("n1", Stamp(node.read(t * S).realtime_ns)) for t in (3599, 3601))
    assert a.before(b) is not False
    assert b.before(a) is not True
    assert (a.before(b) is True) == (change == 20 * MS)
