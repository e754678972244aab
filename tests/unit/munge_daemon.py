"""A munged of the test's own, with its own key and socket; `munge` and `unmunge` on PATH speak to it alone."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

MUNGED = shutil.which("munged") or shutil.which("munged", path="/usr/sbin:/usr/local/sbin")


@contextmanager
def private() -> Iterator[Path]:
    """Start one; yield the directory of the two commands, which every user may run."""
    top = Path(tempfile.mkdtemp(prefix="munge"))
    top.chmod(0o755)
    key, sock = top / "key", top / "socket"
    key.touch(mode=0o600)
    key.write_bytes(secrets.token_bytes(1024))
    bin_dir = top / "bin"
    bin_dir.mkdir(mode=0o755)
    for name in ("munge", "unmunge"):
        script = bin_dir / name
        script.write_text(f'#!/bin/sh\nexec {shutil.which(name)} --socket={sock} "$@"\n')
        script.chmod(0o755)
    files = [f"--{name}-file={top / name}" for name in ("key", "pid", "log", "seed")]
    words = [str(MUNGED), "--foreground", f"--socket={sock}", "--num-threads=2", *files]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as daemon:
        try:
            for _ in range(200):
                if sock.exists() or daemon.poll() is not None:
                    break
                time.sleep(0.05)
            assert sock.exists(), "munged did not start"
            yield bin_dir
        finally:
            daemon.terminate()
            daemon.wait(20)
            shutil.rmtree(top)
