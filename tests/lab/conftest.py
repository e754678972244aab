"""The lab cluster for tests, and jobs on it as an ordinary user would submit them."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LAB = ROOT / "scripts" / "lab"
TRAIN = ROOT / "scripts" / "demo.d" / "train.py"
DENPEX = ROOT / ".venv" / "bin" / "denpex"
SKEW = "n2=+45,n3=-3"

HEADER = """#!/bin/bash
#SBATCH --job-name=train
export MASTER_ADDR=$(scontrol show hostnames "$SLURM_JOB_NODELIST" | head -n 1)
export MASTER_PORT=$((20000 + SLURM_JOB_ID % 20000))
export GLOO_SOCKET_IFNAME=eth0
"""


class Lab:
    """A running lab cluster; every command is bounded in time."""

    def run(self, *command: str, user: str = "alice", timeout: float = 60, stdin: str = "") -> str:
        """Run a command on the login host as ``user``; return its standard output, stripped."""
        done = subprocess.run(
            [LAB, "run", "--user", user, "--", *command],
            input=stdin, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}: {done.stdout}\n{done.stderr}"
        return done.stdout.strip()

    def node(self, node: str, *command: str, check: bool = True) -> subprocess.CompletedProcess[str]:
        """Run a command as root inside a node."""
        done = subprocess.run(
            [LAB, "node", node, "--", *command], capture_output=True, text=True, timeout=60, check=False
        )
        assert not check or done.returncode == 0, f"{node}: {command}: {done.stdout}\n{done.stderr}"
        return done

    def submit(self, body: str, *options: str, user: str = "alice") -> str:
        """Submit a batch script from the user's home; return the job id."""
        script = HEADER + body
        return self.run("sbatch", "--parsable", *options, user=user, stdin=script).split(";")[0]

    def show_json(self, job: str, user: str = "alice") -> dict[str, Any]:
        """Return what `denpex show --json` prints of one job; {} where it knows nothing."""
        text = self.run("denpex", "show", "--json", job, user=user)
        document = json.loads(text) if text else {}
        return document if isinstance(document, dict) else {}

    def show(self, job: str, user: str = "alice") -> dict[str, Any] | None:
        """Return the stored verdict as its JSON document, or None while there is none."""
        document = self.show_json(job, user)
        return document if document.get("failure_class") else None

    def verdict(self, job: str, seconds: float = 240) -> dict[str, Any]:
        """Wait for a job's verdict."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            document = self.show(job)
            if document is not None:
                return document
            time.sleep(1)
        raise AssertionError(f"job {job} has no verdict after {seconds} s: {self.run('squeue')}")


@dataclass(frozen=True)
class Outcome:
    """A finished job: its verdict and the report that its owner reads."""

    job: str
    verdict: dict[str, Any]
    report: str


def lab_up(skew: str) -> Lab:
    """Start the lab (again) with the given clock offsets."""
    subprocess.run([LAB, "down"], check=True, timeout=120)
    options = ["--skew", skew] if skew else []
    subprocess.run([LAB, "up", *options], check=True, timeout=600)
    return Lab()


@pytest.fixture(scope="session", params=["", SKEW], ids=["true-clocks", "skewed-clocks"])
def lab(request: pytest.FixtureRequest) -> Iterator[Lab]:
    """A lab with true clocks, then one with a node 45 s ahead and another 3 s behind."""
    yield lab_up(request.param)
    subprocess.run([LAB, "down"], check=True, timeout=120)
