"""Answers the worker over ssh: lists a job's runs on this node, or sends one run as a tar; nothing else is possible."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import re
import stat
import sys
import time
from collections.abc import Iterator
from typing import NamedTuple

from denpex import spool
from denpex.node import settings

_REQUEST = re.compile(r"list (?P<job>[0-9]{1,20})|get (?P<run>[0-9]{1,20}(?:\.[0-9]{1,20}){2}) (?P<offset>[0-9]{1,18})")
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_BLOCK = 512
_CHUNK = 1 << 20
# The reader refuses what holds more, or lies deeper (hooks/SPOOL.md): a user who makes it loses that, not the run.
_MAX_ENTRIES = 40_000
_MAX_DEPTH = 7


def main() -> int:
    """Answer SSH_ORIGINAL_COMMAND: ``list JOB_ID``, or ``get RUN OFFSET`` (skip that many bytes of the tar)."""
    request = _REQUEST.fullmatch(os.environ.get("SSH_ORIGINAL_COMMAND", ""))
    if request is None:
        sys.stderr.write("handout: the request is neither 'list JOB_ID' nor 'get RUN OFFSET'\n")
        return 2
    spool_dir = settings.load()[0]["spool_dir"]
    # On this node's spool there is one cluster and one node, unless it is a shared file system.
    places = [os.path.join(spool_dir, c, n) for c in _names(spool_dir) for n in _names(os.path.join(spool_dir, c))]
    try:
        if request["job"]:
            print(json.dumps({"now_ns": time.time_ns(), "runs": _runs(places, int(request["job"]))}), flush=True)
            return 0
        for place in places:
            if os.path.isdir(os.path.join(place, request["run"])):
                _send(place, request["run"], int(request["offset"]))
                return 0
    except BrokenPipeError:
        # The worker has hung up; Python must not fail once more when it closes standard output.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 1
    except OSError as error:
        sys.stderr.write(f"handout: {error}\n")
        return 1
    sys.stderr.write(f"handout: there is no run {request['run']} on this node\n")
    return 1


def _names(folder: str) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if spool.is_safe_name(name))
    except OSError:
        return []


def _runs(places: list[str], job_id: int) -> list[dict[str, object]]:
    found: list[dict[str, object]] = []
    for place in places:
        for name in _names(place):
            run = spool.parse_run(name)
            if run is not None and run.job_id == job_id:
                path = os.path.join(place, name)
                done = os.path.exists(os.path.join(path, spool.DONE))
                found.append({"run": name, "opened": run.opened, "done": done, "node": os.path.basename(place)})
    return found


class _Entry(NamedTuple):
    """A directory (size -1) or an opened plain file of the run."""

    path: str
    info: os.stat_result
    fd: int


def _entries(parent: int, name: str, path: str, depth: int = 0) -> Iterator[_Entry]:
    """Yield what lies below, in an order that is always the same; links and whatever may not be read are left out."""
    try:
        fd = os.open(name, _DIRECTORY if depth == 0 else _FILE, dir_fd=parent)
    except OSError:
        return
    try:
        info = os.fstat(fd)
        if stat.S_ISREG(info.st_mode):
            yield _Entry(path, info, fd)
        elif stat.S_ISDIR(info.st_mode):
            yield _Entry(path, info, -1)
            for below in sorted(os.listdir(fd)) if depth < _MAX_DEPTH else ():
                yield from _entries(fd, below, f"{path}/{below}", depth + 1)
    except PermissionError:
        # user/ before the epilog has sealed it.
        return
    finally:
        os.close(fd)


def _send(place: str, run: str, offset: int) -> None:
    """Write the tar (pax) of one run to standard output, without its first ``offset`` bytes."""
    import tarfile

    out = _Skip(offset)
    parent = os.open(place, _DIRECTORY)
    for entry in itertools.islice(_entries(parent, run, run), _MAX_ENTRIES):
        header = tarfile.TarInfo(entry.path)
        # As it is on disk, so that a resumed transfer continues the same bytes; names of accounts are asked of nobody.
        header.mode, header.mtime = stat.S_IMODE(entry.info.st_mode), int(entry.info.st_mtime)
        header.uid, header.gid = entry.info.st_uid, entry.info.st_gid
        header.type = tarfile.DIRTYPE if entry.fd < 0 else tarfile.REGTYPE
        header.size = 0 if entry.fd < 0 else entry.info.st_size
        out.write(header.tobuf(tarfile.PAX_FORMAT, "utf-8", "surrogateescape"))
        if entry.fd >= 0:
            _content(out, entry.fd, header.size)
    out.write(b"\0" * 2 * _BLOCK)
    out.flush()


def _content(out: _Skip, fd: int, size: int) -> None:
    """Write exactly ``size`` bytes of a file and the padding: a header was sent, whatever becomes of the file."""
    padded = size + -size % _BLOCK
    # What a resumed transfer has already is not read again.
    skipped = out.skip(min(size, out.left))
    with contextlib.suppress(OSError):
        os.lseek(fd, skipped, os.SEEK_SET)
    done = skipped
    while done < size:
        piece = os.read(fd, min(_CHUNK, size - done))
        if not piece:
            break
        out.write(piece)
        done += len(piece)
    while done < padded:
        zeros = min(_CHUNK, padded - done)
        out.write(b"\0" * zeros)
        done += zeros


class _Skip:
    """Standard output without its first ``left`` bytes, so that a broken transfer goes on where it stopped."""

    def __init__(self, left: int) -> None:
        self.left = left

    def skip(self, count: int) -> int:
        """Count ``count`` bytes, which are to be skipped, as written."""
        self.left -= count
        return count

    def write(self, data: bytes) -> None:
        """Write what is beyond the skipped part."""
        skipped = min(self.left, len(data))
        self.left -= skipped
        if skipped < len(data):
            sys.stdout.buffer.write(memoryview(data)[skipped:])

    def flush(self) -> None:
        """Hand out what is buffered."""
        sys.stdout.buffer.flush()
