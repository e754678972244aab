"""Every type and vocabulary that the parts of Denpex share; knows only the standard library.

Times: ``*_ns`` are integer nanoseconds. ``realtime_ns`` is the node's CLOCK_REALTIME (since 1970, as that
node believed), ``raw_ns`` its CLOCK_MONOTONIC_RAW (since that boot; never stepped or slewed). *Reference time* is
the time of the cluster's reference clock, in nanoseconds since 1970; an offset is ``reference - local``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Word(str, Enum):
    """A closed vocabulary whose members are, and print as, their own text (enum.StrEnum needs Python 3.11)."""

    def __str__(self) -> str:
        return str(self.value)


class Category(Word):
    """Whose kind of problem a failure is; a failure class belongs to exactly one."""

    HARDWARE = "hardware"
    ML_NUMERICAL = "ml_numerical"
    DATA_PIPELINE = "data_pipeline"
    ENVIRONMENT_CONFIGURATION = "environment_configuration"
    DISTRIBUTED_COMMUNICATION = "distributed_communication"
    NONE = "none"
    UNKNOWN = "unknown"


class Role(Word):
    """What a matched message says about the rank that printed it."""

    ORIGIN = "origin"  # evidence of a root cause at this place
    CASCADE = "cascade"  # a consequence of something elsewhere
    TEARDOWN = "teardown"  # noise of processes being ended
    ADVICE = "advice"  # text that advises; names no fact
    CONTEXT = "context"  # a fact that decides nothing alone
    PROGRESS = "progress"  # work went on


class Source(Word):
    """Which instrument an event comes from. Only ``kernel`` and ``nvml`` are collected by root.

    ``history`` is what these said in an earlier run.
    """

    TASK = "task"
    KERNEL = "kernel"
    SLURM = "slurm"
    NVML = "nvml"
    HISTORY = "history"


class Scope(Word):
    """What kind of thing the origin is."""

    RANK = "rank"
    RANKS = "ranks"  # several, or a tie set that the evidence does not separate
    NODE = "node"
    GPU = "gpu"
    LINK = "link"
    SERVICE = "service"
    JOB = "job"
    EXTERNAL = "external"
    NONE = "none"
    UNKNOWN = "unknown"


class Hardware(Word):
    """Whether the verdict accuses hardware, and on what strength (DESIGN 5)."""

    NONE = "none"
    SUSPECTED = "suspected"
    CONFIRMED = "confirmed"


class Route(Word):
    """The team that a verdict is for."""

    INFRASTRUCTURE = "infrastructure"
    TRAINING = "training"
    DATA = "data"
    ENVIRONMENT = "environment"
    NETWORK = "network"
    NOBODY = "nobody"


class Requeue(Word):
    """Whether running the job again makes sense."""

    YES = "yes"
    NO = "no"
    ELSEWHERE = "elsewhere"
    AFTER_FIX = "after_fix"


class Order(Word):
    """How sure an order claim between two events is, given the clocks' error bounds."""

    CERTAIN = "certain"
    LIKELY = "likely"
    UNDETERMINED = "undetermined"


class StreamKind(Word):
    """What a captured byte stream is."""

    OUT = "out"  # standard output of one task
    ERR = "err"  # standard error of one task
    BATCH = "batch"  # the job's output file: several programs' words in one file
    MIXED = "mixed"  # a log of unknown composition
    KERNEL = "kernel"  # a kernel log as text (dmesg, syslog)
    SLURM = "slurm"  # scheduler text (sacct, scontrol, slurmctld log)


@dataclass(frozen=True)
class Interval:
    """A closed range [lo, hi]; the unit is the field's own."""

    lo: float
    hi: float


@dataclass(frozen=True)
class Stamp:
    """One reading of a node's own clocks, nanoseconds; ``raw_ns`` is None where only REALTIME was read."""

    realtime_ns: int
    raw_ns: int | None = None


