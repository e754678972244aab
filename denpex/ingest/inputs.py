"""Reads what the user points at - files, directories, archives, spools - as the evidence of one run."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import BinaryIO

from denpex import spool as contract
from denpex.errors import InputError
from denpex.ingest import archive, flight, names, packed, slurmtext
from denpex.ingest.lines import Reader, integer, text
from denpex.ingest.spool import read_trees
from denpex.ingest.tree import (
    MAX_FILE,
    Blob,
    Content,
    FileBlob,
    GivenBlob,
    MemoryBlob,
    Tree,
    display,
    not_read,
    unused,
    walk,
)
from denpex.model import Gap, Job, Snapshot, StreamData, StreamInfo, StreamKind, StreamSource

MAX_INPUT = 16 << 30  # bytes of all files together

_NAMED = 8  # files of other kinds that are named in the gap


def load(paths: Sequence[Path], job_id: str | None = None) -> Snapshot:
    """Return everything that ``paths`` hold about one run; "-" is standard input.

    A path is a log file, an archive (tar, also gzip, bzip2 or xz), a directory of logs, a run directory of a spool
    (meta.json), or a directory with several of them. Kernel logs become streams of kind KERNEL: their times are
    read by the engine, and KernelRecords come from spools only. ``job_id`` selects one job where a spool has several.

    Raises InputError where a path cannot be read, holds no log, or holds several jobs.
    """
    if not paths:
        raise InputError("there is nothing to read: name a log file, an archive or a directory")
    tree = Tree()
    given: set[str] = set()  # files that the user named, which are read whatever their name
    for path in paths:
        inner = _source(path)
        prefix = "" if len(paths) == 1 or isinstance(inner, Blob) else display(path.name) + "/"
        if isinstance(inner, Blob):
            name = unused(inner.path, tree.blobs)
            tree.blobs[name] = inner
            given.add(name)
            continue
        for name, blob in inner.blobs.items():
            tree.blobs[unused(prefix + name, tree.blobs)] = blob
        tree.gaps += inner.gaps
    snapshot, rest = _spooled(tree, job_id)
    dumps, rest = _dumps(rest)
    streams, job, gaps = _plain(rest, given, snapshot.job, job_id)
    if not snapshot.nodes and not streams and not any(dump.groups for dump in dumps.found):
        where = ", ".join(display(str(path)) for path in paths[:5])
        hint = "; ".join(gap.what for gap in [*tree.gaps, *dumps.gaps, *gaps][:3])
        raise InputError(f"no log was found in {where}" + (f": {hint}" if hint else "; name a file to have it read"))
    return replace(
        snapshot,
        job=job,
        streams=(*snapshot.streams, *streams),
        gaps=(*tree.gaps, *snapshot.gaps, *dumps.gaps, *gaps),
        flight=(*snapshot.flight, *dumps.found),
    )


def _source(path: Path) -> Blob | Tree:
    """Return the one file that a path is, or the files that a directory or an archive holds."""
    if str(path) == "-":
        blocks = iter(lambda: _standard_input().read(1 << 20), b"")
        blob: Blob = MemoryBlob("stdin", Content(*packed.bounded(blocks, MAX_FILE)))
    elif _is_directory(path):
        return walk(path)
    else:
        blob = GivenBlob(path, display(path.name))
    return archive.members(blob) if archive.is_tar(blob.head(1024)) else blob


def _is_directory(path: Path) -> bool:
    """Tell whether a name is a directory's; raises InputError where there is nothing, or nothing can be known."""
    try:
        path.lstat()
    except (FileNotFoundError, NotADirectoryError):
        raise InputError(f"there is no file or directory {display(str(path))}") from None
    except OSError as error:
        raise InputError(f"{display(str(path))} cannot be read: {error.strerror}") from error
    return os.path.isdir(path)  # noqa: PTH112 - a Path raises where a link leads to what may not be seen


