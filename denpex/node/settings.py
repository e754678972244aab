"""What node code needs of the configuration: node.json, or built-in defaults where it is missing or broken."""

from __future__ import annotations

import json
import os
from typing import Any

DEFAULTS: dict[str, Any] = {
    "cluster": "",
    "spool_dir": "/var/spool/denpex",
    "spool_min_free": 1 << 30,
    "spool_max_age": 7 * 86400,
    "run_dir": "/run/denpex",
    "group": "denpex",
    "clock_reference": [],
    "kernel_source": "auto",
    "kernel_trusted_file": "",
    "capture_max_task": 64 << 20,
    "capture_max_job": 2 << 30,
    "capture_max_output_file": 64 << 20,
    "hook_timeout": 5,
    "nvml_timeout": 2,
}


def load() -> tuple[dict[str, Any], str]:
    """Return the settings, and what is wrong with node.json ("" where nothing is)."""
    path = os.path.join(os.environ.get("DENPEX_ETC") or "/etc/denpex", "node.json")
    settings = dict(DEFAULTS)
    try:
        # O_NONBLOCK: what lies there may be no plain file.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), encoding="utf-8") as file:
            written = json.load(file)
    except (OSError, ValueError, RecursionError) as error:
        return settings, f"{path} cannot be read ({error}), so the built-in defaults hold"
    if not isinstance(written, dict):
        return settings, f"{path} is not a JSON object, so the built-in defaults hold"
    for name, default in DEFAULTS.items():
        value = written.get(name, default)
        if type(value) is not type(default):
            return dict(DEFAULTS), f"{path}: {name} is {value!r}, which does not fit; the built-in defaults hold"
        settings[name] = value
    settings["clock_reference"] = [str(item) for item in settings["clock_reference"]]
    return settings, ""