@dataclass(frozen=True)
class Instant:
    """A moment on a node: its local reading and the interval [lo_ns, hi_ns] of reference time that holds it.

    ``local_ns`` orders two instants of one node exactly; ``clock`` names the clock domain of ``local_ns`` (node
    and boot), so that readings of different domains are never compared.
    """

    clock: str
    local_ns: int
    lo_ns: int
    hi_ns: int

    def before(self, other: Instant) -> bool | None:
        """Return True or False where the order is certain, None where the error bounds leave it open."""
        if self.clock == other.clock and self.local_ns != other.local_ns:
            return self.local_ns < other.local_ns
        if self.hi_ns < other.lo_ns:
            return True
        if other.hi_ns < self.lo_ns:
            return False
        return None


@dataclass(frozen=True)
class Gap:
    """Something that was not captured or cannot be known: what, where, and the one setting that closes it."""

    what: str
    where: str
    closed_by: str


@dataclass(frozen=True)
class ClockSample:
    """One bounded measurement of a node's clock: ``reference - local`` lies in [lo_ns, hi_ns] at ``stamp``."""

    node: str
    method: str  # sntp, chronyc, adjtimex
    lo_ns: int
    hi_ns: int
    stamp: Stamp
    reference: str = ""  # "host:port" for sntp; "utc" for chronyc and adjtimex
    claimed: bool = False  # taken inside a task, as the job's user


@dataclass(frozen=True)
class Gpu:
    """One GPU as the driver lists it. ``index`` is NVML's, ``minor`` the /dev/nvidiaN number."""

    index: int
    minor: int | None
    pci: str
    uuid: str
    serial: str = ""
    model: str = ""


@dataclass(frozen=True)
class KernelRecord:
    """One kernel log record. ``evidence`` is True only for facility 0 from a source that root alone can write."""

    node: str
    stamp: Stamp
    text: str
    seq: int | None = None
    facility: int | None = None
    level: int | None = None
    source: str = ""  # kmsg, journald, file, text
    evidence: bool = False


@dataclass(frozen=True)
class NodeInfo:
    """What one node's bundle says about the node. ``done`` is False where no epilog finished."""

    name: str
    boot_id: str = ""
    opened_ns: int | None = None
    done: bool = False
    gpus: tuple[Gpu, ...] = ()
    job_gpus: tuple[str, ...] = ()  # as Slurm gave them: global indices or UUIDs
    nvml_before: Mapping[str, Any] | None = None
    nvml_after: Mapping[str, Any] | None = None
    slurm_version: str = ""
    driver_version: str = ""


@dataclass(frozen=True)
class TaskRecord:
    """One task (rank) of one step: where it ran and how it ended; None = not known.

    ``claimed`` records were written as the job's user: they may decide a diagnosis, never a confirmation.
    ``states`` are process states seen (R, S, D, T, Z of proc(5)), when they changed.
    """

    step: str
    rank: int
    node: str
    local_rank: int | None = None
    pid: int | None = None
    command: str = ""
    start: Stamp | None = None
    end: Stamp | None = None
    exit_code: int | None = None
    signal: int | None = None
    last_alive: Stamp | None = None  # the capturer still saw the process running then
    states: tuple[tuple[Stamp, str], ...] = ()
    forwarded_signals: tuple[tuple[Stamp, int], ...] = ()  # received by the wrapper and passed on
    gpus: tuple[str, ...] = ()
    full_disks: tuple[str, ...] = ()  # mount points without free space when the task failed
    launcher: bool = False  # starts several ranks itself (torchrun): its number, end and output are no one rank's
    claimed: bool = True


@dataclass(frozen=True)
class StreamInfo:
    """One captured stream. ``complete``: True captured to the end, False known to be cut, None not known."""

    name: str  # unique in the snapshot; shown as an evidence's file
    kind: StreamKind
    step: str | None = None
    rank: int | None = None
    node: str | None = None
    complete: bool | None = None
    size: int = 0


@dataclass(frozen=True)
class StreamData:
    """A stream's bytes with their receive times.

    ``index``: (offset, realtime_ns, raw_ns) per read, ascending; a byte's receive time is that of the last entry
    whose offset is not beyond it. ``pieces``: (position in data, offset in the stream) where a middle part
    was not kept; a single (0, 0) when nothing was cut.
    """

    data: bytes
    index: Sequence[tuple[int, int, int | None]] = ()
    pieces: tuple[tuple[int, int], ...] = ((0, 0),)
    fault: str = ""  # why the rest could not be read, "" where all was