def _spooled(tree: Tree, job_id: str | None) -> tuple[Snapshot, Tree]:
    """Read the run directories in a tree; return what they say and the files that belong to none."""
    roots = [path[: -len(contract.META)].rstrip("/") for path in tree.blobs if _is_meta(path)]
    runs: dict[tuple[str, str], list[tuple[str, Reader]]] = {}
    broken: list[Gap] = []
    for root in roots:
        files = _own(tree.below(root))
        reader = Reader("", files)
        meta = reader.document(contract.META) or {}
        number = text(meta, "job_id", 20) or str(integer(meta, "job_id") or "")
        if "format" in meta and text(meta, "node"):
            runs.setdefault((text(meta, "cluster", 128), number), []).append((root, reader))
        else:
            broken += [replace(gap, where=root or contract.META) for gap in reader.gaps]
    if not runs:
        return Snapshot(gaps=tuple(broken)), tree
    if job_id is not None:
        runs = {key: value for key, value in runs.items() if key[1] == job_id}
        if not runs:
            raise InputError(f"there is no run of job {display(job_id)} there")
    if len(runs) > 1:
        several = ", ".join(sorted(key[1] or "outside Slurm" for key in runs)[:10])
        raise InputError(f"runs of several jobs lie there ({several}): choose one with --job-id, or name its directory")
    chosen, gaps = _latest(next(iter(runs.values())))
    found = read_trees([(root.split("/")[-2] if "/" in root else "", reader.tree) for root, reader in chosen], Job())
    inside = tuple(root + "/" if root else "" for root in roots)
    rest = {path: blob for path, blob in tree.blobs.items() if not path.startswith(inside)}
    return replace(found, gaps=(*found.gaps, *gaps, *broken)), Tree(rest)


def _dumps(tree: Tree) -> tuple[flight.Dumps, Tree]:
    """Read the flight recorder's dumps in a tree, whatever their names; return them and the other files."""
    dumps = flight.Dumps()
    rest: dict[str, Blob] = {}
    for path, blob in sorted(tree.blobs.items()):
        try:
            known = flight.is_dump(path, blob.head(names.SNIFF))
        except InputError:
            known = False  # whoever reads it as a log says why it cannot be read
        if known:
            dumps.add(path, blob, node=names.classify(path).node)
        else:
            rest[path] = blob
    return dumps, Tree(rest)


def _own(run: Tree) -> Tree:
    """Let a run directory's files be read only where they belong to its writers and have one name each.

    The job's user can put a second name of somebody else's file below user/, for a reader with more rights.
    """
    meta = run.blobs[contract.META]
    said = integer(Reader("", run).document(contract.META) or {}, "uid")
    owners = frozenset({0, os.geteuid(), meta.owner, meta.owner if said is None else said})
    for blob in run.blobs.values():
        if isinstance(blob, FileBlob):
            blob.restrict(owners)
    return run


def _is_meta(path: str) -> bool:
    return path == contract.META or path.endswith("/" + contract.META)


def _latest(runs: list[tuple[str, Reader]]) -> tuple[list[tuple[str, Reader]], list[Gap]]:
    """Return one run directory per node, those of the latest restart, and what was left out."""
    nodes: dict[str, list[tuple[int, int, str, Reader]]] = {}
    for root, reader in runs:
        meta = Reader("", reader.tree).document(contract.META) or {}
        key = integer(meta, "restart") or 0, integer(meta, "opened") or 0
        nodes.setdefault(text(meta, "node"), []).append((*key, root, reader))
    last = max(item[0] for items in nodes.values() for item in items)
    chosen: list[tuple[str, Reader]] = []
    for items in nodes.values():
        fitting = [item for item in items if item[0] == last]
        if fitting:
            newest = max(fitting, key=lambda item: item[1])
            chosen.append((newest[2], newest[3]))
    left = len(runs) - len(chosen)
    gap = Gap(f"{left} earlier runs of this job were not read", "the spool", "name the directories of one run")
    return chosen, [gap] if left else []


