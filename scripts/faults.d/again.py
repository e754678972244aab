"""Diagnoses a kept run again, with some of its evidence taken away; runs no job."""

from __future__ import annotations

import json
import random
import re
import shutil
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from denpex.engine import infer, verdict
from denpex.engine.facts import Case
from denpex.model import Job, Step
from denpex.worker_engine import Diagnosis

KINDS = {
    "fr": "flight-recorder dumps",
    "exit": "how tasks ended",
    "log": "the output of N ranks, as log:N",
    "clock": "clock samples",
    "kernel": "kernel records",
    "nvml": "GPU counters",
}


def kinds(text: str) -> list[str]:
    """Parse "fr,exit,log:1"; raises ValueError with what is possible."""
    found = [word.strip() for word in text.split(",") if word.strip()]
    for word in found:
        name, _, number = word.partition(":")
        if name not in KINDS or (name == "log") != number.isdigit():
            raise ValueError(
                f"--minus does not know '{word}'; it takes {', '.join(KINDS)}, where log needs a number: log:1"
            )
    return found


class Again:
    """Diagnoses kept runs with the library as it stands."""

    def __init__(self) -> None:
        """Load the library once."""
        self._diagnosis = Diagnosis()

    def __call__(self, keep: Path, minus: Sequence[str]) -> dict[str, Any]:
        """Return the verdict's document on the run that lies in ``keep``, without the evidence named by ``minus``."""
        with tempfile.TemporaryDirectory() as folder:
            spool = Path(folder) / "spool"
            shutil.copytree(keep / "spool", spool)
            for kind in minus:
                take_away(spool, kind, keep.name)
            bundles = sorted(path for path in spool.glob("*/*") if path.is_dir())
            return self._diagnosis(_job(keep), bundles, ()).to_json()

    def case(self, keep: Path, minus: Sequence[str]) -> tuple[Case, Callable[[], dict[str, Any]]]:
        """Return the case that the engine weighs on that run, and what weighs it anew and returns the document."""
        with mock.patch.object(verdict, "verdict", wraps=verdict.verdict) as seen:
            self(keep, minus)
        case, _, *rest = seen.call_args.args
        return case, lambda: verdict.verdict(case, infer.infer(case), *rest).to_json()


def _job(keep: Path) -> Job:
    document = json.loads((keep / "job.json").read_text(encoding="utf-8"))
    if document is None:
        raise ValueError(f"{keep}: accounting knew nothing of the job; run the fault again")
    steps = tuple(Step(**{**step, "nodes": tuple(step["nodes"])}) for step in document.pop("steps"))
    return Job(**{**document, "nodes": tuple(document["nodes"]), "steps": steps})


def take_away(spool: Path, kind: str, seed: str) -> None:
    """Remove one kind of evidence from the runs below ``spool``; ``seed`` draws the ranks of "log:N"."""
    name, _, number = kind.partition(":")
    if name == "fr":
        for path in spool.glob("*/*/user/fr"):
            shutil.rmtree(path)
    elif name == "exit":
        for path in [*spool.glob("*/*/user/claims.jsonl"), *spool.glob("*/*/tasks.jsonl")]:
            _keep_lines(path, b'"event":"end"')
        # What srun and slurmstepd print of ends is the same evidence.
        for path in spool.glob("*/*/tasks/batch.*"):
            path.unlink()
    elif name == "clock":
        for path in spool.glob("*/*/clock.jsonl"):
            path.unlink()
        for path in spool.glob("*/*/user/claims.jsonl"):
            _keep_lines(path, b'"event":"clock"')
    elif name == "kernel":
        for path in spool.glob("*/*/kernel.jsonl"):
            path.unlink()
    elif name == "nvml":
        for path in spool.glob("*/*/nvml.*.json"):
            path.unlink()
    else:
        streams: dict[str, list[Path]] = {}
        for path in spool.glob("*/*/user/streams/0.*"):
            streams.setdefault(path.name.split(".")[1], []).append(path)
        ranks = sorted(streams)
        for rank in random.Random(seed).sample(ranks, min(int(number), len(ranks))):
            for path in streams[rank]:
                path.unlink()
            for path in spool.glob("*/*/user/fr/*"):
                if re.search(rf"(?<!\d){rank}(?!\d)", path.name):
                    path.unlink()
        # The job's own file holds every rank's words once more.
        for path in spool.glob("*/*/tasks/batch.*"):
            path.unlink()


def _keep_lines(path: Path, without: bytes) -> None:
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(b"".join(line for line in lines if without not in line.replace(b": ", b":")))
