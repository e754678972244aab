"""What is known of each rank: how it ended, what it said, how far it came; from task records and events together."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace

from denpex.engine import flight, launchers
from denpex.engine.clock import Clocks
from denpex.engine.progress import Key, Progress, latest
from denpex.engine.ranks import (
    ENDING_SIGNALS,
    FLIGHT,
    OWN,
    TASK_DISK,
    TASK_END,
    TASK_SIGNAL,
    TASK_STUCK,
    Rank,
    signal_name,
    status,
)
from denpex.model import (
    Event,
    Job,
    NodeInfo,
    Role,
    Snapshot,
    Source,
    Stamp,
    Step,
    StreamInfo,
    StreamKind,
    TaskRecord,
)

# A process that did not answer for this long was stuck, also where it was woken up later.
_STUCK_NS = 5 * 10**9
# Steps of a batch script's own processes and of what runs outside Slurm: one task that may start many ranks.
_SCRIPTS = ("batch", "local")


def _is_script(step: str) -> bool:
    """Tell whether a step is a script's own process; a second `denpex run` of one script is "batch-1"."""
    return step.split("-")[0] in _SCRIPTS


def _belongs(of_step: str | None, step: str | None) -> bool:
    """Tell whether words of one step may be of the tasks of another: the job's own file holds every step's."""
    return of_step in (None, step) or _is_script(of_step or "")


@dataclass(frozen=True)
class Case:
    """A run as the inference sees it."""

    job: Job
    step: str | None
    ranks: Mapping[int, Rank]
    by_node: Mapping[str, list[Rank]]
    events: tuple[Event, ...]  # all, in order
    loose: tuple[Event, ...]  # errors and facts whose rank is not known
    nodes: Mapping[str, NodeInfo]
    world: int
    kernel_watched: bool  # kernel logs were collected, so that what they do not say was not there
    progress: Progress  # of the run as a whole
    clocks_measured: bool
    further: frozenset[int] = frozenset()  # ranks that waited for others by their flight recorders

    def on(self, node: str | None) -> list[Rank]:
        """Return the ranks of a node."""
        return self.by_node.get(node or "", [])


def end_text(task: TaskRecord) -> str:
    """Say in words how a task ended."""
    if task.signal is not None:
        return f"task {task.rank} on {task.node} was ended by signal {task.signal} ({signal_name(task.signal)})"
    return f"task {task.rank} on {task.node} ended with exit status {task.exit_code}"


def task_events(snapshot: Snapshot, clocks: Clocks) -> list[Event]:
    """Return one event for a task's end, the state in which it was stuck, and the first signal that it was sent."""
    found = []
    for task in snapshot.tasks:
        base = Event(
            id="",
            role=Role.CONTEXT,
            source=Source.SLURM,
            text="",
            step=task.step,
            rank=task.rank,
            node=task.node,
            file=f"{task.node}/{'user/claims' if task.claimed else 'tasks'}.jsonl",
        )
        if task.end is not None:
            found.append(replace(base, text=end_text(task), when=clocks.instant(task.node, task.end), pattern=TASK_END))
        if task.full_disks:
            text = f"{', '.join(task.full_disks)} on {task.node} had no free space when task {task.rank} had failed"
            found.append(replace(base, text=text, when=clocks.instant(task.node, task.end), pattern=TASK_DISK))
        stuck = _stuck(task)
        if stuck is not None:
            stamp, letter = stuck
            what = "stopped (state T)" if letter in "Tt" else "in uninterruptible sleep (state D)"
            text = f"task {task.rank} on {task.node}: its process {task.pid} was seen {what}"
            found.append(replace(base, text=text, when=clocks.instant(task.node, stamp), pattern=TASK_STUCK))
        told = next(((s, n) for s, n in task.forwarded_signals if n in ENDING_SIGNALS), None)
        if told is not None:
            text = f"task {task.rank} on {task.node} was sent {signal_name(told[1])} from outside"
            found.append(replace(base, text=text, when=clocks.instant(task.node, told[0]), pattern=TASK_SIGNAL))
    return found


def _stuck(task: TaskRecord) -> tuple[Stamp, str] | None:
    """Return the last state that does not answer, and since when; a passing one does not count.

    What ends a job wakes a stopped process first (Slurm sends SIGCONT with SIGTERM), so that R or Z follow the T.
    """
    found = None
    ends = [stamp.realtime_ns for stamp, _ in task.states[1:]]
    for (since, letter), until in itertools.zip_longest(task.states, ends):
        if letter and letter in "TtD" and (until is None or until - since.realtime_ns >= _STUCK_NS):
            found = since, letter
    return found


def is_success(step: Step) -> bool:
    """Tell whether accounting calls a step successful."""
    return step.state.startswith("COMPLETED") and step.exit in ("", "0:0")


def open_failures(job: Job) -> list[Step]:
    """Return the numbered steps that failed and were not run again with success, in order."""
    numbered = [step for step in job.steps if step.id.isdigit()]
    done = [step for step in numbered if is_success(step)]
    failed = [step for step in numbered if step.state and not is_success(step)]
    return [s for s in failed if not any(int(t.id) > int(s.id) and _again(s, t) for t in done)]


