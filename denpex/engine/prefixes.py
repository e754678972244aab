"""Takes launchers', loggers' and the kernel log's prefixes off a line and keeps the rank, node and time they state."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])|[\x00\x07\x08]")

# torch.distributed's per-rank excepthook and loggers; torchrun --tee; Open MPI's --tag-output; Ray's log monitor.
_RANK = re.compile(r"\[rank(\d{1,7})\]:\s?")
_DEFAULT = re.compile(r"\[[A-Za-z_]{1,40}?(\d{1,5})\]:\s?")
_MPI = re.compile(r"\[\d+,(\d{1,7})\]<(?:stdout|stderr|stddiag)>:\s?")
_RAY = re.compile(r"\((?:[\w.<>-]+ )?pid=(?P<pid>\d+)(?:, ip=(?P<ip>[\d.a-fA-F:]+))?\)\s?")
# srun --label, also of a heterogeneous job ("P1 3: "); pdsh, DeepSpeed's and clush's "node: ".
_LABEL = re.compile(r"(?:P\d+ )? {0,6}(\d{1,7}): ?")
_HOST = re.compile(
    r"(?!srun|slurmstepd|salloc|sbatch|Traceback|error|warning|info)([A-Za-z][A-Za-z0-9.-]*\d[A-Za-z0-9.-]*): "
)
# A rank that the message itself names as its own: torch's process group, DeepSpeed's and Megatron's loggers.
_INNER_RANK = re.compile(r"\[(?:PG [^\]\n]{0,160}?)?[Rr]ank (\d{1,7})\]")
_NCCL = re.compile(r"(?:\[[^\]\n]{1,40}\] )?([A-Za-z][\w.-]*):\d+:\d+ \[\d+\] ")
# A progress bar without a line end: the next message follows on the bar's own line.
_BAR = re.compile(r"(?:\d(?:\.\d+)?(?:it/s|s/it)|\?it/s)[^\]\n]{0,300}\](?=\S)")

_KERNEL = re.compile(
    r"(?:<\d{1,3}>)?"
    r"(?P<stamp>\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?:?\s+|"
    r"[A-Z][a-z]{2} [ \d]\d \d\d:\d\d:\d\d )?"
    r"(?:(?P<host>[\w.-]+) kernel(?:\[\d+\])?: )?"
    r"(?:\[?(?:\s*\+?\d+\.\d{3,9}|(?:[A-Z][a-z]{2} )?[A-Z][a-z]{2} ?[ \d]\d \d\d:\d\d(?::\d\d \d{4})?)\]\s?)?"
    r"(?:\[\s*[TC]\d+\]\s?)?"
)

_STAMP = re.compile(r"\[?(\d{4}-\d\d-\d\d)[T ](\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?(Z|[+-]\d\d:?\d\d)")
_EPOCH = re.compile(r"[IWEF]\d{4} \d\d:\d\d:(\d{10})\.(\d{1,9}) ")


@dataclass(slots=True)
class Line:
    """One line without its prefixes; ``at`` is its position in the data, ``who`` any other mark of its writer."""

    text: str
    at: int
    rank: int | None = None
    local_rank: int | None = None
    node: str | None = None
    who: str | None = None
    printed_ns: int | None = None


@dataclass(frozen=True)
class Layout:
    """Which prefixes that could be a message's own words are a launcher's in this stream."""

    labelled: bool = False  # "3: "
    hosts: bool = False  # "node7: "


def layout(sample: Sequence[str]) -> Layout:
    """Judge a stream by its first lines: what nearly every line begins with is the launcher's."""
    lines = [line for line in sample if line.strip()]
    if len(lines) < 3:
        return Layout()

    def most(prefix: re.Pattern[str]) -> bool:
        return sum(1 for line in lines if prefix.match(line)) >= 0.7 * len(lines)

    labelled = most(_LABEL)
    return Layout(labelled, not labelled and most(_HOST))


def clean(text: str) -> str:
    """Take terminal escapes, NUL, bell and backspace out of a line."""
    return _ANSI.sub("", text)


def bars(text: str) -> list[str]:
    """Split a line at the end of a progress bar after which another message goes on."""
    parts, begin = [], 0
    for match in _BAR.finditer(text):
        parts.append(text[begin : match.end()])
        begin = match.end()
    parts.append(text[begin:])
    return parts


def peel(text: str, at: int, form: Layout) -> Line:
    """Return the line without launcher prefixes, outermost first; the innermost statement of a rank counts."""
    line = Line(text, at)
    if form.labelled and (match := _LABEL.match(text)):
        line.rank, text = int(match[1]), text[match.end() :]
    elif form.hosts and (match := _HOST.match(text)):
        line.node, text = match[1], text[match.end() :]
    for _ in range(4):
        if text.startswith("[") and (match := _RANK.match(text) or _MPI.match(text)):
            line.rank = int(match[1])
        elif text.startswith("[") and (match := _DEFAULT.match(text)):
            line.local_rank = int(match[1])
        elif text.startswith("(") and (match := _RAY.match(text)):
            line.who, line.node = match["pid"], match["ip"] or line.node
        else:
            break
        text = text[match.end() :]
    if line.rank is None and (match := _INNER_RANK.search(text, 0, 240)):
        line.rank = int(match[1])
    elif line.node is None and " NCCL " in text and (match := _NCCL.match(text)):
        line.node = match[1]
    line.text = text
    return line


def peel_kernel(text: str, at: int) -> Line:
    """Return a kernel log's line without level, stamp and host, as dmesg, syslog and journalctl print them."""
    match = _KERNEL.match(text)
    if match is None:
        return Line(text, at)
    return Line(text[match.end() :], at, node=match["host"], printed_ns=printed_ns(match["stamp"] or ""))


def printed_ns(text: str) -> int | None:
    """Return the time that a line begins with, ns since 1970; None unless year and zone are certain."""
    if match := _STAMP.match(text):
        day, clock, fraction, zone = match.groups()
        try:
            moment = datetime.fromisoformat(f"{day}T{clock}+00:00")
        except ValueError:
            return None
        shift = 0
        if zone != "Z":
            shift = (int(zone[1:3]) * 60 + int(zone[-2:])) * (-60 if zone[0] == "-" else 60)
        seconds = (moment - _ORIGIN) // timedelta(seconds=1) - shift
        return seconds * 10**9 + int((fraction or "0").ljust(9, "0"))
    if match := _EPOCH.match(text):
        return int(match[1]) * 10**9 + int(match[2].ljust(9, "0"))
    return None


_ORIGIN = datetime(1970, 1, 1, tzinfo=timezone.utc)
