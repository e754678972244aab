"""The telling line of a message: what a report shows of it in one line."""

from __future__ import annotations

import re

_EXCEPTION = re.compile(
    r"^[\w.]*?(\w*(?:Error|Exception|Interrupt|Exit|Warning|Iteration)\w*)(?:: (.*))?$", re.MULTILINE
)
_CHAIN = re.compile(r"During handling of the above exception|The above exception was the direct cause")
_SOURCE = re.compile(r"\[?/?[\w./-]{1,200}\.(?:cc|cpp|h|hpp|cu):\d+\]?:? ?")
# An entry of torchrun's table of failures.
_TORCHRUN = re.compile(r"^ *rank +: (\d+) .*\n +exitcode +: (-?\d+)", re.MULTILINE)


def gist(text: str) -> str:
    """Return a traceback's exception, what torchrun's table says of a worker, else the first line that has words."""
    if "Traceback (most recent call last)" in text:
        # Of chained exceptions the first is the cause of the others.
        for part in (_CHAIN.split(text, maxsplit=1)[0], text):
            found = [m for m in _EXCEPTION.finditer(part) if m[1]]
            if found:
                return found[-1][0].strip()
    entry = _TORCHRUN.search(text)
    if entry:
        return f"torchrun: worker of rank {entry[1]} ended with exit code {entry[2]}"
    lines = [line.strip() for line in text.splitlines() if line.strip(" =-")]
    return lines[0] if lines else ""


def without_source(line: str) -> str:
    """Take off where in a library's source a line was written: it helps nobody who reads 80 columns."""
    return _SOURCE.sub("", line) or line
