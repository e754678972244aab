"""Puts a finding into words: the summary in a few sentences, each event's telling line, and the fix."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from denpex.engine.facts import Case
from denpex.engine.finding import Finding
from denpex.engine.history import PAST
from denpex.engine.launchers import TORCHRUN_TABLE
from denpex.engine.ranks import OWN, TASK_STUCK, Rank
from denpex.engine.suspect import MISSING, OOM
from denpex.gist import gist, without_source
from denpex.hostlist import ranges
from denpex.model import ClassDoc, Event, Fix, Place, Scope, Source

# What is said of a rank that others waited for, and that said nothing itself.
_ABSENT = {
    MISSING: "it did not come to a collective that the others waited in",
    "rendezvous-failure": "it did not join the process group that the others waited for",
}


def clause(event: Event, longest: int) -> str:
    """Return the telling line as a clause: no place in a library's source, no advice after it, no end mark."""
    text = without_source(gist(event.text))
    if len(text) > longest:
        whole = text[: longest - 3].rsplit(". ", 1)
        text = whole[0] if len(whole) > 1 and len(whole[0]) > 30 else text[: longest - 3].rsplit(" ", 1)[0] + "..."
    return text.rstrip(".: ") if not text.endswith("...") else text


def joined(parts: Sequence[str]) -> str:
    """Join clauses: "a", "a and b", "a, b and c"."""
    return " and ".join((", ".join(parts[:-1]), parts[-1])) if len(parts) > 1 else "".join(parts)


def summary(finding: Finding, places: Sequence[Place], victims: Sequence[tuple[Rank, Event]]) -> str:
    """Say in a few sentences what failed where, how that is known, what followed, and what was set aside."""
    sentences = []
    if len(places) == 1 and finding.scope in (Scope.RANK, Scope.GPU):
        place = places[0]
        where = f"Rank {place.rank}" + (f" on {place.node}" if place.node else "")
        sentences.append(f"{where} failed first: {_lead(finding)}.")
    if finding.why:
        sentences.append(finding.why)
    elif finding.reasons:
        sentences.append(f"It is named because {joined(finding.reasons[:4])}.")
    if not places and finding.cited and finding.scope not in (Scope.EXTERNAL, Scope.NONE):
        sentences.append(f"The line: {clause(finding.cited[0], 300)}.")
    if victims:
        what = clause(victims[0][1], 130)
        numbers = [rank.rank for rank, _ in victims]
        ranks = f"Rank {numbers[0]}" if len(numbers) == 1 else f"Ranks {ranges(numbers)}"
        sentences.append(f"{ranks} failed after that ({what}).")
    if finding.set_aside:
        count = len(finding.set_aside)
        lines = "1 alarming line was" if count == 1 else f"{count} alarming lines were"
        sentences.append(f"{lines} set aside: {finding.set_aside[0][1]}.")
    return " ".join(sentences)


def _lead(finding: Finding) -> str:
    """Say what the origin shows, as one clause."""
    messages = [event for event in finding.cited if event.pattern not in OWN | {TORCHRUN_TABLE, PAST}]
    own = [event for event in messages if event.rank == finding.ranks[0].rank]
    if finding.failure_class in _ABSENT and not own:
        stuck = next((e for e in finding.cited if e.pattern == TASK_STUCK), None)
        return stuck.text.split(": ", 1)[-1] if stuck else _ABSENT[finding.failure_class]
    of_class = [event for event in messages if event.failure_class == finding.failure_class]
    told = (
        [event for event in own if event in of_class][:1]
        or of_class[:1]
        or own[:1]
        or [e for e in finding.cited if e not in messages][:1]
        or messages[:1]
    )
    if not told:
        return "nothing was heard of it any more"
    if finding.failure_class == OOM and told[0].source is not Source.TASK:
        pid = told[0].fields.get("pid", "")
        return f"its process {pid} was ended because memory ran out".replace("  ", " ")
    return clause(told[0], 300)


def fix(doc: ClassDoc | None, case: Case, finding: Finding) -> Fix:
    """Fill the class's fix and command; only what the scheduler or root collected may stand in a command."""
    if doc is None:
        return Fix()
    job = case.job
    rank = finding.ranks[0] if len(finding.ranks) == 1 else None
    node = finding.node or (rank.node if rank else None)
    by_scheduler = node is not None and (node in job.nodes or node in case.nodes)
    values = {
        "job": job.job_id or "JOBID",
        "node": node or "NODE",
        "partition": job.partition or "PARTITION",
        "user": job.user or "USER",
        "rank": rank.rank if rank else "RANK",
        "step": case.step if case.step and case.step.isdigit() else "STEP",
        "time_limit_minutes": (job.time_limit_s or 0) // 60,
    }
    quoted = {name: shlex.quote(str(value)) for name, value in values.items()}
    if not by_scheduler:
        quoted["node"] = "NODE"
    environment = SandboxedEnvironment(undefined=StrictUndefined, autoescape=False)
    try:
        text = " ".join(environment.from_string(step).render(values) for step in doc.fix)
        command = environment.from_string(doc.command).render(quoted) if doc.command else ""
    except TemplateError as error:
        return Fix(f"(the fix of {doc.id} cannot be filled in: {error})")
    # Without a job (plain logs) there is nothing that such a command could be asked of.
    return Fix(text, "" if job.job_id is None and "{{ job }}" in doc.command else command)
