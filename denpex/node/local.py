"""Runs outside Slurm: a spool run of one's own, and the verdict at its end."""

from __future__ import annotations

import os
import sys
import time

from denpex import spool
from denpex.node import clock, records

KEPT_RUNS = 20


def node() -> str:
    """Return this host's short name."""
    return os.uname().nodename.split(".")[0]


def open_run(place: str, command: list[str]) -> str | None:
    """Make a run directory below ``place`` (default: the user's state directory); return its user/, or None."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    folder = os.path.join(place or os.path.join(state, "denpex", "runs"), "local", node())
    stamp = records.now()
    opened = stamp["realtime_ns"] // 10**9
    try:
        os.makedirs(folder, 0o700, exist_ok=True)
        _forget_old(folder)
        while True:
            path = os.path.join(folder, str(spool.RunId(0, 0, opened)))
            try:
                os.mkdir(path, 0o700)
                break
            except FileExistsError:
                opened += 1
        os.makedirs(os.path.join(path, spool.USER, spool.USER_STREAMS), 0o700)
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            boot_id = file.read().strip()
        meta = {
            "format": spool.FORMAT,
            "cluster": None,
            "node": node(),
            "hostname": os.uname().nodename,
            "job_id": None,
            "restart": 0,
            "opened": opened,
            "opened_ns": stamp["realtime_ns"],
            "opened_raw_ns": stamp["raw_ns"],
            "boot_id": boot_id,
            "timezone": time.localtime().tm_gmtoff,
            "uid": os.getuid(),
            "gid": os.getgid(),
            "user": os.environ.get("USER", ""),
            "work_dir": os.getcwd(),
            "command": " ".join(command)[:4096],
            "prolog": False,
        }
        records.replace(os.path.join(path, spool.META), meta)
        _clock(path)
    except OSError as error:
        sys.stderr.write(f"denpex run: nothing is captured: {folder} cannot be written: {error.strerror}\n")
        return None
    return os.path.join(path, spool.USER)


def _forget_old(folder: str) -> None:
    import shutil

    old = sorted((run.opened, name) for name in os.listdir(folder) if (run := spool.parse_run(name)))
    for _, name in old[: max(0, len(old) - KEPT_RUNS + 1)]:
        shutil.rmtree(os.path.join(folder, name), ignore_errors=True)


def _clock(path: str) -> None:
    for sample in clock.samples((), "task")[0]:
        records.append(os.path.join(path, spool.CLOCK), sample)


def close_run(path: str) -> None:
    """Mark the run as complete."""
    try:
        _clock(path)
        records.replace(os.path.join(path, spool.DONE), b"")
    except OSError as error:
        sys.stderr.write(f"denpex run: {path} cannot be written: {error.strerror}\n")


def print_verdict(path: str) -> None:
    """Diagnose the run and print the report on standard error: by another process, whose failure changes nothing."""
    import subprocess

    sys.stderr.write("\n")
    sys.stderr.flush()
    package = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    code = "import sys; sys.path.insert(0, sys.argv.pop(1)); from denpex.cli import main; sys.exit(main())"
    subprocess.run(
        [sys.executable, "-c", code, package, "diagnose", path], stdin=subprocess.DEVNULL, stdout=2, check=False
    )