@dataclass(frozen=True)
class StreamSource:
    """A stream that is read when its turn comes, so that a thousand need not be in memory at once."""

    info: StreamInfo
    load: Callable[[], StreamData]


@dataclass(frozen=True)
class Step:
    """One job step as accounting has it; ``id`` is "0", "batch", "extern"; exits are "code:signal"."""

    id: str
    name: str = ""
    state: str = ""
    exit: str = ""
    derived: str = ""
    start: float | None = None
    end: float | None = None
    nodes: tuple[str, ...] = ()
    ntasks: int | None = None


@dataclass(frozen=True)
class Job:
    """What the scheduler says about one run of a job. Times are seconds since 1970 by the controller's clock."""

    job_id: str | None = None
    cluster: str | None = None
    restart: int | None = None
    array_job: str | None = None
    array_task: str | None = None
    het_job: str | None = None
    het_offset: str | None = None
    name: str = ""
    user: str = ""
    uid: int | None = None
    account: str = ""
    partition: str = ""
    qos: str = ""
    state: str = ""  # Slurm's base state word, e.g. FAILED; "" outside Slurm
    exit: str = ""  # "code:signal"
    derived: str = ""  # highest exit of all steps, "code:signal"
    submit: float | None = None
    start: float | None = None
    end: float | None = None
    time_limit_s: int | None = None
    nodes: tuple[str, ...] = ()
    work_dir: str = ""
    cancelled_by: int | None = None  # uid
    steps: tuple[Step, ...] = ()
    command: str = ""


class FlightCall(NamedTuple):
    """One collective as a rank's flight recorder has it.

    ``call`` is what all ranks must agree on: operation, element type, and the number of elements where that may not
    differ. ``created_ns`` is REALTIME of the rank's node when it was enqueued; ``done``: it is known to have completed.
    """

    seq: int
    call: str
    created_ns: int
    done: bool
    record: int  # the entry's record_id


@dataclass(frozen=True)
class FlightGroup:
    """The last collectives of one process group on one rank, ascending by ``seq``, one for each.

    ``ranks`` are the members, () where the dump does not say. ``counted`` is False where point-to-point calls share the
    numbers of the collectives, so that ranks cannot be compared by them.
    """

    name: str
    desc: str
    calls: tuple[FlightCall, ...]
    ranks: tuple[int, ...] = ()
    counted: bool = True


@dataclass(frozen=True)
class FlightDump:
    """What one rank's flight recorder (PyTorch) held when it was dumped.

    ``last_ns`` is the last time in it, ``written_ns`` the file's own (None: not known); both REALTIME. ``from_start``:
    the recorder has lost nothing yet, so that a group that is not in it has had no collective. ``sends``: the rank was,
    or may have been, waiting in a point-to-point call.
    """

    rank: int
    file: str
    groups: tuple[FlightGroup, ...]
    last_ns: int
    written_ns: int | None = None
    step: str | None = None
    node: str | None = None
    library: str = ""  # nccl, gloo
    from_start: bool = False
    sends: bool = False


@dataclass(frozen=True)
class PastFault:
    """A hardware fault of one GPU in an earlier run, that the kernel or NVML told of there."""

    failure_class: str
    node: str
    gpu: str  # UUID
    job_id: str
    ended: float  # seconds since 1970


@dataclass(frozen=True)
class Snapshot:
    """Everything that is known about one run, from whatever input: what ingest returns and the engine reads."""

    job: Job = Job()
    nodes: tuple[NodeInfo, ...] = ()
    tasks: tuple[TaskRecord, ...] = ()
    clock: tuple[ClockSample, ...] = ()
    kernel: tuple[KernelRecord, ...] = ()
    streams: tuple[StreamSource, ...] = ()
    gaps: tuple[Gap, ...] = ()
    flight: tuple[FlightDump, ...] = ()
    history: tuple[PastFault, ...] = ()


@dataclass(frozen=True)
class Record:
    """One message of a stream: a line, or a folded traceback or report, with prefixes peeled off.

    ``rank`` is the rank whose message it is (from the task, else from a prefix), ``stamp`` the receive time,
    ``printed_ns`` the time that the program itself printed (REALTIME of its node), ``offset`` the position
    in the stream.
    """

    text: str
    stream: str
    offset: int
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    step: str | None = None
    stamp: Stamp | None = None
    printed_ns: int | None = None
    source: Source = Source.TASK
    evidence: bool = False  # kernel records that root collected (KernelRecord.evidence)


