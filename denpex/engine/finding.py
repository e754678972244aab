"""What the inference says, before it is put into words."""

from __future__ import annotations

from dataclasses import dataclass

from denpex.engine.ranks import Rank
from denpex.engine.suspect import Suspect
from denpex.model import Event, Instant, Scope


@dataclass(frozen=True)
class Finding:
    """An answer; ``ranks`` are the origin, or the tie set; ``cited`` begins with the telling evidence."""

    failure_class: str
    scope: Scope
    confidence: float
    why: str  # sentences; "" where ``reasons`` say it
    ranks: tuple[Rank, ...] = ()
    node: str | None = None
    cited: tuple[Event, ...] = ()
    first: Instant | None = None  # the origin's first sign
    reasons: tuple[str, ...] = ()
    others: tuple[Suspect, ...] = ()
    set_aside: tuple[tuple[Event, str], ...] = ()
    gpu: str | None = None
