"""What the ranks' flight recorders say together: who is missing, differs or only waits, and when they say nothing."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.engine import flight
from denpex.engine.recorder import Kind
from denpex.ingest import flight as reader
from denpex.ingest import load
from denpex.ingest.tree import Content, MemoryBlob
from denpex.model import Scope
from tests.unit import scenes
from tests.unit.flights import ALL, Recorder, S
from tests.unit.runs import Run, traceback, waited

GLOO = sorted((Path(__file__).parent / "dumps").glob("gloo_*"))
DUMPED = 700.0  # seconds after START; NCCL's watchdog gives up after ten minutes
ROWS = (("1", "row"), ("2", "row"))
COLUMNS = (("3", "column"), ("4", "column"))


def job(ranks=4, skew=None):
    """Return the recorders of ranks that have trained 20 steps of two all-reduces."""
    found = {rank: Recorder({ALL: list(range(ranks))}, (skew or {}).get(rank, 0.0)) for rank in range(ranks)}
    for step in range(20):
        for rank, one in found.items():
            one.call(step + 0.001 * rank)
            one.call(step + 0.5 + 0.001 * rank, size=64)
    return found


def mesh():
    """Return the recorders of four ranks in rows (0 1, 2 3) and columns (0 2, 1 3)."""
    found = {}
    for rank in range(4):
        row, column = ROWS[rank // 2], COLUMNS[rank % 2]
        groups = {row: [rank // 2 * 2, rank // 2 * 2 + 1], column: [rank % 2, rank % 2 + 2]}
        found[rank] = Recorder({ALL: [0, 1, 2, 3], **groups})
        for step in range(10):
            found[rank].call(step, group=row)
            found[rank].call(step + 0.5, group=column)
    return found


def row(rank):
    return ROWS[rank // 2]


def column(rank):
    return COLUMNS[rank % 2]


def dumps(recorders, written=None):
    found = []
    for rank, one in recorders.items():
        when = one.ns((written or {}).get(rank, DUMPED))
        data = one.pickle()
        blob = MemoryBlob(f"rank_{rank}", Content(data, size=len(data)), when)
        found.append(reader.read(blob.path, blob, node=f"n{rank + 1}", step="0"))
    return found


def clues(recorders, world=0, written=None):
    account = flight.examine(dumps(recorders, written), world)
    return [(clue.kind, clue.rank, clue.alone) for clue in account.clues]


def all_but(ranks, recorders, t=20.0, **call):
    for rank, one in recorders.items():
        if rank not in ranks:
            one.call(t + 0.001 * rank, **({"done": False} | call))
    return recorders


def test_who_does_not_come_to_a_collective_is_missing():
    account = flight.examine(dumps(all_but({2}, job())), 4)
    (clue,) = account.clues
    assert (clue.kind, clue.rank, clue.alone) == (Kind.MISSING, 2, True)
    assert account.further == {0, 1, 3}
    assert clue.text == (
        "flight recorder, entry 39: rank 2's last in group 0 is collective 40; "
        "rank 0-1,3 waited in collective 41 of group 0 (all_reduce Float[16])"
    )


def test_two_that_do_not_come_are_both_named():
    assert clues(all_but({2, 3}, job(8))) == [(Kind.MISSING, 2, False), (Kind.MISSING, 3, False)]


def test_a_dump_that_is_older_than_the_others_call_says_nothing():
    recorders = all_but({2}, job())
    assert clues(recorders, written={2: 19.9}) == []
    assert clues(recorders, written={2: 20.5}) == []
    assert clues(recorders, written={2: 22.0}) == [(Kind.MISSING, 2, True)]


def test_what_a_clock_shows_is_taken_into_account():
    """Rank 2's clock is 30 s ahead: a dump at its 45 s was written before the others' call."""
    recorders = all_but({2}, job(skew={2: 30.0}))
    assert clues(recorders, written={2: 15.0}) == []
    assert clues(recorders, written={2: 25.0}) == [(Kind.MISSING, 2, True)]


def test_a_dump_of_another_run_is_set_aside():
    recorders = all_but({2}, job())
    old = job(skew={2: -3600.0})[2]
    account = flight.examine([d for d in dumps(recorders) if d.rank != 2] + dumps({2: old}), 4)
    assert [clue for clue in account.clues if clue.kind is Kind.MISSING] == []
    assert "set aside" in account.gaps[0].what


def test_all_in_one_collective_and_all_done_says_nothing():
    assert clues(job()) == []
    assert clues(all_but(set(), job())) == []
    assert flight.examine([], 4) == flight.Account()


def test_a_rank_without_a_dump_counts_only_where_all_others_wait():
    recorders = all_but(set(), job())
    del recorders[3]
    assert clues(recorders, 4) == [(Kind.UNDUMPED, 3, False)]
    assert clues(recorders, 4, written={1: 20.0}) == []
    del recorders[2]
    assert clues(recorders, 4) == []
    done = job()
    del done[3]
    assert clues(done, 4) == []


def test_without_all_dumps_the_missing_rank_is_not_alone():
    recorders = all_but({2}, job())
    del recorders[3]
    assert clues(recorders, 4) == [(Kind.MISSING, 2, False)]


@pytest.mark.parametrize("changed", [{"size": 99}, {"op": "broadcast"}, {"dtype": "Half"}])
def test_the_minority_at_the_first_difference_differs(changed):
    recorders = all_but({1}, job())
    recorders[1].call(20.0, done=False, **changed)
    for one in recorders.values():
        one.call(21.0, done=False, size=64)
    assert clues(recorders) == [(Kind.DIFFERS, 1, True)]


def test_a_skipped_collective_is_a_difference():
    recorders = all_but({1}, job())
    all_but(set(), recorders, t=20.5, size=64)
    assert clues(recorders) == [(Kind.DIFFERS, 1, True)]


def test_sizes_that_may_differ_are_no_difference():
    recorders = job()
    for rank, one in recorders.items():
        one.call(20.0, op="all_to_all", size=rank)
        one.call(20.1, op="gather", size=1 + rank, dtype="" if rank else "Float")
    assert clues(recorders) == []


def test_of_two_the_one_that_leaves_its_period_differs():
    recorders = job(2)
    recorders[0].call(20.0, done=False)
    recorders[1].call(20.0, done=False, size=5)
    assert clues(recorders) == [(Kind.DIFFERS, 1, True)]


def test_of_two_without_a_period_neither_is_named():
    recorders = {rank: Recorder({ALL: [0, 1]}) for rank in range(2)}
    recorders[0].call(0.0, done=False)
    recorders[1].call(0.0, done=False, size=5)
    assert clues(recorders) == [(Kind.DIFFERS, 0, False), (Kind.DIFFERS, 1, False)]


def test_a_rank_that_calls_what_its_period_does_not_foretell_is_ahead():
    recorders = job()
    recorders[0].call(20.0, op="broadcast", done=False)
    assert clues(recorders) == [(Kind.AHEAD, 0, False)]


def test_it_is_ahead_for_sure_where_the_others_went_on_elsewhere():
    """The others' recorders hold a later send, that was done: they were not stuck."""
    recorders = job()
    recorders[0].call(20.0, op="broadcast", done=False)
    for rank in (1, 2, 3):
        recorders[rank].send(25.0)
    assert clues(recorders) == [(Kind.AHEAD, 0, True)]


