"""The worker: takes completion records from the queue, waits for the nodes, diagnoses, stores, and only then forgets.

One thread decides everything; others only wait for nodes and Slurm, or compute. A queue file is removed after its
verdict is stored, so whatever kills the worker, the next one goes on; a run is known by (cluster, job number, start),
so that nothing is told twice.
"""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from denpex import answerfiles, queuefile, slurm
from denpex.config import Config
from denpex.engine import plain
from denpex.errors import ServiceError, SpoolError, StoreError
from denpex.model import Job, Verdict
from denpex.store import Reader, Store
from denpex.worker_engine import Diagnose
from denpex.worker_late import KEEP_S, Late, LateRuns
from denpex.worker_nodes import Collect, Gathering, Lanes
from denpex.worker_run import START_PATIENCE_S, STEPS_S, Key, Run, again, begun
from denpex.worker_sweep import Sweep

_POLL_S = 0.2
_BUSY_POLL_S = 0.1
# Runs that are waited for at a time; the queue keeps the others.
_MAX_RUNS = 1000
_TRIES = 3
_RETRY_S = 1.0
_STORE_RETRY_S = 5.0
# EpilogSlurmctld starts when the job has ended, perhaps behind others.
_NEAR_S = 60.0


def say(text: str) -> None:
    """Write one line to standard error, whatever characters the text holds."""
    line = "".join(c if c.isprintable() else "?" for c in text)
    sys.stderr.write(f"denpex worker: {line}\n")
    sys.stderr.flush()


