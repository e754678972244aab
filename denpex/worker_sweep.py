"""Finds what the hooks lost: compares accounting's last day with the stored verdicts, and removes old bundles."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Collection
from concurrent.futures import Executor, Future
from dataclasses import replace
from pathlib import Path

from denpex import queuefile, slurm
from denpex import spool as contract
from denpex.config import Config
from denpex.errors import SlurmError
from denpex.model import Job
from denpex.worker_run import Key, key_of

_DAY_S = 86400
# What fetched directories may hold together; the oldest go first. Their verdicts stay.
MAX_BYTES = 20 << 30


class Sweep:
    """Asks accounting at the start and then every ``worker.sweep`` seconds, on a thread of ``pool``."""

    def __init__(
        self, config: Config, pool: Executor, known: Callable[[Key], bool], say: Callable[[str], None]
    ) -> None:
        """``known`` tells whether a run has its verdict."""
        self._config, self._pool, self._known, self._say = config, pool, known, say
        self._next_at = 0.0
        self._asked: Future[list[Job]] | None = None

    @property
    def is_open(self) -> bool:
        """Tell whether an answer is awaited."""
        return self._asked is not None

    def step(self, now: float, in_work: Collection[Key]) -> None:
        """Ask where it is time; take an answer and enqueue the runs that nobody has told of; raises DenpexError."""
        if self._asked is None:
            if now >= self._next_at:
                self._next_at = now + self._config.worker.sweep
                self._asked = self._pool.submit(
                    slurm.ended_since, now - _DAY_S, now=now, slurm_bin=self._config.slurm_bin
                )
                self._pool.submit(self._prune, now)
            return
        if not self._asked.done():
            return
        asked, self._asked = self._asked, None
        try:
            ended = asked.result()
        except SlurmError as error:
            self._say(f"runs without a completion record cannot be looked for: {error}")
            return
        self._enqueue(ended, in_work)

    def _prune(self, now: float) -> None:
        try:
            prune(bundles_dir(self._config), now, self._config.spool_max_age, MAX_BYTES)
        except OSError as error:
            self._say(f"old bundles cannot be removed: {error}")

    def _enqueue(self, ended: list[Job], in_work: Collection[Key]) -> None:
        queue = self._config.queue_dir
        try:
            queued = {path.name.partition(".")[0] for path in queuefile.waiting(queue)}
        except OSError as error:
            self._say(f"the queue {queue} cannot be read: {error.strerror}")
            return
        for job in ended:
            key = key_of(replace(job, cluster=self._config.cluster or job.cluster))
            if key is None or key in in_work or key.job_id in queued or self._known(key):
                continue
            self._say(f"job {key.job_id} (start {key.start}): its completion record was lost; accounting has it")
            try:
                queuefile.enqueue(queue, job)
            except OSError as error:
                self._say(f"the queue {queue} cannot be written: {error.strerror}")
                return


def bundles_dir(config: Config) -> Path:
    """Where fetched run directories lie: <cluster>/<node>/<run> below."""
    return Path(config.state_dir) / "bundles"


def prune(bundles: Path, now: float, max_age: float, max_bytes: int) -> None:
    """Remove fetched run directories older than ``max_age`` seconds, and the oldest above ``max_bytes`` in all."""
    found = []
    for path in bundles.glob("*/*/*"):
        run = contract.parse_run(path.name)
        if run is not None:
            found.append((path.stat().st_mtime, _size(path), path))
        elif path.name.startswith(".") and now - path.stat().st_mtime > max_age:
            # A transfer that nobody goes on with.
            path.unlink() if path.is_file() else shutil.rmtree(path, ignore_errors=True)
    held = sum(size for _, size, _ in found)
    for changed, size, path in sorted(found):
        if now - changed <= max_age and held <= max_bytes:
            return
        shutil.rmtree(path, ignore_errors=True)
        held -= size


def _size(path: Path) -> int:
    return sum(item.lstat().st_size for item in path.rglob("*"))