def _plain(tree: Tree, given: set[str], job: Job, job_id: str | None) -> tuple[list[StreamSource], Job, list[Gap]]:
    """Return the log files of a tree as streams, the job that their text and names state, and what was left out."""
    streams: list[StreamSource] = []
    gaps: list[Gap] = []
    others: list[str] = []
    total = 0
    ranks = names.numbered(tree.blobs)
    wanted = replace(job, job_id=job.job_id or job_id)
    for path, blob in sorted(tree.blobs.items()):
        if path not in given and not names.looks_like_log(path):
            others.append(path)
            continue
        try:
            head = blob.head(names.SNIFF)
        except InputError as error:
            gaps.append(not_read(path, str(error), "read access to it"))
            continue
        if names.is_binary(head) or archive.is_tar(head):
            gaps.append(not_read(path, "it is not text", "name it, or unpack it, where it is a log"))
            continue
        total += min(blob.size, MAX_FILE)
        if total > MAX_INPUT:
            gaps.append(not_read(path, f"{MAX_INPUT >> 30} GiB were read before it", "name fewer files"))
            continue
        kind = names.by_content(names.classify(path), head)
        if kind.rank is None and kind.kind is StreamKind.MIXED and path in ranks:
            kind = replace(kind, kind=StreamKind.OUT, rank=ranks[path])
        if kind.kind is StreamKind.SLURM:
            wanted = slurmtext.read(_decoded(blob), wanted)
        elif kind.job is not None and wanted.job_id is None and kind.array_task is None:
            wanted = replace(wanted, job_id=kind.job)
        elif kind.array_task is not None and wanted.array_job is None:
            wanted = replace(wanted, array_job=kind.job, array_task=kind.array_task)
        if blob.size > MAX_FILE:
            gaps.append(
                Gap(f"{path} is longer than {MAX_FILE >> 20} MiB; its middle was not read", path, "less output")
            )
        info = StreamInfo(name=path, kind=kind.kind, rank=kind.rank, node=kind.node, size=blob.size)
        streams.append(StreamSource(info, partial(_data, blob)))
    if others:
        named = ", ".join(others[:_NAMED]) + (" …" if len(others) > _NAMED else "")
        gaps.append(
            Gap(f"not read, for their names are not those of logs: {named}", "the input", "name one to read it")
        )
    return streams, wanted, gaps


def _data(blob: Blob) -> StreamData:
    """Read a log file: decompressed, UTF-16 as UTF-8, a byte order mark left out."""
    content = blob.read(unpack=True)
    if not content.fault and len(content.pieces) > 1 and blob.size <= MAX_FILE:
        # Only now it is known: of what is longer as it lies there, the list of the files says so.
        half = MAX_FILE >> 21
        said = f"it unpacks to {content.size >> 20} MiB, of which the first and the last {half} MiB are read"
        content = replace(content, fault=said)
    for mark, encoding in ((b"\xff\xfe", "utf-16-le"), (b"\xfe\xff", "utf-16-be")):
        if content.data.startswith(mark):
            text = content.data[2:].decode(encoding, "replace")
            return StreamData(text.encode("utf-8", "replace"), fault=content.fault)
    if content.data.startswith(b"\xef\xbb\xbf"):
        rest = tuple((at - 3, offset) for at, offset in content.pieces if at > 3)
        return StreamData(content.data[3:], (), ((0, 3), *rest), content.fault)
    return StreamData(content.data, (), content.pieces, content.fault)


def _decoded(blob: Blob) -> str:
    return _data(blob).data[: slurmtext.MAX_TEXT].decode("utf-8", "replace")


def _standard_input() -> BinaryIO:
    if sys.stdin is None:
        raise InputError("standard input is closed; name a file, or give the log on standard input")
    return sys.stdin.buffer
