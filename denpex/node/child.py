"""Asks another program for its output within a time; one that does not end is killed and not waited for."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import time

_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"


def ask(argv: list[str], seconds: float, limit: int = 8 << 20) -> tuple[int | None, bytes]:
    """Run ``argv`` (a full path first) and return its exit status and at most ``limit`` bytes of its output.

    The status is None where it did not end within ``seconds``, negative where a signal ended it. It runs in a session
    of its own, without our files: one that hangs in the kernel holds nothing of the hook's. Raises OSError where it
    cannot be started. (subprocess would add a third to a hook's start.)
    """
    end = time.monotonic() + seconds
    readable, writable = os.pipe()
    null = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    environ = {"PATH": _PATH, "LC_ALL": "C"}
    if "LD_LIBRARY_PATH" in os.environ:
        environ["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
    pid = 0
    try:
        try:
            files = [(os.POSIX_SPAWN_DUP2, source, fd) for fd, source in enumerate((null, writable, null))]
            pid = os.posix_spawn(argv[0], argv, environ, file_actions=files, setsid=True)
        finally:
            os.close(writable)
            os.close(null)
        output = _collect(readable, end, limit)
        # It may close its output before it ends.
        while output is not None:
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                pid = 0
                return os.waitstatus_to_exitcode(status), output
            if time.monotonic() > end:
                break
            time.sleep(0.001)
        return None, b""
    finally:
        os.close(readable)
        if pid:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, os.WNOHANG)


def _collect(readable: int, end: float, limit: int) -> bytes | None:
    pieces: list[bytes] = []
    total = 0
    while total < limit:
        left = end - time.monotonic()
        if left <= 0 or not select.select([readable], [], [], left)[0]:
            return None
        piece = os.read(readable, 1 << 20)
        if not piece:
            break
        pieces.append(piece)
        total += len(piece)
    return b"".join(pieces)
