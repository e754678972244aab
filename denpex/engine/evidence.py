"""Weighs everything that is known of each rank: what speaks for it as the origin, and what it would have failed of."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from denpex.engine import comparison, history, placement
from denpex.engine import weights as w
from denpex.engine.facts import Case
from denpex.engine.launchers import numbers
from denpex.engine.ranks import CRASH_SIGNALS, ENDING_SIGNALS, Rank, signal_name
from denpex.engine.scene import Scene
from denpex.engine.suspect import MISSING, OOM, Suspect, strength
from denpex.model import Event

# The pattern of the lines with which trainers begin to write a checkpoint.
SAVING = "checkpoint-saving"


@dataclass
class Weighing:
    """All suspects, and the messages that were set aside with the reason."""

    suspects: list[Suspect]
    aside: list[tuple[Event, str]]


def weigh(case: Case) -> Weighing:
    """Weigh every rank of the case."""
    scene = Scene(case)
    suspects = [_suspect(scene, rank) for rank in case.ranks.values()]
    comparison.compare(scene, suspects)
    history.weigh(scene, suspects)
    return Weighing(suspects, scene.aside)


def _suspect(scene: Scene, rank: Rank) -> Suspect:
    """Weigh what is known of one rank by itself."""
    s = Suspect(rank)
    _weigh_words(scene, s)
    _weigh_disk(s)
    _weigh_kernel(scene, s)
    _weigh_oom(scene, s)
    _weigh_end(scene, s)
    _weigh_accusations(scene, s)
    _weigh_silence(scene, s)
    return s


def _weigh_words(scene: Scene, s: Suspect) -> None:
    number = s.rank.rank
    own, complaints = scene.own[number], scene.complaints[number]
    if complaints:
        own, late = _before(own, complaints[0])
        late = [e for e in late if e.precedence > 0]
    else:
        late = []
    for events, specific, generic, reason in (
        (own, w.ORIGIN_LINE, w.ORIGIN_GENERIC, "its own output names the cause"),
        (late, w.ORIGIN_AFTER_COMPLAINT, 0.0, "its own output names a cause, after it had complained of others"),
        (scene.survived[number], w.ORIGIN_SURVIVED, 0.0, "its own output names a cause, though it went on after it"),
    ):
        best = max(events, key=strength, default=None)
        if best is None:
            continue
        weight = specific if best.precedence > 0 else generic
        if weight > 0:
            s.add(weight, reason, best, best.failure_class or "unknown")
            s.first = s.first or best.when
            s.fatal = s.fatal or events is own
            return


def _weigh_disk(s: Suspect) -> None:
    """Read a failed write on a full file system as that: torch's writer says only that its file is too short."""
    full = s.rank.disk_event
    if full is not None and s.failure_class == "checkpoint-write-failed":
        s.add(w.FULL_DISK, "a file system of its node had no free space", full)
        s.classes["disk-full"] = s.classes.pop("checkpoint-write-failed")


def _weigh_kernel(scene: Scene, s: Suspect) -> None:
    rank = s.rank
    here = scene.case.on(rank.node)
    node = scene.case.nodes.get(rank.node or "")
    for event in scene.kernel.get(rank.node or "", ()):
        gpu = placement.gpu_at(node, event.gpu)
        user = placement.rank_of(gpu, node, here) if gpu is not None and node is not None else None
        pid = event.fields.get("pid")
        by_pid = [r for r in here if pid and str(r.pid) == pid]
        group = bool(event.fields.get("job")) and (len(here) == 1 or rank.signal == 9)
        if by_pid:
            ours, whose = rank in by_pid, "its process"
        elif user is not None:
            ours, whose = user is rank, "its GPU"
        elif event.failure_class == OOM:
            # Another process of the node may have been the victim: only its own death ties the rank to it.
            ours, whose = group or (len(here) == 1 and rank.signal == 9), "its memory group"
        else:
            weight = max(0.0, w.KERNEL_NODE - s.kernel)
            s.kernel += weight
            s.add(weight, "the kernel of its node reports a fault", event, event.failure_class)
            s.gpu = s.gpu or event.gpu
            continue
        if ours:
            weight = w.KERNEL_PROCESS if event.evidence else w.KERNEL_CLAIMED
            weight = max(0.0, weight - s.kernel)  # lines of one event are one sign
            s.kernel += weight
            s.add(weight, f"the kernel of its node names {whose}", event, event.failure_class)
            s.fatal = True
            s.first = s.first or event.when
            s.gpu = s.gpu or event.gpu


def _weigh_oom(scene: Scene, s: Suspect) -> None:
    """Tie an out-of-memory kill that Slurm reports to the rank that was killed on that node."""
    rank = s.rank
    own = {e.failure_class for e in s.cited}
    killed = rank.signal == 9 or (rank.started and not rank.end_known and rank.told is None)
    worker = "dataloader-worker-killed" in own
    if not (killed or worker) or OOM in s.classes:
        return
    for event in scene.oom:
        step = event.fields.get("step_id", "")
        host = event.fields.get("host", "")
        tasks = event.fields.get("tasks", "")
        if step.isdigit() and scene.case.step is not None and step != scene.case.step:
            continue
        if event.pattern == "slurm-oom-task" and rank.rank not in numbers(tasks):
            continue
        if host and rank.node and event.pattern == "slurmstepd-oom-kill" and host != rank.node:
            continue
        certain = bool(host) or event.pattern == "slurm-oom-task"
        s.add(
            w.SLURM_OOM if certain else w.SLURM_OOM_SOMEWHERE,
            "Slurm reports an out-of-memory kill " + ("of it" if tasks else "in its step on its node"),
            event,
            OOM,
        )
        s.fatal = True
        s.first = s.first or rank.end
        return
    states = {scene.case.job.state, *(step.state for step in scene.case.job.steps if step.id == scene.case.step)}
    if killed and rank.signal == 9 and any(state.startswith("OUT_OF_ME") for state in states):
        s.add(w.SLURM_OOM_SOMEWHERE, "Slurm ended the step as OUT_OF_MEMORY", rank.exit_event, OOM)
        s.fatal = True
        s.first = s.first or rank.end


