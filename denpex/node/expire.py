"""Removes runs that are older than spool_max_age from this node's spool: a few at each epilog."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from denpex import spool
from denpex.node import rundir

_AT_A_TIME = 20


def expire(settings: Mapping[str, Any], run: rundir.Run) -> None:
    """Remove old runs beside ``run``, the oldest first; a run that is still open is never old."""
    folder = os.path.dirname(run.path)
    oldest = time.time() - int(settings["spool_max_age"])
    known = [known for name in os.listdir(folder) if (known := spool.parse_run(name)) and known.opened < oldest]
    for old in sorted(known, key=lambda item: item.opened)[:_AT_A_TIME]:
        path = os.path.join(folder, str(old))
        # A job may run for longer than spool_max_age.
        if _age_counts_from(path, old) < oldest and not _is_open(settings, old, path):
            import shutil

            # It holds directory descriptors, so that no link that a user planted is followed.
            shutil.rmtree(path, ignore_errors=True)


def _age_counts_from(path: str, run: spool.RunId) -> float:
    try:
        return os.stat(os.path.join(path, spool.DONE)).st_mtime
    except OSError:
        return run.opened


def _is_open(settings: Mapping[str, Any], run: spool.RunId, path: str) -> bool:
    try:
        with open(rundir.pointer(settings, run.job_id), encoding="utf-8") as file:
            return file.read().strip() == path
    except OSError:
        return False
