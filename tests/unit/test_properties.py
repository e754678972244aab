"""What must hold for any input: no line is lost, no order is claimed that is not so, no rank is accused of nothing."""

from __future__ import annotations

import random
import re
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from denpex import library
from denpex.diagnose import diagnose
from denpex.engine import records
from denpex.engine.clock import Clocks
from denpex.model import (
    ClockSample,
    NodeInfo,
    Snapshot,
    Stamp,
    StreamData,
    StreamInfo,
    StreamKind,
    StreamSource,
    Verdict,
)
from tests.unit import runs, scenes
from tests.unit.runs import START, S

MS = 10**6
few = settings(max_examples=50, deadline=None, derandomize=True)
some = settings(max_examples=200, deadline=None, derandomize=True)

LIBRARY = library.load()
MATCHER = library.matcher(LIBRARY)


# Records.

# Beginnings of messages of several lines, parts of them, and prefixes: what decides where a line goes.
LINES = (
    b"Traceback (most recent call last):", b'  File "/x/train.py", line 3, in main', b"    loss.backward()",
    b"ValueError: bad", b"RuntimeError: CUDA error: device-side assert", b"During handling of the above exception, an",
    b"terminate called after throwing", b"  what():  NCCL error", b"=" * 40, b"train.py FAILED", b"[0]:",
    b"Root Cause (first observed failure):", b"  rank      : 3 (local_rank: 3)", b"Fatal Python error: Aborted",
    b"[E ProcessGroupNCCL.cpp:458] [Rank 7] bad", b"NVRM: The NVIDIA GPU 0000:3b:00.0", b"NVRM: x", b"", b" ", b"\t|",
    b"[rank3]:", b"[rank4]: Traceback (most recent call last):", b"[rank4]: OSError: x", b"3: x", b"n7: x",
    b"[1,2]<stderr>:", b"(pid=42) x", b"10%|#| 3/9 [00:01<00:02, 1.5it/s]", b"\x1b[31mred\x1b[0m",
    b"Detected mismatch between collectives",
    b"Exception ignored in: <f>", b"INFO step 3 loss 0.1", b"[ 12.345678] x", b"<4>[ 1.5] kernel", b"\xff\xfe\x00\xc3",
)  # fmt: skip
KINDS = st.sampled_from([StreamKind.OUT, StreamKind.ERR, StreamKind.BATCH, StreamKind.MIXED, StreamKind.KERNEL])
ranks_ = st.one_of(st.none(), st.integers(0, 9))
# A line that begins an escape may hide what follows it; one that is cut short does so on purpose.
noise = st.binary(max_size=40).map(lambda data: re.sub(rb"[\n\r\x1b#]", b"?", data))


@some
@given(
    st.lists(st.one_of(st.sampled_from(LINES), noise), max_size=60), KINDS, ranks_, st.sampled_from([b"\n", b"\r\n"])
)
def test_every_line_is_in_one_record(lines, kind, rank, end):
    data = b"".join(line + b" #%d#" % number + end for number, line in enumerate(lines))
    found = records.split(StreamInfo("s", kind, "0", rank), StreamData(data))
    text = "\n".join(record.text for record in found)
    assert sorted(int(number) for number in re.findall(r"#(\d+)#", text)) == list(range(len(lines)))
    offsets = [record.offset for record in found]
    assert offsets == sorted(offsets)
    starts = {m.end() for m in re.finditer(rb"\n", data)} | {0}
    assert set(offsets) <= starts


@some
@given(
    st.lists(
        st.one_of(st.binary(max_size=80), st.sampled_from([*LINES, b"\n", b"\r", b"\x1b]0;", b"\n\n"])), max_size=60
    ),
    KINDS,
    ranks_,
    st.lists(st.tuples(st.integers(0, 4000), st.integers(-(1 << 62), 1 << 62)), max_size=9),
    st.booleans(),
)
def test_no_bytes_break_a_stream_and_positions_and_times_ascend(parts, kind, rank, reads, long):
    data = b"".join(parts) + (b"INFO step 1 loss 0.1\n" * 3000 + b"".join(parts) if long else b"")
    index = [(at, number, number) for number, at in enumerate(sorted(at for at, _ in reads))]
    info = StreamInfo("s", kind, "0", rank)
    found = records.split(info, StreamData(data, tuple(index)), MATCHER.find if long else None)
    offsets = [record.offset for record in found]
    assert offsets == sorted(offsets)
    assert not offsets or 0 <= offsets[-1] < len(data)
    times = [record.stamp.raw_ns for record in found if record.stamp]
    assert times == sorted(times)
    MATCHER.match(found)


# Clocks.


