"""Answers where nobody in the job is to blame: it ended well, or the scheduler, a person or a signal ended it."""

from __future__ import annotations

from collections.abc import Iterable

from denpex.engine import progress
from denpex.engine.evidence import Weighing
from denpex.engine.facts import Case, is_success, open_failures
from denpex.engine.finding import Finding
from denpex.engine.ranks import ENDING_SIGNALS, TASK_SIGNAL, signal_name
from denpex.engine.scene import quotes_kernel
from denpex.engine.suspect import MISSING, Suspect
from denpex.model import Event, Instant, Role, Scope, Source

# A run had stopped that made no progress for this long before its end, and for so many times its usual pace.
_STALLED = ((60 * 10**9, 5), (20 * 10**9, 100))
_CLEAN = ("", "0:0")


def by_scheduler(case: Case, weighing: Weighing) -> Finding | None:
    """Answer where the scheduler's record decides."""
    state = case.job.state.split(" ")[0]
    if state == "COMPLETED" and case.job.exit in _CLEAN:
        return _completed(case, weighing)
    if state == "NODE_FAIL":
        return _node_failed(case)
    own = [s for s in weighing.suspects if _own_failure(s)]
    blamed = [e for e in usable(case, weighing) if e.source is not Source.SLURM and e.precedence > 0]
    said = {e.failure_class: e for e in case.loose if e.source is Source.SLURM and e.failure_class and _ends_job(e)}
    if own:
        return None
    if state == "CANCELLED":
        return _cancelled(case, said)
    if state == "PREEMPTED" or (not state and "preempted" in said):
        return Finding("preempted", Scope.EXTERNAL, 0.95, "Slurm preempted the job.", cited=_of(said, "preempted"))
    if state in ("TIMEOUT", "DEADLINE") or "slurm-time-limit" in said:
        if blamed and not state:
            return None
        return _time_limit(case, weighing, said)
    if state == "REQUEUED" and not blamed:
        why = "The job was put back into the queue, and nothing in it shows a failure."
        return Finding("requeued-by-design", Scope.EXTERNAL, 0.6, why)
    if not state and "requeued-by-design" in said and not blamed:
        why = "The job was put back into the queue; no failure of its own is in the output before that."
        cited = _of(said, "requeued-by-design")
        return Finding("requeued-by-design", Scope.EXTERNAL, 0.7, why, cited=cited)
    if not state and "cancelled-by-user" in said and not blamed:
        why = "The job was cancelled; no failure of its own is in the output before that."
        return Finding("cancelled-by-user", Scope.EXTERNAL, 0.6, why, cited=_of(said, "cancelled-by-user"))
    return None


def _ends_job(event: Event) -> bool:
    """Tell whether Slurm's message is about the end of the whole job; a step is cancelled after any failure, too."""
    return event.role is Role.ORIGIN or event.failure_class == "requeued-by-design"


def _of(said: dict[str, Event], name: str) -> tuple[Event, ...]:
    return (said[name],) if name in said else ()


def _completed(case: Case, weighing: Weighing) -> Finding | None:
    """Judge a job that Slurm calls COMPLETED: a failed step counts unless it was run again with success."""
    numbered = [step for step in case.job.steps if step.id.isdigit()]
    failed = [step for step in numbered if step.state and not is_success(step)]
    if open_failures(case.job) or (not failed and any(rank.failed for rank in case.ranks.values())):
        return None
    known = {id(event) for event, _ in weighing.aside}
    for event in (*case.loose, *(e for r in case.ranks.values() for e in r.events)):
        if event.role in (Role.ORIGIN, Role.CASCADE) and id(event) not in known:
            weighing.aside.append((event, "the job completed"))
    if failed:
        names = ", ".join(f"{step.id} ({step.state}, {step.exit})" for step in failed)
        many = "Steps" if len(failed) > 1 else "Step"
        why = f"{many} {names} failed and was run again with success; the job completed."
    else:
        why = "The job completed; every step ended with status 0."
    return Finding("no-failure", Scope.NONE, 0.97, why)


