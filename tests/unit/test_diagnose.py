"""The whole pipeline, with the project's own patterns, on the jobs that must explain themselves."""

from __future__ import annotations

import random
import time
from collections.abc import Callable

import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.model import Category, Hardware, Order, Scope, Verdict
from tests.unit import runs, scenes

SKEWED = {1: 45, 2: -3}  # n2 is 45 s ahead of the reference, n3 3 s behind
CLOCKS = [pytest.param({}, id="true-clocks"), pytest.param(SKEWED, id="skewed-clocks")]

# The failure, its class and rank; the class is the narrowest that the evidence holds.
FAILURES = {
    "exception": ("user-code-exception", 2),
    "killed": ("process-killed", 1),
    "stopped": ("collective-missing-rank", 3),
    "memory": ("host-out-of-memory", 1),
    "disk_full": ("disk-full", 0),
    "goes_on": ("user-code-exception", 2),
}
NOBODY = {
    "retried": ("no-failure", Category.NONE),
    "time_limit": ("slurm-time-limit", Category.ENVIRONMENT_CONFIGURATION),
    "cancelled": ("cancelled-by-user", Category.NONE),
    "scared": ("no-failure", Category.NONE),
}


@pytest.fixture(scope="module")
def engine() -> Callable[[runs.Run], Verdict]:
    patterns = library.load()
    matcher = library.matcher(patterns)
    return lambda run: diagnose(run.snapshot(), patterns, matcher)


@pytest.mark.parametrize("skew", CLOCKS)
@pytest.mark.parametrize("name", FAILURES)
def test_a_failure_is_explained(engine, name, skew):
    """Rank, node, class, the others as cascade with bounded delays, a fix, and evidence for every claim."""
    failure_class, rank = FAILURES[name]
    v = engine(getattr(scenes, name)(skew=skew))
    assert v.failure_class == failure_class, v.summary
    assert (v.origin.rank, v.origin.node, v.origin.step) == (rank, f"n{rank + 1}", "0")
    assert "task's record" in v.origin.basis
    assert v.scope is Scope.RANK
    assert v.confidence >= 0.9
    assert {edge.rank for edge in v.cascade} == {0, 1, 2, 3} - {rank}
    ids = {e.id for e in v.evidence}
    for edge in v.cascade:
        assert edge.order is Order.CERTAIN
        assert 0 < edge.gap_ms.lo <= edge.gap_ms.hi < 20_000
        assert {edge.after, edge.evidence} <= ids
    assert set(v.timeline) <= ids
    assert v.fix.text
    assert f"Rank {rank} on n{rank + 1} failed first" in v.summary
    assert v.hardware is Hardware.NONE
    assert not v.gaps


@pytest.mark.parametrize("skew", CLOCKS)
@pytest.mark.parametrize("name", NOBODY)
def test_where_nobody_is_to_blame_no_rank_is_accused(engine, name, skew):
    failure_class, category = NOBODY[name]
    v = engine(getattr(scenes, name)(skew=skew))
    assert (v.failure_class, v.category) == (failure_class, category), v.summary
    assert v.origin is None
    assert v.origins == ()
    assert v.cascade == ()
    assert v.confidence >= 0.9


def test_skewed_clocks_change_no_time_and_no_word(engine):
    """Times come out in reference time, within their bounds, whatever the nodes' own clocks say."""
    true, skewed = engine(scenes.exception()), engine(scenes.exception(skew=SKEWED))
    assert true.summary == skewed.summary
    for a, b in zip(true.evidence, skewed.evidence, strict=True):
        assert (a.id, a.text) == (b.id, b.text)
        assert a.time.lo == pytest.approx(b.time.lo, abs=1e-3)
    offsets = dict(skewed.clocks)
    assert offsets["n2"].lo == pytest.approx(-45, abs=1e-3)
    assert offsets["n3"].lo == pytest.approx(3, abs=1e-3)
    assert all(interval.hi - interval.lo < 0.01 for interval in offsets.values())


