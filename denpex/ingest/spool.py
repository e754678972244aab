"""Joins the run directories that the nodes left of one run (hooks/SPOOL.md) into a Snapshot."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from denpex import spool as contract
from denpex.errors import InputError
from denpex.hostlist import expand, ranges
from denpex.ingest import flight, streams
from denpex.ingest.lines import Object, Reader, integer, stamp, text, texts
from denpex.ingest.tasks import Tasks
from denpex.ingest.tree import Blob, Tree, display, walk
from denpex.model import (
    ClockSample,
    FlightDump,
    Gap,
    Gpu,
    Job,
    KernelRecord,
    NodeInfo,
    Snapshot,
    StreamData,
    StreamInfo,
    StreamKind,
    StreamSource,
)

_NEAR_GAPS = 16  # missing nodes named one by one; more are one gap
_MAX_GAPS = 1000

_STREAM = re.compile(r"(?P<step>[A-Za-z0-9_+-]{1,40})\.(?P<rank>\d{1,6})\.(?P<kind>out|err)")
_FLIGHT_STEP = re.compile(r"([A-Za-z0-9+-]{1,40})\.rank_\d")
_HOOKS = "the prolog and epilog hooks on that node, and a spool that the worker can reach"


@dataclass
class _Bundle:
    """One node's run directory while it is read."""

    reader: Reader
    meta: Object
    uid: int | None

    @property
    def node(self) -> str:
        return self.reader.node


def read(bundles: Sequence[Path], job: Job) -> Snapshot:
    """Read one run's directories, one per node.

    What ``job`` leaves open (all of it outside Slurm) is filled from the bundles. Streams are read when their turn
    comes; their ``load`` raises InputError where the file has gone since. Anything missing, torn or refused is a
    gap. Raises InputError where a directory cannot be listed at all.
    """
    found = []
    for path in bundles:
        try:
            meta = walk(path).below("").blobs.get(contract.META)
            owners = {0, os.geteuid(), path.stat().st_uid}
        except OSError as error:
            raise InputError(f"the run directory {display(str(path))} cannot be read: {error.strerror}") from error
        uid = None if meta is None or meta.owner not in owners else _uid(meta)
        tree = walk(path, owners=frozenset(owners | ({uid} if uid is not None else set())))
        found.append((path.absolute().parent.name, tree))
    return read_trees(found, job)


def read_trees(trees: Sequence[tuple[str, Tree]], job: Job) -> Snapshot:
    """As `read`, for files that a Tree holds; each with the node that its place in the spool says ("" unknown)."""
    bundles = [_open(place, tree, job, number) for number, (place, tree) in enumerate(trees)]
    tasks = Tasks()
    for path, claimed in ((contract.TASKS, False), (f"{contract.USER}/{contract.CLAIMS}", True)):
        for bundle in bundles:
            tasks.add(bundle.node, bundle.reader.lines(path), claimed=claimed)
    nodes = tuple(_node(bundle) for bundle in bundles)
    clock = tuple(sample for bundle in bundles for sample in _clock(bundle))
    kernel = tuple(record for bundle in bundles for record in _kernel(bundle))
    launchers = tasks.launchers()
    sources = tuple(source for bundle in bundles for source in _streams(bundle, launchers))
    job = _filled(job, bundles)
    dumps = tuple(dump for bundle in bundles for dump in _flight(bundle))
    gaps = [gap for bundle in bundles for gap in _gaps(bundle)]
    gaps += [*tasks.gaps, *tasks.missing(), *_absent(job, {bundle.node for bundle in bundles})]
    if len(gaps) > _MAX_GAPS:
        gaps[_MAX_GAPS:] = [Gap(f"{len(gaps) - _MAX_GAPS} more gaps are not listed", "the spool", "the ones above")]
    return Snapshot(job, nodes, tasks.records(), clock, kernel, sources, tuple(dict.fromkeys(gaps)), dumps)


def _uid(meta: Blob) -> int | None:
    return integer(Reader("", Tree({contract.META: meta})).document(contract.META) or {}, "uid")


def _open(place: str, tree: Tree, job: Job, number: int) -> _Bundle:
    """Read meta.json and settle which node speaks: the spool's directory name, where it is one of the job's."""
    reader = Reader(place, tree, list(tree.gaps))
    meta = reader.document(contract.META) or {}
    named = text(meta, "node")
    if not contract.is_safe_name(named):
        named = ""
        reader.gap("meta.json does not name its node", _HOOKS)
    node = place if place in job.nodes else named or (place if contract.is_safe_name(place) else f"node{number}")
    reader.node = node
    if named and named != node:
        reader.gap(f"the run directory says that it is of node {named}", "one spool directory per node name")
    return _Bundle(reader, meta, integer(meta, "uid"))


