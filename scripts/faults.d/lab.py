"""The lab cluster as the faults use it: a set of nodes for each job that runs at a time."""

from __future__ import annotations

import subprocess
from pathlib import Path

LAB = Path(__file__).parents[1] / "lab"
STATE = Path("/srv/denpex-lab")
NODES_OF_A_JOB = 4


def lab(*words: str, stdin: str = "", timeout: float = 60, check: bool = True) -> str:
    """Call scripts/lab; return what it printed. Raises RuntimeError with its error."""
    done = subprocess.run([str(LAB), *words], input=stdin, capture_output=True, text=True, timeout=timeout, check=False)
    if check and done.returncode:
        raise RuntimeError(f"scripts/lab {' '.join(words)[:200]} failed: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout


def up(slots: int, skew: bool) -> None:
    """Start the lab with a set of nodes for each slot; each node has a clock of its own, right or wrong."""
    lab("down", timeout=120)
    clocks = []
    for slot in range(slots):
        first = slot * NODES_OF_A_JOB
        clocks += [f"n{first + 2}=+45", f"n{first + 3}=-3"] if skew else [f"n{first + 1}=0"]
    lab("up", "--nodes", str(slots * NODES_OF_A_JOB), "--gpus", "--skew", ",".join(clocks), timeout=600)


def nodes_of(slot: int) -> list[str]:
    """Return the nodes of a slot."""
    return [f"n{slot * NODES_OF_A_JOB + i + 1}" for i in range(NODES_OF_A_JOB)]


def owner() -> tuple[int, int]:
    """Return uid and gid of the lab's user alice."""
    for line in (STATE / "etc/passwd").read_text(encoding="utf-8").splitlines():
        name, _, uid, gid, *_ = line.split(":")
        if name == "alice":
            return int(uid), int(gid)
    raise RuntimeError("the lab has no user alice; 'scripts/lab up' makes one")
