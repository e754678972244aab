"""Joins the lines of one message: tracebacks, C++ aborts, device assertions, torchrun's tables, desync reports."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from denpex.engine.prefixes import Line

_LONGEST = 600  # lines of one message; what a runaway fold takes beyond is cut into records of their own
_MOST_CHARACTERS = 64 << 10
_MOST_MESSAGE = 24  # lines of an exception's message that nothing but their place marks as such
_MOST_FOREIGN = 40  # other messages' lines inside one traceback
_SAME_ASSERTIONS = 3  # of thousands of equal ones

_Writer = tuple[int | None, int | None, str | None, str | None]

_TRACEBACK = "Traceback (most recent call last)"
# What Python prints before the traceback of an exception that ended nothing.
_HARMLESS = ("Exception ignored in", "Error in atexit._run_exitfuncs")
_CHAIN = ("During handling of the above exception", "The above exception was the direct cause")
_EXCEPTION = re.compile(
    r"(?:\w+\.)*(?:[A-Z]\w*|error|timeout|gaierror|herror)(?:: |:?$|:(?=\S))|(?:\w+\.)+\w*(?:Error|Exception)\b"
)
# Lines that belong to the exception above them though they are not indented.
_MORE_MESSAGE = re.compile(
    r"Original Traceback \(most recent|CUDA kernel errors might|For debugging consider|Compile with `TORCH_USE|"
    r"Device-side assertion tracking|Last error:|nccl[A-Z]\w+Error|Cuda failure|Exception raised from|frame #\d+|"
    r"/job:|Search for `cuda|\s*Parameter indices which did not|\s*Original exception|\[[^\]]{1,200}gloo/|#\d+ "
)
_NEW_MESSAGE = re.compile(
    r"\[|\d{4}-\d\d|\w{3} \d\d |[EWIF]\d{3,4} |\d\d:\d\d|srun: |slurmstepd|/\S+: line \d+: |[A-Z]{3,}[: ]|={8,}|"
    r"terminate called|Fatal Python|wandb: |Killed|Aborted|\S+\.(?:cpp|cu|cc|h|py):\d+[:\]]"
)
_PROGRESS = re.compile(r"(?i)\b(?:step|epoch|iter|iteration|loss|batch|eta)s?\b|\d+%\|")
_BANNER = re.compile(r"={20,}\s*$")
_ENTRY = re.compile(r"\[\d+\]:\s*$|Root Cause \(first observed failure\):")
_GLOG = re.compile(r"\[?[EF]\d{0,4} ?[^\]\n]{0,200}\.cpp:\d+\]")
_ASSERTION = re.compile(r"\S+:\d+: [^\n]{0,300}block: \[\d+,\d+,\d+\], thread: \[\d+,\d+,\d+\] Assertion `")


@dataclass(slots=True)
class Fold:
    """The lines that are one message."""

    first: Line
    texts: list[str] = field(default_factory=list)
    state: str = ""
    size: int = 0  # characters
    spent: int = 0  # lines that only their place put here, or that passed through

    def add(self, line: Line, state: str) -> None:
        """Take a line in."""
        self.texts.append(line.text)
        self.size += len(line.text)
        self.state = state


def fold(lines: Iterable[Line], own: bool) -> Iterator[Fold]:
    """Yield messages in the order of their first lines; each writer's by itself, since ranks interleave.

    ``own``: the whole stream is one writer's, so that what follows an exception may be more of its message.
    """
    done: list[Fold] = []
    open_: dict[_Writer, Fold] = {}
    last: _Writer = (None, None, None, None)
    for line in lines:
        text = line.text
        if not open_ and not _may_begin(text):
            if text and not text.isspace():
                yield from done
                done.clear()
                yield Fold(line, [text])
            continue
        key = (line.rank, line.local_rank, line.node, line.who)
        current = open_.get(key)
        if current is None and (before := open_.get(last)) and _goes_on(before, line, last[1:] == key[1:]):
            # Only a message's first line has its writer's rank before it, or only its second line names it.
            current, key = before, last
            before.first.rank = line.rank if before.first.rank is None else before.first.rank
        last = key
        if current is not None:
            state = _next(current, text, own or line.rank is not None)
            if state == "foreign":
                done.append(Fold(line, [text]))
                continue
            if state == "skip":
                continue
            if state and len(current.texts) < _LONGEST and current.size < _MOST_CHARACTERS:
                current.add(line, state)
                if state == "closed":
                    del open_[key]
                continue
            del open_[key]
        if text and not text.isspace():
            done.append(begun := Fold(line, [text], _begins(text)))
            if begun.state:
                open_[key] = begun
        if not open_:
            yield from done
            done.clear()
    yield from done


def _goes_on(before: Fold, line: Line, same_place: bool) -> bool:
    """Tell whether a line of no fold continues the message before it."""
    if not same_place:
        return False
    if before.state == "what":
        return line.text.startswith("  what()") and len(before.texts) == 1
    more = line.text[:1] in (" ", "\t", "#") or _MORE_MESSAGE.match(line.text) is not None
    return line.rank is None and before.state in ("report", "fatal") and more


def split_table(found: Fold) -> Iterator[str]:
    """Yield the entries of a torchrun failure table, one for each process that it lists; any other fold whole."""
    if found.state != "closed" or not any(text.startswith("Root Cause") for text in found.texts):
        yield "\n".join(found.texts).rstrip()
        return
    entry: list[str] = []
    for text in found.texts:
        if _ENTRY.match(text) and not (entry and entry[-1].startswith("Root Cause")):
            yield "\n".join(entry).rstrip()
            entry = []
        entry.append(text)
    yield "\n".join(entry).rstrip()


def _may_begin(text: str) -> bool:
    """Tell cheaply whether a line could begin a message of several lines."""
    return (
        "rror" in text
        or "Traceback (most" in text
        or text.startswith(("terminate called", "====", "NVRM: The NVIDIA", "Root Cause", "Exception ignored"))
        or ".cpp:" in text
        or "Assertion `" in text
        or "Detected mismatch between" in text
    )


def _begins(text: str) -> str:
    """Return the state in which a fold begins with this line, "" where none does."""
    if _TRACEBACK in text or text.startswith(_HARMLESS):
        return "frames"
    if text.startswith("terminate called"):
        return "what"
    if text.startswith("===") and _BANNER.match(text):
        return "banner"
    if text.startswith("NVRM: The NVIDIA GPU"):
        return "driver"
    if text.startswith("Root Cause (first observed"):
        return "entry"
    if "Assertion `" in text and _ASSERTION.match(text):
        return "assert"
    if "Detected mismatch between collectives" in text or (".cpp:" in text and _GLOG.match(text)):
        return "report"
    if text.startswith("Fatal Python error"):
        return "fatal"
    if _EXCEPTION.match(text) and not _NEW_MESSAGE.match(text):
        return "message"  # an exception whose traceback is not here
    return ""


def _next(current: Fold, text: str, own: bool) -> str:
    """Return the state after this line: "" it is not of this message, "closed" it is the last, "skip", "foreign"."""
    state = current.state
    if state in ("frames", "blank", "message"):
        return _traceback(current, text, own)
    if state == "what":
        return "what" if text.startswith(("  what()", "Exception raised from", "frame #", "Last error")) or (
            _MORE_MESSAGE.match(text) is not None
        ) else ""  # fmt: skip
    if state == "banner":
        return "table" if text.rstrip().endswith(" FAILED") else ""
    if state == "table":
        return "closed" if _BANNER.match(text) else "table"
    if state == "entry":
        return "entry" if text[:2] == "  " or _ENTRY.match(text) else ""
    if state == "report":
        if text[:1] in (" ", "\t", "#") and text.strip():
            return "report"
        return "report" if _MORE_MESSAGE.match(text) else ""
    if state == "assert":
        if not _ASSERTION.match(text):
            return ""
        return "assert" if len(current.texts) < _SAME_ASSERTIONS else "skip"
    if state == "fatal":
        return "fatal" if text.startswith((" ", "Thread 0x", "Current thread", "Extension modules")) else ""
    return "driver" if text.startswith("NVRM: ") and len(current.texts) < 3 else ""


def _traceback(current: Fold, text: str, own: bool) -> str:
    state = current.state
    stripped = text.strip(" |+\t")
    if text[:1] in (" ", "\t", "|") and stripped:
        return "message" if state == "message" else "frames"
    if not stripped:
        return state if state == "message" and len(current.texts) < 2 else "blank"
    if stripped.startswith(_CHAIN) or _TRACEBACK in text:
        return "frames"
    if state == "frames":
        if _NEW_MESSAGE.match(text) and not _EXCEPTION.match(text) and current.spent < _MOST_FOREIGN:
            current.spent += 1
            return "foreign"
        current.spent = 0
        return "message"  # the exception's own line
    if _MORE_MESSAGE.match(text):
        return "message"
    if _NEW_MESSAGE.match(text) or _PROGRESS.search(text) or current.spent >= _MOST_MESSAGE:
        return ""
    if current.texts[-1].rstrip().endswith(":") or (own and state == "message"):
        current.spent += 1
        return "message"
    return ""
