"""Safe and narrow text: a job's words escaped, wrapped to a width, numbers and names folded, times told."""

from __future__ import annotations

import textwrap
import unicodedata
from datetime import datetime, timezone


def safe(text: str) -> str:
    """Return text that can be printed: control, format and bidirectional characters shown as escapes."""
    return text if text.isprintable() else "".join(_escaped(c) for c in text)


def _escaped(c: str) -> str:
    if c in "\n\t" or c.isprintable():
        return c
    # Cc control, Cf format (bidirectional marks among them), Cs surrogate, Co private use, Zl/Zp separators.
    return f"\\x{ord(c):02x}" if ord(c) < 256 else f"\\u{ord(c):04x}"


def width_of(text: str) -> int:
    """Return how many terminal columns a text takes: East Asian wide characters take two, combining ones none."""
    return len(text) if text.isascii() else sum(map(_columns, text))


def _columns(c: str) -> int:
    return 0 if unicodedata.combining(c) else 2 if unicodedata.east_asian_width(c) in "WF" else 1


def wrap(text: str, width: int, indent: str = "", first: str | None = None) -> list[str]:
    """Wrap one paragraph to ``width`` columns; ``first`` begins the first line instead of ``indent``."""
    lines = textwrap.wrap(
        safe(text).replace("\t", " "),
        width,
        initial_indent=indent if first is None else first,
        subsequent_indent=indent,
        break_long_words=True,
        break_on_hyphens=False,
    )
    return [piece for line in lines for piece in split(line, width, indent)] or [indent if first is None else first]


def split(line: str, width: int, indent: str = "") -> list[str]:
    """Cut a line into pieces of at most ``width`` columns, each but the first with the indent."""
    pieces = []
    while width_of(line) > width:
        kept = _beginning(line, width)
        pieces.append(kept)
        line = indent + line[len(kept) :]
    return [*pieces, line]


def _beginning(text: str, width: int) -> str:
    """Return as much of a text as ``width`` columns hold."""
    columns = 0
    for at, c in enumerate(text):
        columns += _columns(c)
        if columns > width:
            return text[:at]
    return text


def clip(text: str, width: int) -> str:
    """Return one line of at most ``width`` columns, "…" in place of what is left out."""
    # No more than that can be shown; a job's line may have megabytes.
    cut = text[: 8 * width + 64]
    line = " ".join(safe(cut).split())
    if width_of(line) <= width and len(cut) == len(text):
        return line
    return _beginning(line, width - 1) + "…"


def clock_time(seconds: float, digits: int = 3) -> str:
    """Return "2026-12-01 11:52:39.163Z" for seconds since 1970."""
    moment = datetime.fromtimestamp(seconds, timezone.utc)
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[: 20 + digits if digits else 19] + "Z"


def plus_minus(lo: float, hi: float) -> str:
    """Return the middle of an interval of seconds with its half-width: "+0.412 s ±0.4 ms"."""
    # Adding zero makes -0.0 a plain zero.
    return f"{round((lo + hi) / 2, 3) + 0.0:+.3f} s {half_width(lo, hi)}"


def half_width(lo: float, hi: float) -> str:
    """Return "±0.4 ms" for an interval of seconds."""
    half = abs(hi - lo) / 2
    if half < 0.9995:
        return f"±{half * 1e3:.1f} ms" if half >= 0.00005 else f"±{half * 1e6:.0f} µs"
    return f"±{half:.1f} s"


def duration(seconds: float) -> str:
    """Return a length of time in one or two units: "48 s", "12 min 3 s", "3 h 5 min", "2 d 4 h"."""
    whole = max(0, round(seconds))
    for size, unit, below, small in ((86400, "d", 3600, "h"), (3600, "h", 60, "min"), (60, "min", 1, "s")):
        if whole >= size:
            rest = whole % size // below
            return f"{whole // size} {unit}" + (f" {rest} {small}" if rest else "")
    return f"{whole} s"