def _again(step: Step, other: Step) -> bool:
    return step.name == other.name and (None in (step.ntasks, other.ntasks) or step.ntasks == other.ntasks)


def failed_step(job: Job, tasks: Iterable[TaskRecord]) -> str | None:
    """Return the step to be diagnosed: the last that failed for good, else the last that was captured."""
    failed = open_failures(job)
    if failed:
        return failed[-1].id
    fine = {step.id for step in job.steps if is_success(step)}
    listed = list(tasks)
    bad = [t.step for t in listed if (t.exit_code or t.signal is not None) and t.step not in fine]
    return max(bad or [t.step for t in listed], key=lambda s: int(s) if s.isdigit() else -1, default=None)


def flown(snapshot: Snapshot) -> flight.Account:
    """Return what the flight recorders of the step that failed say together."""
    step = failed_step(snapshot.job, snapshot.tasks)
    sizes = [s.ntasks for s in snapshot.job.steps if s.id == step and s.ntasks]
    known = [task.rank + 1 for task in snapshot.tasks if task.step == step]
    dumps = [dump for dump in snapshot.flight if step is None or _belongs(dump.step, step)]
    return flight.examine(dumps, max([*sizes, *known], default=0))


def build(
    snapshot: Snapshot,
    events: tuple[Event, ...],
    progress: Mapping[Key, Progress],
    clocks: Clocks,
    account: flight.Account,
) -> Case:
    """Bring task records, events and progress together, rank by rank, for the step that failed."""
    job = snapshot.job
    step = failed_step(job, snapshot.tasks)
    infos = [source.info for source in snapshot.streams]
    ranks = _ranks_of_tasks(snapshot, step, clocks)
    launched = step is not None and any(of == step for of, _ in launchers.places(snapshot))
    have_tasks = bool(ranks)
    _note_streams(ranks, infos, step, have_tasks)
    for owner, dump in account.dumps.items():
        if owner not in ranks and not have_tasks:
            ranks[owner] = Rank(owner, dump.step, dump.node)
        if owner in ranks:
            ranks[owner].dumped = True
    files = {info.name for info in infos if info.kind is StreamKind.BATCH and info.step == "batch"}
    loose = _sort(_placed(events, files, job, ranks), ranks, files, step, have_tasks, launched)
    if not have_tasks:
        launchers.add_accused(events, ranks)
    launchers.read_torchrun(loose, ranks, job.nodes)
    launchers.read_spawn(loose, ranks, {*job.nodes, *(node.name for node in snapshot.nodes)})
    loose = launchers.give_unmarked(snapshot, loose, ranks)
    launchers.note_workers(snapshot, step, loose, ranks)
    if not launched and not any(e.pattern in launchers.TORCHRUN for e in events):
        launchers.read_srun(loose, ranks, have_tasks)
    if not have_tasks and not any(e.pattern in launchers.TORCHRUN for e in events):
        _one_script(snapshot, ranks, loose, clocks)
    for (of_step, number), seen in progress.items():
        if number is not None and number in ranks and _belongs(of_step, step):
            rank = ranks[number]
            if rank.progress.count == 0 or of_step == step:
                rank.progress = seen
    if len(job.nodes) == 1:
        for rank in ranks.values():
            rank.node = rank.node or job.nodes[0]
    sizes = [s.ntasks for s in job.steps if s.id == step and s.ntasks and not launched]
    return Case(
        job=job,
        step=step,
        ranks=dict(sorted(ranks.items())),
        by_node=_by_node(ranks.values()),
        events=events,
        loose=tuple(loose),
        nodes={node.name: node for node in snapshot.nodes},
        world=max([*sizes, len(ranks)], default=0),
        kernel_watched=any(node.done for node in snapshot.nodes),
        progress=_whole(progress, step),
        clocks_measured=all(clocks.measured(node.name) for node in snapshot.nodes) and bool(snapshot.nodes),
        further=account.further,
    )


def _by_node(ranks: Iterable[Rank]) -> dict[str, list[Rank]]:
    found: dict[str, list[Rank]] = {}
    for rank in sorted(ranks, key=lambda r: r.rank):
        if rank.node:
            found.setdefault(rank.node, []).append(rank)
    return found


def _whole(progress: Mapping[Key, Progress], step: str | None) -> Progress:
    """Sum up how far the run as a whole came."""
    total = Progress()
    for (of_step, _), seen in progress.items():
        if step is None or _belongs(of_step, step):
            total.count += seen.count
            total.recent = max(total.recent, seen.recent, key=len)
            total.when = latest((total.when, seen.when))
            total.output = latest((total.output, seen.output))
            total.step = max((s for s in (total.step, seen.step) if s is not None), default=None)
    return total


def _ranks_of_tasks(snapshot: Snapshot, step: str | None, clocks: Clocks) -> dict[int, Rank]:
    # A launcher (torchrun) is one task whose output holds many ranks: its own end is no rank's.
    launched = launchers.places(snapshot)
    return {
        task.rank: _rank(task, clocks)
        for task in snapshot.tasks
        if task.step == step and not _is_script(task.step) and (task.step, task.node) not in launched
    }


