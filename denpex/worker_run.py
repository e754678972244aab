"""What the worker remembers of a run between its completion record and its verdict."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from denpex import spool as contract
from denpex.errors import SlurmError
from denpex.model import Gap, Job, Verdict
from denpex.queuefile import Ended, completed
from denpex.slurm import is_over
from denpex.worker_late import Late
from denpex.worker_nodes import Gathering

# slurmctld hands a job's end to accounting after it has told the hooks: mostly milliseconds later.
_PATIENCE_S = 3.0
# Who cancelled a job only accounting knows, and until it says so the verdict can only guess.
_CANCEL_PATIENCE_S = 10.0
# How long between two questions, while the answer may come any moment and afterwards.
_SOON_S = 0.6
_LATER_S = 10.0
# Without accounting's answer a hook that knows no start cannot even say which run it was.
START_PATIENCE_S = 120.0
# Slurm may learn of a step's end after the job's (seen on 22.05, by a second): the derived exit that a hook is told
# lacks that step, and accounting calls it COMPLETED until then. So a job that looks clean is looked up only after this.
STEPS_S = 5.0


class Key(NamedTuple):
    """Which run: a job's number is used again when it is requeued, and its start (in whole seconds) is not."""

    cluster: str
    job_id: str
    start: int

    @property
    def name(self) -> str:
        """A file name for the run."""
        cluster = self.cluster if contract.is_safe_name(self.cluster) else "cluster"
        return f"{cluster}.{self.job_id}.{self.start}"


def key_of(job: Job) -> Key | None:
    """Return the key of a run, None while its start is not known."""
    return None if job.start is None else Key(job.cluster or "", job.job_id or "", int(job.start))


@dataclass
class Accounting:
    """The question to accounting about one run, repeated until it knows the run's end or patience is over."""

    began: float
    future: Future[Job | None] | None = None
    next_at: float = 0.0
    wait: float = 0.2
    known: Job | None = None
    problem: str = ""

    @property
    def is_settled(self) -> bool:
        """Tell whether accounting has said how the run ended."""
        known = self.known
        return known is not None and is_over(known) and not any(s.state in ("RUNNING", "PENDING") for s in known.steps)

    def advance(self, now: float, ask: Callable[[], Future[Job | None]]) -> None:
        """Take an answer, or ask where it is time."""
        if self.is_settled:
            return
        if self.future is None:
            if now >= self.next_at:
                self.future = ask()
            return
        if not self.future.done():
            return
        future, self.future = self.future, None
        self.wait = min(self.wait * 1.5, _SOON_S if now < self.began + _CANCEL_PATIENCE_S else _LATER_S)
        self.next_at = now + self.wait
        try:
            found, self.problem = future.result(), ""
        except SlurmError as error:
            self.problem = str(error)
            return
        self.known = found or self.known


@dataclass
class Run:
    """A run on its way to a verdict. Times are seconds since 1970 by the controller's clock."""

    said: Job  # what the queue file says
    files: list[Path]
    seen: float
    written: float  # when the hook wrote it
    deadline: float
    accounting: Accounting
    gathering: Gathering | None = None
    diagnosing: Future[Verdict] | None = None
    verdict: Verdict | None = None  # given, not yet stored
    late: Late | None = None  # the run has a verdict, which is to be revised
    is_revising: bool = False  # something has come since
    is_checked: bool = False  # no verdict and no other file is there of the same run
    awaited: tuple[str, ...] | None = None  # as last written into the store
    retry_at: float = 0.0
    failures: int = 0

    @property
    def job(self) -> Job:
        """Everything that is known of the run so far."""
        return completed(self.said, self.accounting.known if self.accounting.is_settled else None)

    @property
    def key(self) -> Key | None:
        """Which run it is; None until accounting has said."""
        return key_of(self.said)

    def patience_is_over(self, now: float) -> bool:
        """Tell whether accounting has had its time."""
        patience = _CANCEL_PATIENCE_S if self.said.state == "CANCELLED" else _PATIENCE_S
        return self.accounting.is_settled or now > self.seen + patience

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """What is missing beside what the bundles say themselves."""
        found = self.gathering.gaps if self.gathering else ()
        if not self.accounting.is_settled:
            what = f"accounting did not say how the run ended: {self.accounting.problem or 'it does not know it yet'}"
            found = (*found, Gap(what, "slurmdbd", "a slurmdbd that answers"))
        return found


def begun(ended: Ended, cluster: str, now: float, deadline_s: float) -> Run:
    """Return the run that a queue file begins; ``cluster`` overrides what Slurm calls itself ("" does not)."""
    job = replace(ended.job, cluster=cluster or ended.job.cluster)
    return Run(job, [ended.path], now, ended.written, max(job.end or 0.0, ended.written) + deadline_s, Accounting(now))


def again(late: Late, now: float) -> Run:
    """Return the run that a late one begins: what is missing is asked for once."""
    accounting = Accounting(now, known=late.job if late.accounted else None)
    return Run(late.job, [], now, now, now, accounting, late=late, is_checked=True)
