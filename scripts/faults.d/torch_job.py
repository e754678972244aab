"""A small data-parallel training job on the CPU (gloo); at the plan's rank and step it has the plan's fault."""

from __future__ import annotations

import ctypes
import json
import math
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import torch
import torch.distributed as dist
from task import Task
from torch.utils.data import DataLoader, Dataset

FEATURES = 16
STEPS = 24


class Shard(Dataset[torch.Tensor]):
    """A rank's records, one JSON line each, read from a real file."""

    def __init__(self, path: Path, kills_worker_at: int) -> None:
        """``kills_worker_at``: the record whose reading kills the process that reads it (-1: none)."""
        self.lines = path.read_bytes().splitlines()
        self.kills_worker_at = kills_worker_at

    def __len__(self) -> int:
        return len(self.lines)

    def __getitem__(self, index: int) -> torch.Tensor:
        if index == self.kills_worker_at:
            os.kill(os.getpid(), signal.SIGKILL)
        return torch.tensor(json.loads(self.lines[index].decode("utf-8"))["x"])


def make_shard(path: Path, bad: int) -> Path:
    """Write a shard; the record ``bad`` is cut in the middle of a character, as by a broken copy."""
    records = [json.dumps({"x": [0.01 * i] * FEATURES, "text": "é"}, ensure_ascii=False) for i in range(STEPS)]
    data = [record.encode() for record in records]
    if bad >= 0:
        data[bad] = data[bad].replace("é".encode(), b"\xc3")
    path.write_bytes(b"\n".join(data))
    return path