def _rank(task: TaskRecord, clocks: Clocks) -> Rank:
    stuck = _stuck(task)
    told = next(((s, n) for s, n in task.forwarded_signals if n in ENDING_SIGNALS), None)
    code, by = status(task.exit_code, task.signal)
    seen = [task.last_alive, *(stamp for stamp, _ in task.states), *(stamp for stamp, _ in task.forwarded_signals)]
    return Rank(
        rank=task.rank,
        step=task.step,
        node=task.node,
        pid=task.pid,
        exit_code=code,
        signal=by,
        start=clocks.instant(task.node, task.start),
        end=clocks.instant(task.node, task.end),
        started=task.start is not None,
        end_known=task.end is not None,
        recorded=True,
        alive=latest(clocks.instant(task.node, stamp) for stamp in seen if stamp is not None),
        stuck=stuck[1] if stuck else "",
        told=clocks.instant(task.node, told[0]) if told else None,
        told_signal=told[1] if told else None,
        local_rank=task.local_rank,
        gpus=task.gpus,
    )


def _note_streams(ranks: dict[int, Rank], infos: Iterable[StreamInfo], step: str | None, have_tasks: bool) -> None:
    for info in infos:
        if info.rank is None or (info.step != step and have_tasks):
            continue
        rank = ranks.setdefault(info.rank, Rank(info.rank, info.step, info.node))
        if rank.captured:
            rank.whole = False if False in (rank.whole, info.complete) else (rank.whole and info.complete)
        else:
            rank.captured, rank.whole = True, info.complete


def _placed(events: Iterable[Event], files: set[str], job: Job, ranks: Mapping[int, Rank]) -> Iterator[Event]:
    """Yield the events; those of the job's output file are on their rank's node, not on the first, where it lies."""
    for event in events:
        if event.file in files and event.rank is not None and len(job.nodes) > 1 and event.source is Source.TASK:
            rank = ranks.get(event.rank)
            yield replace(event, node=None if rank is None else rank.node)
        else:
            yield event


def _sort(
    events: Iterable[Event],
    ranks: dict[int, Rank],
    job_files: set[str],
    step: str | None,
    have_tasks: bool,
    launched: bool,
) -> list[Event]:
    """Give every event to its rank; return those of no rank."""
    captured = any(rank.captured for rank in ranks.values()) or launched
    listed = list(events)
    said = {(e.pattern, e.text) for e in listed if e.file not in job_files}
    loose = []
    for event in listed:
        if event.pattern == FLIGHT:
            if event.rank in ranks:
                ranks[event.rank].flight.append(event)
            continue
        if event.pattern in OWN:
            if event.rank in ranks and event.step == step:
                rank = ranks[event.rank]
                if event.pattern == TASK_END:
                    rank.exit_event = event
                elif event.pattern == TASK_STUCK:
                    rank.stuck_event, rank.stuck_since = event, event.when
                elif event.pattern == TASK_DISK:
                    rank.disk_event = event
            continue
        if event.source is Source.HISTORY:
            continue  # of no rank until the inference asks for it
        if event.source in (Source.SLURM, Source.KERNEL, Source.NVML):
            loose.append(event)
            continue
        if event.file in job_files and captured:
            # srun relays every task's words into the job's file: those captured at the task are there already.
            known = ranks.get(event.rank) if event.rank is not None else None
            if (known is not None and known.captured) or (event.pattern, event.text) in said:
                continue
            if known is not None:
                event = replace(event, step=known.step)
        if event.rank is None:
            loose.append(event)
            continue
        if have_tasks and not _belongs(event.step, step):
            continue
        rank = ranks.setdefault(event.rank, Rank(event.rank, event.step, event.node))
        rank.node = rank.node or event.node
        rank.events.append(event)
    return loose


def _one_script(snapshot: Snapshot, ranks: dict[int, Rank], loose: list[Event], clocks: Clocks) -> None:
    """Take a script's one process, in whose output no other rank is marked, for that rank with all that was said."""
    tasks = [task for task in snapshot.tasks if _is_script(task.step)]
    if len(tasks) != 1 or not set(ranks) <= {tasks[0].rank}:
        return
    said = ranks[tasks[0].rank].events if ranks else []
    rank = ranks[tasks[0].rank] = _rank(tasks[0], clocks)
    infos = {s.info.name: s.info for s in snapshot.streams}
    mine = [e for e in loose if e.file in infos and infos[e.file].step == rank.step and e.source is Source.TASK]
    own = [infos[e.file].complete for e in (*said, *mine) if e.file in infos]
    rank.events = [*said, *(replace(event, rank=rank.rank, node=rank.node) for event in mine)]
    rank.captured = any(info.step == rank.step for info in infos.values())
    rank.whole = all(own) if own else None
    taken = {id(event) for event in mine}
    loose[:] = [event for event in loose if id(event) not in taken]