def test_a_rank_that_only_comes_first_is_not_ahead():
    """It calls what its period foretells, and none of the others comes: their own reason is not visible."""
    assert clues(all_but({1, 2, 3}, job())) == []


def test_of_two_the_missing_one_is_named_only_where_the_other_kept_its_period():
    assert clues(all_but({1}, job(2))) == [(Kind.MISSING, 1, True)]
    fresh = {rank: Recorder({ALL: [0, 1]}) for rank in range(2)}
    for one in fresh.values():
        one.call(0.0)
    fresh[0].call(1.0, done=False)
    assert clues(fresh) == [(Kind.MISSING, 1, False), (Kind.MISSING, 0, False)]


def test_who_waits_in_another_group_is_not_to_blame():
    """Rank 3 does not come to its row with 2, nor to its column with 1; 0 waits for 1 and 2 in its row and column."""
    recorders = mesh()
    recorders[2].call(10.0, group=row(2), done=False)
    recorders[1].call(10.0, group=column(1), done=False)
    recorders[0].call(10.0, group=row(0), done=False)
    assert clues(recorders) == [(Kind.MISSING, 3, True)]


def test_a_circle_is_a_deadlock():
    """0 waits for 1 in their row, 1 for 3 in their column, 3 for 2 in their row, 2 for 0 in their column."""
    recorders = mesh()
    for rank in (0, 3):
        recorders[rank].call(10.0, group=row(rank), done=False)
    for rank in (1, 2):
        recorders[rank].call(10.0, group=column(rank), done=False)
    account = flight.examine(dumps(recorders), 4)
    assert [(clue.kind, clue.rank) for clue in account.clues] == [(Kind.DEADLOCK, r) for r in (0, 1, 3, 2)]
    assert "rank 0 waits for rank 1 waits for rank 3 waits for rank 2 waits for rank 0" in account.clues[0].text


def test_who_waits_in_a_send_is_not_to_blame():
    recorders = all_but({2}, job())
    recorders[2].send(20.0, "recv 2<-1", done=False)
    assert clues(recorders) == []


