"""Verdicts that need no evidence from the nodes: a clean end, a cancel before the start, a diagnosis that broke."""

from __future__ import annotations

from denpex.model import Category, Fix, Gap, Job, Requeue, Route, Scope, Verdict

_CLEAN = ("", "0:0")


def is_clean(job: Job) -> bool:
    """Tell whether the scheduler says that the run did what it should: COMPLETED, and no step failed."""
    failed = [step for step in job.steps if step.id[:1].isdigit() and not step.state.startswith("COMPLETED")]
    return job.state == "COMPLETED" and job.exit in _CLEAN and job.derived in _CLEAN and not failed


def no_failure(job: Job) -> Verdict:
    """Return the one-line verdict on a clean run."""
    return Verdict(
        failure_class="no-failure",
        category=Category.NONE,
        title="the job completed",
        summary="The job ended as COMPLETED and no step of it failed.",
        scope=Scope.NONE,
        confidence=1.0,
        job=job,
    )


def cancelled_before_start(job: Job) -> Verdict:
    """Return the verdict on a run that was cancelled before it got a node.

    ``job.cancelled_by`` None: accounting does not say who it was; the owner is the likely one.
    """
    by = job.cancelled_by
    foreign = by is not None and job.uid is not None and by != job.uid
    who = "somebody, most likely its owner" if by is None else "its owner"
    if foreign:
        who = f"the user with the number {by}" if by else "root or Slurm itself (user number 0)"
    gap = Gap("who cancelled the job is not known", "the scheduler", "accounting (slurmdbd), which records it")
    return Verdict(
        failure_class="cancelled-by-administrator" if foreign else "cancelled-by-user",
        category=Category.NONE,
        title="cancelled before it started",
        summary=f"The job was cancelled by {who} while it waited for its nodes; nothing of it ever ran.",
        scope=Scope.NONE,
        confidence=0.7 if by is None else 1.0,
        job=job,
        gaps=(gap,) if by is None else (),
        fix=Fix(
            "Ask who cancelled it, and submit it again." if foreign else "Submit it again where it is still wanted."
        ),
        route=Route.NOBODY,
        requeue=Requeue.YES if foreign else Requeue.NO,
    )


def undiagnosed(job: Job, why: str) -> Verdict:
    """Return the verdict on a run whose diagnosis did not come to an end; ``why`` is the reason, a phrase."""
    return Verdict(
        failure_class="unknown",
        category=Category.UNKNOWN,
        title="not diagnosed",
        summary=f"The job ended as {job.state or 'unknown'}, exit {job.exit or 'unknown'}; its diagnosis broke off.",
        scope=Scope.UNKNOWN,
        confidence=0.0,
        job=job,
        gaps=(Gap(f"the diagnosis broke off: {why}", "the worker", "a report of this to the makers of Denpex"),),
    )