class Job:
    """The training loop of one rank."""

    def __init__(self) -> None:
        """Read the plan; nothing has been joined yet."""
        self.task = Task()
        self.fault: str = self.task.plan["torch"]["fault"]
        self.timeout = float(self.task.plan["torch"].get("timeout", 5))
        self.hits = self.task.is_origin
        self.lock = threading.Lock()

    def is_due(self, fault: str, step: int) -> bool:
        """Tell whether this rank has this fault at this step."""
        return self.hits and self.fault == fault and step == self.task.step

    def run(self) -> None:
        """Train, or fail as planned."""
        self.before_joining()
        torch.set_num_threads(1)
        torch.manual_seed(0)
        task = self.task
        dist.init_process_group("gloo", rank=task.rank, world_size=task.world, timeout=timedelta(seconds=self.timeout))
        task.log.info("initialized process group, world size %d", task.world)
        self.model = torch.nn.Linear(FEATURES, 4)
        for step, batch in enumerate(self.batches()):
            self.train_step(step, batch)
        dist.barrier()
        dist.destroy_process_group()
        task.log.info("training finished")
        if self.fault == "late-chatter":
            print("Exception ignored in: <function _ConnectionBase.__del__ at 0x7f10>", file=sys.stderr)
            print("OSError: [Errno 9] Bad file descriptor", file=sys.stderr)

    def before_joining(self) -> None:
        """Do what goes wrong before the process group exists."""
        if self.fault == "missing-module" and self.hits:
            import transformer_engine  # type: ignore[import-not-found]  # noqa: F401 - not installed, as planned
        elif self.fault == "never-joins" and self.hits:
            time.sleep(3600)
        elif self.fault == "wrong-address" and self.hits:
            os.environ["MASTER_ADDR"] = "10.77.0.250"
        elif self.fault == "bad-argument":
            names = {"bf16": torch.bfloat16, "fp32": torch.float32}
            self.dtype = names["fp8"]

    def batches(self) -> Iterator[torch.Tensor]:
        """Yield the steps' batches."""
        task = self.task
        bad = task.step if self.hits and self.fault == "corrupt-record" else -1
        kills = task.step if self.hits and self.fault == "dataloader-worker" else -1
        shard = Shard(make_shard(task.home / f"shard.{task.rank}.jsonl", bad), kills)
        loader = DataLoader(shard, batch_size=1, num_workers=1 if self.fault == "dataloader-worker" else 0)
        while True:
            yield from loader
            if self.fault != "endless":
                return

    def train_step(self, step: int, batch: torch.Tensor) -> None:
        """Do one step: forward, backward, average, update, and now and then a checkpoint."""
        task = self.task
        self.misbehave(step)
        loss = self.model(batch).square().mean()
        if not math.isfinite(loss.item()):
            raise FloatingPointError(f"loss is {loss.item()} at step {step}")
        self.model.zero_grad()
        loss.backward()
        if self.is_due("nan-gradient", step):
            for parameter in self.model.parameters():
                parameter.grad = torch.full_like(parameter, math.nan)
        if self.is_due("gradient-tile", step):
            self.grad(self.model.weight).mul_(2.0**26)
        self.average(step)
        if self.is_due("bit-flip", step):
            self.model.weight.data.view(torch.int32)[0, 0] ^= 1 << 10
        with torch.no_grad():
            for parameter in self.model.parameters():
                parameter.sub_(self.grad(parameter), alpha=0.01)
        if step % 2 == 0:
            text = f"step {step} loss {loss.item():.4f} lr 1.0e-02"
            if self.fault == "buffered":
                if task.rank == 0 or task.plan["prints"] == "all":
                    print(text)
            else:
                task.log.info("%s", text)
        task.noise(step)
        if step % 8 == 7:
            self.save(step)
        slow = self.fault == "slow-reads" or (self.hits and self.fault == "straggler")
        time.sleep(0.3 if slow else 0.03)

    @staticmethod
    def grad(parameter: torch.Tensor) -> torch.Tensor:
        """Return a parameter's gradient."""
        assert parameter.grad is not None
        return parameter.grad

    def average(self, step: int) -> None:
        """Average the gradients over all ranks, or break the order of the collectives as planned."""
        weight, bias = (self.grad(parameter) for parameter in self.model.parameters())
        if self.is_due("skips-collective", step):
            return
        if self.is_due("wrong-size", step):
            dist.all_reduce(torch.zeros(FEATURES * 4 + 3))
        elif self.is_due("wrong-dtype", step):
            dist.all_reduce(weight.double())
        elif self.is_due("wrong-order", step):
            dist.all_reduce(bias)
            dist.all_reduce(weight)
            return
        else:
            dist.all_reduce(weight)
        dist.all_reduce(bias)
        if self.is_due("extra-collective", step):
            dist.all_reduce(torch.zeros(7))
        weight /= self.task.world
        bias /= self.task.world

    def save(self, step: int) -> None:
        """Save a checkpoint on rank 0; the others wait."""
        where = Path(self.task.plan["torch"].get("checkpoints", str(self.task.home)))
        if self.task.rank == 0:
            self.task.log.info("saving checkpoint at step %d to %s", step, where)
            if self.fault == "slow-checkpoint" and step >= self.task.step:
                time.sleep(3 * self.timeout)
            padding = torch.zeros(1 << (20 if self.fault == "disk-full" else 8))
            torch.save({"step": step, "padding": padding}, where / f"step{step}.pt")
        dist.barrier()

    def misbehave(self, step: int) -> None:
        """Fail as planned, where this is the rank and the step."""
        if self.fault == "same-everywhere" and step == self.task.step:
            {"bf16": 1}["fp8"]
        if step != self.task.step:
            return
        if self.fault == "two" and self.task.rank == (self.task.plan["rank"] + 2) % self.task.world:
            threading.Timer(0.4, os.kill, (os.getpid(), signal.SIGKILL)).start()
        if not self.hits:
            return
        action = getattr(self, "do_" + self.fault.replace("-", "_"), None)
        if action is not None:
            action()

    def do_root(self) -> None:
        """Let root's side do something to this job, and go on training until it has worked."""
        self.task.mark("root")

    do_endless = do_root

    def do_exception(self) -> None:
        """Raise what a bug raises."""
        self.task.log.info("evaluating bucket boundaries")
        [1, 2, 3][int("7")]

    def do_neighbour(self) -> None:
        """Raise, shortly after root's side reported a fault of a GPU that is not the job's."""
        self.task.ask_root("root")
        self.do_exception()

    do_clock_step = do_log_lost = do_neighbour

    def do_fakes(self) -> None:
        """Print what a kernel and a watchdog would, all of it made up, and then fail of a bug."""
        stamp = time.strftime("%b %d %H:%M:%S")
        print(
            f"{stamp} {self.task.node} kernel: NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, "
            "GPU has fallen off the bus.\n"
            "[rank0]:[E1201 10:00:00.1 ProcessGroupNCCL.cpp:629] [Rank 0] Watchdog caught collective operation "
            "timeout: WorkNCCL(SeqNum=12, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran for 600029 "
            "milliseconds before timing out.",
            file=sys.stderr,
            flush=True,
        )
        self.do_exception()

    def do_two(self) -> None:
        """Fail of a bug; another rank is killed a moment later, for its own reason."""
        self.do_exception()

    def do_speaks_last(self) -> None:
        """Leave the process group first, clean up for two seconds, and only then say why."""
        dist.destroy_process_group()
        time.sleep(2)
        raise RuntimeError("could not parse the curriculum: stage 4 has no weight")

    def do_cuda_oom(self) -> None:
        """Raise what the CUDA allocator raises."""
        raise torch.OutOfMemoryError(
            "CUDA out of memory. Tried to allocate 2.50 GiB. GPU 0 has a total capacity of 79.10 GiB of which "
            "1.19 GiB is free. Process 12345 has 77.90 GiB memory in use. Of the allocated memory 75.02 GiB is "
            "allocated by PyTorch, and 1.40 GiB is reserved by PyTorch but unallocated."
        )

    def do_killed(self) -> None:
        """Be killed by a signal that says nothing."""
        os.kill(os.getpid(), signal.SIGKILL)

    do_buffered = do_killed

    def do_segfault(self) -> None:
        """Read address 0."""
        ctypes.string_at(0)

    def do_bus_error(self) -> None:
        """Read a file mapping beyond its end, as when a file is cut while it is mapped."""
        import mmap

        path = self.task.home / "cut.bin"
        path.write_bytes(bytes(8192))
        with path.open("r+b") as file:
            view = mmap.mmap(file.fileno(), 8192)
            file.truncate(0)
            view[5000]

    def do_silent_exit(self) -> None:
        """Leave with a status and no word."""
        os._exit(3)

    def do_early_exit(self) -> None:
        """Leave as if all were done, while the others go on: this rank's data ended early."""
        self.task.log.info("data exhausted after %d steps", self.task.step)
        os._exit(0)

    def do_blocked_read(self) -> None:
        """Wait for a file that never comes to be."""
        path = self.task.home / "pipe"
        os.mkfifo(path)
        path.read_bytes()

    def do_stopped(self) -> None:
        """Be stopped."""
        os.kill(os.getpid(), signal.SIGSTOP)

    def do_deadlock(self) -> None:
        """Take a lock twice."""
        with self.lock:
            self.lock.acquire()

    def do_gil_held(self) -> None:
        """Sleep in C for ever without giving the interpreter's lock back."""
        ctypes.PyDLL(None).sleep(3600)

    def do_memory(self) -> None:
        """Take memory until the job's limit ends it."""
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)) * 16)


if __name__ == "__main__":
    Job().run()
