"""Reads dumps of PyTorch's flight recorder: recognised by content, never executed, kept as a bounded digest.

The recorder's own pickle (format 2.x) and the JSON of ``_dump_fr_trace_json`` hold the same keys. Where NCCL and gloo
differ: gloo's entries stay "scheduled", and are retired both when they completed and when they failed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from denpex.errors import InputError
from denpex.ingest import pickled
from denpex.ingest.lines import integer, text
from denpex.ingest.tree import Blob, not_read
from denpex.model import FlightCall, FlightDump, FlightGroup, Gap

MAX_DUMP = 64 << 20  # bytes of one dump; 2,000 entries with Python stacks are less than 2 MiB
MAX_TOTAL = 1 << 30  # bytes of all dumps of an input: some minutes of reading

# Kept of one dump: so many of the last entries, and of every group at least so many.
_LAST = 256
_LAST_OF_GROUP = 8
_MOST_GROUPS = 128
_MOST_ENTRIES = 100_000
_MOST_RANKS = 1 << 20
_MOST_MEMBERS = 1 << 17

_NAMED = re.compile(
    r"(?:nccl_trace|comm_lib_trace|fr_trace)[._-]?(?:rank[._-]?)?\d{1,6}(?:\.(?:json|pickle|pkl|pt|bin))?(?:\.gz)?$"
)
_RANK = re.compile(r"(?:^|[._-]|trace)rank[._-]?(\d{1,6})(?=$|[._-])")
_LAST_NUMBER = re.compile(r"(\d{1,6})(?:\.[A-Za-z]\w{0,7}){0,2}$")
_PICKLE = re.compile(rb"\x80[\x02-\x05]")
_OWN = (b"pg_config", b"pg_status", b"collective_seq_id", b"nccl_comm_state")
_PEER = re.compile(r"\w+:(send|recv)\b")
_COALESCED = ":coalesced"
# An entry that is read half would differ from all other ranks' and accuse its own.
_DAMAGED = "its entries are damaged"
# All ranks of a group must give these alike many elements of one type; of others (all_to_all, lists) they may differ.
_SAME_SIZE = re.compile(r"all_?reduce(_coalesced)?|broadcast|reduce|_all_?gather_base|_reduce_scatter_base")


def is_dump(path: str, head: bytes) -> bool:
    """Tell from a file's name and its first bytes (decompressed) whether it is, or claims to be, a dump."""
    if _NAMED.search(path.rpartition("/")[2]):
        return True
    if _PICKLE.match(head):
        return any(key in head for key in _OWN)
    return head.lstrip()[:1] == b"{" and b'"entries"' in head and any(b'"%s"' % key in head for key in _OWN)


class Dumps:
    """The dumps of one input, read one by one; ``gaps`` say what could not be read."""

    def __init__(self) -> None:
        self.found: list[FlightDump] = []
        self.gaps: list[Gap] = []
        self._total = 0

    def add(self, path: str, blob: Blob, *, node: str | None = None, step: str | None = None) -> None:
        """Read one dump. One that cannot be read still tells that its rank has dumped; it then has no groups."""
        self._total += min(blob.size, MAX_DUMP)
        try:
            if self._total > MAX_TOTAL:
                raise ValueError(f"{MAX_TOTAL >> 20} MiB of dumps were read before it")
            self.found.append(_read(path, blob, node, step))
        except (InputError, ValueError, RecursionError, MemoryError) as error:
            why = f"it is no flight recorder's dump: {error or 'it is too large'}"
            self.gaps.append(not_read(path, why, "a dump that was written to its end, on a disk with room"))
            rank = _rank(path, {})
            if rank is not None:
                self.found.append(FlightDump(rank, path, (), 0, step=step, node=node))


