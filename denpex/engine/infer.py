"""Decides what failed first and why, from the evidence on each rank; abstains where it does not decide.

The order of the questions: did anything fail; did the scheduler or a person end it; is it the same on all ranks; which
rank's evidence is strongest. A rank that complains of others is a victim; a rank that is silent while others wait is a
suspect, but only where its output was captured.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace

from denpex.engine import ending
from denpex.engine import weights as w
from denpex.engine.evidence import Weighing, weigh
from denpex.engine.facts import Case
from denpex.engine.finding import Finding
from denpex.engine.launchers import last_line
from denpex.engine.ranks import Rank
from denpex.engine.recorder import Kind
from denpex.engine.suspect import MISSING, MUTUAL, OOM, VAGUE, Suspect, strength
from denpex.hostlist import ranges
from denpex.model import Event, Role, Scope, Source
from denpex.taxonomy import CATEGORY_OF

# Faults of parts that all ranks of a node share.
_OF_NODE = frozenset({"ib-link-down", "nic-hardware-fault", "nvswitch-fault", "fabric-manager-not-running"})
# Where ranks wait for one that does not come, by the class of their complaints.
_WAITED = {MISSING: "in a collective", "rendezvous-failure": "for all to join the process group"}
# A list of ranks is worth making up to this world size.
_MOST_LISTED = 100_000


def infer(case: Case) -> Finding:
    """Return the finding on one run."""
    weighing = weigh(case)
    finding = (
        ending.by_scheduler(case, weighing)
        or _same_everywhere(case, weighing.suspects)
        or ending.from_outside(case, weighing)
        or _by_rank(case, weighing)
        or _without_rank(case, weighing)
    )
    return replace(finding, set_aside=tuple(weighing.aside))


def _same_everywhere(case: Case, suspects: Sequence[Suspect]) -> Finding | None:
    """Answer where (nearly) all ranks fail of the same thing by themselves: nobody is the origin."""
    world = max(case.world, len(suspects))
    alike = Counter(s.failure_class for s in suspects if s.fatal and s.says_why)
    if not alike:
        return None
    name, count = alike.most_common(1)[0]
    # Ranks that a launcher ended before they could say the same are no witnesses against it.
    cut_short = sum((s.rank.swept or s.rank.told is not None) and not s.says_why for s in suspects)
    if count < 2 or count < 0.75 * (world - cut_short) or 4 * count < world:
        return None
    same = [s for s in suspects if s.fatal and s.says_why and s.failure_class == name]
    generic = all(e.precedence == 0 for s in same for e in s.cited if e.role is Role.ORIGIN)
    members = {id(s) for s in same}
    rivals = [s for s in suspects if s.fatal and id(s) not in members and (s.score > w.ORIGIN_GENERIC or generic)]
    if rivals or any(e.source is Source.KERNEL for s in same for e in s.cited):
        return None  # what these print may be their own way of complaining of the rival; a kernel names a place
    if generic and _certainly_first(same):
        return None
    firsts = [s.first for s in same if s.first is not None]
    return Finding(
        name,
        Scope.JOB,
        0.9 if count == world else 0.8,
        f"{count} of {world} ranks fail in the same way: the cause is the job's, no rank's.",
        cited=tuple(s.cited[0] for s in same[:3]),
        first=min(firsts, key=lambda i: i.lo_ns) if firsts else None,
    )


def _certainly_first(same: Sequence[Suspect]) -> bool:
    """Tell whether one rank's failure certainly came a good while before all others', in other words than theirs."""
    if len({last_line(event) for s in same for event in s.cited if event.role is Role.ORIGIN}) == 1:
        return False  # nobody fails of another's exception with that very exception
    moments = sorted((s.first for s in same if s.first is not None), key=lambda m: m.hi_ns)
    if len(moments) < len(same):
        return False
    return all(other.lo_ns - moments[0].hi_ns > w.LATER_NS for other in moments[1:])


def _by_rank(case: Case, weighing: Weighing) -> Finding | None:
    """Compare the ranks; name one, a tie set or a node."""
    suspects = weighing.suspects
    if not any(s.score > 1.0 for s in suspects):
        return None
    ranked = sorted(suspects, key=lambda s: -s.score)
    best = ranked[0]
    needed = 1 if best.failure_class in VAGUE - {"unknown"} else 0
    if best.failure_class in VAGUE and any(e.precedence >= needed for e in ending.usable(case, weighing)):
        return None  # a cause stands in the job's file, and how one rank ended does not say that it is another one
    _spread(suspects, unknown_score(case, best))
    coverage = _coverage(case, suspects)
    if best.failure_class in _OF_NODE and any(
        e.source is Source.KERNEL and e.failure_class == best.failure_class for e in best.cited
    ):
        whole = sum(s.probability for s in suspects if s.rank.node == best.rank.node)
        if whole >= w.NAME_RANK:
            return _node_named(best, ranked, min(w.MOST, whole * coverage))
    if best.probability >= w.NAME_RANK:
        return _named(best, ranked, min(w.MOST, best.probability * coverage))
    tie = [s for s in ranked if best.score - s.score <= w.TIE]
    together = sum(s.probability for s in tie)
    if len(tie) == 1 or together < w.NAME_RANK:
        return None
    return _tied(case, tie, min(0.6, together * coverage))


def _spread(suspects: Sequence[Suspect], unknown: float) -> None:
    """Turn scores into probabilities; ranks of one and the same evidence share one hypothesis.

    Else a thousand victims, each with its small score, would outweigh the one origin.
    """
    groups: dict[tuple[float, str], list[Suspect]] = {}
    for s in suspects:
        groups.setdefault((round(s.score, 3), s.failure_class), []).append(s)
    top = max(unknown, *(score for score, _ in groups))
    total = sum(math.exp(score - top) for score, _ in groups) + math.exp(unknown - top)
    for (score, _), members in groups.items():
        for s in members:
            s.probability = math.exp(score - top) / total / len(members)


def unknown_score(case: Case, best: Suspect) -> float:
    """Return the score, in nats, of "a rank that is not known" beside the best suspect's."""
    unheard = case.world - sum(1 for r in case.ranks.values() if r.heard or r.dumped or (r.end_known and r.recorded))
    unheard += sum(1 for r in case.ranks.values() if r.recorded and not r.heard and r.failed and r is not best.rank)
    if unheard <= 0:
        return w.UNKNOWN_RANK
    if best.failure_class == MISSING and not best.rank.stuck:
        return w.UNKNOWN_SILENT
    generic = all(e.precedence == 0 for e in best.cited if e.role is Role.ORIGIN)
    return w.UNKNOWN_UNHEARD if generic else w.UNKNOWN_RANK


