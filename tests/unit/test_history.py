"""Faults of earlier runs: they explain a failure of the same GPU, and never accuse by themselves."""

from __future__ import annotations

from dataclasses import replace

import pytest

from denpex import library
from denpex.diagnose import diagnose
from denpex.model import Gpu, Hardware, PastFault
from denpex.store import Reader, Store
from tests.unit import runs, scenes
from tests.unit.runs import Run, closed, traceback

UUID = "GPU-5f1c2b3a"
PAST = PastFault("gpu-ecc-uncorrectable", "n3", UUID, "88", runs.START - 2 * 86_400)
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 MiB. GPU 0 has a total capacity of 79.10 GiB"
LAUNCH = "RuntimeError: CUDA error: unspecified launch failure"


@pytest.fixture(scope="module")
def engine():
    patterns = library.load()
    matcher = library.matcher(patterns)
    return lambda snapshot: diagnose(snapshot, patterns, matcher)


def failing(what, *, ranks=(2,), works=0.0):
    """Ranks fail of ``what``; n3 has one GPU, the job's."""
    run = Run()
    run.work(works)
    run.nodes_info["n3"] = {"gpus": (Gpu(0, 0, "00000000:3B:00.0", UUID),), "job_gpus": ("0",)}
    for rank in range(run.count):
        if rank in ranks:
            run.say(rank, 11.5 + rank / 100, traceback(rank, what))
            run.ends(rank, 11.9 + rank / 100, code=1)
        else:
            run.say(rank, 12.0 + rank / 100, closed(rank))
            run.ends(rank, 12.3 + rank / 100, code=1)
    return run


def with_past(run, *past):
    return replace(run.snapshot(), history=past)


@pytest.mark.parametrize("what", [OOM, LAUNCH])
def test_a_failure_that_a_faulty_gpu_explains_is_read_as_that(engine, what):
    alone, v = engine(failing(what).snapshot()), engine(with_past(failing(what), PAST))
    assert alone.failure_class in ("cuda-out-of-memory", "cuda-launch-failure")
    assert (v.failure_class, v.origin.rank, v.origin.gpu.uuid) == ("gpu-ecc-uncorrectable", 2, UUID)
    assert v.hardware is Hardware.SUSPECTED
    assert 0.6 <= v.confidence <= 0.8
    assert "job 88 had gpu-ecc-uncorrectable on its GPU, which shows as " + alone.failure_class in v.summary
    (cited,) = [e for e in v.evidence if e.stream == "history"]
    assert "2.0 days before" in cited.text


@pytest.mark.parametrize(
    ("run", "past"),
    [
        pytest.param(failing(OOM), replace(PAST, gpu="GPU-other"), id="another GPU"),
        pytest.param(failing(OOM, works=9.0), PAST, id="out of memory at work"),
        pytest.param(failing(OOM, ranks=(0, 1, 2, 3)), PAST, id="all ranks alike"),
        pytest.param(failing(OOM, ranks=(1,)), PAST, id="another rank"),
        pytest.param(failing("IndexError: list index out of range"), PAST, id="an exception"),
        pytest.param(scenes.stopped(rank=2), PAST, id="no words"),
    ],
)
def test_history_changes_nothing_else(engine, run, past):
    said, alone = (engine(one) for one in (with_past(run, past), run.snapshot()))
    for name in ("failure_class", "summary", "confidence", "hardware", "origin", "origins"):
        assert getattr(said, name) == getattr(alone, name)


def test_a_healthy_run_on_such_a_gpu_is_healthy(engine):
    v = engine(with_past(scenes.scared(), PAST))
    assert (v.failure_class, v.origin) == ("no-failure", None)


def test_a_verdict_by_history_is_no_history(engine, tmp_path):
    store = Store(tmp_path / "denpex.db")
    try:
        store.save(engine(with_past(failing(LAUNCH), PAST)), 1.0)
        assert Reader(store.path).faults("lab", ["n3"], 0.0, 1e12) == ()
    finally:
        store.close()
