"""Names a job's output file on the node: Slurm's patterns, as far as a node script knows what they stand for."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import NamedTuple

# sbatch(1), "filename pattern".
_SPECIFIER = re.compile(r"%(\d{0,3})([%AaJjNnstuxbrS])")
_NUMBER = re.compile(r"%\d{0,3}[jJ]")
_DEFAULT = "slurm-%j.out"


class Name(NamedTuple):
    """One path, or where parts of it are not known on the node a pattern for each of its components."""

    shown: str
    # Each component's text, or an expression where something is unknown.
    parts: tuple[str | re.Pattern[str], ...]


def first_host(nodelist: str) -> str:
    """Return the first host of a Slurm host list: ``n[03-07,9],m1`` -> ``n03``, ``r[1-2]n[4-5]`` -> ``r1n4``."""
    first = ""
    rest = nodelist
    while match := re.match(r"([^\[,\]]*)(?:\[([^\]]*)\])?", rest):
        first += match[1] + re.split(r"[-,]", match[2] or "", maxsplit=1)[0]
        rest = rest[match.end() :]
        if match[2] is None or not rest or rest[0] in ",]":
            break
    return first


def expand(pattern: str | None, environ: Mapping[str, str]) -> Name | None:
    """Expand an output pattern with what the node knows; None: its file cannot be told from other jobs' files.

    A node script knows neither job name nor array: such a part is looked for, which is certain only beside the job's
    number in the same component (a job that is no array has %A = %j, so that is tried as well).
    """
    pattern = pattern or _DEFAULT
    job = environ.get("SLURM_JOB_ID", "")
    values = {
        "%": "%", "j": job, "J": job, "A": job,
        "u": environ.get("SLURM_JOB_USER"), "N": environ.get("SLURMD_NODENAME"),
        "n": "0", "t": "0", "s": "batch", "x": environ.get("SLURM_JOB_NAME"),
        "r": environ.get("SLURM_JOB_RESTART_COUNT", "0"), "S": environ.get("SLURM_JOB_SLUID"),
    }  # fmt: skip
    full = pattern if pattern.startswith("/") else f"{environ.get('SLURM_JOB_WORK_DIR', '')}/{pattern}"
    if "\\" in pattern:
        # A backslash makes the whole name literal.
        full = re.sub(r"\\(.)", r"\1", full)
        return Name(full, tuple(part for part in full.split("/") if part)) if full.startswith("/") else None
    # The work directory is a path already: only the pattern is expanded.
    literal = 0 if pattern.startswith("/") else len(full) - len(pattern)
    parts: list[str | re.Pattern[str]] = [part for part in full[:literal].split("/") if part]
    shown = [str(part) for part in parts]
    own = full[literal:].split("/")
    for component in filter(None, own):
        known, text, expression = _component(component, values)
        # The number in a component below makes one above it certain, too.
        if not known and not _NUMBER.search(component) and not _NUMBER.search(own[-1]):
            return None
        shown.append(text)
        parts.append(text if known else expression)
    return Name("/" + "/".join(shown), tuple(parts)) if full.startswith("/") else None


def _component(component: str, values: Mapping[str, str | None]) -> tuple[bool, str, re.Pattern[str]]:
    """Return whether all of a component is known, its text (the unknown as Slurm writes it), and its expression."""
    known, text, expression, at = True, "", "", 0
    for match in _SPECIFIER.finditer(component):
        before = component[at : match.start()]
        value = values.get(match[2])
        at = match.end()
        if value is None:
            known = False
            text += before + match[0]
            expression += re.escape(before) + (r"\d+" if match[2] == "a" else ".+")
            continue
        if match[1] and value.isdigit():
            value = value.zfill(min(int(match[1]), 10))
        text += before + value
        expression += re.escape(before) + re.escape(value)
    return known, text + component[at:], re.compile(expression + re.escape(component[at:]), re.DOTALL)