def _coverage(case: Case, suspects: Sequence[Suspect]) -> float:
    coverage = 1.0
    if not case.clocks_measured and len({s.rank.node for s in suspects}) > 1:
        coverage *= w.NO_CLOCK
    if not any(s.rank.end_known for s in suspects):
        coverage *= w.NO_EXITS
    if case.world > sum(1 for s in suspects if s.rank.heard):
        coverage *= w.UNHEARD
    return coverage


def _named(best: Suspect, ranked: Sequence[Suspect], confidence: float) -> Finding:
    name = best.failure_class
    if name == "unknown":
        confidence = min(confidence, 0.6)  # who is known, why is not
    if any(event.source is Source.HISTORY and event.failure_class == name for event in best.cited):
        confidence = min(confidence, w.BY_HISTORY)
    hardware = CATEGORY_OF.get(name) == "hardware"
    reasons = [(weight, reason) for weight, reason in best.reasons if weight > 0]
    return Finding(
        name,
        Scope.GPU if best.gpu and hardware else Scope.RANK,
        confidence,
        "",
        ranks=(best.rank,),
        node=best.rank.node,
        cited=tuple(_best_first(best)),
        first=best.first,
        reasons=tuple(reason for _, reason in reasons),
        others=tuple(s for s in ranked if s is not best and s.score > 0),
        gpu=best.gpu if hardware else None,
    )


def _node_named(best: Suspect, ranked: Sequence[Suspect], confidence: float) -> Finding:
    """Name the node: its kernel reports a fault of a part that all its ranks share, whichever of them spoke first."""
    name, node = best.failure_class, best.rank.node
    return Finding(
        name,
        Scope.NODE,
        confidence,
        f"The kernel of {node} reports a fault of what its ranks share.",
        node=node,
        cited=tuple(e for e in _best_first(best) if e.failure_class == name),
        first=best.first,
        others=tuple(s for s in ranked if s.rank.node != node and s.score > 0),
    )


def _best_first(s: Suspect) -> list[Event]:
    """Order a suspect's evidence: what names its class before what only supports it, and earlier runs last."""
    return sorted(
        s.cited,
        key=lambda e: (e.source is Source.HISTORY, e.failure_class != s.failure_class, e.role is not Role.ORIGIN),
    )