def _read(path: str, blob: Blob, node: str | None, step: str | None) -> FlightDump:
    if blob.size > MAX_DUMP:
        raise ValueError(f"a dump has at most {MAX_DUMP >> 20} MiB")
    content = blob.read(MAX_DUMP, unpack=True)
    if content.fault or len(content.pieces) > 1:
        raise ValueError(content.fault or "it is too long")
    found = _parsed(content.data)
    rank = _rank(path, found)
    if rank is None:
        raise ValueError("neither its name nor its content says of which rank it is")
    return _digest(found, rank, path, node, step, blob.modified_ns)


def _parsed(data: bytes) -> Mapping[str, Any]:
    found = pickled.loads(data) if _PICKLE.match(data) else json.loads(data)
    if not isinstance(found, dict) or not isinstance(found.get("entries"), list):
        raise ValueError("it has no list of entries")
    return found


def _rank(path: str, found: Mapping[str, Any]) -> int | None:
    name = path.rpartition("/")[2]
    named = _RANK.search(name) or _LAST_NUMBER.search(name)
    said = int(named[1]) if named else integer(found, "rank")
    return said if said is not None and 0 <= said < _MOST_RANKS else None


def _digest(
    found: Mapping[str, Any], rank: int, path: str, node: str | None, step: str | None, written_ns: int | None
) -> FlightDump:
    entries = [entry for entry in found["entries"][-_MOST_ENTRIES:] if isinstance(entry, dict)]
    if entries and not any(integer(entry, "collective_seq_id") is not None for entry in entries):
        raise ValueError("it is of a release before PyTorch 2.5, whose entries have no collective_seq_id")
    groups: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for entry in entries:
        groups.setdefault(_group_of(entry), []).append(entry)
    members: dict[str, tuple[int, ...]] = {}
    for name, desc, ranks in _configured(found.get("pg_config")):
        groups.setdefault((name, desc), [])
        members[name] = ranks
    if len(groups) > _MOST_GROUPS:
        raise ValueError(f"it has more than {_MOST_GROUPS} process groups")
    oldest = entries[-_LAST:][0] if entries else {}
    since = integer(oldest, "record_id") or 0
    times = [t for entry in entries for key in _TIMES if (t := integer(entry, key))]
    library = next((_operation(entry).partition(":")[0] for entry in entries), "")[:20]
    return FlightDump(
        rank=rank,
        file=path,
        groups=tuple(_group(key, listed, members.get(key[0], ()), since) for key, listed in groups.items()),
        last_ns=max(times, default=0),
        written_ns=written_ns,
        step=step,
        node=node,
        library=library,
        from_start=bool(entries) and integer(entries[0], "record_id") == 0,
        sends=any(map(_sends, groups.values())),
    )


_TIMES = ("time_created_ns", "time_discovered_started_ns", "time_discovered_completed_ns")


def _group_of(entry: Mapping[str, Any]) -> tuple[str, str]:
    group = entry.get("process_group")
    words = [_word(word, 256) for word in group[:2]] if isinstance(group, (list, tuple)) else []
    return (words[0], words[1]) if len(words) == 2 else (_word(entry.get("pg_id"), 20), "")


def _word(value: Any, limit: int) -> str:
    """Return a name or number as text. Raises ValueError for a list: a pickle's may hold itself many times."""
    if value is not None and not isinstance(value, (str, int)):
        raise ValueError(_DAMAGED)
    return str(value)[:limit]


def _configured(config: Any) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    """Yield name, description and members of each group that the dump lists; gloo lists one without a name."""
    for group in list(config.values())[:_MOST_GROUPS] if isinstance(config, dict) else ():
        name = text(group, "name", 256) if isinstance(group, dict) else ""
        if name:
            ranks = group.get("ranks")
            if isinstance(ranks, str):
                ranks = [int(word) for word in re.findall(r"\d{1,7}", ranks[: 1 << 20])]
            whole = isinstance(ranks, (list, tuple)) and all(isinstance(r, int) for r in ranks)
            if whole and len(ranks) > _MOST_MEMBERS:
                raise ValueError(f"it has a group of more than {_MOST_MEMBERS} ranks")
            yield name, text(group, "desc", 256), tuple(ranks) if whole and ranks else ()


