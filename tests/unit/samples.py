"""Verdicts and rows that several tests use."""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from denpex.model import (
    Alternative,
    CascadeEdge,
    Category,
    Evidence,
    Fix,
    Gap,
    Interval,
    Job,
    Order,
    Place,
    Requeue,
    Role,
    Route,
    Scope,
    Step,
    Verdict,
)

START = 1_790_000_000.0


def job(job_id: str = "4711", **values: Any) -> Job:
    """Return a job of four nodes that failed 72 seconds after its start."""
    return replace(
        Job(
            job_id=job_id,
            cluster="lab",
            restart=0,
            name="train.sh",
            user="alice",
            uid=1001,
            account="science",
            partition="gpu",
            state="FAILED",
            exit="1:0",
            derived="1:0",
            submit=START - 30,
            start=START,
            end=START + 72,
            nodes=("n1", "n2", "n3", "n4"),
            steps=(Step("batch", "batch", "FAILED", "1:0"), Step("0", "python", "FAILED", "1:0")),
        ),
        **values,
    )


def _evidence(number: int, role: Role, rank: int, node: str, text: str, at: float) -> Evidence:
    return Evidence(
        id=f"e{number}",
        role=role,
        failure_class=None,
        rank=rank,
        node=node,
        stream=f"0.{rank}.err",
        time=Interval(START + at - 0.0004, START + at + 0.0004),
        text=text,
        file=f"tasks/0.{rank}.err",
        offset=1000 + number,
    )


def verdict(of: Job | None = None, **values: Any) -> Verdict:
    """Return: rank 2 on n3 raised IndexError, and the others lost their peer."""
    trace = 'Traceback (most recent call last):\n  File "train.py", line 50, in <module>\nIndexError: index 50 is out'
    lost = "RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.9.0.3]:40123"
    others = ((0, "n1", 70.412), (1, "n2", 70.413), (3, "n4", 70.5))
    evidence = (
        _evidence(1, Role.ORIGIN, 2, "n3", trace, 70.0),
        *(_evidence(i + 2, Role.CASCADE, r, n, lost, at) for i, (r, n, at) in enumerate(others)),
    )
    edges = tuple(
        CascadeEdge(r, n, "e1", f"e{i + 2}", Order.CERTAIN, Interval(at * 1e3 - 70000.8, at * 1e3 - 69999.2))
        for i, (r, n, at) in enumerate(others)
    )
    base = Verdict(
        failure_class="user-code-exception",
        category=Category.ML_NUMERICAL,
        title="The training code raised an exception",
        summary="Rank 2 raised IndexError at train.py:50; ranks 0, 1 and 3 lost their peer afterwards.",
        scope=Scope.RANK,
        confidence=0.97,
        job=of or job(),
        origin=Place("0", 2, "n3", None, "its own traceback, before every other sign"),
        fix=Fix("Correct the index where the traceback ends, then run again.", "sbatch train.sh"),
        route=Route.TRAINING,
        requeue=Requeue.AFTER_FIX,
        evidence=evidence,
        cascade=edges,
        alternatives=(Alternative("process-killed", Place("0", 1, "n2"), 0.02, "rank 1 ended with status 1"),),
        gaps=tuple(Gap("kernel records were not read", node, "dmesg for root") for node in ("n1", "n2")),
        timeline=tuple(e.id for e in evidence),
        clocks=(("n1", Interval(-44.9996, -44.9988)), ("n3", Interval(3.0001, 3.0009))),
    )  # fmt: skip
    return replace(base, **values)


def as_user(uid: int, function: Callable[[], Any]) -> Any:
    """Return what ``function`` returns (as JSON) in a child process of this user and no group; its error raises."""
    reading, writing = os.pipe()
    with warnings.catch_warnings():
        # The child only runs the function; the server's threads stay with the parent.
        warnings.simplefilter("ignore", DeprecationWarning)
        child = os.fork()
    if child == 0:
        try:
            os.close(reading)
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            try:
                result = {"value": function()}
            except BaseException as error:  # noqa: BLE001 - the parent shall hear of any
                result = {"error": f"{type(error).__name__}: {error}"}
            with os.fdopen(writing, "w") as pipe:
                json.dump(result, pipe)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    result = json.loads(text)
    if "error" in result:
        raise RuntimeError(result["error"])
    return result["value"]
