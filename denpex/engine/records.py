"""Splits captured streams into records: one message each, launcher prefixes off, tracebacks and reports folded."""

from __future__ import annotations

import bisect
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from denpex.engine import folds, prefixes
from denpex.engine.prefixes import Layout, Line
from denpex.model import KernelRecord, Record, Source, Stamp, StreamData, StreamInfo, StreamKind

# What is read in full of a long stream; in between only what surrounds a telling word, or a place that a scan found.
_HEAD, _TAIL = 256 << 10, 1 << 20
# One rank's own output needs less: its last step lines, and what follows them.
_HEAD_OF_ONE, _TAIL_OF_ONE = 8 << 10, 32 << 10
TELLING = (
    b"Traceback (most", b"Error", b"ERROR", b"rror:", b"WARN", b"Xid", b"oom", b"OOM", b"Killed", b"CANCELLED",
    b"NaN", b"nan,", b": nan", b"=nan", b"atchdog", b"terminate called", b"Assertion", b"fault", b"No space", b"failed",
    b"desync",
)  # fmt: skip
# A place is where a message's telling words end: it may have begun some lines before, and go on.
_BEFORE, _AROUND = 1024, 4096
_MOST_OF_ONE = 40  # neighbourhoods for one word, so that a word that the job prints all the time hides no other
_LONGEST_LINE = 16 << 10
_SAMPLE_LINES = 200

Places = Callable[[bytes], Iterable[int]]
"""A stream's bytes -> positions of what may matter there, in any order."""

_SOURCES = {StreamKind.KERNEL: Source.KERNEL, StreamKind.SLURM: Source.SLURM}


def split(info: StreamInfo, data: StreamData, places: Places | None = None) -> list[Record]:
    """Return the records of one stream in the stream's order.

    ``rank`` and ``node`` are the stream's where it has them; else what the launcher's prefix says. Receive times come
    from the index, offsets from the pieces. ``places`` finds where in a long stream something may stand that matters.
    """
    kernel = info.kind is StreamKind.KERNEL
    own = info.rank is not None
    made = _Maker(info, data)
    records: list[Record] = []
    raw = _raw_lines(data.data, (_HEAD_OF_ONE, _TAIL_OF_ONE) if own and places else (_HEAD, _TAIL), places)
    for found in folds.fold(_kernel_lines(raw) if kernel else _lines(info, data.data, raw), own=own):
        if len(found.texts) == 1:
            records.append(made.record(found.first, found.texts[0]))
        else:
            records.extend(made.record(found.first, text) for text in folds.split_table(found) if text)
    return records


def from_kernel(records: Iterable[KernelRecord]) -> list[Record]:
    """Return kernel records as records; lines that only continue a three-line driver message are joined to it."""
    result: list[Record] = []
    for number, entry in enumerate(records):
        text = prefixes.clean(entry.text)
        before = result[-1] if result else None
        if (
            before is not None
            and before.node == entry.node
            and text.startswith("NVRM: ")
            and before.text.startswith("NVRM: The NVIDIA GPU ")
            and before.text.count("\n") < 2
        ):
            result[-1] = replace(before, text=f"{before.text}\n{text}")
            continue
        result.append(
            Record(
                text=text,
                stream=f"{entry.node}/kernel",
                offset=entry.seq if entry.seq is not None else number,
                node=entry.node,
                stamp=entry.stamp,
                source=Source.KERNEL,
                evidence=entry.evidence,
            )
        )
    return result


def _pieces(data: bytes, whole: tuple[int, int], places: Places | None) -> Iterator[tuple[int, bytes]]:
    """Yield (position, bytes) of what is read of a stream: all of a short one. ``whole``: how much of head and tail."""
    head, tail = whole
    if len(data) <= head + tail:
        yield 0, data
        return
    head_end = data.rfind(b"\n", 0, head) + 1 or head
    tail_start = data.find(b"\n", len(data) - tail) + 1 or len(data) - tail
    yield 0, data[:head_end]
    done = head_end
    middle = data[head_end:tail_start] if places is not None else b""
    found = _telling(data, head_end, tail_start) if places is None else sorted({head_end + at for at in places(middle)})
    for position in found:
        begin = max(done, data.rfind(b"\n", 0, max(position - _BEFORE, 0)) + 1)
        end = data.find(b"\n", min(position + _AROUND, tail_start), tail_start) + 1 or tail_start
        if end > begin:
            yield begin, data[begin:end]
            done = end
    if len(data) > max(tail_start, done):
        yield max(tail_start, done), data[max(tail_start, done) :]


