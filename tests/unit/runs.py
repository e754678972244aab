"""Makes Snapshots of runs as the hooks would have captured them: a true course of events, seen by skewed clocks."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from denpex.model import (
    ClockSample,
    Gap,
    Job,
    KernelRecord,
    NodeInfo,
    Snapshot,
    Stamp,
    Step,
    StreamData,
    StreamInfo,
    StreamKind,
    StreamSource,
    TaskRecord,
)

S = 10**9
START = 1_796_130_000  # of the job, seconds since 1970 of reference time

FRAMES = {
    "data": (
        '  File "/home/alice/train.py", line 95, in <module>\n    main()\n'
        '  File "/home/alice/train.py", line 73, in main\n    for step, batch in enumerate(loader):\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/utils/data/dataloader.py", line 725, in __next__\n'
        "    data = self._next_data()\n           ^^^^^^^^^^^^^^^^^\n"
        '  File "/home/alice/train.py", line 33, in __getitem__\n'
        "    row = self.table[index if index != self.bad else self.length + index]\n"
        "          ~~~~~~~~~~^^^^^^^^^^^^^^^^^\n"
    ),
    "backward": (
        '  File "/home/alice/train.py", line 95, in <module>\n    main()\n'
        '  File "/home/alice/train.py", line 78, in main\n    loss.backward()\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/_tensor.py", line 623, in backward\n'
        "    torch.autograd.backward(\n"
        '  File "/opt/venv/lib/python3.11/site-packages/torch/autograd/graph.py", line 979, in _engine_run_backward\n'
        "    return Variable._execution_engine.run_backward(  # Calls into the C++ engine to run the backward pass\n"
        "           ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^\n"
    ),
    "save": (
        '  File "/home/alice/train.py", line 87, in main\n'
        '    torch.save({"step": step, "padding": torch.zeros(1 << 20)}, path)\n'
        '  File "/opt/venv/lib/python3.11/site-packages/torch/serialization.py", line 1002, in save\n'
        "    with _open_zipfile_writer(f) as opened_zipfile:\n"
    ),
}
_TCP = "RuntimeError: [/__w/pytorch/pytorch/third_party/gloo/gloo/transport/tcp/"


def traceback(rank: int | None, exception: str, frames: str = "data") -> str:
    """Return a traceback as torch's excepthook prints it for a rank (None: as Python does)."""
    text = f"Traceback (most recent call last):\n{FRAMES[frames]}{exception}"
    prefix = "" if rank is None else f"[rank{rank}]: "
    return "".join(f"{prefix}{line}\n" for line in text.split("\n"))


def closed(rank: int | None, port: int = 42192) -> str:
    """Return what a gloo rank of torch 2.13 prints when its peer has died."""
    return traceback(
        rank,
        f"{_TCP}pair.cc:553] Connection closed by peer [10.77.0.13]:{port}. This is typically caused by a remote "
        "worker crashing. Check the logs of the remote worker before reporting an error. GLHF!",
        "backward",
    )


def reset(rank: int | None, port: int = 46787) -> str:
    """Return the other thing it prints then."""
    return traceback(
        rank,
        f"{_TCP}pair.cc:537] Read error [10.77.0.13]:{port}: Connection reset by peer. This is typically caused by a "
        "remote worker hanging or bugs in the application. Check the logs of the remote worker before reporting an "
        "error. GLHF!",
        "backward",
    )


def waited(rank: int | None, ms: int = 15000, what: str = "recv") -> str:
    """Return what it prints when a peer did not come in time."""
    return traceback(
        rank, f"{_TCP}unbound_buffer.cc:78] Timed out waiting {ms}ms for {what} operation to complete", "backward"
    )


@dataclass
class _Task:
    node: int
    start: float
    end: float | None = None
    code: int | None = None
    signal: int | None = None
    states: list[tuple[float, str]] = field(default_factory=list)
    told: list[tuple[float, int]] = field(default_factory=list)
    alive: float | None = None


