"""Reads how ranks ended, and which are named, from what srun, torchrun and other ranks print about them."""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable
from dataclasses import replace

from denpex.engine.progress import latest, natural
from denpex.engine.ranks import ENDING_SIGNALS, OWN, Rank, status
from denpex.model import Event, Role, Snapshot, Source, StreamInfo, StreamKind

_SAID = {  # srun prints strsignal()'s words
    "Killed": 9, "Terminated": 15, "Segmentation fault": 11, "Aborted": 6, "Bus error": 7, "Out Of Memory": 9,
    "Illegal instruction": 4, "Floating point exception": 8, "Hangup": 1, "Interrupt": 2,
}  # fmt: skip
_MOST_TASKS = 32_768  # rank numbers beyond are no ranks
TORCHRUN_TABLE = "torchelastic-failure-table"
CLOSED = "ended-by-signal"  # "Sending process PID closing signal"
TORCHRUN = (TORCHRUN_TABLE, "torchelastic-child-failed")
_SPAWN = "mp-spawn-exited"
# What an agent itself says when another agent is gone.
_AGENTS = ("rendezvous-closed", "rendezvous-connection", "tcpstore-lost")
# Slurm says these of a step or job that it ends; tasks whose end srun reports afterwards were ended by that.
_SWEEPS = ("CANCELLED AT", "Job step aborted", "Terminating StepId", "forcing job termination")


def places(snapshot: Snapshot) -> set[tuple[str | None, str | None]]:
    """Return (step, node) of every task that is a launcher of several ranks, also where its output is not here."""
    infos = (source.info for source in snapshot.streams)
    of_streams = {(info.step, info.node) for info in infos if info.kind is StreamKind.MIXED and info.step is not None}
    return of_streams | {(task.step, task.node) for task in snapshot.tasks if task.launcher}


def add_accused(events: Iterable[Event], ranks: dict[int, Rank]) -> None:
    """Add ranks that are known only because others name them as missing."""
    for event in events:
        if event.role is Role.CASCADE and event.pattern not in OWN:
            for number in numbers(event.fields.get("accused", "")):
                ranks.setdefault(number, Rank(number, event.step))


def read_torchrun(loose: Iterable[Event], ranks: dict[int, Rank], nodes: Iterable[str]) -> None:
    """Take how workers ended, and which, from torchrun's tables of failures, where no task record has them.

    ``nodes``: the job's. A worker that its agent told to end was ended by that. Each agent lists only its own workers.
    """
    listed = list(loose)
    known = {name.split(".")[0]: name for name in nodes}
    closed = {event.fields.get("pid") for event in listed if event.pattern == CLOSED} - {None}
    for event in listed:
        if event.pattern != TORCHRUN_TABLE:
            continue
        code = event.fields.get("exitcode", "")
        number = natural(event.fields.get("rank", ""))
        if number is None or number >= _MOST_TASKS or not re.fullmatch(r"-?\d{1,5}", code):
            continue
        host = known.get(event.fields.get("host", "").split(".")[0])
        rank = ranks.setdefault(number, Rank(number, event.step))
        rank.node = rank.node or host or event.node
        if not rank.end_known:
            value = int(code)
            _ended(rank, value if value >= 0 else None, -value if value < 0 else None, event)
            rank.local_rank = natural(event.fields.get("local_rank", ""))
            rank.swept = rank.signal in ENDING_SIGNALS and event.fields.get("pid") in closed


def read_spawn(loose: Iterable[Event], ranks: dict[int, Rank], nodes: set[str]) -> None:
    """Take which process torch.multiprocessing.spawn saw fail first: on one node its number is the rank's."""
    found = [event for event in loose if event.pattern == _SPAWN]
    number = natural(found[0].fields.get("local_rank", "")) if found else None
    if number is None or number >= _MOST_TASKS or ranks or len(nodes) > 1:
        return
    event = found[0]
    name, code = event.fields.get("signal", ""), natural(event.fields.get("code", ""))
    by = signal.Signals[name].value if name in signal.Signals.__members__ else None
    rank = ranks[number] = Rank(number, event.step, event.node, local_rank=number)
    _ended(rank, code if by is None else None, by, event)


def note_workers(snapshot: Snapshot, step: str | None, loose: Iterable[Event], ranks: dict[int, Rank]) -> None:
    """Give the workers of a launcher (torchrun) what is known of its task: its GPUs, and that its output is here.

    A worker is heard where the whole output of its launcher is here, others' words in it bear their rank's mark, and no
    error in it is without one: then no word is missing.
    """
    listed = [*loose, *(event for rank in ranks.values() for event in rank.events)]
    unmarked = {e.file for e in loose if e.role is Role.ORIGIN and e.failure_class != "rendezvous-failure"}
    marked = {event.file for rank in ranks.values() for event in rank.events if event.source is Source.TASK}
    mixed: dict[str | None, list[StreamInfo]] = {}
    for source in snapshot.streams:
        if source.info.kind is StreamKind.MIXED and source.info.step == step:
            mixed.setdefault(source.info.node, []).append(source.info)
    tasks = {task.node: task for task in snapshot.tasks if task.step == step}
    if len(mixed) > 1 or marked & {info.name for infos in mixed.values() for info in infos}:
        _add_quiet(ranks, step, mixed)
    tabled = {r.node for r in ranks.values() if r.exit_event is not None and r.exit_event.pattern == TORCHRUN_TABLE}
    for rank in ranks.values():
        infos = mixed.get(rank.node, [])
        if rank.recorded or not infos:
            continue
        task = tasks.get(rank.node or "")
        rank.gpus = rank.gpus or (task.gpus if task is not None else ())
        names = {info.name for info in infos}
        # Until then the output was captured, and the worker's silence means something.
        rank.alive = latest([rank.alive, *(e.when for e in listed if e.file in names)])
        if marked & names and not unmarked & names:
            rank.captured, rank.whole = True, all(info.complete for info in infos)
        if rank.node in tabled and rank.whole and not rank.end_known:
            rank.end_known, rank.exit_code = True, 0  # the agent lists every worker that ended badly, and not this one