def _node(bundle: _Bundle) -> NodeInfo:
    meta, reader = bundle.meta, bundle.reader
    done = reader.blob(contract.DONE) is not None
    if not done:
        reader.gap("the node's epilog did not finish: what it captures last is missing", _HOOKS)
    listed = meta.get("gpus")
    gpus = [gpu for gpu in map(_gpu, listed[:256]) if gpu] if isinstance(listed, list) else []
    return NodeInfo(
        name=bundle.node,
        boot_id=text(meta, "boot_id", 64),
        opened_ns=integer(meta, "opened_ns"),
        done=done,
        gpus=tuple(gpus),
        job_gpus=texts(meta, "job_gpus"),
        nvml_before=reader.document(contract.NVML_BEFORE),
        nvml_after=reader.document(contract.NVML_AFTER),
        slurm_version=text(meta, "slurm_version", 64),
        driver_version=text(meta, "driver_version", 64),
    )


def _gpu(record: Any) -> Gpu | None:
    index = integer(record, "index") if isinstance(record, dict) else None
    if index is None:
        return None
    return Gpu(
        index=index,
        minor=integer(record, "minor"),
        pci=text(record, "pci", 64),
        uuid=text(record, "uuid", 128),
        serial=text(record, "serial", 64),
        model=text(record, "model", 128),
    )


def _clock(bundle: _Bundle) -> Iterator[ClockSample]:
    claims = f"{contract.USER}/{contract.CLAIMS}"
    for path, claimed in ((contract.CLOCK, False), (claims, True)):
        # The claims were counted for torn lines when the tasks were read.
        reader = bundle.reader if not claimed else Reader(bundle.node, bundle.reader.tree)
        for record in reader.lines(path):
            if claimed and record.get("event") != "clock":
                continue
            when, low, high = stamp(record), integer(record, "lo_ns"), integer(record, "hi_ns")
            if when is None or low is None or high is None or low > high:
                bundle.reader.gap(f"{path}: a clock sample without a range was passed over", _HOOKS)
                continue
            yield ClockSample(
                bundle.node, text(record, "method", 20), low, high, when, text(record, "reference", 256), claimed
            )


def _kernel(bundle: _Bundle) -> Iterator[KernelRecord]:
    blob = bundle.reader.blob(contract.KERNEL)
    # Evidence is what root wrote; fetched copies belong to whoever fetched them, archives to nobody (-1).
    trusted = blob is not None and blob.owner in (0, os.geteuid(), -1) and blob.owner != (bundle.uid or None)
    for record in bundle.reader.lines(contract.KERNEL):
        when = stamp(record)
        if when is None:
            bundle.reader.gap("a kernel record without a time was passed over", _HOOKS)
            continue
        facility = integer(record, "facility")
        yield KernelRecord(
            node=bundle.node,
            stamp=when,
            text=text(record, "text"),
            seq=integer(record, "seq"),
            facility=facility,
            level=integer(record, "level"),
            source=text(record, "source", 20),
            evidence=trusted and record.get("evidence") is True and facility == 0,
        )


def _streams(bundle: _Bundle, launchers: set[tuple[str, int]]) -> Iterator[StreamSource]:
    """Yield the node's streams; where the plugin and the wrapper both captured one, the plugin's."""
    blobs = bundle.reader.tree.blobs
    taken: set[str] = set()
    open_: dict[str, list[int]] = {}
    for folder in (contract.TASK_STREAMS, f"{contract.USER}/{contract.USER_STREAMS}"):
        for path in sorted(path for path in blobs if path.startswith(folder + "/")):
            name = path[len(folder) + 1 :]
            match = _STREAM.fullmatch(name)
            if name in taken or not (match or name in ("batch.out", "batch.err")):
                continue
            taken.add(name)
            source = _stream(bundle, path, name, match, launchers)
            if source is None:
                continue
            yield source
            if match and source.info.complete is False:
                open_.setdefault(match["step"], []).append(int(match["rank"]))
    for step, tasks in sorted(open_.items()):
        bundle.reader.gap(
            f"step {step}: the output of task {ranges(tasks)} was not captured to its end", "a task that ends by itself"
        )