def _telling(data: bytes, begin: int, end: int) -> list[int]:
    """Return where telling words are, ascending; the first and the last of each where there are many."""
    found: list[int] = []
    for word in TELLING:
        at = begin
        for _ in range(_MOST_OF_ONE):
            at = data.find(word, at, end)
            if at < 0:
                break
            found.append(at)
            at += _AROUND
        else:
            at = end
            for _ in range(_MOST_OF_ONE):
                at = data.rfind(word, begin, at)
                found.append(at)
                at = max(at - _AROUND, begin)
    return sorted(position for position in found if position >= 0)


def _raw_lines(data: bytes, whole: tuple[int, int], places: Places | None) -> Iterator[tuple[int, str]]:
    """Yield (position, text) of every line that is read; a redrawn progress bar's states are lines."""
    for start, piece in _pieces(data, whole, places):
        at = start
        for raw in (piece[:-1] if piece.endswith(b"\n") else piece).split(b"\n"):
            text = raw.decode("utf-8", "replace") if len(raw) <= _LONGEST_LINE else _shortened(raw)
            if "\x1b" in text or "\x00" in text or "\x08" in text:
                text = prefixes.clean(text)
            if "\r" in text:
                for part in text.split("\r"):
                    if part:
                        yield at, part
            else:
                yield at, text
            at += len(raw) + 1


def _shortened(raw: bytes) -> str:
    """Return a huge line's head and tail: what follows a bar that was never ended is at its end."""
    half = _LONGEST_LINE // 2
    return raw[:half].decode("utf-8", "replace") + "\r" + raw[-half:].decode("utf-8", "replace")


def _kernel_lines(raw: Iterable[tuple[int, str]]) -> Iterator[Line]:
    for at, text in raw:
        yield prefixes.peel_kernel(text, at)


def _lines(info: StreamInfo, data: bytes, raw: Iterable[tuple[int, str]]) -> Iterator[Line]:
    form = Layout()
    if info.rank is None:
        head = data[:_HEAD].decode("utf-8", "replace").split("\n", _SAMPLE_LINES)[:_SAMPLE_LINES]
        form = prefixes.layout(head)
    always = form.labelled or form.hosts
    peel = prefixes.peel
    for at, text in raw:
        if "it/s" in text or "s/it" in text:
            for part in prefixes.bars(text):
                yield peel(part, at, form)
        elif always or text.startswith(("[", "(")) or " NCCL " in text or "ank " in text:
            yield peel(text, at, form)
        else:
            yield Line(text, at)


class _Maker:
    """Makes records of one stream; they come in order, so that their receive times are found by going on."""

    def __init__(self, info: StreamInfo, data: StreamData) -> None:
        self._info = info
        self._pieces = data.pieces
        self._index = data.index
        self._reads = len(data.index)
        self._at, self._following = -1, self._read(0)
        self._source = _SOURCES.get(info.kind, Source.TASK)
        self._cut = len(data.pieces) > 1 or data.pieces[:1] != ((0, 0),)
        self._stamp: Stamp | None = None
        self._stamp_until = 0 if data.index else 1 << 62

    def record(self, first: Line, text: str) -> Record:
        """Return the record of a message that begins with the line ``first``."""
        info = self._info
        offset = first.at
        if self._cut and self._pieces:
            begin, there = self._pieces[max(0, bisect.bisect_right(self._pieces, (offset, 1 << 62)) - 1)]
            offset += there - begin
        if offset >= self._stamp_until:
            self._next_stamp(offset)
        printed = first.printed_ns
        if printed is None and text[:1] in "[2EWIF":
            printed = prefixes.printed_ns(text)
        return Record(
            text=text.rstrip(),
            stream=info.name,
            offset=offset,
            rank=first.rank if info.rank is None else info.rank,
            local_rank=first.local_rank,
            node=info.node or first.node,
            step=info.step,
            stamp=self._stamp,
            printed_ns=printed,
            source=self._source,
        )

    def _next_stamp(self, offset: int) -> None:
        """Go on to the read that brought the byte at ``offset``: mostly the next one."""
        index = self._index
        following, self._at = self._following, self._at + 1
        after = self._read(self._at + 1)
        if following is None or following[0] > offset or (after is not None and after[0] <= offset):
            self._at = max(0, bisect.bisect_right(index, offset, key=lambda read: read[0]) - 1)
            following, after = index[self._at], self._read(self._at + 1)
        self._following = after
        self._stamp = Stamp(following[1], following[2])
        self._stamp_until = after[0] if after is not None else 1 << 62

    def _read(self, number: int) -> tuple[int, int, int | None] | None:
        return self._index[number] if number < self._reads else None
