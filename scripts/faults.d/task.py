"""What both kinds of fault jobs share: the plan, who this rank is, its log, and a word with root's side."""

from __future__ import annotations

import json
import logging
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

# Survived, every one: each is followed by progress of the same rank.
NOISE = (
    "UserWarning: The given NumPy array is not writable, and PyTorch does not support non-writable tensors.",
    "urllib3: Retrying (total=2) after a broken connection: ConnectionResetError(104, 'Connection reset by peer')",
    "wandb: Network error (ReadTimeout), entering retry loop.",
    "WARNING: failed to fetch metadata (attempt 1/5): [Errno 110] Connection timed out; retrying in 2 s",
    "NCCL WARN NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.",
    "FutureWarning: `torch.cuda.amp.autocast(args...)` is deprecated.",
)


class Task:
    """One rank of a fault job."""

    def __init__(self) -> None:
        """Read the plan that the job's directory holds, and note there where this rank runs."""
        self.home = Path(os.environ["FAULT_DIR"])
        self.plan: dict[str, Any] = json.loads((self.home / "plan.json").read_text(encoding="utf-8"))
        self.rank = int(os.environ.get("RANK", os.environ.get("SLURM_PROCID", "0")))
        self.world = int(os.environ.get("WORLD_SIZE", os.environ.get("SLURM_NTASKS", "1")))
        self.local_rank = int(os.environ.get("LOCAL_RANK", os.environ.get("SLURM_LOCALID", "0")))
        self.step = int(self.plan["step"])
        self.is_origin = self.rank == self.plan["rank"]
        self.node = os.environ.get("SLURMD_NODENAME", socket.gethostname())
        place = {"node": self.node, "pid": os.getpid(), "gpu": self.gpu()}
        self._write(f"place.{self.rank}", json.dumps(place))
        level = logging.INFO if self.rank == 0 or self.plan["prints"] == "all" else logging.WARNING
        logging.basicConfig(level=level, format="%(asctime)s %(levelname)s %(message)s", stream=sys.stderr)
        self.log = logging.getLogger("train")

    def gpu(self) -> int:
        """Return the index of the GPU that this rank uses on its node."""
        seen = [text for text in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if text.isdigit()]
        own = seen if len(seen) == 1 else seen[self.local_rank : self.local_rank + 1]
        return int(own[0]) if own else self.local_rank

    def _write(self, name: str, text: str = "") -> None:
        aside = self.home / f".{name}.{self.rank}"
        aside.write_text(text, encoding="utf-8")
        aside.replace(self.home / name)

    def mark(self, name: str) -> None:
        """Tell the other ranks, and root's side, that something has happened."""
        self._write(f"mark.{name}")

    def await_mark(self, name: str, seconds: float = 120) -> None:
        """Wait until a rank, or root's side, has said so; go on after ``seconds`` all the same."""
        end = time.monotonic() + seconds
        while not (self.home / f"mark.{name}").exists() and time.monotonic() < end:
            time.sleep(0.003)

    def ask_root(self, name: str) -> None:
        """Have root's side do its part of the fault (a kernel line, a signal ...), and wait until it has."""
        self.mark(name)
        self.await_mark(f"{name}.done", 30)

    def noise(self, step: int) -> None:
        """Print something alarming that means nothing, where the plan has noise."""
        if self.plan["noise"] and (step * 7 + self.rank * 3) % 11 == 0:
            print(NOISE[(step + self.rank) % len(NOISE)], file=sys.stderr, flush=True)
