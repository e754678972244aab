"""Reads kernel records from a text file that only root can write (kernel.trusted_file), also across its rotation."""

from __future__ import annotations

import os
import re
import stat
import time
from typing import Any

from denpex.node import kernel

_LIMIT = 8 << 20

# "<2>[  123.456789] text", as dmesg and rsyslog write it behind their own words, if any.
_UPTIME = re.compile(r"(?:^|\s)\[\s*(?P<s>\d{1,9})\.(?P<us>\d{6})\]\s?")
_PRIORITY = re.compile(r"^<(\d{1,3})>")
# rsyslog's head: "2026-12-01T10:00:00.123456+00:00 host kernel: " or "Dec  1 10:00:00 host kernel: ".
_SYSLOG = re.compile(r"^(?P<when>\d{4}-\d\d-\d\dT\S+|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d) \S+ kernel: ")


def read(path: str, offset: int | None, inode: int | None, gap: kernel.Gap) -> list[dict[str, Any]]:
    """Return the records from ``offset`` of the file that had ``inode`` to the end; (None: the last of them).

    Where the file was rotated since, the rest of the old one is read beside it. Raises OSError where it cannot be read.
    """
    data = b""
    fd, info = _open(path)
    try:
        # rsyslog's directory may belong to another account, but a file that others can write proves nothing.
        evidence = info.st_uid == 0 and not info.st_mode & 0o022
        begin = 0 if offset is None else offset
        if inode is not None and (info.st_ino != inode or info.st_size < begin):
            old = _rotated(path, inode) if info.st_ino != inode else None
            if old is None:
                gap(f"{path} was cut or rotated away during the job", "kernel.jsonl", "kernel.source: kmsg")
            else:
                data = _tail(old, begin, f"{path} before its rotation", gap)
                os.close(old)
                # A last line without its end goes on in no other file.
                data += b"" if data.endswith(b"\n") or not data else b"\n"
            begin = 0
        data += _tail(fd, begin, path, gap)
    finally:
        os.close(fd)
    if not evidence:
        gap(f"{path} can be written by others than root, so nothing in it proves anything", "kernel.jsonl", "its mode")
    records = [_record(line, evidence) for line in data.decode("utf-8", "replace").split("\n") if line.strip()]
    if offset is None:
        since = time.time_ns() - 60 * 10**9
        records = [record for record in records if record["realtime_ns"] >= since]
    return kernel.bounded(records, gap)


def _open(path: str) -> tuple[int, os.stat_result]:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    info = os.fstat(fd)
    if not stat.S_ISREG(info.st_mode):
        os.close(fd)
        raise OSError(f"{path} is not a regular file")
    return fd, info


def _rotated(path: str, inode: int) -> int | None:
    """Return the file that ``path`` was, opened, where it still lies beside it."""
    folder = os.path.dirname(path)
    with os.scandir(folder) as entries:
        for _, entry in zip(range(10_000), entries, strict=False):
            if entry.inode() == inode:
                try:
                    fd, info = _open(entry.path)
                except OSError:
                    return None
                if info.st_ino == inode:
                    return fd
                os.close(fd)
                return None
    return None


def _tail(fd: int, begin: int, shown: str, gap: kernel.Gap) -> bytes:
    size = os.fstat(fd).st_size
    if size - begin > _LIMIT:
        gap(f"only the last {_LIMIT} bytes of {shown} were read", "kernel.jsonl", "a quieter kernel log")
        begin = size - _LIMIT
    os.lseek(fd, begin, os.SEEK_SET)
    pieces: list[bytes] = []
    left = _LIMIT
    while left > 0 and (piece := os.read(fd, min(left, 1 << 20))):
        pieces.append(piece)
        left -= len(piece)
    return b"".join(pieces)


def _record(line: str, evidence: bool) -> dict[str, Any]:
    priority = _PRIORITY.match(line)
    value = int(priority[1]) if priority else 6
    rest = line[priority.end() :] if priority else line
    head = _SYSLOG.match(rest)
    when: dict[str, Any] = {"realtime_ns": _parse(head["when"]) if head else None, "raw_ns": None}
    rest = rest[head.end() :] if head else rest
    uptime = _UPTIME.match(rest)
    if uptime:
        stamps = kernel.times(int(uptime["s"]) * 1_000_000 + int(uptime["us"]))
        # The log daemon's own time is better than one that is counted back from now, unless it has whole seconds only.
        when = stamps if when["realtime_ns"] is None or when["realtime_ns"] % 10**9 == 0 else {**when, "raw_ns": None}
        rest = rest[uptime.end() :]
    if when["realtime_ns"] is None:
        # A line without any time was written before now.
        when = {"realtime_ns": time.time_ns(), "raw_ns": None}
    return {
        "seq": None,
        "facility": value >> 3,
        "level": value & 7,
        **when,
        "text": rest,
        "source": "file",
        "evidence": evidence and value >> 3 == 0,
    }


def _parse(text: str) -> int | None:
    """Return a syslog time in nanoseconds since 1970; None where it is none."""
    import datetime as dt

    try:
        if text[0].isdigit():
            moment = dt.datetime.fromisoformat(text.replace("Z", "+00:00"))
        else:
            # No year: the latest one in which it is not in the future.
            now = dt.datetime.now().astimezone()
            moment = dt.datetime.strptime(f"{now.year} {text}", "%Y %b %d %H:%M:%S").astimezone()
            if moment > now + dt.timedelta(days=1):
                moment = moment.replace(year=now.year - 1)
        return round(moment.timestamp() * 10**6) * 1000
    except ValueError:
        return None