class Run:
    """A job of one rank per node (or ``per_node``), gloo, step 0; times are seconds after its start, by the reference.

    ``skew``: node number -> how much its REALTIME is ahead of the reference, in seconds.
    """

    def __init__(self, ranks=4, per_node=1, skew=None, job_id="191"):
        self.count = ranks
        self.per_node = per_node
        self.nodes = [f"n{i + 1}" for i in range((ranks + per_node - 1) // per_node)]
        self.skew = skew or {}
        self.tasks = {r: _Task(r // per_node, 1.0 + 0.01 * r) for r in range(ranks)}
        self.said = {}  # (rank, "out"|"err") -> [(t, text)]
        self.batch = []
        self.relay = []
        self.kernel = []
        self.done = dict.fromkeys(self.nodes, True)
        self.state, self.exit, self.derived = "FAILED", "1:0", "1:0"
        self.steps = [("0", "python", "FAILED", "1:0")]
        self.end = 40.0
        self.job = {"job_id": job_id}
        self.lost_streams = set()
        self.lost_tasks = set()
        self.cut = set()
        self.samples = True
        self.no_wrapper = False
        self.nodes_info = {}

    def stamp(self, node, t):
        """Return what the node's clocks read at ``t``."""
        boot = START - 5000 * (node + 1)
        raw = int((START + t - boot) * S * (1 + (20 - 13 * node) * 1e-6))
        drifted = raw + int(boot * S) - int((20 - 13 * node) * 1e-6 * (START - boot) * S)
        return Stamp(drifted + int(self.skew.get(node, 0) * S), raw)

    # What happens.

    def say(self, rank, t, text, stream="err"):
        text = text if text.endswith("\n") else text + "\n"
        self.said.setdefault((rank, stream), []).append((t, text))
        self.relay.append((t + 0.002, text))

    def work(self, until, step_seconds=0.2, only=None, first=1.5, ranks=None):
        """Let the ranks print a progress line every 5 steps until a time."""
        step, t = 0, first
        while t < until:
            for rank in range(self.count) if ranks is None else ranks:
                if only is None or rank in only:
                    self.say(rank, t + 0.0003 * rank, f"2026-12-01 12:53:03,009 INFO step {step} loss 0.{4920 - step}")
            step, t = step + 5, t + 5 * step_seconds

    def ends(self, rank, t, code=None, signal=None):
        self.tasks[rank].end, self.tasks[rank].code, self.tasks[rank].signal = t, code, signal

    def srun(self, t, text):
        """Let srun say something into the job's output file."""
        self.batch.append((t, text + "\n"))

    # What is captured of it.

    def snapshot(self):
        streams = [] if self.no_wrapper else list(self._streams())
        streams += self._job_file()
        tasks = () if self.no_wrapper else tuple(
            self._task(r, t) for r, t in self.tasks.items() if r not in self.lost_tasks
        )  # fmt: skip
        steps = tuple(
            Step(i, name, state, exit_, exit_, START + 1, START + self.end, tuple(self.nodes), self.count)
            if i.isdigit()
            else Step(i, name, state, exit_)
            for i, name, state, exit_ in self.steps
        )
        job = Job(
            cluster="lab", restart=0, name="train", user="alice", uid=1001, partition="main", state=self.state,
            exit=self.exit, derived=self.derived, start=START, end=START + self.end, time_limit_s=600,
            nodes=tuple(self.nodes), steps=steps,
        )  # fmt: skip
        return Snapshot(
            job=replace(job, **self.job),
            nodes=tuple(
                NodeInfo(name=n, boot_id=f"boot-{n}", done=self.done[n], **self.nodes_info.get(n, {}))
                for n in self.nodes
                if self.done[n] is not None
            ),
            tasks=tasks,
            clock=tuple(self._samples()) if self.samples else (),
            kernel=tuple(
                KernelRecord(self.nodes[node], self.stamp(node, t), text, n, 0, 4, "kmsg", evidence)
                for n, (node, t, text, evidence) in enumerate(self.kernel)
            ),
            streams=tuple(streams),
            gaps=tuple(Gap("the node left no run directory", n, "hooks") for n in self.nodes if self.done[n] is None),
        )

    def _samples(self):
        for number, node in enumerate(self.nodes):
            for t in (-0.5, self.end + 0.5):
                if t > 0 and not self.done[node]:
                    continue
                stamp = self.stamp(number, t)
                true = int((START + t) * S) - stamp.realtime_ns
                yield ClockSample(node, "sntp", true - 80_000, true + 120_000, stamp, "10.77.0.1:1123")

    def _task(self, rank, task):
        def at(t):
            return None if t is None else self.stamp(task.node, t)

        return TaskRecord(
            step="0", rank=rank, node=self.nodes[task.node], local_rank=rank % self.per_node, pid=4000 + rank,
            command="python train.py", start=at(task.start), end=at(task.end), exit_code=task.code,
            signal=task.signal, last_alive=at(task.alive), states=tuple((at(t), s) for t, s in task.states),
            forwarded_signals=tuple((at(t), n) for t, n in task.told),
        )  # fmt: skip

    def _streams(self):
        for rank, task in self.tasks.items():
            if rank in self.lost_streams or rank in self.lost_tasks:
                continue
            for kind in ("err", "out"):
                data, index = b"", []
                for t, text in sorted(self.said.get((rank, kind), []), key=lambda x: x[0]):
                    stamp = self.stamp(task.node, t)
                    index.append((len(data), stamp.realtime_ns, stamp.raw_ns))
                    data += text.encode()
                node = self.nodes[task.node]
                complete = task.end is not None and rank not in self.cut
                info = StreamInfo(
                    f"{node}/0.{rank}.{kind}", StreamKind(kind), "0", rank, node, complete, len(data)
                )  # fmt: skip
                yield _source(info, StreamData(data, tuple(index)))

    def _job_file(self):
        text = "".join(text for _, text in sorted([*self.batch, *self.relay], key=lambda x: x[0]))
        if self.done[self.nodes[0]] is None:
            return []
        info = StreamInfo(f"{self.nodes[0]}/batch.out", StreamKind.BATCH, "batch", None, self.nodes[0], None, len(text))
        return [_source(info, StreamData(text.encode()))]


def _source(info, data):
    return StreamSource(info, lambda: data)
