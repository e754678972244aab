"""Says from a file's name, and where that is silent from its first lines, what a log file is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, replace

from denpex.model import StreamKind

SNIFF = 64 << 10  # bytes of a file's beginning that may be looked at

_PACKED = re.compile(r"\.(gz|bz2|xz|zst|zstd)$", re.IGNORECASE)
_LOG = re.compile(r"\.(log|out|err|txt|stdout|stderr|dmesg|[oe]\d+)(\.\d+)?$", re.IGNORECASE)
_BARE = re.compile(r"(stdout|stderr|output|log|dmesg|messages|syslog|kern)([._-].*)?", re.IGNORECASE)

# rank_3.log, rank-3.out, train.rank3.err, task_0.log; not local_rank_3.log
_RANK = re.compile(r"(?:^|[._-])(local[._-]?)?(?:rank|task|global[._-]?rank)[._-]?(\d{1,6})(?=$|[._-])", re.IGNORECASE)
# torchrun --log-dir: attempt_0/3/stderr.log
_ATTEMPT = re.compile(r"(?:^|/)attempt_(\d+)/(\d{1,6})/std(out|err)\.log$")
_NUMBER = re.compile(r"(\d{1,6})\.(?:log|out|err|txt)", re.IGNORECASE)
# slurm-4711.out, slurm-4711_3.out
_BATCH = re.compile(r"slurm[-_.](\d{1,12})(?:_(\d{1,9}))?(?:[._-]?(?:batch))?\.(?:out|err|log|txt)", re.IGNORECASE)
_SLURM = re.compile(
    r"slurm\.(?:txt|log)|(?:sacct|scontrol|slurmctld|slurmd|slurmdbd)(?:[._-][\w.-]*)?(?:\.(?:txt|log|out))?",
    re.IGNORECASE,
)
# node_gpu-01.dmesg, node-gpu01.kern.log; also a directory node_gpu01/
_NODE = re.compile(
    r"(?:node|host)_([A-Za-z0-9][\w-]*?)(?=$|\.)|(?:node|host)-([A-Za-z0-9][\w-]*)(?=$|\.)", re.IGNORECASE
)
_KERNEL = re.compile(
    r"(?:.*[._-])?dmesg(?:[._-].*)?"
    r"|(?:(?:node|host)[_-][\w-]+\.)?(?:kern|kernel|messages|syslog|kmsg)(?:[._-](?:log|txt|\d+))*",
    re.IGNORECASE,
)
_KERNEL_NODE = re.compile(
    r"dmesg[._-]([A-Za-z0-9][\w-]*?)(\.(?:log|txt|out))?|([A-Za-z0-9][\w-]*)\.dmesg(\.\w+)?", re.IGNORECASE
)

_KERNEL_LINE = re.compile(
    rb"\[ *\d+\.\d{6}\] "  # dmesg: seconds since boot
    rb"|\[  ?\+\d+\.\d{6}\] |\[[A-Z][a-z]{2} ?\d\d? \d\d:\d\d\] "  # dmesg -H
    rb"|\[(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun) [A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \d{4}\] "  # dmesg -T
    rb"|\d{4}-\d\d-\d\dT[\d:.,+-]{8,24} (?:\S+ )?kernel: "  # journalctl -o short-iso, dmesg --time-format iso
    rb"|[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d \S+ kernel: "  # syslog
)
_SACCT = re.compile(rb"\s*(?:[\w%]+\|){2,}|\s*JobID(?:Raw)?\s+\w|\s*JobId=\d+")


@dataclass(frozen=True)
class Kind:
    """What a file is: its kind, and the rank, node, job and array task that its name states (None: silent)."""

    kind: StreamKind
    rank: int | None = None
    node: str | None = None
    job: str | None = None
    array_task: str | None = None
    sure: bool = True  # False: by the name it may be anything; look at the content


def looks_like_log(path: str) -> bool:
    """Tell whether a file in a directory is taken for a log by its name alone."""
    name = _PACKED.sub("", path.rpartition("/")[2])
    return bool(_LOG.search(name) or _BARE.fullmatch(name))


def classify(path: str) -> Kind:
    """Return what the name of ``path`` ("/" between directories) says."""
    whole = _PACKED.sub("", path)
    folder, _, name = whole.rpartition("/")
    node = _node(name) or next((n for part in reversed(folder.split("/")) if (n := _node(part))), None)
    if _KERNEL.fullmatch(name):
        found = _KERNEL_NODE.fullmatch(name)
        return Kind(StreamKind.KERNEL, node=node or (found and (found[1] or found[3])) or None)
    batch = _BATCH.fullmatch(name)
    if batch:
        return Kind(StreamKind.BATCH, job=batch[1], array_task=batch[2])
    if _SLURM.fullmatch(name):
        return Kind(StreamKind.SLURM)
    error = bool(re.search(r"(?:^|[._-])(?:std)?err(?:or)?(?=$|[._-])", name, re.IGNORECASE))
    kind = StreamKind.ERR if error else StreamKind.OUT
    attempt = _ATTEMPT.search(whole)
    if attempt:
        return Kind(kind, rank=int(attempt[2]), node=node)
    rank = _RANK.search(name)
    if rank and not rank[1]:
        return Kind(kind, rank=int(rank[2]), node=node)
    return Kind(StreamKind.MIXED, node=node, sure=False)


def _node(name: str) -> str | None:
    found = _NODE.match(name)
    return (found[1] or found[2]) if found else None


def by_content(kind: Kind, head: bytes) -> Kind:
    """Return the kind corrected by a file's first bytes, where its name left it open."""
    if kind.sure:
        return kind
    lines = [line for line in head.split(b"\n") if line.strip()]
    if lines and sum(bool(_KERNEL_LINE.match(line)) for line in lines) * 2 > len(lines):
        return replace(kind, kind=StreamKind.KERNEL, sure=True)
    if _SACCT.match(head):
        return replace(kind, kind=StreamKind.SLURM, sure=True)
    return kind


def numbered(paths: Iterable[str]) -> dict[str, int]:
    """Return the ranks of files that are named by a number alone (0.log, 1.log …), directory by directory.

    A lone 4711.out is a job, not a rank: the numbers must begin at 0 or 1 and be dense.
    """
    folders: dict[str, dict[str, int]] = {}
    for path in paths:
        folder, _, name = _PACKED.sub("", path).rpartition("/")
        found = _NUMBER.fullmatch(name)
        if found:
            folders.setdefault(folder, {})[path] = int(found[1])
    return {
        path: number
        for ranks in folders.values()
        if min(ranks.values()) <= 1 and max(ranks.values()) < 4 * len(set(ranks.values()))
        for path, number in ranks.items()
    }


def is_binary(head: bytes) -> bool:
    """Tell whether a file's first bytes are a program, an archive or a pickle rather than text."""
    if head.startswith((b"\x7fELF", b"PK\x03\x04", b"\x80\x02", b"\x80\x03", b"\x80\x04", b"\x80\x05", b"\x89HDF")):
        return True
    if head.startswith((b"\xff\xfe", b"\xfe\xff")):
        return False
    return head.count(b"\0") * 4 > len(head)
