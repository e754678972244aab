"""Copies run directories from nodes whose spool is their own: asks each node's hand-out (hooks/SPOOL.md) over ssh."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from denpex import spool as contract
from denpex.config import Config
from denpex.errors import SpoolError
from denpex.ingest import runs, ssh, untar
from denpex.ingest.lines import integer, text
from denpex.model import Gap


@dataclass(frozen=True)
class Fetched:
    """A node's run directory as it lies here now; ``done``: with DONE, so that nothing will be added.

    ``doubt`` says what is doubtful about the choice among several ("" nothing).
    """

    node: str
    path: Path
    done: bool
    doubt: str = ""


def poll(
    config: Config,
    cluster: str,
    nodes: Sequence[str],
    job_id: int,
    start: float,
    end: float | None,
    *,
    unfinished: bool = False,
    addresses: Mapping[str, str] | None = None,
) -> dict[str, Fetched | Gap]:
    """Try once to get one run's directory from every node; what is here already with DONE costs no connection.

    ``start`` and ``end`` as for runs.choose. ``unfinished``: also take runs without DONE (for when the deadline has
    come); they are taken anew each time. ``addresses``: host names or addresses where they are not the node names.
    A broken transfer is kept and continued by the next call. Nothing raises: a node that gives nothing is a Gap that
    says why.
    """
    if not contract.is_safe_name(cluster):
        return {node: Gap("the cluster's name cannot name a directory", node, "cluster") for node in nodes}
    names = list(dict.fromkeys(nodes))
    with ThreadPoolExecutor(max_workers=max(1, config.fetch.parallel), thread_name_prefix="fetch") as pool:
        one = partial(_node, config, cluster, job_id, start, end, unfinished, addresses or {})
        return dict(zip(names, pool.map(one, names), strict=True))


def _node(
    config: Config,
    cluster: str,
    job_id: int,
    start: float,
    end: float | None,
    unfinished: bool,
    addresses: Mapping[str, str],
    node: str,
) -> Fetched | Gap:
    if not contract.is_safe_name(node):
        return Gap("the node's name cannot name a directory", node, "another node name")
    place = Path(config.state_dir) / "bundles" / cluster / node
    here = _here(place, job_id, start, end)
    if here is not None and here.done:
        return here
    try:
        place.mkdir(mode=0o700, parents=True, exist_ok=True)
        with ssh.connect(config.fetch, addresses.get(node, node)) as connection:
            run, done, doubt = _choose(connection, node, job_id, start, end)
            if not done and not unfinished:
                return Gap(
                    "the node has not finished the run: DONE is not there", node, "an epilog that comes to its end"
                )
            return Fetched(node, _get(connection, config.fetch.max_bytes, place, run, done), done, doubt)
    except ssh.NodeError as error:
        return here or Gap(f"nothing could be fetched from the node: {error}", node, error.closed_by)
    except OSError as error:
        return Gap(f"what the node sends cannot be kept: {error.strerror}", node, f"room and access in {place.parent}")


def _here(place: Path, job_id: int, start: float, end: float | None) -> Fetched | None:
    """Return the run that was fetched before, if any."""
    paths = list(place.iterdir()) if place.is_dir() else []
    found = [run for path in paths if (run := contract.parse_run(path.name)) is not None and run.job_id == job_id]
    chosen, _ = runs.choose([runs.opened(place / str(run), run) for run in found], start, end)
    if chosen is None:
        return None
    path = place / str(chosen)
    return Fetched(place.name, path, (path / contract.DONE).exists())


def _choose(
    connection: ssh.Connection, node: str, job_id: int, start: float, end: float | None
) -> tuple[contract.RunId, bool, str]:
    """Ask which runs of the job the node has; return the one of this job's time, whether it is complete, and doubts.

    The node's clock is read in the answer, so its offset from ours lies between the moments of asking and hearing.
    """
    asked = time.time_ns()
    data = connection.answer(f"list {job_id}")
    heard = time.time_ns()
    try:
        answer = json.loads(data)
        listed = answer["runs"]
        now = integer(answer, "now_ns")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ssh.NodeError("its list of runs cannot be understood", "hooks/handout of this release") from error
    offset = (0.0, 0.0) if now is None else ((asked - now) / 1e9, (heard - now) / 1e9)
    done: dict[contract.RunId, bool] = {}
    for item in listed if isinstance(listed, list) else []:
        if isinstance(item, dict) and item.get("node") in (node, None):
            run = contract.parse_run(text(item, "run", 60))
            if run is not None and run.job_id == job_id:
                done[run] = item.get("done") is True
    chosen, doubt = runs.choose([runs.Opened(run, offset) for run in done], start, end)
    if chosen is None:
        raise ssh.NodeError(doubt or "it has no run directory of this job", "the prolog and epilog hooks on that node")
    return chosen, done[chosen], doubt


def _get(connection: ssh.Connection, limit: int, place: Path, run: contract.RunId, done: bool) -> Path:
    """Transfer one run and put its directory in place by renaming, whole or not at all."""
    part = place / f".{run}.tar"
    aside = place / f".{run}.new"
    target = place / str(run)
    shutil.rmtree(aside, ignore_errors=True)
    if not done:
        part.unlink(missing_ok=True)  # it may have grown since: only a complete run can be continued
    with part.open("ab") as file:
        offset = file.tell()
        try:
            connection.stream(f"get {run} {offset}", file.write, max(0, limit - offset))
        except ssh.NodeError as error:
            if not done or error.closed_by.startswith("fetch.max_bytes"):
                part.unlink()
            raise
    try:
        with part.open("rb") as file:
            untar.unpack(file, str(run), aside)
        if done and not (aside / contract.DONE).exists():
            raise SpoolError("it is not whole: DONE is missing")
    except SpoolError as error:
        shutil.rmtree(aside, ignore_errors=True)
        part.unlink(missing_ok=True)
        raise ssh.NodeError(f"what it sent is not a run directory: {error}", "hooks/handout of this release") from error
    if not done:
        (aside / contract.DONE).unlink(missing_ok=True)
    shutil.rmtree(target, ignore_errors=True)
    aside.rename(target)
    part.unlink()
    return target