def give_unmarked(snapshot: Snapshot, loose: list[Event], ranks: dict[int, Rank]) -> list[Event]:
    """Give a launcher's errors that bear no mark to its workers that failed by themselves; return what stays of none.

    Before a worker joins its process group nothing marks its words. Where several failed, the errors must say the same.
    """
    files = {s.info.name: s.info.node for s in snapshot.streams if s.info.kind is StreamKind.MIXED}
    failed: dict[str | None, list[Rank]] = {}
    for rank in ranks.values():
        marked = any(event.role in (Role.ORIGIN, Role.CASCADE) for event in rank.events)
        if rank.failed and not rank.swept and not rank.recorded and rank.local_rank is not None and not marked:
            failed.setdefault(rank.node, []).append(rank)
    unmarked: dict[str | None, list[Event]] = {}
    for event in loose:
        of_worker = event.role in (Role.ORIGIN, Role.CASCADE) and event.pattern not in (*TORCHRUN, _SPAWN, *_AGENTS)
        if of_worker and event.source is Source.TASK and event.rank is None and event.file in files:
            unmarked.setdefault(files[event.file], []).append(event)
    given: set[int] = set()
    for node, events in unmarked.items():
        theirs = failed.get(node, [])
        if len(theirs) == 1 or len({last_line(event) for event in events}) == 1:
            for rank in theirs:
                rank.events += [replace(event, rank=rank.rank, step=rank.step) for event in events]
                given.update(map(id, events))
    return [event for event in loose if id(event) not in given]


def last_line(event: Event) -> str:
    """Return the last line of a message without a rank's number: what two ranks that fail alike both say."""
    return re.sub(r"\brank ?\d+\b", "", event.text.rstrip().rsplit("\n", 1)[-1])


def _add_quiet(ranks: dict[int, Rank], step: str | None, nodes: Iterable[str | None]) -> None:
    """Add workers of which no word bears the mark: numbers go without a gap, and each node has as many as any other."""
    here: dict[str | None, set[int]] = {node: set() for node in nodes}
    for rank in ranks.values():
        if rank.node in here:
            here[rank.node].add(rank.rank)
    each = max((len(numbers) for numbers in here.values()), default=0)
    missing = sorted(set(range(max(max(ranks, default=-1) + 1, each * len(here)))) - set(ranks))
    short = [node for node, numbers in here.items() if len(numbers) < each]
    if max(ranks, default=0) >= _MOST_TASKS or len(missing) > each * len(here):
        return
    for number in missing:
        beside = [node for node in short if here[node] & {number - 1, number + 1}]
        ranks[number] = Rank(number, step, beside[0] if len(beside) == 1 else short[0] if len(short) == 1 else None)


def read_srun(loose: Iterable[Event], ranks: dict[int, Rank], have_tasks: bool) -> None:
    """Take exit statuses from srun's words, where no task record has them."""
    swept: set[str] = set()
    for event in loose:
        if event.source is Source.SLURM and any(word in event.text for word in _SWEEPS):
            swept.add(event.file)
        if event.pattern not in ("srun-task-exit", "slurm-oom-task"):
            continue
        code = event.fields.get("code", "")
        by = _SAID.get("Out Of Memory" if event.pattern == "slurm-oom-task" else event.fields.get("signal", ""))
        host = event.fields.get("host", "")
        if by is None and not re.fullmatch(r"\d{1,3}", code):
            continue
        for number in numbers(event.fields.get("tasks", "")):
            if number not in ranks and have_tasks:
                continue
            rank = ranks.setdefault(number, Rank(number, event.step))
            rank.node = rank.node or (host if re.fullmatch(r"[\w.-]+", host) else None)
            if not rank.end_known:
                _ended(rank, int(code) if by is None else None, by, event)
                rank.swept = event.file in swept and event.pattern != "slurm-oom-task"


def _ended(rank: Rank, code: int | None, by: int | None, event: Event) -> None:
    if rank.end_known:
        return
    rank.end_known = True
    rank.exit_code, rank.signal = status(code, by)
    rank.exit_event = rank.exit_event or event


def numbers(text: str) -> Iterable[int]:
    """Return the rank numbers in "1, 3-5"; what is no rank's number is passed over."""
    found: set[int] = set()
    for part in text.replace(",", " ").split()[:1000]:
        head, _, tail = part.partition("-")
        first, last = natural(head), natural(tail or head)
        if first is not None and last is not None:
            found.update(range(first, min(last, _MOST_TASKS) + 1))
    return sorted(number for number in found if number < _MOST_TASKS)
