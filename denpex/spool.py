"""The on-disk contract of hooks/SPOOL.md: names and paths, for both sides; standard library only."""

from __future__ import annotations

import re
from typing import NamedTuple

FORMAT = 1

META = "meta.json"
CLOCK = "clock.jsonl"
KERNEL = "kernel.jsonl"
NVML_BEFORE = "nvml.before.json"
NVML_AFTER = "nvml.after.json"
EPILOG = "epilog.json"
GAPS = "gaps.jsonl"
TASKS = "tasks.jsonl"
TASK_STREAMS = "tasks"
USER = "user"
CLAIMS = "claims.jsonl"
USER_STREAMS = "streams"
FLIGHT = "fr"
DONE = "DONE"

_RUN = re.compile(r"(\d{1,20})\.(\d{1,10})\.(\d{1,20})")
_SAFE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


class RunId(NamedTuple):
    """One node's directory of one run: ``<job_id>.<restart>.<opened>``; ``opened`` in the node's own seconds."""

    job_id: int
    restart: int
    opened: int

    def __str__(self) -> str:
        return f"{self.job_id}.{self.restart}.{self.opened}"


def parse_run(name: str) -> RunId | None:
    """Return the run that a directory name means, or None where it is not one."""
    match = _RUN.fullmatch(name)
    return RunId(int(match[1]), int(match[2]), int(match[3])) if match else None


def is_safe_name(name: str) -> bool:
    """Tell whether a cluster or node name may be used as a directory name."""
    return _SAFE_NAME.fullmatch(name) is not None