def _operation(entry: Mapping[str, Any]) -> str:
    if not isinstance(entry.get("profiling_name", ""), str):
        raise ValueError(_DAMAGED)
    return text(entry, "profiling_name", 256)


def _of_peer(entry: Mapping[str, Any]) -> bool:
    return entry.get("is_p2p") is True or _PEER.match(_operation(entry)) is not None


def _completed(entry: Mapping[str, Any]) -> bool:
    """Tell whether a collective completed; one of NCCL's that is retired and did not has timed out."""
    if _operation(entry).startswith("nccl"):
        return entry.get("state") == "completed"
    return entry.get("retired") is True or entry.get("state") == "completed"


def _sends(entries: list[Mapping[str, Any]]) -> bool:
    """Tell whether the rank waits, or may wait, in a point-to-point call of a group.

    Of calls that were coalesced only the last entry, which stands for all, ever completes. Gloo records none, but
    counts them as operations.
    """
    last = next((e for e in reversed(entries) if _of_peer(e) or _operation(e).endswith(_COALESCED)), None)
    if last is not None and any(map(_of_peer, entries)) and not _completed(last):
        return True
    numbers = [(integer(e, "op_id"), integer(e, "collective_seq_id")) for e in entries]
    gloo = any(_operation(e).startswith("gloo") for e in entries)
    return gloo and any(op is not None and seq is not None and op > seq for op, seq in numbers)


def _group(key: tuple[str, str], entries: list[Mapping[str, Any]], ranks: tuple[int, ...], since: int) -> FlightGroup:
    calls: dict[int, list[Mapping[str, Any]]] = {}
    for entry in entries:
        seq = integer(entry, "collective_seq_id")
        if seq is not None and not _of_peer(entry):
            calls.setdefault(seq, []).append(entry)
    numbers = sorted(calls)
    kept = [
        n for at, n in enumerate(reversed(numbers))
        if at < _LAST_OF_GROUP or (integer(calls[n][-1], "record_id") or 0) >= since
    ]  # fmt: skip
    peers = any(map(_of_peer, entries))
    return FlightGroup(
        name=key[0],
        desc=key[1],
        calls=tuple(_call(seq, calls[seq]) for seq in reversed(kept)),
        ranks=ranks,
        # Early releases count a coalesced send among the collectives, on the ranks alone that take part in it.
        counted=not (peers and any(_operation(e).endswith(_COALESCED) and not _of_peer(e) for e in entries)),
    )


def _call(seq: int, entries: list[Mapping[str, Any]]) -> FlightCall:
    """Return one collective; several entries of one number are one coalesced call, whose last stands for all."""
    words = [_signature(entry) for entry in entries[:64]]
    created = integer(entries[0], "time_created_ns") or 0
    return FlightCall(seq, " + ".join(words), created, _completed(entries[-1]), integer(entries[-1], "record_id") or 0)


def _signature(entry: Mapping[str, Any]) -> str:
    name = _operation(entry).partition(":")[2] or _operation(entry)
    types, sizes = entry.get("input_dtypes"), entry.get("input_sizes")
    if not _SAME_SIZE.fullmatch(name) or sizes is None:
        return name
    kind = _word(_listed(types)[0], 32) if types else "?"
    return f"{name} {kind}[{sum(map(_elements, _listed(sizes)[:4096]))}]"


def _elements(size: Any) -> int:
    numbers = _listed(size)[:16]
    if not all(isinstance(n, int) and abs(n) < 1 << 48 for n in numbers):
        raise ValueError(_DAMAGED)
    return math.prod(numbers)


def _listed(value: Any) -> Sequence[Any]:
    if not isinstance(value, (list, tuple)):
        raise ValueError(_DAMAGED)
    return value
