"""A node for the tests of the hooks: own configuration, spool, work directory and job user."""

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from denpex import config

ROOT = Path(__file__).parents[2]
HOOKS = ROOT / "hooks"
UID = 45_321  # nobody's
OTHER = 45_322


class Site:
    """One node; every directory below ``top``, which other users may enter."""

    def __init__(self, top, **settings):
        self.top = top
        self.etc = top / "etc"
        self.spool = top / "spool"
        self.run = top / "run"
        self.queue = top / "state" / "queue"
        self.work = top / "work"
        self.queue.mkdir(parents=True)
        self.work.mkdir()
        os.chown(self.work, UID, UID)
        self.configure(**settings)

    def configure(self, **settings):
        """Write denpex.yaml and apply it; ``python`` and ``package`` as the nodes get them."""
        python = settings.pop("python", sys.executable)
        package = settings.pop("package", str(ROOT))
        values = {
            "spool_dir": str(self.spool), "run_dir": str(self.run), "state_dir": str(self.top / "state"),
            "spool_min_free": 0, "group": "daemon", "kernel": {"source": "file", "trusted_file": str(self.kernel_log)},
        } | settings  # fmt: skip
        self.etc.mkdir(exist_ok=True)
        self.kernel_log.touch()
        (self.etc / "denpex.yaml").write_text(json.dumps(values))
        config.apply(config.load(self.etc / "denpex.yaml"), self.etc, python, package)

    @property
    def kernel_log(self):
        return self.top / "kern.log"

    def environment(self, **more):
        """What slurmd gives a node script of 22.05: nothing else, no PATH either."""
        values = {
            "DENPEX_ETC": str(self.etc), "SLURMD_NODENAME": "n1", "SLURM_CLUSTER_NAME": "lab", "SLURM_CONF": "/none",
            "SLURM_JOB_ID": "77", "SLURM_JOBID": "77", "SLURM_JOB_UID": str(UID), "SLURM_JOB_GID": str(UID),
            "SLURM_JOB_USER": "nobody-known", "SLURM_JOB_WORK_DIR": str(self.work), "SLURM_NODELIST": "n[1-4]",
            "SLURM_JOB_GPUS": "0,1",
        }  # fmt: skip
        return {name: value for name, value in (values | more).items() if value is not None}

    def hook(self, name, hooks=HOOKS, **more):
        """Run one hook as Slurm does: its output is a pipe that is read to the end, also from a child that holds it."""
        began = time.monotonic()
        done = subprocess.run(
            [str(hooks / f"{name}.sh")], env=self.environment(**more), stdin=subprocess.DEVNULL, cwd="/",
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=20, check=False, start_new_session=True,
        )  # fmt: skip
        took = time.monotonic() - began
        assert (done.returncode, done.stdout) == (0, b""), "a hook says nothing and ends with 0"
        return took

    def defaults(self, name, then="true"):
        """Run one hook where /var/spool and /run are empty and its own, for the built-in defaults; then a command."""
        script = f'mount -t tmpfs none /var/spool && mount -t tmpfs none /run && "$0" && {then}'
        return subprocess.run(
            ["/usr/bin/unshare", "-m", "/bin/sh", "-c", script, str(HOOKS / f"{name}.sh")],
            env=self.environment(PATH="/usr/bin:/bin"), stdin=subprocess.DEVNULL, capture_output=True, text=True,
            timeout=20, check=False,
        )  # fmt: skip

    def runs(self):
        return sorted((self.spool / "lab" / "n1").glob("*"), key=lambda path: path.name)

    def only_run(self):
        (run,) = self.runs()
        return run

    def gaps(self, run=None):
        return " | ".join(line["what"] for line in lines((run or self.only_run()) / "gaps.jsonl"))

    def output(self, name="slurm-77.out", text=b"hello\n", uid=UID, mode=0o600):
        """Write the job's output file."""
        path = self.work / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(text)
        os.chown(path, uid, uid)
        path.chmod(mode)
        return path


def lines(path):
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def document(path):
    return json.loads(path.read_text())


def tree(path):
    """Everything that a second epilog could change."""
    return {
        str(p.relative_to(path)): (p.stat().st_mtime_ns, p.stat().st_ino, p.read_bytes() if p.is_file() else b"")
        for p in sorted(path.rglob("*"))
    }


def as_user(command, uid=UID):
    """Run a shell command as the job's user; return whether it succeeded."""
    done = subprocess.run(["sh", "-c", command], user=uid, group=uid, extra_groups=[], capture_output=True, check=False)
    return done.returncode == 0


@contextlib.contextmanager
def site(**settings):
    """Make a site that other users can enter, which pytest's own directories are not."""
    top = Path(tempfile.mkdtemp(prefix="denpex-site-"))
    top.chmod(0o755)
    try:
        yield Site(top, **settings)
    finally:
        shutil.rmtree(top)
