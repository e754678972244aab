"""Gathers what the nodes of one run left, each node in its own time: asks, waits, asks again, until a deadline."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from denpex import spool as contract
from denpex.config import Config
from denpex.errors import DenpexError
from denpex.ingest import runs
from denpex.model import Gap, Job

# How soon a node is asked again: at first at once, for epilogs mostly end within a second or two; later less often.
_SOON_S = 0.25
_LATER_S = 1.5
# How long after the deadline the last answers may take.
_GRACE_S = 5.0
# A node that took longer than this to answer is asked on a thread of its own kind for a while, by every run.
_SLOW_S = 3.0
_SLOW_FOR_S = 60.0


@dataclass(frozen=True)
class Bundle:
    """What one node gave of one run: its directory (None: nothing), whether its epilog had finished, and why not."""

    path: Path | None
    done: bool = False
    gap: Gap | None = None


Collect = Callable[[Job, str, bool], Bundle]
"""Collects one node's part of a run: (the run, the node, whether an unfinished directory is wanted too)."""


def collector(config: Config) -> Collect:
    """Return what collects by ssh where nodes have spools of their own (fetch.key), else from the shared spool."""
    return partial(_fetched if config.fetch.key else _shared, config)


def _fetched(config: Config, job: Job, node: str, unfinished: bool) -> Bundle:
    from denpex.ingest import fetch  # paramiko takes a third of a second, which a shared spool need not pay

    number, start = int(job.job_id or 0), job.start or 0.0
    found = fetch.poll(config, job.cluster or "", [node], number, start, job.end, unfinished=unfinished)[node]
    if isinstance(found, Gap):
        return Bundle(None, gap=found)
    return Bundle(found.path, found.done, _doubt(found.doubt, node))


def _shared(config: Config, job: Job, node: str, unfinished: bool) -> Bundle:
    place = Path(config.spool_dir) / (job.cluster or "") / node
    if not contract.is_safe_name(node) or not contract.is_safe_name(job.cluster or ""):
        return Bundle(None, gap=Gap("its name cannot name a directory", node, "other cluster and node names"))
    try:
        names = [path.name for path in place.iterdir()]
    except OSError as error:
        what = f"the node's spool {place} cannot be read: {error.strerror}"
        return Bundle(None, gap=Gap(what, node, "hooks that have run there, and read access for the worker"))
    mine = [run for name in names if (run := contract.parse_run(name)) is not None and str(run.job_id) == job.job_id]
    chosen, doubt = runs.choose([runs.opened(place / str(run), run) for run in mine], job.start or 0.0, job.end)
    gap = _doubt(doubt, node)
    if chosen is None:
        return Bundle(None, gap=gap or Gap("the node has no run directory of this job", node, "the hooks on that node"))
    path = place / str(chosen)
    done = (path / contract.DONE).exists()
    return Bundle(path if done or unfinished else None, done, gap)


def _doubt(text: str, node: str) -> Gap | None:
    return Gap(text, node, "synchronised clocks on the nodes") if text else None


