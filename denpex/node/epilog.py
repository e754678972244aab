"""The epilog: measures again, collects what the job left, takes it from the job's user, and closes the run."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Mapping
from typing import Any

from denpex import spool
from denpex.node import expire, hook, kernel, outfile, records, rundir, seal, settings


def main() -> None:
    """Run the epilog with the environment that slurmd gives; ends the process with status 0.

    A second epilog of a run that is closed changes nothing; one of a run that was not closed closes it.
    """
    hook.start(_main)


def _main() -> None:
    begin = time.monotonic()
    config, problem = settings.load()
    environ = dict(os.environ)
    run = rundir.find_open(config, environ)
    if run is None:
        if rundir.was_closed(config, environ):
            return
        try:
            run = rundir.open_new(config, environ, prolog=False, mark=None)
        except (OSError, ValueError) as error:
            hook.report(f"nothing is known of job {environ.get('SLURM_JOB_ID')} on this node: {error}")
            return
        run.gap(
            "no prolog ran here, so there is no state from before the job",
            run.node,
            "PrologFlags=Alloc in slurm.conf",
        )
    if os.path.exists(run.file(spool.DONE)):
        _forget(config, environ)
        return
    _close(run, config, environ, problem, begin)


def _close(run: rundir.Run, config: dict[str, Any], environ: Mapping[str, str], problem: str, begin: float) -> None:
    steps = hook.Steps(run, config)
    if problem:
        steps.do("the configuration", "", lambda: run.gap(problem, run.node, "denpex config apply"))
    steps.do("the clock", "clock.reference in denpex.yaml", lambda: hook.measure_clock(run, config, "epilog"))
    steps.do("kernel records", "kernel.source in denpex.yaml", lambda: collect_kernel(run, config))
    steps.do("the GPUs", "a GPU driver that answers", lambda: hook.measure_gpus(run, config, "after"))
    steps.do("the job's output file", "a readable output file", lambda: copy_output(run, config, environ))
    steps.do("sealing user/", "a spool that root can change", lambda: seal_user(run, environ), must=True)
    steps.finish("epilog.json", lambda: _write_epilog(run, environ, begin))
    steps.finish("DONE", lambda: records.replace(run.file(spool.DONE), b"", run.gid))
    steps.finish("the pointer", lambda: _forget(config, environ))
    steps.do("removing old runs", "hooks.timeout in denpex.yaml", lambda: expire.expire(config, run))


def collect_kernel(run: rundir.Run, config: dict[str, Any]) -> None:
    """Write the kernel records since the prolog's mark (or of the last minute, where no prolog ran)."""
    mark = boot = None
    with contextlib.suppress(OSError, ValueError), open(run.file(spool.META), encoding="utf-8") as file:
        meta = json.load(file)
        mark, boot = meta.get("kernel_mark"), meta.get("boot_id")
    found = kernel.since(mark, config, run.gap, same_boot=boot in (None, rundir.boot_id()))
    records.replace_lines(run.file(spool.KERNEL), found, run.gid)


def copy_output(run: rundir.Run, config: dict[str, Any], environ: Mapping[str, str]) -> None:
    """Copy the job's output file, unless the spool's disk is nearly full."""
    if not rundir.has_room(config):
        what = "the job's output file was not copied: the spool's disk has less than spool_min_free bytes free"
        run.gap(what, run.node, "room in the spool")
        return
    outfile.copy(run, environ, int(config["capture_max_output_file"]))


def seal_user(run: rundir.Run, environ: Mapping[str, str]) -> None:
    """Take user/ from the job's user."""
    uid = rundir.number(environ.get("SLURM_JOB_UID"))
    if uid is None:
        uid = os.lstat(run.file(spool.USER)).st_uid
    seal.seal(run, uid)


def _forget(config: dict[str, Any], environ: Mapping[str, str]) -> None:
    job_id = rundir.number(environ.get("SLURM_JOB_ID"))
    if job_id is not None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(rundir.pointer(config, job_id))


def _write_epilog(run: rundir.Run, environ: Mapping[str, str], begin: float) -> None:
    stamp = records.now()
    content = {
        "closed_ns": stamp["realtime_ns"],
        "closed_raw_ns": stamp["raw_ns"],
        "exit_code": environ.get("SLURM_JOB_EXIT_CODE"),
        "exit_code2": environ.get("SLURM_JOB_EXIT_CODE2"),
        "derived_ec": environ.get("SLURM_JOB_DERIVED_EC"),
        "duration_ms": round((time.monotonic() - begin) * 1000),
    }
    records.replace(run.file(spool.EPILOG), content, run.gid)