class Worker:
    """Turns queue files into stored verdicts; ``step`` does what is due, ``run`` repeats it."""

    def __init__(self, config: Config, store: Store, collect: Collect, diagnose: Diagnose) -> None:
        self._config, self._store, self._collect, self._diagnose = config, store, collect, diagnose
        self._queue = config.queue_dir
        self._late = LateRuns(Path(config.state_dir) / "late")
        self._late_at = 0.0
        self._runs: list[Run] = []
        self._taken: set[Path] = set()
        self._wake, self._stop = threading.Event(), threading.Event()
        self._slurm_pool, self._engine_pool = ThreadPoolExecutor(4, "slurm"), ThreadPoolExecutor(1, "engine")
        self._lanes = Lanes(max(1, config.fetch.parallel), self._on_answer)
        self._sweep_pool = ThreadPoolExecutor(1, "sweep")
        self._sweep = Sweep(config, self._sweep_pool, lambda key: store.known(*key), say)

    def run(self, *, once: bool) -> None:
        """Work until ``interrupt``; ``once``: until everything that there is has its verdict. Raises DenpexError."""
        while not self._stop.is_set():
            try:
                self.step(time.time())
            except StoreError as error:
                say(f"{error}; the queue waits")
                self._stop.wait(_STORE_RETRY_S)
            if once and not self._runs and not self._sweep.is_open and not any(queuefile.waiting(self._queue)):
                return
            self._wake.wait(_BUSY_POLL_S if self._runs else _POLL_S)
            self._wake.clear()

    def interrupt(self) -> None:
        """End ``run`` soon; may be called from a signal handler."""
        self._stop.set()
        self._wake.set()

    def close(self) -> None:
        """Give up what is under way; what it was for is still in the queue."""
        self.interrupt()
        self._lanes.close()
        for pool in (self._slurm_pool, self._engine_pool, self._sweep_pool):
            pool.shutdown(wait=False, cancel_futures=True)

    def step(self, now: float) -> None:
        """Do everything that is due at ``now``, seconds since 1970."""
        self._sweep.step(now, {key for run in self._runs if (key := run.key)})
        self._take(now)
        self._take_late(now)
        for run in list(self._runs):
            if self._stop.is_set():
                return
            if now < run.retry_at:
                continue
            try:
                self._advance(run, now)
            except Exception as error:  # noqa: BLE001 - one run's trouble must never keep another from its verdict
                self._failed(run, error, now)

    def _on_answer(self, _: object) -> None:
        self._wake.set()

    # ------------------------------------------------------------------ the queue

    def _take(self, now: float) -> None:
        """Begin a run for each new file; those that cannot be used are moved out of the way."""
        try:
            new = [path for path in queuefile.waiting(self._queue) if path not in self._taken]
        except OSError as error:
            raise SpoolError(f"the queue {self._queue} cannot be read: {error.strerror}; it is the worker's") from error
        for path in new:
            if self._stop.is_set() or len(self._runs) >= _MAX_RUNS:
                return
            self._taken.add(path)
            try:
                ended = queuefile.read(path)
            except FileNotFoundError:
                self._taken.discard(path)
            except SpoolError as error:
                say(f"{error}; it is moved to {queuefile.BAD}/")
                self._set_aside(path)
            else:
                if ended.goes_on:
                    self._remove([path])
                else:
                    deadline_s = self._config.worker.deadline
                    self._runs.append(begun(ended, self._config.cluster, now, deadline_s))

    def _is_new(self, run: Run, key: Key) -> bool:
        """Tell whether a run still needs a verdict, and no other file brought it before."""
        if self._store.known(*key):
            self._remove(run.files)
            self._drop(run)
            return False
        other = next((r for r in self._runs if r is not run and r.key == key and r.is_checked), None)
        if other is None:
            run.is_checked = True
            return True
        # Of an end, and a return to the queue after it (a requeue of a finished job), the end is the news; of two
        # hooks' records jobcomp's says more.
        if run.said.state and other.said.state in ("", "REQUEUED"):
            other.said = queuefile.completed(run.said, other.said)
        other.files += run.files
        self._drop(run)
        return False

    def _remove(self, paths: list[Path]) -> None:
        for path in paths:
            path.unlink(missing_ok=True)
            _tries(path).unlink(missing_ok=True)
            self._taken.discard(path)

    def _set_aside(self, path: Path) -> None:
        """Move a queue file to bad/; one that cannot be moved is left alone until the next start."""
        try:
            queuefile.set_aside(path)
        except OSError as error:
            say(f"the queue file {path} cannot be moved: {error.strerror}")
        else:
            self._taken.discard(path)

    # ------------------------------------------------------------------ one run

    def _advance(self, run: Run, now: float) -> None:
        """Bring one run as far as it can go now."""
        if run.diagnosing is not None:
            if not run.diagnosing.done():
                return
            future, run.diagnosing = run.diagnosing, None
            for path in run.files[:1]:
                _tries(path).unlink(missing_ok=True)
            run.verdict = future.result()
        if run.verdict is not None:
            self._save(run, run.verdict, now)
            return
        key = run.key
        if key is not None and not run.is_checked and not self._is_new(run, key):
            return
        if run.late is None and plain.is_clean(run.said) and now < run.written + STEPS_S:
            return
        run.accounting.advance(now, lambda: self._ask_slurm(run))
        if key is None or not run.said.state:
            self._identify(run, now)
            return
        job = run.job
        if run.late is None and plain.is_clean(job):
            # Accounting's steps decide (STEPS_S says why).
            if run.patience_is_over(now - STEPS_S):
                self._save(run, replace(plain.no_failure(job), gaps=run.gaps), now)
        elif slurm.never_started(job) and job.state == "CANCELLED":
            self._cancelled(run, job, now)
        else:
            self._gather(run, job, now)

    def _ask_slurm(self, run: Run) -> Future[Job | None]:
        said, slurm_bin = run.said, self._config.slurm_bin
        at = None if said.start is not None else run.written
        future = self._slurm_pool.submit(slurm.job, said.job_id or "", said.start, at=at, slurm_bin=slurm_bin)
        future.add_done_callback(self._on_answer)
        return future

    def _identify(self, run: Run, now: float) -> None:
        """Learn from accounting which run a hook meant that knows neither start nor state."""
        job = run.job
        if run.accounting.is_settled and job.end is not None and job.end >= run.written - _NEAR_S:
            run.said = job
            return
        # What is settled ended long before: accounting does not know the new run yet.
        run.accounting.known = None
        if now > run.seen + START_PATIENCE_S:
            say(f"job {run.said.job_id}: Slurm does not say which run ended; its file is moved to {queuefile.BAD}/")
            for path in run.files:
                self._set_aside(path)
            self._drop(run)

    def _cancelled(self, run: Run, job: Job, now: float) -> None:
        if not run.patience_is_over(now):
            return
        if run.late is None or run.accounting.is_settled:
            self._save(run, plain.cancelled_before_start(job), now)
        else:
            self._put_off(run, run.late, now)

    def _gather(self, run: Run, job: Job, now: float) -> None:
        """Wait for the nodes, then for what accounting still owes, then have the run diagnosed."""
        if run.gathering is None:
            first_look = run.late is not None and not run.is_revising
            nodes = run.late.nodes if run.late is not None and first_look else job.nodes
            run.gathering = Gathering(job, nodes, self._collect, self._lanes, now, unfinished=not first_look)
        gathering = run.gathering
        gathering.advance(now, run.deadline)
        if run.late is None and run.awaited != gathering.awaited:
            run.awaited = gathering.awaited
            self._store.waiting(job, run.awaited, now)
        if not gathering.is_over(now, run.deadline) or not run.patience_is_over(now):
            return
        if run.late is not None and not run.is_revising:
            news = gathering.awaited != run.late.nodes or (run.accounting.is_settled and not run.late.accounted)
            if not news:
                self._put_off(run, run.late, now)
                return
            # So that a diagnosis which kills the worker is not begun again at once.
            self._late.put(self._key(run).name, run.late.again(now, self._first_wait))
            run.is_revising, run.gathering, run.deadline = True, None, now
            gathering.close()
            return
        for path in run.files[:1]:
            tries = _read_tries(path)
            if tries >= _TRIES:
                self._save(run, plain.undiagnosed(job, f"{tries} attempts ended the worker"), now)
                return
            # Where it cannot be counted, diagnosing is still better than not.
            with suppress(OSError):
                _tries(path).write_text(str(tries + 1), encoding="utf-8")
        run.diagnosing = self._engine_pool.submit(self._diagnose, job, gathering.bundles, run.gaps)
        run.diagnosing.add_done_callback(self._on_answer)

    def _save(self, run: Run, verdict: Verdict, now: float) -> None:
        """Store a verdict; then, and not before, forget the queue file."""
        run.verdict = verdict
        key = self._key(run)
        # Before the verdict: killed in between, the queue file or the late file brings it again.
        self._owe(run, key, now)
        revision = self._store.save(verdict, now)
        self._remove(run.files)
        self._drop(run)
        self._write_answer(key)
        origin = verdict.origin
        rank = f" rank {origin.rank}" if origin and origin.rank is not None else ""
        node = f" on {origin.node}" if origin and origin.node else ""
        say(
            f"job {key.job_id} (start {key.start}): {verdict.category}/{verdict.failure_class}{rank}{node}, confidence "
            f"{verdict.confidence:.2f}, revision {revision}, {now - (run.said.end or now):.1f} s after the job's end"
        )

    def _write_answer(self, key: Key) -> None:
        """Leave the answer on shared storage too, where the site wants that."""
        if not self._config.worker.answers_dir:
            return
        try:
            answerfiles.write(self._config, Reader(self._config.database), key.cluster, key.job_id)
        except (ServiceError, StoreError) as error:
            say(f"job {key.job_id}: {error}")

    @staticmethod
    def _key(run: Run) -> Key:
        if run.key is None:
            raise SpoolError("a verdict on a run whose start is not known cannot be stored")
        return run.key

    def _drop(self, run: Run) -> None:
        if run in self._runs:
            self._runs.remove(run)
        if run.accounting.future is not None:
            run.accounting.future.cancel()
        if run.gathering is not None:
            run.gathering.close()

    def _failed(self, run: Run, error: Exception, now: float) -> None:
        """Try again a little later; after some tries say in the verdict that nothing can be said."""
        what = f"{type(error).__name__}: {error}"
        say(f"job {run.said.job_id}: {what}")
        if isinstance(error, StoreError) or run.verdict is not None:
            # Only storing has failed: a full disk passes.
            run.retry_at = now + _STORE_RETRY_S
            return
        run.failures += 1
        run.retry_at = now + _RETRY_S
        if run.failures < _TRIES:
            return
        if run.late is not None:
            self._put_off(run, run.late, now)
        else:
            # The next step stores it.
            run.verdict = plain.undiagnosed(run.job, what)

    # ------------------------------------------------------------------ what comes late

    @property
    def _first_wait(self) -> float:
        return max(self._config.worker.deadline / 2, 2.0)

    def _take_late(self, now: float) -> None:
        """Begin again with the runs that lack something, when their time has come."""
        if now < self._late_at:
            return
        self._late_at = now + min(self._first_wait / 2, 30.0)
        in_work = {run.key for run in self._runs}
        for name, late in self._late.read():
            run = again(late, now)
            if late.next_at <= now and run.key not in in_work:
                if self._store.known(*self._key(run)):
                    self._runs.append(run)
                elif now > late.until:
                    self._late.drop(name)

    def _owe(self, run: Run, key: Key, now: float) -> None:
        """Remember what a run's verdict lacks, or that it lacks nothing more."""
        missing = run.gathering.awaited if run.gathering else ()
        can_come = run.gathering is not None or run.said.state == "CANCELLED"
        if can_come and (missing or not run.accounting.is_settled):
            first = run.late or Late(run.job, missing, run.accounting.is_settled, now, now + KEEP_S)
            late = Late(run.job, missing, run.accounting.is_settled, now, first.until, first.tries)
            self._late.put(key.name, late.again(now, self._first_wait))
        else:
            self._late.drop(key.name)

    def _put_off(self, run: Run, late: Late, now: float) -> None:
        """Look again later, or give up."""
        key = self._key(run)
        if now > late.until:
            self._late.drop(key.name)
        else:
            self._late.put(key.name, late.again(now, self._first_wait))
        self._drop(run)


def _tries(path: Path) -> Path:
    """Return the file that counts how often a run's diagnosis was begun and not ended."""
    return path.with_name(f".{path.name}.tries")


def _read_tries(path: Path) -> int:
    try:
        return int(_tries(path).read_text(encoding="utf-8"))
    except (FileNotFoundError, ValueError):
        return 0