def test_torchrun_without_srun_is_read_from_the_jobs_output_file(engine):
    v = engine(scenes.torchrun(rank=1))
    assert (v.failure_class, v.origin.rank, v.origin.node) == ("user-code-exception", 1, "n1")
    assert "only node" in v.origin.basis
    assert [edge.rank for edge in v.cascade] == [0]
    assert any(gap.closed_by == "hooks/srun first on PATH" for gap in v.gaps)


def test_a_retried_step_is_named_and_its_lines_are_set_aside(engine):
    v = engine(scenes.retried())
    assert "Step 0 (FAILED, 1:0) failed and was run again with success" in v.summary


def test_a_kill_says_how_it_is_known(engine):
    assert "signal 9 (SIGKILL)" in engine(scenes.killed()).summary


def test_the_time_limit_after_a_hang_is_a_consequence(engine):
    """Progress stopped 50 s x 10 before the limit: the hang is the failure; no rank is named without evidence."""
    run = scenes.time_limit()
    for key, said in run.said.items():
        run.said[key] = [(t, text) for t, text in said if t < 12]
    run.tasks[0].told = [(600.0, 15)]
    for rank in range(4):
        run.tasks[rank].told = [(600.0, 15)]
        run.ends(rank, 600.1, signal=15)
    run.end = 602.0
    v = engine(run)
    assert (v.failure_class, v.origin) == ("collective-missing-rank", None)
    assert "588 s before the time limit" in v.summary or "589 s before the time limit" in v.summary
    run.tasks[2].states = [(14.0, "T")]
    v = engine(run)
    assert (v.failure_class, v.origin.rank) == ("collective-missing-rank", 2)


def _without(run, rank, *, relay=True):
    """Take a rank's words out of the job's file too, where ``relay`` is False."""
    if not relay:
        run.relay = [(t, text) for t, text in run.relay if f"[rank{rank}]" not in text and "INFO" not in text]
    return run


def _noisy(run, _rank):
    return scenes.noise(run)


def _rank_0_prints(run, _rank):
    for key, said in run.said.items():
        if key[0] != 0:
            run.said[key] = [(t, text) for t, text in said if " INFO step " not in text]
    return run


def _no_clocks(run, _rank):
    run.samples = False
    return run


def _no_job_file(run, _rank):
    run.batch, run.relay = [], []
    return run


def _no_ends(run, _rank):
    for task in run.tasks.values():
        task.end = task.code = task.signal = None
    run.batch = []
    return run


def _no_wrapper(run, _rank):
    run.no_wrapper = True
    return run


def _stream_lost(run, rank):
    run.lost_streams.add(rank)
    return run


def _words_lost(run, rank):
    run.lost_streams.add(rank)
    return _without(run, rank, relay=False)


def _task_lost(run, rank):
    run.lost_tasks.add(rank)
    return _without(run, rank, relay=False)


def _node_lost(run, rank):
    run.done[f"n{rank + 1}"] = None
    return _task_lost(run, rank)


WHOLE = [_noisy, _rank_0_prints, _no_job_file]
PARTIAL = [_no_clocks, _no_ends, _no_wrapper]
ONE_LOST = [_stream_lost, _words_lost, _task_lost, _node_lost]


@pytest.mark.parametrize("skew", CLOCKS)
@pytest.mark.parametrize("change", WHOLE)
@pytest.mark.parametrize("name", FAILURES)
def test_noise_and_thin_printing_change_no_answer(engine, name, change, skew):
    failure_class, rank = FAILURES[name]
    v = engine(change(getattr(scenes, name)(skew=skew), rank))
    assert (v.failure_class, v.origin.rank) == (failure_class, rank), v.summary


@pytest.mark.parametrize("change", PARTIAL)
@pytest.mark.parametrize("name", FAILURES)
def test_with_less_evidence_the_answer_is_right_or_abstains(engine, name, change):
    failure_class, rank = FAILURES[name]
    v = engine(change(getattr(scenes, name)(skew=SKEWED), rank))
    assert v.origin is None or v.origin.rank == rank, v.summary
    assert v.failure_class in (failure_class, "unknown"), v.summary
    assert change is not _no_clocks or v.origin.rank == rank


