"""Has PyTorch's flight recorder dump into the run: each rank's last collectives, when one of them times out."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

from denpex import spool

_ENTRIES = "2000"  # PyTorch 2.13's own default; it was 0 before, which is no recorder
# Releases differ in the name (docs/capture.md). Of a pair the first that is set counts, so both are set or neither.
_SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
_PREFIXES = ("TORCH_FR_DUMP_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_TEMP_FILE")
_ON_TIMEOUT = "TORCH_NCCL_DUMP_ON_TIMEOUT"
# What a captured batch script hands down to its steps is of the script, and of its node.
_OURS = re.compile(rf".*/{spool.USER}/{spool.FLIGHT}/[A-Za-z0-9+-]+\.rank_")


def variables(user: str, step: str, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what to add to a task's environment, and make the directory that the dumps go to.

    ``user``: the run's user/. What the user has set stays; {} where the directory cannot be made.
    """
    folder = os.path.join(user, spool.FLIGHT)
    try:
        os.mkdir(folder, 0o700)
    except FileExistsError:
        if not os.path.isdir(folder):
            return {}
    except OSError:
        return {}
    found: dict[str, str] = {}
    if not any(name in environ for name in _SIZES):
        found.update(dict.fromkeys(_SIZES, _ENTRIES))
    if all(name not in environ or _OURS.fullmatch(environ[name]) for name in _PREFIXES):
        found.update(dict.fromkeys(_PREFIXES, os.path.join(folder, f"{step}.rank_")))
    if _ON_TIMEOUT not in environ:
        found[_ON_TIMEOUT] = "1"
    return found
