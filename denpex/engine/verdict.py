"""Makes the verdict of a finding: place, cited evidence, the cascade with its order claims, alternatives and gaps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from denpex.engine import explain, placement
from denpex.engine import weights as w
from denpex.engine.clock import Clocks
from denpex.engine.facts import Case
from denpex.engine.finding import Finding
from denpex.engine.ranks import Rank
from denpex.engine.suspect import MISSING, Suspect
from denpex.engine.timeline import moved
from denpex.hostlist import ranges
from denpex.model import (
    Alternative,
    CascadeEdge,
    Category,
    Event,
    Evidence,
    Gap,
    GpuRef,
    Hardware,
    Instant,
    Interval,
    Library,
    Order,
    Place,
    Requeue,
    Role,
    Route,
    Scope,
    Snapshot,
    Source,
    Verdict,
)
from denpex.taxonomy import CATEGORY_OF, MEANING_OF

_LONGEST_TEXT = 2000
_MOST_EDGES = 4096
_MOST_VICTIMS_CITED = 64
# Clocks whose error is beyond this give no time and no delay that would be worth showing.
_VAGUE_NS = 60 * 10**9
_COUNTERS = ("ecc_volatile_uncorrected", "ecc_aggregate_uncorrected", "remapped_uncorrectable")
_NO_TASKS_NEEDED = {"no-failure", "cancelled-by-user", "cancelled-by-administrator", "preempted"}


def verdict(case: Case, finding: Finding, snapshot: Snapshot, library: Library, clocks: Clocks) -> Verdict:
    """Return the verdict that a finding is, with everything that supports it."""
    doc = library.classes.get(finding.failure_class)
    category = CATEGORY_OF[finding.failure_class]
    places = tuple(_place(rank, finding, case) for rank in finding.ranks)
    single = places[0] if len(places) == 1 else None
    if finding.node and finding.scope in (Scope.NODE, Scope.GPU) and single is None:
        single = Place(node=finding.node, gpu=_gpu(finding.gpu, finding.node, case), basis=_node_basis(finding, case))
    victims = _victims(case, finding)
    anchor = finding.cited[0] if finding.cited else None
    edges = tuple(_edge(rank, event, anchor, finding) for rank, event in victims[:_MOST_EDGES])
    cited = _cited(finding, [event for _, event in victims[:_MOST_VICTIMS_CITED]])
    edges = tuple(edge for edge in edges if edge.evidence)
    return Verdict(
        failure_class=finding.failure_class,
        category=category,
        title=doc.title if doc else MEANING_OF[finding.failure_class],
        summary=explain.summary(finding, places, victims),
        scope=finding.scope,
        confidence=finding.confidence,
        job=snapshot.job,
        origin=single,
        origins=places if len(places) > 1 else (),
        hardware=_hardware(category, finding, case),
        fix=explain.fix(doc, case, finding),
        route=doc.route if doc else Route.NOBODY,
        requeue=doc.requeue if doc else Requeue.NO,
        evidence=tuple(_evidence(event) for event in cited),
        cascade=edges,
        alternatives=tuple(_alternative(s, case) for s in finding.others[:5]),
        gaps=tuple(dict.fromkeys([*snapshot.gaps, *clocks.gaps, *_missing(case, finding)])),
        timeline=tuple(event.id for event in sorted(cited, key=_moment) if event.when is not None),
        clocks=tuple((node, Interval(lo / 1e9, hi / 1e9)) for node, (lo, hi) in clocks.offsets().items()),
    )


def _moment(event: Event) -> tuple[int, int]:
    middle = (event.when.lo_ns + event.when.hi_ns) // 2 if event.when else 0
    return middle, event.sequence


def _place(rank: Rank, finding: Finding, case: Case) -> Place:
    if rank.recorded and rank.node:
        basis = f"rank {rank.rank} ran on {rank.node} by the task's record"
    elif rank.node and case.job.nodes == (rank.node,):
        basis = f"rank {rank.rank} by the output's own marks; {rank.node} is the job's only node"
    elif rank.node and rank.exit_event is not None and rank.exit_event.source is Source.SLURM:
        basis = f"rank {rank.rank} on {rank.node} by what srun printed"
    elif rank.dumped and not rank.heard:
        where = f"{rank.node} by where that lay" if rank.node else "its node is not known"
        basis = f"rank {rank.rank} by the name of its flight recorder's dump; {where}"
    elif rank.node:
        basis = f"rank {rank.rank} by the output's own marks; {rank.node} by where that output was captured"
    else:
        basis = f"rank {rank.rank} by the output's own marks; its node is not known"
    step = rank.step if rank.step != "local" else None
    return Place(step, rank.rank, rank.node, _gpu(finding.gpu, rank.node, case), basis)


def _gpu(pci: str | None, node: str | None, case: Case) -> GpuRef | None:
    if not pci:
        return None
    known = placement.gpu_at(case.nodes.get(node or ""), pci)
    return GpuRef(known.uuid or None, known.pci, known.index) if known else GpuRef(None, pci, None)


def _node_basis(finding: Finding, case: Case) -> str:
    kernel = next((e for e in finding.cited if e.source is Source.KERNEL), None)
    if kernel is not None:
        how = "collected by root" if kernel.evidence else "by the name of its file"
        return f"the kernel log of {finding.node}, {how}"
    known = finding.node in case.job.nodes
    return f"{finding.node} by the scheduler's record" if known else f"{finding.node} by the tasks' records"


def _victims(case: Case, finding: Finding) -> list[tuple[Rank, Event]]:
    """Return every other rank that failed, with the event that shows it best."""
    origin = {rank.rank for rank in finding.ranks}
    if finding.scope not in (Scope.RANK, Scope.GPU, Scope.NODE, Scope.RANKS) or not origin:
        return []
    aside = {id(event) for event, _ in finding.set_aside}
    found = []
    for rank in case.ranks.values():
        if rank.rank in origin:
            continue
        said = [*rank.of(Role.CASCADE), *rank.of(Role.ORIGIN), *rank.of(Role.TEARDOWN)]
        event = next((e for e in said if id(e) not in aside), rank.exit_event)
        if event is not None and (rank.failed or event is not rank.exit_event):
            found.append((rank, event))
    return found


def _edge(rank: Rank, event: Event, anchor: Event | None, finding: Finding) -> CascadeEdge:
    """State that this rank failed after the origin, as surely as the clocks allow.

    A rank's complaint is a consequence by its nature: it is likely even where the clocks decide nothing. Two ends of
    processes are likely only in the order of their times.
    """
    first = finding.first or (anchor.when if anchor else None)
    said = moved(event.when, event.waited_ns) if event.when is not None else None
    order, gap = (Order.LIKELY if event.role is Role.CASCADE else Order.UNDETERMINED), None
    if first is not None and said is not None:
        lo, hi = _gap_ms(first, said)
        if hi - lo < _VAGUE_NS / 1e6:
            gap = Interval(lo, hi)
        before = first.before(said)
        near = w.UNORDERED_ENDS_NS / 1e6
        if before is True:
            order = Order.CERTAIN
        elif before is False and hi < -near:
            # A peer may see a closed connection some milliseconds before the end is recorded, but not more.
            order = Order.UNDETERMINED
        elif before is None and lo > -near and hi > near:
            order = Order.LIKELY
    return CascadeEdge(rank.rank, rank.node, anchor.id if anchor else "", event.id, order, gap)


def _gap_ms(first: Instant, then: Instant) -> tuple[float, float]:
    if first.clock == then.clock:
        exact = (then.local_ns - first.local_ns) / 1e6
        return exact, exact
    return (then.lo_ns - first.hi_ns) / 1e6, (then.hi_ns - first.lo_ns) / 1e6


def _cited(finding: Finding, victims: Iterable[Event]) -> list[Event]:
    listed: dict[str, Event] = {}
    for event in (*finding.cited, *victims, *(e for e, _ in finding.set_aside[:5])):
        listed.setdefault(event.id, event)
    for suspect in finding.others[:5]:
        for event in suspect.cited[:1]:
            listed.setdefault(event.id, event)
    return list(listed.values())


def _evidence(event: Event) -> Evidence:
    time = None
    if event.when is not None and event.when.hi_ns - event.when.lo_ns < _VAGUE_NS:
        time = Interval(event.when.lo_ns / 1e9, event.when.hi_ns / 1e9)
    return Evidence(
        id=event.id,
        role=event.role,
        failure_class=event.failure_class,
        rank=event.rank,
        node=event.node,
        stream=str(event.source),
        time=time,
        text=_shortened(event.text),
        file=event.file,
        offset=event.offset,
    )


def _shortened(text: str) -> str:
    """Keep the end of a long message (a traceback's exception) and its first line."""
    if len(text) <= _LONGEST_TEXT:
        return text
    first = text.split("\n", 1)[0][:200]
    return f"{first}\n[...]\n{text[-(_LONGEST_TEXT - 220) :]}"


def _hardware(category: Category, finding: Finding, case: Case) -> Hardware:
    """Return how strongly hardware is accused; confirmed takes two instruments that root read.

    Those are the kernel's record and a GPU counter that rose with it (DESIGN 5). A GPU that is not the job's, or not
    known to be, confirms nothing.
    """
    if category is not Category.HARDWARE:
        return Hardware.NONE
    kernel = any(e.evidence and e.source is Source.KERNEL for e in finding.cited)
    node = case.nodes.get(finding.node or "")
    jobs = placement.is_jobs(node, placement.gpu_at(node, finding.gpu))
    if not kernel or node is None or not finding.gpu or jobs is not True:
        return Hardware.SUSPECTED
    if _counter_rose(node.nvml_before, node.nvml_after, finding.gpu):
        return Hardware.CONFIRMED
    return Hardware.SUSPECTED


def _counter_rose(before: Mapping[str, object] | None, after: Mapping[str, object] | None, pci: str) -> bool:
    """Tell whether an uncorrectable-error counter of the GPU rose, or the GPU is gone while others answer."""
    earlier, later = (before or {}).get("gpus"), (after or {}).get("gpus")
    if not isinstance(earlier, dict) or not isinstance(later, dict):
        return False
    for uuid, was in earlier.items():
        if not isinstance(was, dict) or not placement.same_pci(str(was.get("pci", "")), pci):
            continue
        now = later.get(uuid)
        if not isinstance(now, dict):
            return bool(later)
        return any(_number(now.get(name)) > _number(was.get(name), now.get(name)) for name in _COUNTERS)
    return False


def _number(value: object, default: object = 0) -> float:
    """Return a counter; where it was not read, what makes no difference of it."""
    number = value if isinstance(value, (int, float)) and not isinstance(value, bool) else default
    return float(number) if isinstance(number, (int, float)) else 0.0


def _alternative(suspect: Suspect, case: Case) -> Alternative:
    empty = Finding(suspect.failure_class, Scope.RANK, 0.0, "")
    against = [reason for weight, reason in suspect.reasons if weight < 0]
    why = explain.joined(against) if against else "the evidence for the origin is stronger"
    return Alternative(suspect.failure_class, _place(suspect.rank, empty, case), suspect.probability, why)


def _missing(case: Case, finding: Finding) -> Sequence[Gap]:
    """Return what was not there and would have helped; each with the one setting that closes it."""
    gaps = []
    recorded = any(rank.recorded for rank in case.ranks.values())
    if case.job.job_id and not recorded and finding.failure_class not in _NO_TASKS_NEEDED:
        what = "no task's own output was captured, so ranks are known only where the job's output names them"
        gaps.append(Gap(what, f"job {case.job.job_id}", "hooks/srun first on PATH"))
    unheard = [rank.rank for rank in case.ranks.values() if rank.recorded and not rank.heard]
    if unheard and finding.scope is not Scope.NONE:
        what = f"the output of rank {ranges(unheard)} was not captured: nothing follows from its silence"
        gaps.append(Gap(what, f"step {case.step}", "DENPEX_DISABLE unset, and spool_min_free met on those nodes"))
    if finding.failure_class == MISSING and finding.scope is not Scope.RANK:
        gaps.append(
            Gap("which rank did not come to the collective", "all ranks", "TORCH_FR_BUFFER_SIZE=2000 in the job")
        )
    return gaps
