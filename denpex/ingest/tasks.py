"""Merges the lines of task files (hooks/SPOOL.md, claims.jsonl) into one TaskRecord per step and rank."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from denpex.hostlist import ranges
from denpex.ingest.lines import Object, integer, stamp, text, texts
from denpex.model import Gap, Stamp, TaskRecord

MAX_TASKS = 100_000
MAX_CHANGES = 1000  # state changes and signals kept of one task

# Programs that start several ranks themselves, also when they stand inside `bash -c '...'`.
_LAUNCHER = re.compile(
    r"(?:^|[\s/'\"])(?:torchrun|deepspeed|horovodrun|mpirun|mpiexec|torch\.distributed\.(?:run|launch)|accelerate\s+launch)"
    r"(?=[\s'\"]|$)"
)
_ONE_EACH = re.compile(r"--(?:nproc[-_]per[-_]node|num[-_]processes|num[-_]gpus)[=\s]1(?=\s|$)")
_STEP = re.compile(r"[A-Za-z0-9_+.-]{1,40}")


@dataclass
class _Task:
    """A TaskRecord in the making."""

    step: str
    rank: int
    node: str
    claimed: bool
    local_rank: int | None = None
    pid: int | None = None
    command: str = ""
    start: Stamp | None = None
    end: Stamp | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_alive: Stamp | None = None
    states: list[tuple[Stamp, str]] = field(default_factory=list)
    signals: list[tuple[Stamp, int]] = field(default_factory=list)
    gpus: tuple[str, ...] = ()
    full_disks: list[str] = field(default_factory=list)

    def take(self, event: str, record: Object, when: Stamp | None) -> None:
        """Add what one line says."""
        if event == "start":
            self.start = self.start or when
            self.local_rank = integer(record, "local_rank") if self.local_rank is None else self.local_rank
            self.pid = integer(record, "pid") if self.pid is None else self.pid
            self.command = self.command or text(record, "command")
            self.gpus = self.gpus or texts(record, "gpus")
        elif event == "alive" and when is not None:
            self.last_alive = when
        elif event == "state" and when is not None and len(self.states) < MAX_CHANGES:
            self.states.append((when, text(record, "state", 1)))
        elif event == "signal" and when is not None and len(self.signals) < MAX_CHANGES:
            number = integer(record, "signal")
            if number is not None:
                self.signals.append((when, number))
        elif event == "disk-full" and len(self.full_disks) < MAX_CHANGES:
            self.full_disks.append(text(record, "mount"))
        elif event == "end":
            self.end = when or self.end
            self.exit_code = integer(record, "exit_code")
            self.signal = integer(record, "signal")

    def done(self) -> TaskRecord:
        """Return the finished record."""
        return TaskRecord(
            step=self.step,
            rank=self.rank,
            node=self.node,
            local_rank=self.local_rank,
            pid=self.pid,
            command=self.command,
            start=self.start,
            end=self.end,
            exit_code=self.exit_code,
            signal=self.signal,
            last_alive=self.last_alive,
            states=tuple(self.states),
            forwarded_signals=tuple(self.signals),
            gpus=self.gpus,
            full_disks=tuple(self.full_disks),
            launcher=starts_several(self.command),
            claimed=self.claimed,
        )


@dataclass
class Tasks:
    """The tasks of one run, gathered node by node; ``worlds`` is each step's number of tasks as claimed."""

    _tasks: dict[tuple[str, int], _Task] = field(default_factory=dict)
    worlds: dict[str, int] = field(default_factory=dict)
    gaps: list[Gap] = field(default_factory=list)

    def add(self, node: str, records: Iterable[Object], *, claimed: bool) -> None:
        """Take one node's lines, root's (``claimed`` False) before the user's; a node speaks for itself only."""
        strange = foreign = 0
        for record in records:
            event, step, rank = text(record, "event", 20), text(record, "step"), integer(record, "rank")
            if event == "clock":
                continue
            if event == "gap":
                what = text(record, "what")
                if what and len(self.gaps) < MAX_CHANGES:
                    closed_by = text(record, "closed_by") or "hooks/srun with options that it can read"
                    self.gaps.append(Gap(what, text(record, "where") or node, closed_by))
                continue
            if rank is None or not 0 <= rank < MAX_TASKS or not _STEP.fullmatch(step):
                strange += 1
                continue
            if text(record, "node") not in ("", node):
                foreign += 1
                continue
            task = self._tasks.get((step, rank))
            if task is None:
                if len(self._tasks) >= MAX_TASKS:
                    strange += 1
                    continue
                task = self._tasks[step, rank] = _Task(step, rank, node, claimed)
            if task.node != node:
                foreign += 1
                continue
            if claimed and not task.claimed and event in ("start", "end"):
                continue  # the plugin's word, which is root's, stands
            task.take(event, record, stamp(record))
            world = integer(record, "world")
            if event == "start" and world is not None and 0 < world <= MAX_TASKS:
                self.worlds[step] = max(world, self.worlds.get(step, 0))
        if strange:
            self.gaps.append(Gap(f"{strange} task records name no task", node, "the job's own writes there; ignore"))
        if foreign:
            self.gaps.append(
                Gap(f"{foreign} task records speak for tasks of another node and were passed over", node, "nothing")
            )

    def records(self) -> tuple[TaskRecord, ...]:
        """Return every task, by step and rank."""
        return tuple(self._tasks[key].done() for key in sorted(self._tasks))

    def launchers(self) -> set[tuple[str, int]]:
        """Return (step, rank) of the tasks that are launchers of several ranks: their output is no one rank's."""
        return {key for key, task in self._tasks.items() if starts_several(task.command)}

    def missing(self) -> Iterator[Gap]:
        """Yield what the tasks' records leave open: tasks without an end, and tasks that never appeared."""
        for step in sorted({step for step, _ in self._tasks}):
            seen = {rank: task for (name, rank), task in self._tasks.items() if name == step}
            for node in sorted({task.node for task in seen.values()}):
                # The plugin's record of an end counts as much as the wrapper's.
                open_ = [r for r, t in seen.items() if t.node == node and t.end is None and t.start is not None]
                if open_:
                    yield Gap(
                        f"step {step}: the end of task {ranges(open_)} was not recorded: what captured it was"
                        " ended together with the task, or the node stopped",
                        node,
                        "nothing on the task's side; the scheduler's record of the step counts instead",
                    )
            world = self.worlds.get(step, 0)
            absent = set(range(world)) - set(seen)
            if absent:
                yield Gap(
                    f"step {step}: task {ranges(absent)} of {world} was never captured",
                    f"step {step}",
                    "hooks/srun first on PATH (a full path to srun goes around it), and the hooks on every node",
                )


def starts_several(command: str) -> bool:
    """Tell whether a command line starts several ranks itself (torchrun and its like)."""
    return bool(_LAUNCHER.search(command)) and not _ONE_EACH.search(command)
