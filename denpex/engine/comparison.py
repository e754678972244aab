"""Weighs what only all ranks together say: who is left over, who came last, who was first."""

from __future__ import annotations

from denpex.engine import progress
from denpex.engine import weights as w
from denpex.engine.launchers import TORCHRUN_TABLE
from denpex.engine.order import Moments
from denpex.engine.ranks import ENDING_SIGNALS, Rank
from denpex.engine.recorder import Kind
from denpex.engine.scene import Scene, quotes_kernel, said
from denpex.engine.suspect import MISSING, OOM, Suspect, strength
from denpex.model import Event, Role, Source


def compare(scene: Scene, suspects: list[Suspect]) -> None:
    """Weigh what only all ranks together say: order, who is left over, who came last."""
    _weigh_left_over(scene, suspects)
    _weigh_alone(scene, suspects)
    _weigh_lateness(scene, suspects)
    for number in progress.lagging(
        {n: progress.collectives(events) for n, events in scene.complaints.items() if progress.collectives(events)},
        scene.case.world,
    ):
        for s in suspects:
            if s.rank.rank == number:
                event = progress.collectives(scene.complaints[number])[0].event
                s.add(w.LAGGING, "it had enqueued fewer collectives than the others", event, MISSING)
    _weigh_flight(scene, suspects)
    for s in suspects:
        if scene.complaints[s.rank.rank] and s.score <= 0:
            s.add(w.ONLY_CASCADE, "it only reports the failure of others", scene.complaints[s.rank.rank][0])
    _weigh_order(scene, suspects)


def _weigh_left_over(scene: Scene, suspects: list[Suspect]) -> None:
    """Weigh ranks that nothing was heard of, where all others only complain."""
    quiet = [s for s in suspects if not scene.complaints[s.rank.rank] and not s.fatal and s.score <= w.SILENT]
    known = {id(s) for s in quiet}
    others = [s for s in suspects if id(s) not in known]
    if not others or any(s.fatal or not scene.complaints[s.rank.rank] for s in others):
        return
    lost = [s for s in quiet if _is_lost(scene, s.rank)]
    for s in lost:
        weight = w.NODE_LOST if len({r.rank.node for r in lost}) == 1 else 1.0
        reason = "neither its end nor its node's epilog was seen, and the others complain of a peer"
        s.add(weight, reason, None, "node-unresponsive")
        s.first = s.first or s.rank.alive
    if len(quiet) == 1 and len(suspects) >= scene.case.world and not lost:
        rank = quiet[0].rank
        if rank.failed and not rank.told and (not rank.captured or rank.whole is False):
            reason = "it failed, its words are not here, and all others only complain of a peer"
            quiet[0].add(w.LEFT_OVER, reason, rank.exit_event, "unknown")
        elif rank.exit_code == 0 and rank.end is None and not scene.waits:
            reason = "torchrun lists every other worker of its node as failed: it ended with status 0 before them"
            quiet[0].add(w.EARLY_EXIT, reason, scene.complaints[others[0].rank.rank][0], MISSING)
        elif (rank.told or rank.swept) and rank.captured and rank.whole is not False and not scene.waits:
            reason = "it was alive and silent when all others lost their connections"
            quiet[0].add(w.LEFT_OVER, reason, scene.complaints[others[0].rank.rank][0], "unknown")
        elif rank.started and not rank.end_known and not rank.told and quiet[0].score == 0 and rank.captured:
            reason = "its output breaks off, how it ended is not recorded, and all others only complain of a peer"
            quiet[0].add(w.LEFT_OVER, reason, None, "unknown")
    for s in quiet:
        rank = s.rank
        if rank.end is not None and rank.exit_code == 0 and rank.signal is None and others:
            after = scene.failed_ends.all_after(rank.end, w.UNORDERED_ENDS_NS, but=rank.rank)
            if after and scene.failed_ends.count == len(suspects) - 1:
                s.add(w.EARLY_EXIT, "it ended with status 0 while the others still ran", rank.exit_event, MISSING)
                s.first = rank.end


def _weigh_flight(scene: Scene, suspects: list[Suspect]) -> None:
    """Weigh what the ranks' flight recorders say together."""
    for s in suspects:
        for event in s.rank.flight:
            _add_flight(s, event)
        if s.rank.rank in scene.case.further:
            s.add(w.FLIGHT_FURTHER, "its flight recorder shows it waiting for another rank")


