"""The run directory on this node: opens it, and finds it again."""

from __future__ import annotations

import errno
import grp
import os
import time
from collections.abc import Mapping
from typing import Any

from denpex import spool
from denpex.node import records

# Slurm may start an epilog twice, the second soon after the first; what comes later is another run of the job.
_SECOND_EPILOG_S = 600
_SKEW_S = 60


class Run:
    """One open run directory, and the gaps that are noted in it."""

    def __init__(self, path: str, gid: int) -> None:
        self.path = path
        self.gid = gid

    @property
    def node(self) -> str:
        """The node's name in Slurm."""
        return os.path.basename(os.path.dirname(self.path))

    def file(self, name: str) -> str:
        """Return the path of a file of the run."""
        return os.path.join(self.path, name)

    def append(self, name: str, record: dict[str, Any]) -> None:
        """Append one record to one of the run's ``.jsonl`` files."""
        records.append(self.file(name), record, self.gid)

    def gap(self, what: str, where: str, closed_by: str) -> None:
        """Note what could not be captured, where, and what would close the gap."""
        self.append(spool.GAPS, {"what": what[:2000], "where": where, "closed_by": closed_by})


def group_id(name: str) -> int | None:
    """Return the id of the group that may read the spool; None where it does not exist."""
    try:
        return grp.getgrnam(name).gr_gid
    except KeyError:
        return None


def number(text: str | None) -> int | None:
    """Return a variable of the hook's environment as a number, or None."""
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 20 else None


def pointer(settings: Mapping[str, Any], job_id: int) -> str:
    """Return the path of the file that names a job's open run on this node."""
    return os.path.join(settings["run_dir"], "jobs", str(job_id))


def has_room(settings: Mapping[str, Any]) -> bool:
    """Tell whether the spool's disk has at least ``spool_min_free`` bytes free."""
    disk = os.statvfs(settings["spool_dir"])
    return disk.f_bavail * disk.f_frsize >= int(settings["spool_min_free"])


def place(settings: Mapping[str, Any], environ: Mapping[str, str]) -> str:
    """Return this node's directory in the spool; raises ValueError where the environment names none."""
    cluster = settings["cluster"] or environ.get("SLURM_CLUSTER_NAME", "")
    node = environ.get("SLURMD_NODENAME", "")
    if not spool.is_safe_name(cluster) or not spool.is_safe_name(node):
        raise ValueError(f"the cluster {cluster!r} or node {node!r} cannot name a directory")
    return os.path.join(settings["spool_dir"], cluster, node)


