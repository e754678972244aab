"""How node code writes: whole JSON records appended with one write, or files written aside and renamed."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from typing import Any

FILE_MODE = 0o640
DIRECTORY_MODE = 0o750


# Two readings further apart were torn by the scheduler, and are taken again: a few times, for it may be busy.
_TORN_NS = 20_000
_TRIES = 5


def both_clocks() -> tuple[int, int, int]:
    """Return CLOCK_REALTIME and CLOCK_MONOTONIC_RAW of one moment, and how far they may be apart, in nanoseconds."""
    best = (0, 0, 1 << 62)
    for _ in range(_TRIES):
        before = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        real = time.time_ns()
        after = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)
        if after - before < best[2]:
            best = (real, (before + after) // 2, after - before)
        if best[2] <= _TORN_NS:
            break
    return best


def now() -> dict[str, int]:
    """Return both clocks, read together: ``realtime_ns`` and ``raw_ns``."""
    real, raw, _ = both_clocks()
    return {"realtime_ns": real, "raw_ns": raw}


def _bytes(record: dict[str, Any]) -> bytes:
    # Bytes of a job's environment that are not UTF-8 are surrogates in Python's text: each becomes U+FFFD.
    text = json.dumps(record, ensure_ascii=False)
    return text.encode("utf-8", "surrogateescape").decode("utf-8", "replace").encode("utf-8") + b"\n"


def append(path: str, record: dict[str, Any], gid: int = -1) -> None:
    """Append one record as a line with one write(2)."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
    try:
        if gid >= 0:
            os.fchown(fd, -1, gid)
        os.write(fd, _bytes(record))
    finally:
        os.close(fd)


def replace(path: str, content: dict[str, Any] | bytes, gid: int = -1, mode: int = FILE_MODE) -> None:
    """Write a file aside and rename it into place."""
    replace_by(path, (content if isinstance(content, bytes) else _bytes(content),), gid, mode)


def replace_lines(path: str, lines: Iterable[dict[str, Any]], gid: int = -1) -> None:
    """Write a whole ``.jsonl`` file aside and rename it into place, so that writing it twice leaves it once."""
    replace_by(path, (b"".join(map(_bytes, lines)),), gid)


def replace_by(path: str, pieces: Iterable[bytes], gid: int = -1, mode: int = FILE_MODE) -> None:
    """Write a file aside, piece by piece, and rename it into place; where a piece fails, nothing is left of it."""
    folder, name = os.path.split(path)
    aside = os.path.join(folder, f".{name}.{os.getpid()}")
    fd = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC, mode)
    try:
        try:
            if gid >= 0:
                os.fchown(fd, -1, gid)
            os.fchmod(fd, mode)
            for piece in pieces:
                left = memoryview(piece)
                while left:
                    left = left[os.write(fd, left) :]
        finally:
            os.close(fd)
        os.rename(aside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(aside)
        raise