class Node:
    """A node whose two clocks run at rates of their own; ``t`` is the true time, ns after START."""

    def __init__(self, number, offset, drift_ppm, slew_ppm, boot_s):
        self.name = f"n{number}"
        self.offset, self.drift, self.slew, self.boot = offset, drift_ppm * 1e-6, slew_ppm * 1e-6, boot_s * S

    def read(self, t, raw=True):
        """Return what its clocks read; REALTIME is slewed against RAW."""
        since = self.boot + t + int(t * self.drift)
        return Stamp(START * S + t + self.offset + int(t * (self.drift + self.slew)), since if raw else None)

    def sample(self, t, before, after, method, ahead):
        """Return a measurement whose bounds hold the truth; UTC is ``ahead`` of the reference."""
        stamp = self.read(t)
        true = START * S + t - stamp.realtime_ns + (ahead if method != "sntp" else 0)
        reference = "ctl:123" if method == "sntp" else "utc"
        return ClockSample(
            self.name, method, true - before - 1, true + after + 1, stamp, reference, method == "adjtimex"
        )


nodes_ = st.lists(
    st.tuples(st.integers(-3600 * S, 3600 * S), st.floats(-90, 90), st.floats(-500, 500), st.integers(1, 10**7)),
    min_size=1,
    max_size=4,
).map(lambda listed: [Node(number, *values) for number, values in enumerate(listed)])
wide = st.integers(0, 30 * MS)
# Some moments lie close together, in between and at the times of measurements.
time_ = st.one_of(st.integers(0, 7200 * S), st.integers(-300 * MS, 300 * MS).map(lambda t: 3600 * S + t), st.just(0))
measured_ = st.lists(
    st.tuples(st.integers(0, 3), time_, wide, wide, st.sampled_from(["sntp", "chronyc", "adjtimex"])), max_size=14
)


@some
@given(nodes_, measured_, st.lists(st.tuples(st.integers(0, 3), time_, st.booleans()), max_size=10), st.integers(0, S))
def test_a_clock_holds_the_truth_and_never_orders_two_moments_wrongly(nodes, measured, moments, ahead):
    samples = [nodes[i % len(nodes)].sample(t, lo, hi, method, ahead) for i, t, lo, hi, method in measured]
    known = Clocks(samples, tuple(NodeInfo(node.name, boot_id="b") for node in nodes))
    seen = []
    for i, t, raw in moments:
        node = nodes[i % len(nodes)]
        when = known.instant(node.name, node.read(t, raw))
        assert when.lo_ns <= when.hi_ns
        if known.measured(node.name):
            seen.append((t, when))
    # All are told in one time: that of the reference, or UTC where more nodes know that.
    assert any(all(a.lo_ns <= START * S + t + shift <= a.hi_ns for t, a in seen) for shift in (0, ahead))
    for true_a, a in seen:
        for true_b, b in seen:
            said = a.before(b)
            assert said is None or true_a == true_b or said == (true_a < true_b)


# The verdict.

FAILURES = ("exception", "killed", "stopped", "memory", "disk_full")
NOBODY = ("retried", "time_limit", "cancelled", "scared")
skews = st.dictionaries(st.integers(0, 3), st.integers(-60, 60), max_size=4)


def engine(snapshot: Snapshot) -> Verdict:
    return diagnose(snapshot, LIBRARY, MATCHER)


def named(verdict: Verdict) -> tuple[str, int | None, list[int | None]]:
    return (
        verdict.failure_class,
        verdict.origin.rank if verdict.origin else None,
        sorted((place.rank for place in verdict.origins), key=str),
    )


def shuffled(snapshot: Snapshot, seed: int) -> Snapshot:
    """Return the same facts in another order, that within a node's kernel log excepted."""
    draw = random.Random(seed)

    def mixed(items):
        return tuple(draw.sample(items, len(items)))

    return replace(
        snapshot, nodes=mixed(snapshot.nodes), tasks=mixed(snapshot.tasks), clock=mixed(snapshot.clock),
        streams=mixed(snapshot.streams), gaps=mixed(snapshot.gaps),
    )  # fmt: skip


def renamed(snapshot: Snapshot, names: dict[str, str]) -> Snapshot:
    """Return the run on nodes of other names, also where Slurm's own words name them."""

    def words(text: str) -> str:
        return re.sub(r"\bn[1-4]\b", lambda match: names[match[0]], text)

    def stream(source: StreamSource) -> StreamSource:
        info = replace(source.info, name=words(source.info.name), node=names[source.info.node])
        data = source.load()
        if not data.index:  # else positions would move under their times; ranks do not name nodes
            data = replace(data, data=words(data.data.decode()).encode())
        return StreamSource(info, lambda: data)

    job = snapshot.job
    return replace(
        snapshot,
        job=replace(
            job,
            nodes=tuple(names[node] for node in job.nodes),
            steps=tuple(replace(step, nodes=tuple(names[node] for node in step.nodes)) for step in job.steps),
        ),
        nodes=tuple(replace(node, name=names[node.name]) for node in snapshot.nodes),
        tasks=tuple(replace(task, node=names[task.node]) for task in snapshot.tasks),
        clock=tuple(replace(sample, node=names[sample.node]) for sample in snapshot.clock),
        kernel=tuple(replace(entry, node=names[entry.node], text=words(entry.text)) for entry in snapshot.kernel),
        streams=tuple(map(stream, snapshot.streams)),
    )