@pytest.mark.parametrize("lost", range(4))
@pytest.mark.parametrize("change", ONE_LOST)
@pytest.mark.parametrize("name", FAILURES)
def test_with_one_rank_lost_no_other_is_accused(engine, name, change, lost):
    """Whichever rank's output (or record, or node) is missing: the right rank or none."""
    failure_class, rank = FAILURES[name]
    v = engine(change(getattr(scenes, name)(skew=SKEWED), lost))
    assert v.origin is None or v.origin.rank in (rank, None), v.summary
    assert all(place.rank == rank for place in v.origins)
    if lost != rank:
        assert v.origin.rank == rank
        assert v.failure_class == failure_class
        assert v.confidence < 0.985
    elif v.failure_class == "unknown":
        assert v.confidence <= 0.6


LOSSES = [_noisy, _rank_0_prints, _no_clocks, _no_job_file, _no_ends, _no_wrapper]


@pytest.mark.parametrize("seed", range(4))
def test_over_random_failures_and_losses_no_wrong_rank_is_named(engine, seed):
    """30 runs each of 2 to 8 ranks with random clocks; several kinds of evidence and up to three ranks' words lost."""
    chance = random.Random(seed)
    right = 0
    for _ in range(30):
        name = chance.choice(list(FAILURES))
        ranks = chance.choice([2, 4, 8])
        rank = chance.randrange(ranks)
        skew = {node: chance.choice([0, 45, -3, 0.2, -0.4]) for node in range(ranks)}
        options = {"seen": chance.random() < 0.5} if name == "stopped" else {}
        per_node = 1 if name == "memory" else chance.choice([1, 2])
        run = getattr(scenes, name)(rank=rank, ranks=ranks, per_node=per_node, skew=skew, **options)
        lost = [(change, rank) for change in LOSSES if chance.random() < 0.25]
        lost += [(change, chance.randrange(ranks)) for change in ONE_LOST if chance.random() < 0.25]
        for change, whose in lost:
            run = change(run, whose)
        v = engine(run)
        assert v.origin is None or v.origin.rank in (rank, None), (name, rank, lost, v.summary)
        right += v.origin is not None and v.origin.rank == rank
    assert right >= 15


def test_a_lost_stream_is_read_from_the_jobs_file(engine):
    """srun relays every task's words there, and torch marks them with their rank."""
    v = engine(_stream_lost(scenes.exception(), 2))
    assert (v.failure_class, v.origin.rank) == ("user-code-exception", 2)


def test_a_node_without_epilog_leaves_the_verdict_standing(engine):
    """slurmd of n4 died: its tasks' records are there, its DONE and second clock sample are not."""
    run = scenes.exception()
    run.done["n4"] = False
    v = engine(run)
    assert (v.failure_class, v.origin.rank) == ("user-code-exception", 2)


def test_the_document_is_json_and_keeps_its_keys(engine):
    import json

    document = json.loads(json.dumps(engine(scenes.exception()).to_json()))
    assert document["origin"]["rank"] == 2
    assert document["cascade"][0]["order"] == "certain"


def test_a_thousand_ranks_take_time_in_proportion(engine):
    """No step is quadratic in the ranks: four times as many take less than eight times as long."""

    def seconds(ranks):
        run = runs.Run(ranks=ranks, per_node=8)
        run.samples = False
        for rank in range(ranks):
            run.say(rank, 11.5 + rank * 1e-4, runs.closed(rank) if rank != 7 else runs.traceback(7, "KeyError: 'x'"))
            run.ends(rank, 12.0 if rank == 7 else 13.0, code=1)
        snapshot_run = run
        begun = time.process_time()
        v = engine(snapshot_run)
        assert (v.failure_class, v.origin.rank) == ("user-code-exception", 7)
        return time.process_time() - begun

    seconds(64)
    small, large = seconds(256), seconds(1024)
    assert large < 8 * small + 0.5
