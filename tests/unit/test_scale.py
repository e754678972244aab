"""Long streams: what is read in full is their ends, and nothing that matters in between is lost."""

from __future__ import annotations

import random

import pytest

from denpex import library as lib
from denpex.engine import records
from denpex.ingest import streams
from denpex.ingest.tree import Content, MemoryBlob
from denpex.model import Role, Source, StreamData, StreamInfo, StreamKind

LIBRARY = lib.load()
MATCHER = lib.matcher(LIBRARY)
SAID = [
    example.text
    for pattern in LIBRARY.patterns
    if pattern.source is Source.TASK and pattern.role in (Role.ORIGIN, Role.CASCADE)
    for example in pattern.match
]
STEP = (
    "2026-12-01 12:53:03,009 INFO iteration {n}/ 500000 | elapsed time per iteration (ms): 80.1 | lm loss: 1.5E-01 |\n"
)


@pytest.mark.parametrize("prefix", ["", "[rank3]: "])
@pytest.mark.parametrize("seed", range(12))
def test_what_matters_is_found_wherever_it_stands(seed, prefix):
    draw = random.Random(seed)
    lines = [STEP.format(n=n) for n in range(4000)]
    for text in draw.sample(SAID, 12):
        whole = "".join(f"{prefix}{line}\n" for line in text.splitlines())
        lines.insert(draw.randrange(len(lines)), whole)
    data = "".join(lines).encode()
    info = StreamInfo("n1/0.3.err", StreamKind.ERR, "0", 3, "n1", True, len(data))
    every = MATCHER.match(records.split(info, StreamData(data)))
    some = records.split(info, StreamData(data), MATCHER.find)
    assert sum(len(record.text) for record in some) < 0.6 * len(data)
    decided = (Role.ORIGIN, Role.CASCADE, Role.TEARDOWN)
    assert {(m.pattern.id, m.record.offset) for m in MATCHER.match(some) if m.pattern.role in decided} == {
        (m.pattern.id, m.record.offset) for m in every if m.pattern.role in decided
    }


def test_reads_are_parsed_when_they_are_asked_for():
    data = b"".join(b"%d %d %d\n" % (n * 10, n * 7, n * 3) for n in range(1000)) + b"end 10000 eof\n"
    reads = streams.parse_index(data).reads
    assert (len(reads), reads[0], reads[999], list(reads[2:4])) == (
        1000, (0, 0, 0), (9990, 6993, 2997), [(20, 14, 6), (30, 21, 9)],
    )  # fmt: skip


@pytest.mark.parametrize(
    "strange",
    [
        b"cut 1 2\n",
        b"10 5\n",
        b"x y z\n",
        b"1 2 3 4\n",
        b" 1 2 3\n",
        b"1  2 3\n",
        b"9" * 90 + b" 2 3\n",
        b"-1 2 3\n",
        b"1 2\n2 3 4 5\n",
    ],
)
def test_an_index_with_anything_else_is_read_line_by_line(strange):
    said = streams.parse_index(b"0 5 5\n" + strange + b"30 7 7\nend 40 eof\n")
    assert said.reads[0] == (0, 5, 5)
    assert said.reads[-1] == (30, 7, 7)
    assert [offset for offset, _, _ in said.reads] == sorted(offset for offset, _, _ in said.reads)


def test_times_are_those_of_the_read_that_brought_the_line():
    text = "".join(f"line {n}\n" for n in range(500))
    offsets = [i for i, c in enumerate(text) if i == 0 or text[i - 1] == "\n"]
    index = "".join(f"{offset} {1000 + n} {n}\n" for n, offset in enumerate(offsets) if n % 3 == 0)
    head, idx = (
        MemoryBlob("x", Content(data, size=len(data)))
        for data in (text.encode(), f"{index}end {len(text)} eof\n".encode())
    )
    found = streams.assemble(head, idx, {})
    info = StreamInfo("n1/0.0.out", StreamKind.OUT, "0", 0, "n1", True, len(text))
    for n, record in enumerate(records.split(info, found)):
        assert record.stamp.raw_ns == n - n % 3