def healthy(verdict: Verdict) -> None:
    """Check what every verdict keeps to."""
    assert 0 <= verdict.confidence <= 1
    assert all(0 <= other.confidence <= 1 for other in verdict.alternatives)
    ids = {fact.id for fact in verdict.evidence}
    assert {edge.after for edge in verdict.cascade} | {edge.evidence for edge in verdict.cascade} <= ids
    assert set(verdict.timeline) <= ids


@few
@given(st.sampled_from(FAILURES + NOBODY), skews, st.integers(0, 1 << 30))
def test_the_order_of_the_facts_does_not_change_the_verdict(name, skew, seed):
    snapshot = getattr(scenes, name)(skew=skew).snapshot()
    said = engine(snapshot)
    healthy(said)
    assert named(engine(shuffled(snapshot, seed))) == named(said)


node_names = st.lists(
    st.from_regex(r"[a-z]{1,4}(-[a-z]{1,3})?[0-9]{1,3}", fullmatch=True), min_size=4, max_size=4, unique=True
)


@few
@given(st.sampled_from(FAILURES + NOBODY), skews, node_names)
def test_the_names_of_the_nodes_do_not_change_the_verdict(name, skew, others):
    names = dict(zip(("n1", "n2", "n3", "n4"), others, strict=True))
    snapshot = getattr(scenes, name)(skew=skew).snapshot()
    said, again = engine(snapshot), engine(renamed(snapshot, names))
    assert named(again) == named(said)
    assert (again.origin and again.origin.node) == (said.origin and names[said.origin.node])


@few
@given(st.sampled_from(FAILURES), st.integers(0, 5), st.integers(2, 6), skews)
def test_whichever_rank_it_is_it_is_named(name, rank, ranks, skew):
    rank %= ranks
    said = engine(getattr(scenes, name)(rank=rank, ranks=ranks, skew=skew).snapshot())
    healthy(said)
    assert named(said)[1] == rank, said.summary


@few
@given(st.sampled_from(NOBODY), st.integers(3, 10), st.integers(1, 4), skews)
def test_more_healthy_ranks_accuse_nobody(name, ranks, per_node, skew):
    said = engine(getattr(scenes, name)(ranks=ranks, per_node=per_node, skew=skew).snapshot())
    healthy(said)
    assert (said.origin, said.origins) == (None, ()), said.summary


HEALTHY = (
    "INFO step {n} loss 0.{n}", "2026-12-01 12:53:03,{n:03} INFO iteration {n}/ 500000 | lm loss: 1.5E-01 |", "",
    "UserWarning: torch.utils.checkpoint: the use_reentrant parameter should be passed explicitly. ({n})",
    "INFO checkpoint {n} saved", "n1:10:20 [0] NCCL INFO Connected all rings",
    "{n}%|##| {n}/100 [00:01<00:02, 1.5it/s]",
    "INFO no error, 0 failures, 0 NaN in {n} batches", "WARNING retrying download ({n}/5)", "DEBUG gc: {n} objects",
)  # fmt: skip


@few
@given(
    st.lists(st.lists(st.tuples(st.sampled_from(HEALTHY), st.integers(0, 999)), max_size=30), min_size=1, max_size=6),
    st.booleans(),
)
def test_healthy_logs_alone_accuse_nobody(logs, numbered):
    streams = []
    for rank, said in enumerate(logs):
        data = StreamData("".join(text.format(n=n) + "\n" for text, n in said).encode())
        info = StreamInfo(
            f"{rank}.log", StreamKind.OUT if numbered else StreamKind.MIXED, None, rank if numbered else None
        )
        streams.append(StreamSource(info, lambda data=data: data))
    said = engine(Snapshot(streams=tuple(streams)))
    healthy(said)
    assert (said.origin, said.origins) == (None, ()), said.summary


# What a scene's rank is; what it did not do must not be said of another, whatever was not captured.
LOST = ("lost_streams", "lost_tasks", "cut")
losses = st.fixed_dictionaries({name: st.sets(st.integers(0, 3)) for name in LOST})


@few
@given(st.sampled_from(FAILURES), st.integers(0, 3), losses, st.booleans(), st.booleans(), skews)
def test_what_was_not_captured_accuses_no_other_rank(name, rank, lost, samples, kernel, skew):
    run: runs.Run = getattr(scenes, name)(rank=rank, skew=skew)
    for what, of in lost.items():
        setattr(run, what, of)
    run.samples = samples
    if not kernel:
        run.kernel = []
    said = engine(run.snapshot())
    healthy(said)
    assert said.origin is None or said.origin.rank in (None, rank), said.summary


SAID = [example.text for pattern in LIBRARY.patterns for example in pattern.match]


@few
@given(
    st.sampled_from(FAILURES + NOBODY),
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 60), st.sampled_from(SAID)), max_size=12),
    skews,
)
def test_whatever_ranks_say_a_verdict_is_whole(name, more, skew):
    run = getattr(scenes, name)(skew=skew)
    for rank, at, text in more:
        run.say(rank, at, text)
    snapshot = run.snapshot()
    said = engine(snapshot)
    healthy(said)
    assert named(engine(shuffled(snapshot, len(more)))) == named(said)
