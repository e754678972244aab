"""Reads JSON that may be torn, hostile or of another version: every value is checked, nothing raises."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from denpex.errors import InputError
from denpex.ingest.tree import Blob, Tree
from denpex.model import Gap, Stamp

MAX_JSON = 4 << 20
MAX_LINES = 64 << 20

Object = Mapping[str, Any]


@dataclass
class Reader:
    """Reads the JSON files of one node's run directory and collects what was wrong with them."""

    node: str
    tree: Tree
    gaps: list[Gap] = field(default_factory=list)

    def gap(self, what: str, closed_by: str, where: str = "") -> None:
        """Record one gap, at this node unless ``where`` says otherwise."""
        self.gaps.append(Gap(what, where or self.node, closed_by))

    def blob(self, path: str) -> Blob | None:
        """Return the file at ``path`` below the run directory, or None."""
        return self.tree.blobs.get(path)

    def document(self, path: str) -> Object | None:
        """Return the JSON object that a whole file holds; None (with a gap where it is broken) otherwise."""
        blob = self.blob(path)
        if blob is None:
            return None
        found = _object(self._bytes(blob, MAX_JSON))
        if found is None:
            self.gap(f"{path} is not a whole JSON object", "a disk with room on that node, and its epilog")
        return found

    def lines(self, path: str) -> Iterator[Object]:
        """Yield the JSON objects of a file, line by line; what is not one is counted into one gap."""
        blob = self.blob(path)
        if blob is None:
            return
        broken = 0
        for line in self._bytes(blob, MAX_LINES).split(b"\n"):
            if not line.strip():
                continue
            found = _object(line)
            if found is None:
                broken += 1
            else:
                yield found
        if broken:
            self.gap(f"{path}: {broken} lines are not JSON and were passed over", "whole lines; a full disk tears them")

    def _bytes(self, blob: Blob, limit: int) -> bytes:
        try:
            content = blob.read(limit)
        except InputError as error:
            self.gap(str(error), "read access to that file")
            return b""
        if len(content.pieces) > 1:
            self.gap(f"{blob.path} is larger than {limit >> 20} MiB; its middle was not read", "nothing needs so much")
        return content.data


def _object(data: bytes) -> Object | None:
    try:
        found = json.loads(data.decode("utf-8", "replace"))
    except (ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def integer(record: Object, key: str) -> int | None:
    """Return a whole number of at most 63 bits, or None."""
    value = record.get(key)
    if isinstance(value, bool) or not isinstance(value, int):
        return None
    return value if abs(value) < 1 << 63 else None


def text(record: Object, key: str, limit: int = 4096) -> str:
    """Return a text of bounded length, "" where there is none."""
    value = record.get(key)
    return value[:limit] if isinstance(value, str) else ""


def texts(record: Object, key: str) -> tuple[str, ...]:
    """Return a list of short texts; what is none is left out."""
    value = record.get(key)
    if not isinstance(value, list):
        return ()
    return tuple(item[:256] for item in value[:4096] if isinstance(item, str))


def stamp(record: Object, realtime: str = "realtime_ns", raw: str = "raw_ns") -> Stamp | None:
    """Return the record's clock reading, or None where it has none."""
    value = integer(record, realtime)
    return None if value is None else Stamp(value, integer(record, raw))
