"""Scans text for all expressions of a library at once: Hyperscan, or Python's own expressions with the same matches."""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from denpex.engine.match import Find, Scan

Backend = Callable[[bytes], Iterable[tuple[int, int]]]
"""Text -> (number of an expression that occurs in it, where it first ends), once for each."""

# A stream is scanned block by block: of an expression one place in each is enough, for what is around it is read.
_BLOCK = 64 << 10
_OVERLAP = 4 << 10


def by_number(backend: Backend) -> Scan:
    """Return what tells which expressions occur in a text."""

    def scan(text: bytes) -> list[int]:
        return [number for number, _ in backend(text)]

    return scan


def by_place(backend: Backend) -> Find:
    """Return what tells where expressions occur in a stream: of each, once in every block."""

    def find(data: bytes) -> Iterator[int]:
        for start in range(0, len(data), _BLOCK):
            for _, end in backend(data[start : start + _BLOCK + _OVERLAP]):
                yield start + max(end - 1, 0)

    return find


def plain_scan(listed: list[str]) -> Backend:
    """Return the second backend: slower, with the same matches."""
    compiled = [re.compile(expression.encode(), re.MULTILINE) for expression in listed]

    def scan(text: bytes) -> list[tuple[int, int]]:
        found = ((number, expression.search(text)) for number, expression in enumerate(compiled))
        return [(number, match.end()) for number, match in found if match is not None]

    return scan


def hyperscan_scan(listed: list[str], *, cached: bool = True) -> Backend:
    """Return the first backend; raise ImportError without Hyperscan, ValueError for an expression it refuses."""
    import hyperscan

    flags = hyperscan.HS_FLAG_MULTILINE | hyperscan.HS_FLAG_SINGLEMATCH

    def compiled() -> Any:
        database = hyperscan.Database(mode=hyperscan.HS_MODE_BLOCK)
        try:
            database.compile(
                expressions=[e.encode() for e in listed], ids=list(range(len(listed))), flags=[flags] * len(listed)
            )
        except hyperscan.error as error:
            raise ValueError(str(error)) from error
        return database

    if cached:
        version = importlib.metadata.version("hyperscan")
        key = hashlib.sha256("\0".join([version, str(flags), *listed]).encode()).hexdigest()
        database = _cached(key, compiled, hyperscan)
    else:
        database = compiled()
    database.scratch = hyperscan.Scratch(database)
    found: list[tuple[int, int]] = []

    def note(number: int, _: int, end: int, *__: object) -> None:
        found.append((number, end))

    def scan(text: bytes) -> list[tuple[int, int]]:
        if found:
            found.clear()
        database.scan(text, match_event_handler=note)
        return found

    return scan


def _cached(key: str, compiled: Callable[[], Any], hyperscan: Any) -> Any:
    """Return the database of this content: from the cache, else compiled and kept there."""
    directory = _cache_directory()
    if directory is None:
        return compiled()
    file = directory / f"{key}.hsdb"
    try:
        return hyperscan.loadb(file.read_bytes(), mode=hyperscan.HS_MODE_BLOCK)
    except OSError:
        pass
    except hyperscan.error:
        file.unlink(missing_ok=True)
    database = compiled()
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        aside.write_bytes(hyperscan.dumpb(database))
        aside.replace(file)
    except OSError:
        aside.unlink(missing_ok=True)
    return database


def _cache_directory() -> Path | None:
    """Return where compiled databases are kept: trusted code, so only in a 0700 directory of the effective user."""
    cache = os.environ.get("XDG_CACHE_HOME")
    home = os.environ.get("HOME")
    if not cache and not home:
        return None
    directory = (Path(cache) if cache else Path(home or "") / ".cache") / "denpex"
    try:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = directory.lstat()
    except OSError:
        return None
    private = stat.S_ISDIR(info.st_mode) and stat.S_IMODE(info.st_mode) == 0o700 and info.st_uid == os.geteuid()
    return directory if private else None