def _node_failed(case: Case) -> Finding:
    lost = sorted(set(case.job.nodes) - {name for name, node in case.nodes.items() if node.done})
    one = lost[0] if len(lost) == 1 else None
    where = f": {', '.join(lost[:8])} left no epilog." if lost else "; which one is not visible here."
    return Finding(
        "node-unresponsive",
        Scope.NODE if one else Scope.UNKNOWN,
        0.9 if one else 0.7,
        "Slurm ended the job because a node stopped answering" + where,
        node=one,
    )


def _cancelled(case: Case, said: dict[str, Event]) -> Finding:
    job = case.job
    by = job.cancelled_by
    mine = by is None or job.uid is None or by == job.uid
    name = "cancelled-by-user" if mine else "cancelled-by-administrator"
    who = "its owner" if by is not None and mine else "somebody, most likely its owner" if mine else f"uid {by}"
    why = f"The job was cancelled by {who}" + (" before it started." if job.start is None else ".")
    if job.start is not None:
        why += " No rank had failed before."
    confidence = 0.97 if by is not None and job.uid is not None else 0.8
    cited = (*_of(said, "cancelled-by-user"), *_told(case)[:1])
    return Finding(name, Scope.EXTERNAL, confidence, why, cited=cited)


def _told(case: Case) -> list[Event]:
    return [e for e in case.events if e.pattern == TASK_SIGNAL and e.step == case.step]


def _time_limit(case: Case, weighing: Weighing, said: dict[str, Event]) -> Finding:
    limit = _of(said, "slurm-time-limit")
    idle = _idle_ns(case)
    if idle is not None and _stalled(case, idle):
        return _hang(case, weighing, limit, idle)
    minutes = f" of {case.job.time_limit_s // 60} min" if case.job.time_limit_s else ""
    known = case.progress.when is not None
    how = "while it was making progress" if known else "; its output shows no failure before, nor any progress"
    last = f" (step {case.progress.step})" if known and case.progress.step is not None else ""
    return Finding(
        "slurm-time-limit",
        Scope.EXTERNAL,
        0.95 if known else 0.75,
        f"The job ran into its time limit{minutes} {how}{last}. No rank is to blame.".replace(" ;", ";"),
        cited=(*limit, *_told(case)[:1]),
    )


def _end(case: Case) -> Instant | float | None:
    """Return when the job was told to end: the first signal that reached a rank, else the scheduler's end (s)."""
    told = [rank.told for rank in case.ranks.values() if rank.told is not None]
    return min(told, key=lambda m: m.lo_ns) if told else case.job.end


def _idle_ns(case: Case) -> int | None:
    """Return for how long there certainly was no progress before the job was told to end, None where not known."""
    last, end = case.progress.when, _end(case)
    if last is None or end is None:
        return None
    return int((end.lo_ns if isinstance(end, Instant) else end * 1e9) - last.hi_ns)


def _stalled(case: Case, idle: int) -> bool:
    seen = [case.progress, *(rank.progress for rank in case.ranks.values())]
    paces = [pace for one in seen if (pace := one.pace_ns()) is not None]
    if any(rank.stuck for rank in case.ranks.values()):
        return True
    slowest = max(paces, default=0)
    return any(idle > max(least, times * slowest) for least, times in _STALLED if slowest or times == _STALLED[0][1])


def _hang(case: Case, weighing: Weighing, limit: tuple[Event, ...], idle: int) -> Finding:
    """Answer for a job that stood still until the time limit: the hang is the failure, the limit a consequence."""
    why = f"Progress had stopped {idle / 1e9:.0f} s before the time limit ended the job"
    stuck = [s.rank for s in weighing.suspects if s.rank.stuck]
    number = progress.behind({s.rank.rank: s.rank.progress.step for s in weighing.suspects})
    if len(stuck) == 1 or (number is not None and not stuck):
        rank = stuck[0] if stuck else case.ranks[number if number is not None else -1]
        how = "its process was seen stopped" if stuck else f"it alone stood at step {rank.progress.step}"
        return Finding(
            MISSING,
            Scope.RANK,
            0.85 if stuck else 0.7,
            f"{why}; rank {rank.rank} is named because {how}.",
            ranks=(rank,),
            node=rank.node,
            cited=tuple(e for e in (rank.stuck_event, *limit) if e is not None),
            first=rank.stuck_since or rank.progress.when,
        )
    return Finding(
        MISSING, Scope.UNKNOWN, 0.5, f"{why}; which rank stopped first is not visible.", cited=limit,
        first=case.progress.when,
    )  # fmt: skip