def _tied(case: Case, tie: Sequence[Suspect], confidence: float) -> Finding:
    ranks = tuple(s.rank for s in tie)
    shown = ", ".join(str(rank.rank) for rank in ranks[:16]) + (", ..." if len(ranks) > 16 else "")
    classes = Counter(s.failure_class for s in tie)
    places = {rank.node for rank in ranks}
    node = ranks[0].node if len(places) == 1 else None
    whole = node is not None and len(case.on(node)) == len(ranks) < len(case.ranks)
    name, count = classes.most_common(1)[0]
    why = f"The evidence does not separate ranks {shown}" + (f", all that ran on {node}." if whole else ".")
    circle = next((e for s in tie for e in s.rank.flight if e.fields["kind"] == Kind.DEADLOCK), None)
    if circle is not None:
        why = f"The flight recorders show a deadlock: {circle.fields['reason']}."
    return Finding(
        name if count == len(tie) else "unknown",
        Scope.NODE if whole else Scope.RANKS,
        confidence,
        why,
        ranks=ranks,
        node=node if whole else None,
        cited=tuple(e for s in tie[:8] for e in _best_first(s)[:1]),
        first=tie[0].first,
    )


def _without_rank(case: Case, weighing: Weighing) -> Finding:
    """Answer where no rank stands out: by an error of no known rank, else by what the complaints have in common."""
    mutual = [e for e in case.events if e.failure_class in MUTUAL and e.rank is not None]
    if mutual:
        why = "Ranks disagree about a collective; which of them is wrong does not stand in what was captured."
        return Finding(mutual[0].failure_class or "unknown", Scope.UNKNOWN, 0.6, why, cited=tuple(mutual[:3]))
    best = max(ending.usable(case, weighing), key=strength, default=None)
    best = best or max(
        (e for s in weighing.suspects for e in s.cited if e.role is Role.ORIGIN), key=strength, default=None
    )
    if best is not None:
        return _by_line(case, best)
    quiet = ending.nothing_failed(case, weighing)
    if quiet is not None:
        return quiet
    cancelled = ending.step_cancelled(case)
    if cancelled is not None:
        return cancelled
    for name, where in _WAITED.items():
        waits = [e for e in case.events if e.role is Role.CASCADE and e.failure_class == name]
        if waits:
            why = f"Ranks waited in vain {where}; the rank that did not come is not visible here."
            return Finding(name, Scope.UNKNOWN, 0.5, why, cited=tuple(waits[:3]), first=waits[0].when)
    return _unknown_cause(case)


def _by_line(case: Case, best: Event) -> Finding:
    of_node = best.source in (Source.KERNEL, Source.NVML) and best.node is not None
    hardware = CATEGORY_OF.get(best.failure_class or "") == "hardware"
    host = best.fields.get("host")
    if best.source is Source.SLURM and best.failure_class == OOM and host in case.job.nodes:
        why = f"Slurm reports an out-of-memory kill on {host}; which of its tasks it hit is not recorded."
        return Finding(OOM, Scope.NODE, 0.75, why, node=host, cited=(best,), first=best.when)
    why = "The cause stands in the output, but not which rank printed it."
    if of_node:
        why = f"The kernel log of {best.node} names the cause; which rank it hit is not recorded."
    elif best.rank is not None:
        why = f"Rank {best.rank} printed the likeliest cause, but that it came first is not established."
    return Finding(
        best.failure_class or "unknown",
        (Scope.GPU if hardware and best.gpu else Scope.NODE) if of_node else Scope.JOB,
        0.75 if best.precedence else 0.6,
        why,
        node=best.node if of_node else None,
        cited=(best,),
        first=best.when,
        gpu=best.gpu if of_node and hardware else None,
    )


def _unknown_cause(case: Case) -> Finding:
    complaints = [e for e in case.events if e.role is Role.CASCADE]
    ends = [r.exit_event for r in _failed(case.ranks.values()) if r.exit_event is not None]
    why = "Nothing in this input says that anything failed."
    unseen = sorted(set(range(case.world)) - set(case.ranks)) if case.world <= _MOST_LISTED else []
    if unseen and complaints:
        said = sorted({e.rank for e in complaints if e.rank is not None})
        of = f"All that was captured (rank {ranges(said)})" if said else "The output"
        why = f"{of} only complains of a peer; of rank {ranges(unseen)} nothing was captured, so it may be the one."
    elif ends or complaints or case.job.state:
        why = "The job failed, but nothing that was captured says why."
    return Finding(
        "unknown",
        Scope.UNKNOWN,
        0.3,
        why,
        cited=(*complaints[:3], *ends[:3]),
    )


def _failed(ranks: Iterable[Rank]) -> list[Rank]:
    return [rank for rank in ranks if rank.failed]
