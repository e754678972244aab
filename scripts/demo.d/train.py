"""An ordinary data-parallel training script for the CPU; it knows nothing of Denpex.

``--fault`` makes one rank fail in the way that the demonstration and the lab's tests need.
"""

import argparse
import logging
import os
import signal
import time
from datetime import timedelta

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, Dataset

FEATURES = 32


class Tokens(Dataset):
    """A made-up data set; index ``bad`` is beyond its table, as after a wrong preprocessing step."""

    def __init__(self, length: int, bad: int) -> None:
        self.table = torch.randn(length, FEATURES).tolist()
        self.length = length
        self.bad = bad

    def __len__(self) -> int:
        return self.length

    def __getitem__(self, index: int) -> torch.Tensor:
        row = self.table[index if index != self.bad else self.length + index]
        return torch.tensor(row)


def misbehave(fault: str) -> None:
    """Fail as ``fault`` says; returns only for faults that leave the process running."""
    if fault == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    elif fault == "stop":
        os.kill(os.getpid(), signal.SIGSTOP)
    elif fault == "memory":
        hoard = []
        while True:
            hoard.append(bytearray(os.urandom(1 << 20)) * 8)


def main() -> None:
    """Train for some steps, saving a checkpoint now and then on rank 0."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--step-seconds", type=float, default=0.02)
    parser.add_argument("--timeout", type=float, default=60, help="of a collective, seconds")
    parser.add_argument("--checkpoint-dir", default="")
    parser.add_argument("--fault", choices=["none", "index-error", "kill", "stop", "memory", "scare"], default="none")
    parser.add_argument("--fault-rank", type=int, default=2)
    parser.add_argument("--fault-step", type=int, default=50)
    options = parser.parse_args()

    rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
    world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    log = logging.getLogger("train")
    torch.set_num_threads(1)
    torch.manual_seed(rank)
    dist.init_process_group("gloo", rank=rank, world_size=world, timeout=timedelta(seconds=options.timeout))
    faulty = rank == options.fault_rank
    bad = options.fault_step if faulty and options.fault == "index-error" else -1
    loader = DataLoader(Tokens(options.steps, bad), batch_size=1)
    model = DistributedDataParallel(torch.nn.Linear(FEATURES, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    for step, batch in enumerate(loader):
        if faulty and step == options.fault_step:
            misbehave(options.fault)
        loss = model(batch).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 5 == 0:
            log.info("step %d loss %.4f", step, loss.item())
        if options.fault == "scare" and step == options.fault_step:
            log.warning("ConnectionResetError: [Errno 104] Connection reset by peer, retrying in 1 s (1/5)")
            log.error("NCCL WARN Error: failed to open libibverbs.so[.1], using sockets")
            log.warning("CUDA out of memory. Tried to allocate 2.00 GiB: retrying with micro batch size 1")
        if options.checkpoint_dir and rank == 0 and step % 20 == 10:
            torch.save({"step": step, "padding": torch.zeros(1 << 20)}, f"{options.checkpoint_dir}/step{step}.pt")
        time.sleep(options.step_seconds)
    dist.barrier()
    dist.destroy_process_group()
    log.info("done")


if __name__ == "__main__":
    main()