@dataclass(frozen=True)
class Event:
    """One matched message or scheduler fact, on the timeline. ``id`` ("e7") is what a verdict cites.

    ``when`` is None where no time is known. ``sequence`` orders events of one stream.
    """

    id: str
    role: Role
    source: Source
    text: str
    failure_class: str | None = None
    pattern: str | None = None
    step: str | None = None
    rank: int | None = None
    node: str | None = None
    gpu: str | None = None  # PCI bus id as printed
    when: Instant | None = None
    waited_ns: int = (
        0  # how much before the message itself ``when`` lies: it tells of a wait, and is placed at its onset
    )
    sequence: int = 0
    file: str = ""
    offset: int = 0
    fields: Mapping[str, str] = field(default_factory=dict)
    recovers: bool = False  # later progress of the same rank proves that this was survived
    evidence: bool = False  # collected by root
    precedence: int = 0  # of two origins on one rank the higher explains the lower


@dataclass(frozen=True)
class GpuRef:
    """Which GPU an origin is."""

    uuid: str | None = None
    pci: str | None = None
    index: int | None = None


@dataclass(frozen=True)
class Place:
    """Where something failed. ``basis`` says in words how the place is known."""

    step: str | None = None
    rank: int | None = None
    node: str | None = None
    gpu: GpuRef | None = None
    basis: str = ""


@dataclass(frozen=True)
class Fix:
    """What to do: prose, and a command with only scheduler- or root-collected values in it ("" = none)."""

    text: str = ""
    command: str = ""


@dataclass(frozen=True)
class Evidence:
    """One cited fact. ``time`` is in seconds since 1970 of reference time."""

    id: str
    role: Role
    failure_class: str | None
    rank: int | None
    node: str | None
    stream: str
    time: Interval | None
    text: str
    file: str
    offset: int


@dataclass(frozen=True)
class CascadeEdge:
    """One consequence: this rank failed after ``after`` (an evidence id), with the delay's bounds in ms."""

    rank: int | None
    node: str | None
    after: str
    evidence: str
    order: Order
    gap_ms: Interval | None


@dataclass(frozen=True)
class Alternative:
    """An explanation that was considered and lost."""

    failure_class: str
    origin: Place | None
    confidence: float
    why_not: str


@dataclass(frozen=True)
class Verdict:
    """The answer about one run. ``to_json`` is the public form, whose keys are only ever added to."""

    failure_class: str
    category: Category
    title: str
    summary: str
    scope: Scope
    confidence: float
    job: Job = Job()
    origin: Place | None = None
    origins: tuple[Place, ...] = ()  # the tie set; then ``origin`` is None
    hardware: Hardware = Hardware.NONE
    fix: Fix = Fix()
    route: Route = Route.NOBODY
    requeue: Requeue = Requeue.NO
    evidence: tuple[Evidence, ...] = ()
    cascade: tuple[CascadeEdge, ...] = ()
    alternatives: tuple[Alternative, ...] = ()
    gaps: tuple[Gap, ...] = ()
    timeline: tuple[str, ...] = ()
    clocks: tuple[tuple[str, Interval], ...] = ()  # node -> (reference - local) in seconds at the job's end
    source: str = "rules"
    silent: bool = False
    revision: int = 1

    def to_json(self) -> dict[str, Any]:
        """Return the document that ``--json`` prints (format 1)."""
        job = self.job
        return {
            "format": 1,
            "cluster": job.cluster,
            "job_id": job.job_id,
            "array": {"job": job.array_job, "task": job.array_task},
            "restart": job.restart,
            "revision": self.revision,
            "state": job.state or None,
            "silent": self.silent,
            "category": str(self.category),
            "failure_class": self.failure_class,
            "title": self.title,
            "confidence": round(self.confidence, 3),
            "source": self.source,
            "scope": str(self.scope),
            "steps": [
                {"id": s.id, "name": s.name, "state": s.state, "exit": s.exit, "derived": s.derived} for s in job.steps
            ],
            "origin": _place(self.origin),
            "origins": [_place(p) for p in self.origins],
            "hardware": str(self.hardware),
            "summary": self.summary,
            "fix": {"text": self.fix.text, "command": self.fix.command},
            "route": str(self.route),
            "requeue": str(self.requeue),
            "evidence": [
                {
                    "id": e.id,
                    "role": str(e.role),
                    "class": e.failure_class,
                    "rank": e.rank,
                    "node": e.node,
                    "stream": e.stream,
                    "time": _interval(e.time, 6),
                    "text": e.text,
                    "file": e.file,
                    "offset": e.offset,
                }
                for e in self.evidence
            ],
            "cascade": [
                {
                    "rank": c.rank,
                    "node": c.node,
                    "after": c.after,
                    "evidence": c.evidence,
                    "order": str(c.order),
                    "gap_ms": _interval(c.gap_ms, 3),
                }
                for c in self.cascade
            ],
            "alternatives": [
                {
                    "failure_class": a.failure_class,
                    "origin": _place(a.origin),
                    "confidence": round(a.confidence, 3),
                    "why_not": a.why_not,
                }
                for a in self.alternatives
            ],
            "gaps": [{"what": g.what, "where": g.where, "closed_by": g.closed_by} for g in self.gaps],
            "timeline": list(self.timeline),
            "clocks": [{"node": node, "offset_s": _interval(offset, 6)} for node, offset in self.clocks],
            "job": {
                "name": job.name,
                "user": job.user,
                "account": job.account,
                "partition": job.partition,
                "nodes": list(job.nodes),
                "start": job.start,
                "end": job.end,
                "exit": job.exit or None,
                "derived": job.derived or None,
                "het_job": job.het_job,
                "het_offset": job.het_offset,
            },
        }