def _weigh_end(scene: Scene, s: Suspect) -> None:
    rank = s.rank
    complaints = scene.complaints[rank.rank]
    name = signal_name(rank.signal or 0)
    if rank.signal in CRASH_SIGNALS:
        # An abort after a complaint is the watchdog's own.
        if not complaints or s.fatal:
            s.add(w.CRASH_SIGNAL, f"it was ended by {name}", rank.exit_event, "process-crashed")
            s.fatal = True
    elif rank.signal in ENDING_SIGNALS:
        _weigh_kill(scene, s, name, bool(complaints))
    elif rank.end_known and rank.exit_code and not rank.swept:
        if s.says_why and s.fatal:
            s.add(w.EXIT_WITH_WORD, f"it ended with status {rank.exit_code}", rank.exit_event)
        elif not complaints and rank.told is None and rank.captured and rank.whole is not False:
            reason = f"it ended with status {rank.exit_code} and no word of why"
            s.add(w.EXIT_WITHOUT_WORD, reason, rank.exit_event, "unknown")
            s.fatal = True
    if s.first is None or (s.kernel and rank.end is not None and rank.end.before(s.first) is True):
        s.first = rank.end  # a kernel log that is a file bears the time at which it was written


def _weigh_kill(scene: Scene, s: Suspect, name: str, complained: bool) -> None:
    rank = s.rank
    before = rank.end is not None and scene.failed_ends.any_before(rank.end, w.UNORDERED_ENDS_NS, but=rank.rank)
    if s.fatal and s.says_why:
        return  # its own words say what it failed of; that it was then ended says nothing against it
    if before or rank.told is not None or rank.swept:
        why = "it was told to end from outside" if rank.told else "it was ended after another rank had failed"
        s.add(w.ENDED_BY_LAUNCHER, why, rank.exit_event)
    elif not complained:
        reason = f"its process was ended by {name}"
        named = "process-killed" if rank.signal == 9 else "interrupted"
        if _only_waited(scene, rank):
            # Gloo's peers notice a dead process at once, by its closed connection; a time-out means that it lived.
            reason += ", but the others had timed out waiting for it while its connections were open"
            named = MISSING
        s.add(w.KILL_SIGNAL, reason, rank.exit_event, named)
        s.fatal = True


def _only_waited(scene: Scene, rank: Rank) -> bool:
    """Tell whether all other ranks' first complaint is a time-out of a transport that sees peers die."""
    mine = 1 if scene.complaints[rank.rank] else 0
    return scene.complaining > mine and scene.timed_out - scene.complaining == 0


def _weigh_accusations(scene: Scene, s: Suspect) -> None:
    for number, event in scene.accused.get(s.rank.rank, ()):
        if number != s.rank.rank:
            whose = "another rank's" if number < 0 else f"rank {number}'s"
            s.add(w.ACCUSED, f"{whose} message names it", event, event.failure_class or MISSING)
            return


def _weigh_silence(scene: Scene, s: Suspect) -> None:
    rank = s.rank
    if rank not in scene.silent:
        return
    last = scene.last_wait
    seen = rank.stuck or (rank.alive is not None and last is not None and last.before(rank.alive) is not False)
    sure = bool(rank.stuck) or (rank.captured and (rank.whole is not False or bool(seen)))
    saving = _saving(scene, rank)
    s.add(
        w.SILENT if sure else w.SILENT_PERHAPS,
        "it was alive and silent while the others waited for it",
        saving or scene.first_wait,
        scene.waited_for if saving is None else "collective-timeout-too-short",
    )
    if len(scene.silent) == 1 and sure:
        s.add(w.ONLY_SILENT, "it is the only one that did not complain")
    if rank.stuck:
        state = "stopped" if rank.stuck in "Tt" else "stuck in the kernel"
        s.add(w.SEEN_STUCK, f"its process was seen {state}", rank.stuck_event)
    # Its end came after the wait, by whoever ended it; what counts is when it was last heard of.
    s.first = rank.stuck_since or rank.progress.when or s.first


def _saving(scene: Scene, rank: Rank) -> Event | None:
    """Return the line in which the rank began to save a checkpoint, where no progress is known to have followed.

    The others must wait in a barrier, as trainers do around that; in another collective it is not what they wait for.
    """
    if not any("barrier" in event.text for events in scene.waits.values() for event in events):
        return None
    begun = [e for e in rank.events if e.pattern == SAVING]
    if rank.rank == 0 and not rank.recorded:
        # A worker whose words bear no mark; of a sharded checkpoint, too, rank 0 prints that it begins.
        begun += [e for e in scene.case.loose if e.pattern == SAVING and e.node == rank.node]
    if not begun or rank.progress.followed(begun[-1], rank.end):
        return None
    said, last = begun[-1].when, scene.case.progress.when
    later = said is not None and last is not None and said.clock == last.clock and last.local_ns > said.local_ns
    return None if later else begun[-1]


def _before(own: Iterable[Event], complaint: Event) -> tuple[list[Event], list[Event]]:
    """Part a rank's own failures into those before and those after its first complaint."""
    parts: tuple[list[Event], list[Event]] = ([], [])
    for event in own:
        if event.file == complaint.file or event.when is None or complaint.when is None:
            later = event.file == complaint.file and event.sequence > complaint.sequence
        else:
            later = complaint.when.before(event.when) is True
        parts[int(later)].append(event)
    return parts
