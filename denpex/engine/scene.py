"""Sorts a case's messages for the weighing: failures, complaints, what was survived, and what is set aside and why."""

from __future__ import annotations

from denpex.engine import placement, progress, timeline
from denpex.engine.facts import Case
from denpex.engine.launchers import numbers
from denpex.engine.order import Moments
from denpex.engine.ranks import Rank
from denpex.engine.suspect import MISSING, MUTUAL
from denpex.model import Event, Instant, Role, Source

# Ranks waited in vain, in the store of the process group, for others to join.
JOIN_TIMED_OUT = frozenset({"rendezvous-timed-out", "tcpstore-connect"})


class Scene:
    """The case with what is asked of it more than once."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.aside: list[tuple[Event, str]] = []
        self.own: dict[int, list[Event]] = {}
        self.survived: dict[int, list[Event]] = {}
        self.complaints: dict[int, list[Event]] = {}
        for rank in case.ranks.values():
            self._sort_out(rank)
        self.foreign = {
            (e.node, e.fields.get("pid")) for e in case.loose if self._job_of(e) not in (None, case.job.job_id)
        }
        self.kernel: dict[str, list[Event]] = {}
        for event in case.loose:
            of_node = event.source in (Source.KERNEL, Source.NVML) and event.role is Role.ORIGIN
            if of_node and event.node and not self._of_others(event):
                self.kernel.setdefault(event.node, []).append(event)
        self.oom = [e for e in case.loose if e.pattern in ("slurmstepd-oom-kill", "slurm-oom-task")]
        self.waits = {
            number: found
            for number, events in self.complaints.items()
            if (found := [e for e in events if e.failure_class == MISSING or e.pattern in JOIN_TIMED_OUT])
        }
        firsts = [events[0] for events in self.complaints.values() if events]
        self.complaining = len(firsts)
        self.timed_out = sum((event.pattern or "").startswith("gloo-timed") for event in firsts)
        self.accused: dict[int, list[tuple[int, Event]]] = {}
        loose = [(-1, event) for event in case.loose if event.role is Role.CASCADE]
        for number, event in [*loose, *((n, e) for n, events in self.complaints.items() for e in events)]:
            for named in numbers(event.fields.get("accused", "")):
                self.accused.setdefault(named, []).append((number, event))
        everyone = case.ranks.values()
        self.ends = Moments((r.rank, r.end) for r in everyone if r.end is not None)
        self.failed_ends = Moments((r.rank, r.end) for r in everyone if r.failed and r.end is not None)
        self.said = Moments((n, said(events[0])) for n, events in self.complaints.items() if events)
        waits = [event for events in self.waits.values() for event in events]
        self.onsets = Moments((event.rank or 0, event.when) for event in waits)
        self.first_wait = min(waits, key=_middle, default=None)
        self.last_wait = progress.latest(said(event) for event in waits)
        joined = any(e.failure_class == MISSING for e in waits)
        self.waited_for = MISSING if joined else "rendezvous-failure"
        self.silent = self._silent()

    def _sort_out(self, rank: Rank) -> None:
        """Part a rank's messages into its own failure, what it survived, its complaints, and what is set aside."""
        own, survived, complaints = [], [], []
        for event in rank.events:
            if event.role not in (Role.ORIGIN, Role.CASCADE):
                continue
            if rank.end_known and not rank.failed:
                self.aside.append((event, "the rank ended with status 0"))
            elif self.case.kernel_watched and quotes_kernel(event):
                # The kernel's own log was collected: a job that prints kernel messages proves nothing.
                self.aside.append((event, "the kernel's own log, which was collected, does not have it"))
            elif rank.progress.followed(event, rank.end):
                if event.recovers or event.role is Role.CASCADE:
                    self.aside.append((event, "the rank went on after it"))
                else:
                    survived.append(event)
            elif event.waited_ns and self._before_the_run(event, rank):
                self.aside.append((event, "it says that it waited since before the rank was started"))
            elif event.role is Role.CASCADE or event.failure_class in MUTUAL:
                complaints.append(event)
            else:
                own.append(event)
        self.own[rank.rank], self.survived[rank.rank], self.complaints[rank.rank] = own, survived, complaints

    def _before_the_run(self, event: Event, rank: Rank) -> bool:
        """Tell whether an event certainly began before its rank, or the whole job, did: then its words are not true."""
        if event.when is None:
            return False
        start = self.case.job.start
        of_job = start is not None and self.case.clocks_measured and event.when.hi_ns < start * 1e9
        return of_job or (rank.start is not None and event.when.before(rank.start) is True)

    @staticmethod
    def _job_of(event: Event) -> str | None:
        """Return the job that a kernel message names."""
        return event.fields.get("job") if event.source is Source.KERNEL else None

    def _of_others(self, event: Event) -> bool:
        """Tell whether a kernel message is about another job's process or GPU."""
        if (event.node, event.fields.get("pid")) in self.foreign and self.case.job.job_id:
            self.aside.append((event, "it is about another job"))
            return True
        node = self.case.nodes.get(event.node or "")
        if event.gpu and placement.is_jobs(node, placement.gpu_at(node, event.gpu)) is False:
            self.aside.append((event, "that GPU was not the job's"))
            return True
        return False

    def _failed_alone(self, rank: Rank) -> bool:
        """Tell whether a rank failed by itself: with a cause in its own words, or without a word."""
        return bool(self.own[rank.rank]) or (rank.failed and not rank.swept and not self.complaints[rank.rank])

    def _silent(self) -> list[Rank]:
        """Return ranks that neither complained nor failed by themselves while others waited in vain."""
        if not self.waits:
            return []
        found = []
        for rank in self.case.ranks.values():
            number = rank.rank
            if self.complaints[number] or self.own[number] or (rank.end_known and rank.exit_code and not rank.told):
                continue
            gone = rank.end is not None and not self.onsets.unknown and self.onsets.all_after(rank.end)
            if rank.swept and any(self._failed_alone(other) for other in self.case.on(rank.node)):
                continue  # its agent ended it because that one failed, maybe long before the others gave up
            # A process that was seen stopped is known to be silent, whether its output was captured or not.
            if (rank.heard or rank.stuck) and (rank.started or not rank.recorded) and not gone:
                found.append(rank)
        return found


def quotes_kernel(event: Event) -> bool:
    """Tell whether a task's output quotes what only the kernel says."""
    return event.source is Source.TASK and (event.pattern or "").startswith(("xid-", "sxid-", "kernel-"))


def said(event: Event) -> Instant | None:
    """Return when a message was printed, which is after what it tells of began."""
    return timeline.moved(event.when, event.waited_ns) if event.when is not None else None


def _middle(event: Event) -> float:
    return float("inf") if event.when is None else event.when.lo_ns + event.when.hi_ns
