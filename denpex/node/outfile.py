"""Copies the job's output file into the run; a child that became the job's user first finds, opens and reads it."""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import stat
import time
from collections.abc import Iterator, Mapping

from denpex import spool
from denpex.node import outname, records
from denpex.node.rundir import Run, number

_SECONDS = 2.0
_CHUNK = 1 << 20
_MAX_LISTED = 20_000


def copy(run: Run, environ: Mapping[str, str], limit: int) -> None:
    """Copy standard output (and error, where it has its own file) of the batch script to tasks/batch.{out,err}.

    The script ran on the first node of the job: 2,000 nodes must not all read one file.
    """
    node = environ.get("SLURMD_NODENAME", "")
    nodelist = environ.get("SLURM_JOB_NODELIST") or environ.get("SLURM_NODELIST", "")
    if outname.first_host(nodelist) != node:
        return
    out = outname.expand(environ.get("SLURM_JOB_STDOUT"), environ)
    err = outname.expand(environ.get("SLURM_JOB_STDERR") or environ.get("SLURM_JOB_STDOUT"), environ)
    end = time.monotonic() + _SECONDS
    for target, name in (("batch.out", out), *((("batch.err", err),) if err != out else ())):
        if name is None:
            what = "the job's output file was not read: its name holds what only the controller knows (job name, array)"
            run.gap(what, node, "an output name with %j and without %A, %a; or srun in the script")
            continue
        if problem := _copy_one(run, name, f"{spool.TASK_STREAMS}/{target}", environ, limit, end):
            run.gap(f"the job's output file {name.shown!r} was not read: {problem}", node, "a plain readable file")


def _copy_one(run: Run, name: outname.Name, target: str, environ: Mapping[str, str], limit: int, end: float) -> str:
    """Copy one file through a pipe from an unprivileged child; return what went wrong ("": nothing)."""
    uid, gid = number(environ.get("SLURM_JOB_UID")), number(environ.get("SLURM_JOB_GID"))
    if not uid or gid is None:
        return "the job's user is root or not known, and root opens no user's path"
    readable, writable = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(readable)
        _read_as_user(name, (uid, gid, environ.get("SLURM_JOB_USER", "")), writable, limit)
    os.close(writable)
    try:
        head, problem = _head(readable, end)
        words = head.split(b" ")
        if problem or words[0] != b"ok":
            return problem or head.decode("utf-8", "replace") or "the child that reads as the user died"
        size, kept = int(words[1]), int(words[2])
        got = _Counted(_pieces(readable, end, kept))
        # What came within the time is kept, with the end that it has.
        records.replace_by(run.file(target), got, run.gid)
    finally:
        os.close(readable)
        with contextlib.suppress(OSError):
            os.kill(pid, signal.SIGKILL)
            # A child that hangs in a file server's answer is left behind.
            os.waitpid(pid, os.WNOHANG)
    # No receive times: the file does not tell when its bytes came.
    index = []
    half = kept // 2
    if size > kept and got.count > half:
        index.append(f"cut {half} {size - (kept - half)}")
    if got.count == kept:
        index.append(f"end {size} eof")
    records.replace(run.file(target + ".idx"), "".join(f"{line}\n" for line in index).encode(), run.gid)
    return "" if got.count == kept else f"only {got.count} of {kept} bytes came within {_SECONDS:g} s"


class _Counted:
    """Pieces, and how many bytes they were."""

    def __init__(self, pieces: Iterator[bytes]) -> None:
        self._pieces = pieces
        self.count = 0

    def __iter__(self) -> Iterator[bytes]:
        for piece in self._pieces:
            self.count += len(piece)
            yield piece


def _head(readable: int, end: float) -> tuple[bytes, str]:
    """Read the child's first line, byte by byte, for the file follows at once."""
    line = b""
    while len(line) < 4096:
        left = end - time.monotonic()
        if left <= 0 or not select.select([readable], [], [], left)[0]:
            return b"", f"it was not opened within {_SECONDS:g} s"
        byte = os.read(readable, 1)
        if byte in (b"", b"\n"):
            break
        line += byte
    return line, ""


def _pieces(readable: int, end: float, kept: int) -> Iterator[bytes]:
    while kept > 0:
        left = end - time.monotonic()
        if left <= 0 or not select.select([readable], [], [], left)[0]:
            return
        piece = os.read(readable, min(_CHUNK, kept))
        if not piece:
            return
        kept -= len(piece)
        yield piece


def _read_as_user(name: outname.Name, user: tuple[int, int, str], out: int, limit: int) -> None:
    """Become the user, then open and send the file: ``ok SIZE KEPT`` and the bytes, or a sentence. Never returns."""
    try:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(int(_SECONDS) + 1)
        _become(*user)
        fd = _open(name)
        size = os.fstat(fd).st_size
        kept = min(size, limit)
        os.write(out, f"ok {size} {kept}\n".encode())
        half = kept // 2
        for begin, end in ((0, size),) if kept == size else ((0, half), (size - (kept - half), size)):
            os.lseek(fd, begin, os.SEEK_SET)
            left = end - begin
            while left > 0 and (piece := os.read(fd, min(_CHUNK, left))):
                left -= len(piece)
                while piece:
                    piece = piece[os.write(out, piece) :]
        os._exit(0)
    except (OSError, ValueError) as error:
        text = getattr(error, "strerror", None) or str(error)
        with contextlib.suppress(OSError):
            os.write(out, f"{text}\n".encode("utf-8", "replace"))
    finally:
        os._exit(1)


def _become(uid: int, gid: int, user: str) -> None:
    try:
        # The user's other groups may be what opens a project's directory.
        os.initgroups(user, gid)
    except (OSError, ValueError):
        os.setgroups([gid])
    os.setresgid(gid, gid, gid)
    os.setresuid(uid, uid, uid)


def _open(name: outname.Name) -> int:
    """Open the one plain file that the name can mean. Raises OSError with a sentence."""
    places = ["/"]
    for part in name.parts:
        if isinstance(part, str):
            places = [os.path.join(place, part) for place in places]
        else:
            places = [os.path.join(place, entry) for place in places for entry in _matching(place, part)]
    if not places:
        raise OSError("there is no file of that name")
    if len(places) > 1:
        raise OSError(f"{len(places)} files can be meant by that name")
    fd = os.open(places[0], os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise OSError("it is not a regular file")
    return fd


def _matching(place: str, part: re.Pattern[str]) -> list[str]:
    with os.scandir(place) as entries:
        names = [entry.name for _, entry in zip(range(_MAX_LISTED), entries, strict=False)]
    return [name for name in names if part.fullmatch(name)]
