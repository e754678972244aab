"""Decides which run directories of a spool belong to one run of a job, by time."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from denpex import spool as contract
from denpex.ingest.lines import Reader, integer
from denpex.ingest.tree import Tree, display, file_at
from denpex.model import Gap

BEFORE_START_S = 60  # a prolog may open a run this long before the controller's start time
EPILOG_S = 300  # where no prolog ran the epilog opens the run, this long after the job's end at most


@dataclass(frozen=True)
class Opened:
    """A run directory and the bounds of (reference - local) in seconds when it was opened (0, 0: not measured)."""

    run: contract.RunId
    offset: tuple[float, float] = (0.0, 0.0)
    by_prolog: bool = True


def choose(found: Sequence[Opened], start: float, end: float | None) -> tuple[contract.RunId | None, str]:
    """Return the run that was opened in [start - 60 s, end], and what is doubtful about the choice ("" nothing).

    ``start`` and ``end`` are the controller's, in seconds since 1970 (``end`` None: not over). Of several that fit
    the nearest to ``start`` wins. ``opened`` has whole seconds.
    """
    fitting: list[tuple[float, contract.RunId]] = []
    for item in found:
        low, high = item.run.opened + item.offset[0], item.run.opened + 1 + item.offset[1]
        last = float("inf") if end is None else end + (1 if item.by_prolog else EPILOG_S)
        if high >= start - BEFORE_START_S and low <= last:
            fitting.append((max(low - start, start - high, 0.0), item.run))
    fitting.sort(key=lambda pair: (pair[0], abs(pair[1].opened - start), -pair[1].restart))
    if not fitting:
        doubt = "the node has run directories of this job number, but none was opened in the job's time"
        return None, doubt if found else ""
    doubt = f"{len(fitting)} run directories fit the job's time; the nearest to its start was taken"
    return fitting[0][1], doubt if len(fitting) > 1 else ""


def find(spool_dir: Path, cluster: str, job_id: int, start: float, end: float | None) -> tuple[list[Path], list[Gap]]:
    """Return the run directories of one run in a readable spool, one per node, and what is doubtful about them."""
    found: list[Path] = []
    gaps: list[Gap] = []
    place = spool_dir / cluster
    try:
        nodes = _folders(place)
    except OSError as error:
        what = f"the spool directory {display(str(place))} cannot be read: {error.strerror}"
        return [], [Gap(what, cluster, "spool_dir in denpex.yaml, and hooks that have run there")]
    for node in filter(contract.is_safe_name, nodes):
        try:
            names = _folders(place / node)
        except OSError as error:
            gaps.append(Gap(f"the node's spool cannot be read: {error.strerror}", node, "read access for the worker"))
            continue
        runs = [run for name in names if (run := contract.parse_run(name)) is not None and run.job_id == job_id]
        chosen, doubt = choose([opened(place / node / str(run), run) for run in runs], start, end)
        if doubt:
            gaps.append(Gap(doubt, node, "synchronised clocks on the nodes"))
        if chosen is not None:
            found.append(place / node / str(chosen))
    return found, gaps


def _folders(place: Path) -> list[str]:
    with os.scandir(place) as entries:
        return sorted(entry.name for entry in entries if entry.is_dir(follow_symlinks=False))


def opened(directory: Path, run: contract.RunId) -> Opened:
    """Read when a run directory was opened, with the node's own clock samples of that moment."""
    files = {name: blob for name in (contract.META, contract.CLOCK) if (blob := file_at(directory, name)) is not None}
    reader = Reader("", Tree(dict(files)))
    meta = reader.document(contract.META) or {}
    low: list[int] = []
    high: list[int] = []
    for record in reader.lines(contract.CLOCK):
        bounds = integer(record, "lo_ns"), integer(record, "hi_ns")
        if record.get("when") == "prolog" and bounds[0] is not None and bounds[1] is not None:
            low.append(bounds[0])
            high.append(bounds[1])
    offset = (min(low) / 1e9, max(high) / 1e9) if low else (0.0, 0.0)
    return Opened(run, offset, meta.get("prolog") is not False)
