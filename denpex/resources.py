"""Finds the data that travels with Denpex: patterns, hooks and configuration templates."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def path(name: str) -> Path:
    """Return the directory ``name`` ("patterns", "hooks" or "slurm_conf").

    An installed wheel carries it inside the package; a checkout has it beside the package.
    """
    installed = _PACKAGE / "_data" / name
    return installed if installed.is_dir() else _PACKAGE.parent / name
