"""The worker's diagnoses, in a process of their own: what goes wrong there, or takes too long, ends no worker."""

from __future__ import annotations

import multiprocessing
import signal
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from denpex import diagnose as pipeline
from denpex import library
from denpex.errors import DenpexError, EngineError, StoreError
from denpex.ingest import spool
from denpex.model import Gap, Job, PastFault, Verdict
from denpex.store import Reader

Diagnose = Callable[[Job, list[Path], tuple[Gap, ...]], Verdict]
"""Diagnoses one run: (what the scheduler says, its nodes' directories, what else is missing)."""

# A month, our choice: longer than a suspected part waits for its replacement.
_REMEMBERED_S = 30 * 86_400.0
LONGEST_S = 600.0
"""So long a diagnosis may take: some fifty times what the largest one is to take (DESIGN: 12 s for 1,024 ranks)."""


class Diagnosis:
    """The whole diagnosis of one run from its nodes' directories; raises PatternError where it cannot begin."""

    def __init__(self, database: Path | None = None) -> None:
        """``database``: where earlier verdicts are, whose hardware faults are evidence; None: they are not asked."""
        self._database = database
        self._library = library.load()
        self._matcher = library.matcher(self._library)

    def __call__(self, job: Job, bundles: list[Path], gaps: tuple[Gap, ...]) -> Verdict:
        """Diagnose one run; raises DenpexError."""
        snapshot = spool.read(bundles, job)
        history, lack = self._history(job)
        snapshot = replace(snapshot, gaps=(*gaps, *snapshot.gaps, *lack), history=history)
        verdict = pipeline.diagnose(snapshot, self._library, self._matcher)
        # Which run it is, the scheduler alone says.
        same = replace(verdict.job, cluster=job.cluster, job_id=job.job_id, start=job.start, end=job.end)
        return replace(verdict, job=same)

    def _history(self, job: Job) -> tuple[tuple[PastFault, ...], tuple[Gap, ...]]:
        if self._database is None or job.start is None:
            return (), ()
        try:
            return Reader(self._database).faults(job.cluster or "", job.nodes, job.start - _REMEMBERED_S, job.start), ()
        except StoreError as error:
            return (), (Gap(f"earlier verdicts: {error}", str(self._database), "a database that can be read"),)


class Engine:
    """Diagnoses one run at a time in another process, which is single-threaded and so may use all processors."""

    def __init__(self, begin: Callable[[], Diagnose] = Diagnosis, longest_s: float = LONGEST_S) -> None:
        """Start the process; ``begin`` makes there what diagnoses. Raises DenpexError where it cannot begin."""
        self._begin, self._longest_s = begin, longest_s
        self._start()

    def __call__(self, job: Job, bundles: list[Path], gaps: tuple[Gap, ...]) -> Verdict:
        """Diagnose one run; raises DenpexError, EngineError where the process was lost or took too long."""
        if not self._process.is_alive():
            self.close()
            self._start()
        with suppress(OSError):  # a process that was just lost: `_answer` says so
            self._pipe.send((job, bundles, gaps))
        verdict: Verdict = self._answer()
        return verdict

    def close(self) -> None:
        """End the process, whatever it does."""
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def _start(self) -> None:
        # A fork would copy the locks of the worker's threads.
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, self._begin), name="denpex-engine")
        self._process.start()
        theirs.close()
        # The first answer tells whether there is a library.
        self._answer()

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(self._longest_s):
                self._process.kill()
                self._process.join()
                raise EngineError(f"the diagnosis took longer than {self._longest_s:.0f} s and was ended")
            answer = self._pipe.recv()
        except (EOFError, OSError):
            self._process.join()
            raise EngineError(
                f"the process that diagnoses was lost ({_ended(self._process.exitcode)}); "
                "the kernel log says whether it was killed for memory"
            ) from None
        if isinstance(answer, Exception):
            raise answer
        return answer


def _ended(code: int | None) -> str:
    """Say how a process ended."""
    return f"signal {-code}" if code is not None and code < 0 else f"status {code}"


def _serve(pipe: Connection, begin: Callable[[], Diagnose]) -> None:
    """Answer questions until the worker is gone."""
    # At a terminal the interrupt is the worker's to answer.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        diagnose = begin()
    except DenpexError as error:
        pipe.send(error)
        return
    pipe.send(None)
    with suppress(EOFError, OSError):
        while True:
            question = pipe.recv()
            try:
                pipe.send(diagnose(*question))
            except DenpexError as error:
                pipe.send(error)
            except Exception as error:  # noqa: BLE001 - the worker reports it, and tries again
                pipe.send(EngineError(f"{type(error).__name__}: {error}"))