def test_where_sends_count_among_the_collectives_they_are_not_compared():
    recorders = all_but({2}, job())
    recorders[1].send(0.1)
    recorders[1].call(0.2, "coalesced")
    assert clues(recorders) == []


def test_groups_of_one_name_and_different_members_are_different_groups():
    recorders = {rank: Recorder({("1", "part"): [rank // 2 * 2, rank // 2 * 2 + 1]}) for rank in range(4)}
    for rank, one in recorders.items():
        for step in range(10 if rank < 2 else 5):
            one.call(step, group=("1", "part"), done=step < 4)
    assert clues(recorders) == []


def test_a_group_that_left_the_recorder_is_not_one_that_was_never_called():
    recorders = all_but({2}, job())
    entries = recorders[2].entries
    rare = ("7", "rare")
    for one in recorders.values():
        one.groups[rare] = [0, 1, 2, 3]
    recorders[2].call(20.5, group=rare)
    recorders[2].entries = entries[-1:]
    assert clues(recorders) == []


# The whole diagnosis.


@pytest.fixture(scope="module")
def engine():
    patterns = library.load()
    matcher = library.matcher(patterns)
    return lambda snapshot: diagnose(snapshot, patterns, matcher)


def hung(engine, recorders, complain=(0, 1, 2, 3), dumped=None):
    """Diagnose a job whose ranks ``complain`` after ten minutes and leave these dumps."""
    run = Run()
    run.work(11.4)
    for rank in range(4):
        if rank in complain:
            run.say(rank, 30.0 + 0.01 * rank, waited(rank, 10000))
        run.ends(rank, 31.0 + 0.1 * rank, code=1)
    return engine(replace(run.snapshot(), flight=tuple(dumps(recorders, dumped))))


def test_where_all_ranks_complain_the_recorders_name_the_missing_one(engine):
    assert hung(engine, {}).origin is None
    found = hung(engine, all_but({2}, job()))
    assert (found.failure_class, found.scope, found.origin.rank) == ("collective-missing-rank", Scope.RANK, 2)
    assert found.confidence >= 0.9
    assert "does not have collective 41 of group 0" in found.summary
    cited = [e for e in found.evidence if e.file == "rank_2"]
    assert "entry 39" in cited[0].text


def test_an_old_dump_names_nobody(engine):
    assert hung(engine, all_but({2}, job()), dumped={2: 19.9}).origin is None


def test_where_all_ranks_complain_the_recorders_name_the_one_that_differs(engine):
    recorders = all_but({1}, job())
    recorders[1].call(20.0, size=99, done=False)
    found = hung(engine, recorders)
    assert (found.failure_class, found.origin.rank) == ("collective-mismatch", 1)
    assert found.evidence[0].file == "rank_1"


def test_a_deadlock_is_reported_with_its_circle(engine):
    recorders = mesh()
    for rank in (0, 3):
        recorders[rank].call(10.0, group=row(rank), done=False)
    for rank in (1, 2):
        recorders[rank].call(10.0, group=column(rank), done=False)
    found = hung(engine, recorders)
    assert (found.scope, found.origin) == (Scope.RANKS, None)
    assert sorted(place.rank for place in found.origins) == [0, 1, 2, 3]
    assert "deadlock: rank 0 waits for rank 1 waits for rank 3 waits for rank 2 waits for rank 0" in found.summary


def test_a_cause_of_its_own_names_the_missing_ranks_class(engine):
    run = scenes.exception()
    found = engine(replace(run.snapshot(), flight=tuple(dumps(all_but({2}, job())))))
    assert found.origin.rank == 2
    assert found.failure_class == engine(run.snapshot()).failure_class != "collective-missing-rank"


def test_an_exception_after_the_wait_was_over_is_the_missing_ranks(engine):
    """Dies first, speaks last: the others time out, and its exception comes after that."""
    run = Run()
    run.work(11.4)
    for rank in (0, 1, 3):
        run.say(rank, 30.0, waited(rank, 10000))
        run.ends(rank, 31.0, code=1)
    run.say(2, 40.0, traceback(2, "ValueError: bad"))
    run.ends(2, 41.0, code=1)
    found = engine(replace(run.snapshot(), flight=tuple(dumps(all_but({2}, job())))))
    assert found.origin.rank == 2


def test_dumps_alone_are_enough(engine, tmp_path):
    """Gloo's own dumps of a rank that slept instead of its fifth all-reduce; git keeps no times."""
    written = 1_796_141_182 * S
    for path in GLOO:
        copy = tmp_path / path.name
        copy.write_bytes(path.read_bytes())
        os.utime(copy, ns=(written, written))
    found = engine(load([tmp_path]))
    assert (found.failure_class, found.origin.rank) == ("collective-missing-rank", 2)
