"""Events: where they are placed in time and on which node, and in which order they come."""

from __future__ import annotations

import pytest

from denpex.engine import timeline
from denpex.engine.clock import Clocks
from denpex.model import Match, NodeInfo, Pattern, Record, Role, Snapshot, Source, Stamp, TaskRecord

S = 10**9
NODES = (NodeInfo("n1", "b"),)


def pattern(**changes):
    values = {
        "id": "p", "failure_class": "collective-missing-rank", "role": Role.CASCADE, "source": Source.TASK,
        "expressions": ("x",), "tier": "A", "reference": "", "match": (), "no_match": (),
    }  # fmt: skip
    return Pattern(**(values | changes))


def record(**changes):
    values = {"text": "x", "stream": "n1/0.2.err", "offset": 7, "rank": 2, "step": "0", "stamp": Stamp(100 * S, 40 * S)}
    return Record(**(values | changes))


def event(pattern_, record_, fields=None, node_of=None):
    return timeline.event(Match(record_, pattern_, fields or {}), Clocks((), NODES), 3, node_of or {("0", 2): "n1"})


def test_a_timeout_is_placed_where_the_wait_began():
    e = event(pattern(onset="elapsed_ms"), record(), {"elapsed_ms": "15000"})
    assert (e.when.local_ns, e.when.lo_ns, e.waited_ns) == (25 * S, 85 * S, 15 * S)
    assert timeline.moved(e.when, e.waited_ns).local_ns == 40 * S


@pytest.mark.parametrize("text", ["", "abc", "-5", "nan", "inf", "1e400", "9" * 5000])
def test_a_wait_that_is_no_sensible_number_moves_nothing(text):
    e = event(pattern(onset="elapsed_ms"), record(), {"elapsed_ms": text})
    assert (e.when.local_ns, e.waited_ns) == (40 * S, 0)


def test_the_place_is_the_schedulers_and_not_what_the_line_says():
    assert event(pattern(), record(node="liar")).node == "n1"
    assert event(pattern(), record(node="n7"), node_of={("1", 9): "n1"}).node == "n7"
    assert event(pattern(), record(rank=None, node=None)).node is None


def test_a_kernel_message_that_a_job_quotes_is_the_jobs_word():
    assert event(pattern(source=Source.KERNEL), record()).source is Source.TASK
    assert event(pattern(source=Source.KERNEL), record(source=Source.KERNEL)).source is Source.KERNEL


def test_generic_patterns_have_the_lower_precedence():
    assert event(pattern(yields_to=("*",)), record()).precedence < event(pattern(), record()).precedence


def test_events_come_in_the_order_of_time_and_those_without_time_last():
    later = event(pattern(), record(stamp=Stamp(102 * S, 42 * S)))
    timeless = event(pattern(), record(stamp=None))
    earlier = event(pattern(), record(stamp=Stamp(101 * S, 41 * S)))
    listed = timeline.ordered([later, timeless, earlier])
    assert [e.id for e in listed] == ["e1", "e2", "e3"]
    assert [e.when and e.when.local_ns for e in listed] == [41 * S, 42 * S, None]


def test_a_ranks_node_is_known_by_step_and_by_the_last_step_that_had_it():
    tasks = (TaskRecord("0", 2, "n1"), TaskRecord("1", 2, "n2"))
    found = timeline.nodes_of_ranks(Snapshot(tasks=tasks))
    assert (found["0", 2], found["1", 2], found[None, 2]) == ("n1", "n2", "n2")
