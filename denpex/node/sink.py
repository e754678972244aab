"""Keeps one stream of a task: its bytes as they came, when they came, and a stated cut where it grew too long."""

from __future__ import annotations

import os
import time

_FLAGS = os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_CLOEXEC
_CHUNK = 1 << 20


def stamp() -> tuple[int, int]:
    """Return CLOCK_REALTIME and CLOCK_MONOTONIC_RAW, in nanoseconds."""
    return time.time_ns(), time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)


class Sink:
    """The files ``PATH``, ``PATH.idx`` and, beyond half the limit, ``PATH.tail0`` and ``PATH.tail1`` (hooks/SPOOL.md).

    A failing disk ends the capture (``failure`` says why), never the task. Raises OSError where the files cannot be
    made at all. The index forgets reads whose bytes are no longer kept, so that it is bounded as they are.
    """

    def __init__(self, path: str, limit: int) -> None:
        self.path = path
        self.offset = 0
        self.failure = ""
        self._limit = limit
        self._head = max(limit // 2, 1)
        self._quarter = max(limit // 4, 1)
        self._tail = -1
        self._tail_used = 0
        # Sizes of the index: in all, of the head's part, and where the notes of the current tail begin.
        self._index_size = self._index_head = self._index_tail = 0
        self._fd = os.open(path, os.O_WRONLY | _FLAGS, 0o640)
        try:
            self._index = os.open(path + ".idx", os.O_RDWR | _FLAGS, 0o640)
        except OSError:
            os.close(self._fd)
            raise

    def write(self, data: memoryview | bytes, at: tuple[int, int]) -> None:
        """Keep what was read at ``at`` (``stamp()``)."""
        if self.failure:
            return
        try:
            self._note(f"{self.offset} {at[0]} {at[1]}")
            view = memoryview(data)
            while view:
                room = self._room(at)
                written = os.write(self._fd, view[:room])
                self.offset += written
                self._tail_used += written
                view = view[written:]
        except OSError as error:
            self.fail(f"{self.path} cannot be written: {error.strerror}")

    def _room(self, at: tuple[int, int]) -> int:
        """Return how much may be written to the current file, opening the next one where it is full."""
        if self._tail < 0:
            if self.offset < self._head:
                return self._head - self.offset
            self._index_head = self._index_tail = self._index_size
        elif self._tail_used < self._quarter:
            return self._quarter - self._tail_used
        os.close(self._fd)
        self._tail = 1 - self._tail if self._tail >= 0 else 0
        self._fd = os.open(f"{self.path}.tail{self._tail}", os.O_WRONLY | _FLAGS, 0o640)
        self._tail_used = 0
        self._forget()
        self._note(f"tail {self._tail} {self.offset}")
        # The piece begins with a read of its own, for its former part may be forgotten.
        self._note(f"{self.offset} {at[0]} {at[1]}")
        return self._quarter

    def _forget(self) -> None:
        """Drop from the index the notes between the head's and the current tail's: their bytes were overwritten."""
        if self._index_tail > self._index_head:
            aside = f"{self.path}.idx.new"
            fresh = os.open(aside, os.O_RDWR | _FLAGS, 0o640)
            try:
                for begin, end in ((0, self._index_head), (self._index_tail, self._index_size)):
                    while begin < end:
                        data = os.pread(self._index, min(_CHUNK, end - begin), begin)
                        if not data:
                            raise OSError(0, "it was cut by somebody")
                        begin += os.write(fresh, data)
                os.rename(aside, self.path + ".idx")
            except OSError:
                os.close(fresh)
                raise
            os.close(self._index)
            self._index = fresh
            self._index_size -= self._index_tail - self._index_head
        self._index_tail = self._index_size

    def _note(self, line: str) -> None:
        if self._index_size > max(self._limit, _CHUNK):
            self.fail("its bytes came one by one: the receive times would take more room than the limit")
            raise OSError(0, self.failure)
        self._index_size += os.write(self._index, line.encode() + b"\n")

    def fail(self, why: str) -> None:
        """Stop keeping the stream; no ``end`` line will follow."""
        self.failure = self.failure or why

    def close(self) -> None:
        """State that the stream was captured to its end."""
        if not self.failure:
            try:
                self._note(f"end {self.offset} eof")
            except OSError as error:
                self.fail(f"{self.path}.idx cannot be written: {error.strerror}")
        os.close(self._fd)
        os.close(self._index)