def _own_failure(s: Suspect) -> bool:
    """Tell whether a rank shows a failure of its own, before anything told it to end."""
    if not s.fatal or s.failure_class in ("interrupted", "process-killed"):
        return False
    told = s.rank.told
    return told is None or s.first is None or told.before(s.first) is not True


def from_outside(case: Case, weighing: Weighing) -> Finding | None:
    """Answer where every rank was told to end, or killed alike, and none had failed before."""
    ranks = list(case.ranks.values())
    if not ranks or len(ranks) < case.world or any(_own_failure(s) for s in weighing.suspects):
        return None
    numbers = {rank.told_signal for rank in ranks}
    if None not in numbers and not any(s.rank.stuck for s in weighing.suspects):
        early = [s for s in weighing.suspects for e in s.rank.of(Role.CASCADE) if _before_told(e, s)]
        if early:
            return None
        names = " and ".join(sorted(signal_name(n) for n in numbers if n is not None))
        why = f"Every rank was sent {names} from outside, and none had failed before."
        return Finding("interrupted", Scope.EXTERNAL, 0.8, why, cited=tuple(_told(case)[:3]))
    killed = {rank.signal for rank in ranks}
    if len(ranks) > 1 and len(killed) == 1 and killed <= ENDING_SIGNALS and _one_class(weighing.suspects):
        number = next(iter(killed))
        name = next(s.failure_class for s in weighing.suspects if not s.rank.swept)
        why = f"Every rank was ended by {signal_name(number or 0)}; none shows a failure of its own."
        ends = tuple(r.exit_event for r in ranks[:3] if r.exit_event)
        return Finding(name, Scope.EXTERNAL, 0.6, why, cited=ends)
    return None


def step_cancelled(case: Case) -> Finding | None:
    """Answer where Slurm says that a signal was sent to the whole step, and nothing shows a failure before that."""
    step = next((s for s in case.job.steps if s.id == case.step), None)
    by = {"0:9": 9, "0:15": 15}.get(step.exit) if step is not None else None
    if (
        step is None
        or by is None
        or not step.state.startswith("CANCELLED")
        or any(r.failed for r in case.ranks.values())
    ):
        return None
    why = f"Slurm says that step {step.id} was cancelled and ended by {signal_name(by)}; no rank had failed before."
    return Finding("interrupted", Scope.EXTERNAL, 0.6, why)


def _before_told(event: Event, s: Suspect) -> bool:
    return s.rank.told is not None and event.when is not None and s.rank.told.before(event.when) is not True


def _one_class(suspects: Iterable[Suspect]) -> bool:
    # Those whose end srun reported last it seems to have ended itself.
    names = {s.failure_class for s in suspects if not s.rank.swept}
    return len(names) == 1 and names <= {"process-killed", "interrupted"}


def usable(case: Case, weighing: Weighing) -> list[Event]:
    """Return root causes of no known rank that were not set aside and that something may be concluded from."""
    aside = {id(event) for event, _ in weighing.aside}
    found = []
    for event in case.loose:
        if event.role is not Role.ORIGIN or id(event) in aside:
            continue
        if case.kernel_watched and quotes_kernel(event):
            continue
        found.append(event)
    return found


def nothing_failed(case: Case, weighing: Weighing) -> Finding | None:
    """Answer for input outside the scheduler's records that shows work and no failure after it.

    A log that just stops may be of a job that hung, was killed or went well: without an end nothing is claimed.
    """
    if case.job.state or any(rank.failed for rank in case.ranks.values()) or case.progress.count == 0:
        return None
    aside = {id(event) for event, _ in weighing.aside}
    said = [*case.loose, *(e for rank in case.ranks.values() for e in rank.events)]
    if any(e.role in (Role.ORIGIN, Role.CASCADE) and id(e) not in aside for e in said):
        return None
    if case.ranks and all(rank.end_known for rank in case.ranks.values()):
        return Finding(
            "no-failure", Scope.NONE, 0.8, "Every rank ended with status 0, and no failure stands in the output."
        )
    why = "The output shows work going on and no failure; how the job ended is not in this input."
    return Finding("unknown", Scope.UNKNOWN, 0.3, why)
