"""The worker's engine: a process of its own, that may be lost without loss."""

from __future__ import annotations

import os
import runpy
import signal
import time
from pathlib import Path

import pytest

from denpex import parallel
from denpex.errors import EngineError, PatternError, SpoolError
from denpex.model import Job
from denpex.worker_engine import Diagnosis, Engine

JOB = Job(job_id="7", cluster="lab")


def begin():
    """Return what answers by the job's name."""
    return _answer


def _answer(job, bundles, gaps):
    if job.name == "spool":
        raise SpoolError("no spool there")
    if job.name == "bug":
        raise ZeroDivisionError("by nought")
    if job.name == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if job.name == "hangs":
        time.sleep(60)
    return job, bundles, gaps, os.getpid()


def no_library():
    raise PatternError("patterns/x.yaml:1: no")


@pytest.fixture
def engine():
    made = Engine(begin, longest_s=5)
    yield made
    made.close()


def named(name):
    return Job(job_id="7", cluster="lab", name=name)


def test_another_process_answers_again_and_again(engine):
    first, second = engine(JOB, [Path("x")], ()), engine(JOB, [], ())
    assert first[:3] == (JOB, [Path("x")], ())
    assert first[3] == second[3] != os.getpid()


def test_its_errors_come_back_as_they_are_or_as_a_sentence(engine):
    with pytest.raises(SpoolError, match="no spool there"):
        engine(named("spool"), [], ())
    with pytest.raises(EngineError, match="ZeroDivisionError: by nought"):
        engine(named("bug"), [], ())
    assert engine(JOB, [], ())


def test_a_lost_process_is_told_of_and_replaced(engine):
    with pytest.raises(EngineError, match=r"lost \(signal 9\)"):
        engine(named("dies"), [], ())
    assert engine(JOB, [], ())


def test_one_that_takes_too_long_is_ended_and_replaced(engine):
    engine._longest_s = 0.3
    with pytest.raises(EngineError, match="took longer"):
        engine(named("hangs"), [], ())
    engine._longest_s = 5
    assert engine(JOB, [], ())


def test_without_a_library_it_does_not_begin():
    with pytest.raises(PatternError, match=r"patterns/x\.yaml:1"):
        Engine(no_library)


def test_it_ends_with_the_worker(tmp_path):
    child = os.fork()
    if child == 0:
        made = Engine(begin)
        (tmp_path / "pid").write_text(str(made(JOB, [], ())[3]))
        os._exit(0)
    os.waitpid(child, 0)
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 10
    while Path(f"/proc/{pid}/stat").exists() and Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z":
        assert time.monotonic() < end
        time.sleep(0.05)


def test_many_streams_are_diagnosed_as_in_one_process(tmp_path, monkeypatch):
    """72 streams: enough for two processes, here one does it all."""
    bench = runpy.run_path(str(Path(__file__).parents[2] / "scripts" / "bench" / "scale"))
    job, bundles = bench["make"](tmp_path, 72, 4000, 40)
    engine = Engine()
    try:
        there = engine(job, bundles, ())
    finally:
        engine.close()
    monkeypatch.setattr(parallel, "each", lambda function, items: [function(item) for item in items])
    here = Diagnosis()(job, bundles, ())
    assert there.origin.rank == 40
    assert there.to_json() == here.to_json()
