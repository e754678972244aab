"""The prolog: opens the run on this node and marks where clocks, kernel log and GPU counters stand."""

from __future__ import annotations

import json
import os
from typing import Any

from denpex import spool
from denpex.node import hook, kernel, records, rundir, settings


def main() -> None:
    """Run the prolog with the environment that slurmd gives; ends the process with status 0."""
    hook.start(_main)


def _main() -> None:
    config, problem = settings.load()
    environ = dict(os.environ)
    try:
        run = rundir.open_new(config, environ, prolog=True, mark=kernel.mark(config))
    except (OSError, ValueError) as error:
        hook.report(f"nothing is captured of job {environ.get('SLURM_JOB_ID')}: {error}")
        return
    steps = hook.Steps(run, config)
    if problem:
        steps.do("the configuration", "", lambda: run.gap(problem, run.node, "denpex config apply"))
    steps.do("the clock", "clock.reference in denpex.yaml", lambda: hook.measure_clock(run, config, "prolog"))
    steps.do("the GPUs", "a GPU driver that answers", lambda: note_gpus(run, config))


def note_gpus(run: rundir.Run, config: dict[str, Any]) -> None:
    """Add the GPUs and the driver to meta.json, where there is a driver."""
    gpus = hook.measure_gpus(run, config, "before")
    if gpus is None:
        return
    with open(run.file(spool.META), encoding="utf-8") as file:
        meta = json.load(file)
    meta["driver_version"] = gpus.get("driver_version", "")
    names = ("index", "minor", "pci", "serial", "model")
    meta["gpus"] = [
        {"uuid": uuid, **{name: gpu[name] for name in names if name in gpu}}
        for uuid, gpu in gpus.get("gpus", {}).items()
    ]
    records.replace(run.file(spool.META), meta, run.gid)
