"""Puts one captured task stream together from its bytes, receive times and tail pieces (hooks/SPOOL.md, Streams)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import overload

from denpex.ingest.tree import MAX_FILE, Blob
from denpex.model import StreamData

MAX_INDEX = 128 << 20
_TRAILER = 4096  # the end line is among an index's last bytes


# No number of nanoseconds or bytes has more digits than 64 bits do.
_LONGEST_READ = 3 * 19 + 2

Read = tuple[int, int, "int | None"]
"""(offset, realtime_ns, raw_ns) of one read."""


@dataclass(frozen=True)
class End:
    """How a stream's index ends: ``complete`` as in StreamInfo, ``size`` of the whole stream (None: not said)."""

    complete: bool | None
    size: int | None


@dataclass(frozen=True)
class Index:
    """A parsed index: reads as in StreamData, cuts [from, to), where each tail piece starts, unreadable lines."""

    reads: Sequence[Read]
    cuts: tuple[tuple[int, int], ...]
    tails: Mapping[int, int]
    torn: int


def end(index: Blob | None) -> End:
    """Return what the last lines of an index say; without an index nothing is known. Raises InputError."""
    if index is None:
        return End(None, None)
    for line in reversed(index.tail(_TRAILER).splitlines()):
        words = line.split()
        if len(words) == 3 and words[0] == b"end" and words[1].isdigit() and len(words[1]) < 19:
            return End(words[2] == b"eof", int(words[1]))
    return End(False, None)


def parse_index(data: bytes) -> Index:
    """Parse an index, leaving out what is torn or runs backwards."""
    regular = _regular(data)
    if regular is not None:
        return regular
    reads: list[Read] = []
    cuts: list[tuple[int, int]] = []
    tails: dict[int, int] = {}
    torn, last = 0, -1
    for line in data.split(b"\n"):
        words = line.split()
        if not words:
            continue
        try:
            if words[0] == b"cut" and len(words) == 3:
                low, high = int(words[1]), int(words[2])
                if 0 <= low < high and (not cuts or low >= cuts[-1][1]):
                    cuts.append((low, high))
                    continue
            elif words[0] == b"tail" and len(words) == 3:
                tails[int(words[1])] = int(words[2])
                continue
            elif words[0] == b"end":
                continue
            elif len(words) in (2, 3):
                offset, realtime = int(words[0]), int(words[1])
                if last <= offset < 1 << 63 and abs(realtime) < 1 << 63:
                    last = offset
                    reads.append((offset, realtime, int(words[2]) if len(words) == 3 else None))
                    continue
        except ValueError:
            pass
        torn += 1
    return Index(tuple(reads), tuple(cuts), tails, torn)


class Reads(Sequence[Read]):
    """The reads of an index, each parsed when it is asked for: of a long stream only few are."""

    def __init__(self, lines: Sequence[bytes]) -> None:
        """``lines``: three whole numbers each."""
        self._lines = lines

    def __len__(self) -> int:
        return len(self._lines)

    @overload
    def __getitem__(self, at: int) -> Read: ...
    @overload
    def __getitem__(self, at: slice) -> Sequence[Read]: ...
    def __getitem__(self, at: int | slice) -> Read | Sequence[Read]:
        if isinstance(at, slice):
            return Reads(self._lines[at])
        offset, realtime, raw = self._lines[at].split()
        return int(offset), int(realtime), int(raw)


def _regular(data: bytes) -> Index | None:
    """Return what an index of nothing but whole reads and its end says, quickly; None where it holds anything else."""
    body, _, last = data.rstrip(b"\n").rpartition(b"\n")
    if not last.startswith(b"end "):
        return None
    lines = body.split(b"\n")
    if (
        # Without the digits every line is two spaces: one with fewer and one with more do not make up for each other.
        body.translate(None, b"0123456789") != b"  \n" * (len(lines) - 1) + b"  "
        or len(body.split()) != 3 * len(lines)
        or max(map(len, lines)) > _LONGEST_READ
    ):
        return None
    return Index(Reads(lines), (), {}, 0)


def assemble(head: Blob, index: Blob | None, tails: Mapping[int, Blob]) -> StreamData:
    """Return the stream's bytes in stream order with the receive times. Raises InputError."""
    content = head.read(MAX_FILE)
    said = parse_index(index.read(MAX_INDEX).data) if index is not None else Index((), (), {}, 0)
    pieces = [(0, 0)]
    dropped = 0
    for low, high in said.cuts:
        if low - dropped > content.size:
            break
        pieces.append((low - dropped, high))
        dropped += high - low
    if len(content.pieces) > 1:  # the file itself is larger than what is read of it
        at, start = content.pieces[1]
        before = [piece for piece in pieces if piece[0] <= at]
        after = [(at + here - start, offset) for here, offset in pieces if here > start]
        here, offset = [piece for piece in pieces if piece[0] <= start][-1]
        pieces = [*before, (at, offset + start - here), *after]
    data = bytearray(content.data)
    for start, number in sorted((start, number) for number, start in said.tails.items() if number in tails):
        at, offset = pieces[-1]
        reached = offset + len(data) - at
        piece = tails[number].read(MAX_FILE).data
        fresh = piece[max(0, reached - start) :]
        if fresh:
            pieces.append((len(data), max(start, reached)))
            data += fresh
    return StreamData(bytes(data), said.reads, _joined(pieces))


def _joined(pieces: list[tuple[int, int]]) -> tuple[tuple[int, int], ...]:
    """Drop the piece that another one at the same place replaces, and seams where nothing is missing."""
    kept: list[tuple[int, int]] = []
    for at, offset in pieces:
        if kept and kept[-1][0] == at:
            kept.pop()
        if kept and kept[-1][1] - kept[-1][0] == offset - at:
            continue
        kept.append((at, offset))
    return tuple(kept)