def _stream(
    bundle: _Bundle, path: str, name: str, match: re.Match[str] | None, launchers: set[tuple[str, int]]
) -> StreamSource | None:
    blobs = bundle.reader.tree.blobs
    head, index = blobs[path], blobs.get(f"{path}.idx")
    tails = {number: blobs[at] for number in (0, 1) if (at := f"{path}.tail{number}") in blobs}
    try:
        end = streams.end(index)
    except InputError as error:
        bundle.reader.gap(str(error), "read access to that file")
        end = streams.End(None, None)
    held = head.size + sum(tail.size for tail in tails.values())
    if end.size is not None and end.size > held:
        bundle.reader.gap(
            f"{name}: {end.size - held} bytes in the middle of {end.size} were not kept", "capture.max_task"
        )
    if match is None or match["step"].split("-")[0] in ("batch", "local"):
        # A batch script, and what `denpex run` starts outside a step, may be a launcher of many ranks.
        kind, step, rank = StreamKind.BATCH, "batch" if match is None else match["step"], None
    elif (match["step"], int(match["rank"])) in launchers:
        kind, step, rank = StreamKind.MIXED, match["step"], None
    else:
        kind = StreamKind.OUT if match["kind"] == "out" else StreamKind.ERR
        step, rank = match["step"], int(match["rank"])
    info = StreamInfo(
        name=f"{bundle.node}/{name}",
        kind=kind,
        step=step,
        rank=rank,
        node=bundle.node,
        complete=end.complete,
        size=max(held, end.size or 0),
    )
    return StreamSource(info, partial(_load, head, index, tails))


def _flight(bundle: _Bundle) -> Iterator[FlightDump]:
    """Yield what the ranks' flight recorders were dumped to: user/fr/<step>.rank_<rank>, or whatever name it has."""
    folder = f"{contract.USER}/{contract.FLIGHT}/"
    total = 0
    for path, blob in sorted(bundle.reader.tree.blobs.items()):
        if not path.startswith(folder):
            continue
        total += blob.size
        if total > flight.MAX_TOTAL:
            bundle.reader.gap(f"{path} and what follows was not read: {total >> 30} GiB of dumps", "smaller dumps")
            return
        step = _FLIGHT_STEP.match(path[len(folder) :])
        name = f"{bundle.node}/{path}"
        found = flight.read(name, blob, node=bundle.node, step=step[1] if step else None)
        if isinstance(found, FlightDump):
            yield found
        else:
            bundle.reader.gaps.append(found)


def _load(head: Blob, index: Blob | None, tails: Mapping[int, Blob]) -> StreamData:
    return streams.assemble(head, index, tails)


def _gaps(bundle: _Bundle) -> Iterator[Gap]:
    stated = list(bundle.reader.lines(contract.GAPS))
    yield from bundle.reader.gaps
    for record in stated[:_MAX_GAPS]:
        what = text(record, "what")
        if what:
            yield Gap(what, text(record, "where") or bundle.node, text(record, "closed_by"))


def _absent(job: Job, present: set[str]) -> Iterator[Gap]:
    absent = [node for node in job.nodes if node not in present]
    if len(absent) > _NEAR_GAPS:
        yield Gap(f"{len(absent)} of {len(job.nodes)} nodes left no run directory", ", ".join(absent)[:4000], _HOOKS)
        return
    for node in absent:
        yield Gap("the node left no run directory: nothing is known of what happened on it", node, _HOOKS)


def _filled(job: Job, bundles: Iterable[_Bundle]) -> Job:
    """Fill what the scheduler did not say from the nodes' own words, the first that has it."""
    values: dict[str, Any] = {}

    def offer(name: str, value: Any) -> None:
        if getattr(job, name) in (None, "", ()) and name not in values and value not in (None, "", ()):
            values[name] = value

    found = list(bundles)
    for bundle in found:
        meta = bundle.meta
        number = integer(meta, "job_id")
        offer("job_id", text(meta, "job_id", 20) or (None if number is None else str(number)))
        offer("cluster", text(meta, "cluster", 128))
        offer("restart", integer(meta, "restart") if number is not None else None)
        offer("user", text(meta, "user", 128))
        offer("uid", integer(meta, "uid"))
        offer("account", text(meta, "account", 128))
        offer("partition", text(meta, "partition", 128))
        offer("work_dir", text(meta, "work_dir"))
        offer("het_job", text(meta, "het_job_id", 20))
        offer("nodes", expand(text(meta, "nodelist", 1 << 16)))
        ending = bundle.reader.document(contract.EPILOG) or {}
        exit_ = text(ending, "exit_code2", 20)
        offer("exit", exit_ if re.fullmatch(r"\d+:\d+", exit_) else "")
    offer("nodes", tuple(bundle.node for bundle in found))
    return replace(job, **values)
