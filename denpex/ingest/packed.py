"""Decompresses gzip, bzip2 and xz piece by piece, so that a bomb costs neither memory nor unbounded time."""

from __future__ import annotations

import bz2
import lzma
import zlib
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Protocol

MAGIC = 6  # bytes that `codec` needs
MAX_INFLATED = 2 << 30  # decompressed bytes after which a file is given up: more is a bomb, or nothing for a log reader

_STEP = 1 << 20
_MEMORY = 128 << 20  # what an xz dictionary may take


class DamagedError(Exception):
    """Compressed data that breaks off, is not what it says, or unpacks to more than is read; caught in ingest."""


class _Decompressor(Protocol):
    @property
    def eof(self) -> bool: ...

    @property
    def unused_data(self) -> bytes: ...

    def decompress(self, data: bytes, max_length: int) -> bytes: ...


class _Gzip:
    """zlib's decompressor with the interface that bz2 and lzma have."""

    def __init__(self) -> None:
        self._inner = zlib.decompressobj(31)

    @property
    def eof(self) -> bool:
        return self._inner.eof

    @property
    def unused_data(self) -> bytes:
        return self._inner.unused_data

    def decompress(self, data: bytes, max_length: int) -> bytes:
        return self._inner.decompress(self._inner.unconsumed_tail + data, max_length)


def codec(magic: bytes) -> str:
    """Return gzip, bzip2, xz or zstd for the first bytes of a file, "" for anything else."""
    if magic.startswith(b"\x1f\x8b\x08"):
        return "gzip"
    if magic.startswith(b"BZh"):
        return "bzip2"
    if magic.startswith(b"\xfd7zXZ\x00"):
        return "xz"
    return "zstd" if magic.startswith(b"\x28\xb5\x2f\xfd") else ""


def _start(name: str) -> _Decompressor:
    if name == "gzip":
        return _Gzip()
    if name == "bzip2":
        return bz2.BZ2Decompressor()
    if name == "xz":
        return lzma.LZMADecompressor(format=lzma.FORMAT_XZ, memlimit=_MEMORY)
    raise DamagedError("zstd is not decompressed here: run `zstd -d` on it first")


def inflate(blocks: Iterable[bytes], name: str, limit: int = MAX_INFLATED) -> Iterator[bytes]:
    """Yield the decompressed content in pieces of at most 1 MiB. Raises DamagedError after what could be had."""
    source = iter(blocks)
    engine, rest, total = _start(name), b"", 0
    while True:
        try:
            piece = engine.decompress(rest, _STEP)
        except (zlib.error, lzma.LZMAError, OSError, EOFError, ValueError) as error:
            raise DamagedError(f"the {name} data is damaged: {error}") from error
        rest = b""
        if piece:
            total += len(piece)
            yield piece
            if total >= limit:
                raise DamagedError(f"it unpacks to more than {limit >> 20} MiB")
        if engine.eof:
            rest = engine.unused_data or next(source, b"")
            if codec(rest[:MAGIC]) != name:
                return  # padding, or something that is not of the compressed data
            engine = _start(name)
        elif not piece:
            rest = next(source, b"")
            if not rest:
                raise DamagedError(f"the {name} data breaks off")


def bounded(pieces: Iterable[bytes], limit: int) -> tuple[bytes, tuple[tuple[int, int], ...], int, str]:
    """Keep the first and the last ``limit / 2`` bytes of a flow of bytes.

    Returns (data, pieces as in StreamData, size of the whole, what was wrong with it or "").
    """
    room = limit - limit // 2
    head, tail, held, size, fault = bytearray(), deque[bytes](), 0, 0, ""
    try:
        for piece in pieces:
            size += len(piece)
            take = min(room - len(head), len(piece))
            head += piece[:take]
            if take < len(piece):
                tail.append(piece[take:])
                held += len(piece) - take
            while tail and held - len(tail[0]) >= limit // 2:
                held -= len(tail.popleft())
    except DamagedError as error:
        fault = str(error)
    last = b"".join(tail)
    last = last[max(0, len(last) - limit // 2) :] if size > limit else last
    start = size - len(last)
    kept = ((0, 0),) if start == len(head) else ((0, 0), (len(head), start))
    return bytes(head) + last, kept, size, fault