def _interval(value: Interval | None, digits: int) -> dict[str, float] | None:
    return None if value is None else {"lo": round(value.lo, digits), "hi": round(value.hi, digits)}


def _place(place: Place | None) -> dict[str, Any] | None:
    if place is None:
        return None
    gpu = place.gpu
    return {
        "step": place.step,
        "rank": place.rank,
        "node": place.node,
        "gpu": None if gpu is None else {"uuid": gpu.uuid, "pci": gpu.pci, "index": gpu.index},
        "basis": place.basis,
    }


@dataclass(frozen=True)
class ClassDoc:
    """What patterns/<category>/<id>.yaml says of a failure class; ``command`` and ``fix`` may hold jinja2."""

    id: str
    category: Category
    title: str
    meaning: str
    mechanism: str
    symptoms: tuple[str, ...]
    not_from: tuple[str, ...]  # what this must not be concluded from
    fix: tuple[str, ...]
    command: str
    route: Route
    requeue: Requeue
    drain: str  # no | conditional
    drain_condition: str
    references: tuple[str, ...]
    triggers: tuple[str, ...] = ()
    triggered_by: tuple[str, ...] = ()


@dataclass(frozen=True)
class Example:
    """A message that a pattern must (or must not) match, with the fields it must yield."""

    text: str
    fields: Mapping[str, str] = field(default_factory=dict)
    why: str = ""


@dataclass(frozen=True)
class Pattern:
    """One distinguishable signature that is evidence of a failure class; see patterns/SCHEMA.md."""

    id: str
    failure_class: str
    role: Role
    source: Source
    expressions: tuple[str, ...]
    tier: str  # A public report or log, B vendor table, C emitting code
    reference: str
    match: tuple[Example, ...]
    no_match: tuple[Example, ...]
    onset: str | None = None  # the field holding how many ms earlier it began
    companions: tuple[str, ...] = ()  # expressions, one of which must occur in the same record
    exclusions: tuple[str, ...] = ()  # expressions, none of which may occur in the same record
    yields_to: tuple[str, ...] = ()  # pattern ids that explain this one where both fire on one record
    recovers: bool = False
    versions: str = ""


@dataclass(frozen=True)
class Match:
    """One pattern found in one record, with the values of its named fields."""

    record: Record
    pattern: Pattern
    fields: Mapping[str, str]


@dataclass(frozen=True)
class Library:
    """All failure classes (by id) and patterns (in file order) of a patterns/ tree."""

    classes: Mapping[str, ClassDoc]
    patterns: tuple[Pattern, ...]
