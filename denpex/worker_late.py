"""Remembers, in small files, the runs whose verdict was given with something missing, so that it can be revised."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from denpex.model import Job, Step

KEEP_S = 86400
_LONGEST_S = 1800.0


@dataclass(frozen=True)
class Late:
    """A run that may be revised: what is still missing, when to look next, when to give up (seconds since 1970)."""

    job: Job
    nodes: tuple[str, ...]
    accounted: bool  # accounting has said all that it knows
    next_at: float
    until: float
    tries: int = 0

    def again(self, now: float, first_s: float) -> Late:
        """Return it with the next time to look: each wait is half as long again as the one before."""
        wait = min(first_s * 1.5**self.tries, _LONGEST_S)
        return replace(self, next_at=now + wait, tries=self.tries + 1)


class LateRuns:
    """The directory of such files, one a run, written aside and renamed."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def put(self, key: str, late: Late) -> None:
        """Remember a run, or what has changed about it; raises OSError."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        aside = self._directory / f".{key}"
        with aside.open("w", encoding="utf-8") as file:
            json.dump({"format": 1, **asdict(late)}, file)
            file.flush()
            os.fsync(file.fileno())
        aside.replace(self._directory / f"{key}.json")

    def drop(self, key: str) -> None:
        """Forget a run."""
        (self._directory / f"{key}.json").unlink(missing_ok=True)

    def read(self) -> Iterator[tuple[str, Late]]:
        """Yield (key, run) of every file that can be read; one that cannot is removed: it only names what to redo."""
        if not self._directory.is_dir():
            return
        for path in sorted(self._directory.glob("*.json")):
            try:
                yield path.stem, _late(json.loads(path.read_text(encoding="utf-8")))
            except (ValueError, KeyError, TypeError):
                path.unlink(missing_ok=True)
            except OSError:
                continue  # gone since, or a disk that does not answer: the next look is soon


def _late(document: dict[str, Any]) -> Late:
    job = dict(document["job"])
    steps = tuple(Step(**{**step, "nodes": tuple(step["nodes"])}) for step in job.pop("steps"))
    return Late(
        job=Job(**{**job, "nodes": tuple(job["nodes"]), "steps": steps}),
        nodes=tuple(document["nodes"]),
        accounted=bool(document["accounted"]),
        next_at=float(document["next_at"]),
        until=float(document["until"]),
        tries=int(document["tries"]),
    )