class Lanes:
    """The threads that ask nodes; nodes that were slow to answer are asked on threads of their own."""

    def __init__(self, threads: int, on_answer: Callable[[object], None]) -> None:
        """``threads`` of either kind; ``on_answer`` is called on such a thread after each answer."""
        self._quick = ThreadPoolExecutor(threads, "nodes")
        self._slow = ThreadPoolExecutor(threads, "slow-nodes")
        self._on_answer = on_answer
        self._slow_until: dict[str, float] = {}
        self._open: dict[tuple[str | None, float | None, str], Future[Bundle]] = {}

    def submit(self, collect: Collect, job: Job, node: str, unfinished: bool) -> Future[Bundle]:
        """Ask a node in the background; a question about the same run that is still open there is not asked twice."""
        key = (job.job_id, job.start, node)
        earlier = self._open.get(key)
        if earlier is not None and not earlier.done():
            return earlier
        lane = self._slow if self._slow_until.get(node, 0.0) > time.monotonic() else self._quick
        future = self._open[key] = lane.submit(self._ask, collect, job, node, unfinished)
        future.add_done_callback(self._on_answer)
        return future

    def forget(self, job: Job, nodes: Iterable[str]) -> None:
        """Forget the answered questions about a run."""
        for node in nodes:
            found = self._open.get((job.job_id, job.start, node))
            if found is not None and found.done():
                del self._open[job.job_id, job.start, node]

    def close(self) -> None:
        """Begin nothing more; questions that are open are not waited for."""
        for lane in (self._quick, self._slow):
            lane.shutdown(wait=False, cancel_futures=True)

    def _ask(self, collect: Collect, job: Job, node: str, unfinished: bool) -> Bundle:
        began = time.monotonic()
        try:
            return collect(job, node, unfinished)
        finally:
            ended = time.monotonic()
            if ended - began > _SLOW_S:
                self._slow_until[node] = ended + _SLOW_FOR_S


@dataclass
class _Node:
    name: str
    bundle: Bundle = Bundle(None)
    next_at: float = 0.0
    future: Future[Bundle] | None = None
    last_call: bool = False  # asked for what there is, finished or not

    @property
    def is_over(self) -> bool:
        return self.bundle.done or (self.last_call and self.future is None)


class Gathering:
    """The nodes of one run while they are waited for. Times are seconds since 1970 by the controller's clock."""

    def __init__(
        self, job: Job, nodes: Iterable[str], collect: Collect, lanes: Lanes, now: float, *, unfinished: bool = True
    ) -> None:
        """``unfinished``: whether the last call takes directories without DONE too."""
        self._job, self._collect, self._lanes, self._began = job, collect, lanes, now
        self._unfinished = unfinished
        self._nodes = [_Node(name) for name in nodes]

    def advance(self, now: float, deadline: float) -> None:
        """Take what has come, and ask who is due. After ``deadline`` each node is asked once more for what it has."""
        for node in self._nodes:
            if node.future is not None:
                if not node.future.done():
                    continue
                future, node.future = node.future, None
                try:
                    node.bundle = future.result()
                except (DenpexError, OSError) as error:
                    what = f"what the node left cannot be read: {error}"
                    node.bundle = Bundle(None, gap=Gap(what, node.name, "an undamaged spool"))
                node.next_at = now + min(max(_SOON_S, (now - self._began) / 10), _LATER_S)
            late = now >= deadline
            if node.is_over or (now < node.next_at and not late):
                continue
            node.last_call = late
            node.future = self._lanes.submit(self._collect, self._job, node.name, late and self._unfinished)

    def is_over(self, now: float, deadline: float) -> bool:
        """Tell whether nothing more is coming: each node is complete or has had its last call, or time is up."""
        late = now >= max(deadline, self._began) + _GRACE_S
        return late or all(node.is_over for node in self._nodes)

    def close(self) -> None:
        """Forget the questions that were answered."""
        self._lanes.forget(self._job, [node.name for node in self._nodes])

    @property
    def awaited(self) -> tuple[str, ...]:
        """The nodes whose finished directory is not here."""
        return tuple(node.name for node in self._nodes if not node.bundle.done)

    @property
    def bundles(self) -> list[Path]:
        """The directories that are here, finished or not."""
        return [node.bundle.path for node in self._nodes if node.bundle.path is not None]

    @property
    def gaps(self) -> tuple[Gap, ...]:
        """Why nodes are missing or doubtful."""
        found = [node.bundle.gap for node in self._nodes if node.bundle.gap is not None]
        silent = [node.name for node in self._nodes if node.future is not None and node.bundle == Bundle(None)]
        what = "the node had not answered the worker when the deadline came"
        return (*found, *(Gap(what, name, "a node that answers, and worker.deadline") for name in silent))