def open_new(
    settings: Mapping[str, Any], environ: Mapping[str, str], *, prolog: bool, mark: dict[str, Any] | None
) -> Run:
    """Make the directory of a run that begins now, with the user's part and the pointer to it.

    ``mark``: where the kernel log stood. Raises OSError where the spool cannot be written (nothing is left of the run
    then), ValueError where the environment is not a Slurm hook's.
    """
    job_id = number(environ.get("SLURM_JOB_ID"))
    uid, user_gid = number(environ.get("SLURM_JOB_UID")), number(environ.get("SLURM_JOB_GID"))
    if job_id is None or uid is None:
        raise ValueError("SLURM_JOB_ID and SLURM_JOB_UID are not numbers: this is not a Slurm hook's environment")
    path = place(settings, environ)
    group = group_id(settings["group"])
    gid = 0 if group is None else group
    _make_place(settings["spool_dir"], path, gid)
    if not has_room(settings):
        raise OSError(errno.ENOSPC, f"the disk of {settings['spool_dir']} has less than spool_min_free bytes free")
    stamp = records.now()
    restart = number(environ.get("SLURM_JOB_RESTART_COUNT")) or 0
    known = spool.RunId(job_id, restart, stamp["realtime_ns"] // 10**9)
    while True:
        directory = os.path.join(path, str(known))
        try:
            os.mkdir(directory, 0o700)
            break
        except FileExistsError:
            known = known._replace(opened=known.opened + 1)
    run = Run(directory, gid)
    try:
        _fill(run, known, stamp, environ, (uid, user_gid), {"prolog": prolog, "kernel_mark": mark})
        if group is None:
            what = f"there is no group {settings['group']!r} on this node, so only root can read the spool"
            run.gap(what, run.node, "the group, or `group` in denpex.yaml")
        os.makedirs(os.path.dirname(pointer(settings, job_id)), 0o755, exist_ok=True)
        records.replace(pointer(settings, job_id), directory.encode() + b"\n", mode=0o644)
    except OSError:
        import shutil

        shutil.rmtree(directory, ignore_errors=True)
        raise
    return run


def _make_place(top: str, path: str, gid: int) -> None:
    """Make this node's directory. The job's user must reach user/ below: the way there may be passed, not listed."""
    for folder in (top, os.path.dirname(path), path):
        if not os.path.isdir(folder):
            os.makedirs(folder, exist_ok=True)
            os.chown(folder, 0, gid)
            os.chmod(folder, 0o751)


def _fill(
    run: Run,
    known: spool.RunId,
    stamp: dict[str, int],
    environ: Mapping[str, str],
    user: tuple[int, int | None],
    facts: dict[str, Any],
) -> None:
    records.replace(run.file(spool.META), {**_meta(run.path, known, stamp, environ), **facts}, run.gid)
    for name in (spool.TASK_STREAMS, spool.USER, os.path.join(spool.USER, spool.USER_STREAMS)):
        os.mkdir(run.file(name), 0o700)
    os.chown(run.file(spool.TASK_STREAMS), 0, run.gid)
    os.chmod(run.file(spool.TASK_STREAMS), records.DIRECTORY_MODE)
    # From below: once user/ is the user's, root touches nothing in it by path.
    for name in (os.path.join(spool.USER, spool.USER_STREAMS), spool.USER):
        os.chown(run.file(name), user[0], -1 if user[1] is None else user[1])
    # Last, so that nobody comes by before all is there.
    os.chown(run.path, 0, run.gid)
    os.chmod(run.path, 0o751)


def find_open(settings: Mapping[str, Any], environ: Mapping[str, str]) -> Run | None:
    """Return this job's run that is not closed, or that its pointer names; None where there is none."""
    job_id = number(environ.get("SLURM_JOB_ID"))
    try:
        folder = place(settings, environ)
    except ValueError:
        return None
    if job_id is None:
        return None
    gid = group_id(settings["group"]) or 0
    try:
        with open(pointer(settings, job_id), encoding="utf-8", errors="replace") as file:
            path = file.read(4096).strip()
        known = spool.parse_run(os.path.basename(path))
        if known is not None and known.job_id == job_id and os.path.dirname(path) == folder and os.path.isdir(path):
            return Run(path, gid)
    except OSError:
        # The pointers are gone with a restart of the node, the runs are not.
        pass
    for known in sorted(_runs(folder, job_id), key=lambda known: known.opened, reverse=True):
        path = os.path.join(folder, str(known))
        if not os.path.exists(os.path.join(path, spool.DONE)):
            return Run(path, gid)
    return None


def was_closed(settings: Mapping[str, Any], environ: Mapping[str, str]) -> bool:
    """Tell whether an epilog has closed this run of the job already: Slurm may start a second one."""
    job_id = number(environ.get("SLURM_JOB_ID"))
    try:
        folder = place(settings, environ)
    except ValueError:
        return False
    started = number(environ.get("SLURM_JOB_START_TIME"))
    for known in _runs(folder, job_id):
        try:
            closed = os.stat(os.path.join(folder, str(known), spool.DONE)).st_mtime
        except OSError:
            continue
        # Releases before 23.02 tell a node script no start. The start is the controller's time, `closed` this node's.
        if closed >= started - _SKEW_S if started else time.time() - closed < _SECOND_EPILOG_S:
            return True
    return False


def _runs(folder: str, job_id: int | None) -> list[spool.RunId]:
    try:
        names = os.listdir(folder)
    except OSError:
        return []
    return [known for name in names if (known := spool.parse_run(name)) and known.job_id == job_id]


def boot_id() -> str:
    """Return the kernel's name of this boot ("" where it has none)."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def _meta(path: str, known: spool.RunId, stamp: dict[str, int], environ: Mapping[str, str]) -> dict[str, Any]:
    kernel = os.uname()
    return {
        "format": spool.FORMAT,
        "cluster": os.path.basename(os.path.dirname(os.path.dirname(path))),
        "node": os.path.basename(os.path.dirname(path)),
        "hostname": kernel.nodename,
        "job_id": known.job_id,
        "restart": known.restart,
        "opened": known.opened,
        "opened_ns": stamp["realtime_ns"],
        "opened_raw_ns": stamp["raw_ns"],
        "boot_id": boot_id(),
        "timezone": time.localtime().tm_gmtoff,
        "uid": number(environ.get("SLURM_JOB_UID")),
        "gid": number(environ.get("SLURM_JOB_GID")),
        "user": environ.get("SLURM_JOB_USER", ""),
        "work_dir": environ.get("SLURM_JOB_WORK_DIR", ""),
        "nodelist": environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", ""),
        "partition": environ.get("SLURM_JOB_PARTITION", ""),
        "account": environ.get("SLURM_JOB_ACCOUNT", ""),
        "stdout": environ.get("SLURM_JOB_STDOUT"),
        "stderr": environ.get("SLURM_JOB_STDERR"),
        # Slurm tells node scripts no release.
        "slurm_version": "",
        "driver_version": "",
        "kernel_release": kernel.release,
        "gpus": [],
        "job_gpus": [word for word in environ.get("SLURM_JOB_GPUS", "").split(",") if word],
        "het_job_id": environ.get("SLURM_HET_JOB_ID") or environ.get("SLURM_PACK_JOB_ID"),
    }