def _add_flight(s: Suspect, event: Event) -> None:
    kind, alone, reason = event.fields["kind"], bool(event.fields["alone"]), event.fields["reason"]
    weight = w.FLIGHT_MISSING + (w.FLIGHT_ONLY_MISSING if alone else 0.0)
    if kind == Kind.DIFFERS:
        weight = w.FLIGHT_DIFFERS
    elif kind == Kind.AHEAD:
        # Others that went nowhere may be what failed.
        weight = w.FLIGHT_AHEAD + w.FLIGHT_AHEAD_ALONE if alone else w.FLIGHT_DIFFERS
    elif kind == Kind.UNDUMPED:
        weight = w.FLIGHT_UNDUMPED
    s.add(weight, reason, event)
    # That it did not come says nothing of why; any other class of its own does.
    if event.failure_class != MISSING or not set(s.classes) - {"unknown"}:
        s.classes[event.failure_class or MISSING] = weight
    s.first = s.first or event.when


def _weigh_alone(scene: Scene, suspects: list[Suspect]) -> None:
    """Give a message that bears no rank's mark to the only rank that ended by itself, where Slurm ended all others.

    Without such a message nothing follows: a rank that gives up waiting for a hung one ends by itself too.
    """
    if any(s.fatal for s in suspects) or scene.waits or len(suspects) < scene.case.world:
        return
    alone = [s for s in suspects if s.rank.failed and not s.rank.swept and not s.rank.told]
    alone = [s for s in alone if not s.rank.heard]
    if len(alone) != 1 or any(not s.rank.failed for s in suspects):
        return
    s = alone[0]
    if len(suspects) < 2 and (s.rank.exit_event is None or s.rank.exit_event.pattern != TORCHRUN_TABLE):
        return  # a step of one task; torchrun's table is of many ranks, of which it lists those that failed
    words = [e for e in scene.case.loose if e.role is Role.ORIGIN and e.source is Source.TASK and e.rank is None]
    best = max((e for e in words if not quotes_kernel(e)), key=strength, default=None)
    if best is None:
        return
    weight = w.ORIGIN_LINE if best.precedence > 0 else w.ORIGIN_GENERIC
    reason = "the message in the job's file that bears no rank's mark can be no other's"
    s.add(weight, reason, best, best.failure_class)
    s.add(w.EXIT_WITH_WORD, "it alone ended by itself", s.rank.exit_event)
    s.fatal = True


def _is_lost(scene: Scene, rank: Rank) -> bool:
    node = scene.case.nodes.get(rank.node or "")
    spans = len({r.node for r in scene.case.ranks.values()}) > 1
    return rank.started and not rank.end_known and rank.told is None and spans and (node is None or not node.done)


def _weigh_lateness(scene: Scene, suspects: list[Suspect]) -> None:
    """Weigh a rank that never timed out and complained long after those that did: it was still on its way."""
    if not scene.waits:
        return
    rest = [s for s in suspects if s.rank.rank not in scene.waits and scene.complaints[s.rank.rank] and not s.fatal]
    for s in rest:
        event = scene.complaints[s.rank.rank][0]
        mine = said(event)
        if mine and not scene.said.unknown and scene.said.all_before(mine, w.LATER_NS, but=s.rank.rank):
            s.add(w.LAST_TO_COMPLAIN, "it complained only long after the others had given up", event, MISSING)
    if not scene.silent:
        return
    steps = {s.rank.rank: s.rank.progress.step for s in suspects}
    number = progress.behind(steps)
    for s in suspects:
        if s.rank.rank == number and s.rank in scene.silent:
            s.add(w.ONLY_BEHIND, f"its last step was {s.rank.progress.step}; the others went further")


def _weigh_order(scene: Scene, suspects: list[Suspect]) -> None:
    fatal = [s for s in suspects if s.fatal]
    rivals = Moments((s.rank.rank, s.first or s.rank.end) for s in fatal if not _only_killed(s))
    rivalled = {s.rank.rank for s in fatal if not _only_killed(s)}
    for s in fatal:
        rank = s.rank
        if rank.failed and rank.end and scene.ends.all_after(rank.end, w.UNORDERED_ENDS_NS, but=rank.rank):
            s.add(w.FIRST_END, "it ended before every other rank")
        if s.first is not None and scene.said.all_after(s.first, but=rank.rank):
            s.add(w.CERTAINLY_FIRST, "its first sign certainly precedes every complaint of the others")
        elif s.first is None or not _only_killed(s):
            pass
        elif scene.said.all_before(s.first, w.UNORDERED_ENDS_NS, but=rank.rank):
            s.add(w.CERTAINLY_LATE, "it was ended after the others had complained")
        if _only_killed(s) and OOM not in s.classes and len(rivalled) > (rank.rank in rivalled):
            sure = s.first is not None and not rivals.unknown and rivals.all_after(s.first, w.UNORDERED_ENDS_NS)
            if not sure:
                s.add(w.KILL_UNSURE - w.KILL_SIGNAL, "another rank failed by itself, and the launcher ends the rest")


def _only_killed(s: Suspect) -> bool:
    """Tell whether all that is known against a rank is that a signal ended it which others send."""
    return s.rank.signal in ENDING_SIGNALS and not s.says_why
