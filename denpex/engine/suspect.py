"""A rank as an explanation: what speaks for it and against it, and the failure class that the evidence names."""

from __future__ import annotations

from dataclasses import dataclass, field

from denpex.engine.ranks import Rank
from denpex.model import Event, Instant, Role
from denpex.taxonomy import CATEGORY_OF

OOM = "host-out-of-memory"
MISSING = "collective-missing-rank"
# Endings that say nothing of why.
VAGUE = frozenset({"unknown", "process-killed", "process-crashed", "interrupted", "node-unresponsive"})
# The rank that notices a collective of another size is as likely the wrong one as the one that sent it.
MUTUAL = frozenset({"collective-mismatch"})
# What a process sees of a fault below it: where its node's kernel names a hardware fault, that is the cause.
ECHOES = frozenset({"cuda-launch-failure", "gpu-hardware-fault", "nccl-ib-retry-exceeded", "nccl-net-ib-error"})


@dataclass(eq=False)
class Suspect:
    """One rank as an explanation: what speaks for it, in nats, and what it would have failed of."""

    rank: Rank
    score: float = 0.0
    reasons: list[tuple[float, str]] = field(default_factory=list)
    cited: list[Event] = field(default_factory=list)
    classes: dict[str, float] = field(default_factory=dict)
    first: Instant | None = None  # its first sign
    fatal: bool = False  # it failed by itself, whatever else happened
    gpu: str | None = None
    kernel: float = 0.0  # what the kernel's records are worth so far
    probability: float = 0.0

    def add(self, weight: float, reason: str, event: Event | None = None, named: str | None = None) -> None:
        """Add one piece of evidence, and the failure class that it is evidence of."""
        self.score += weight
        self.reasons.append((weight, reason))
        if event is not None and all(event is not known for known in self.cited):
            self.cited.append(event)
        if named:
            self.classes[named] = max(weight, self.classes.get(named, 0.0))

    @property
    def failure_class(self) -> str:
        """The class that the strongest evidence names; what only says how it ended, or echoes a fault, yields."""
        below = bool(self.kernel)
        return max(
            self.classes,
            key=lambda name: (name not in VAGUE, not (below and name in ECHOES), self.classes[name]),
            default="unknown",
        )

    @property
    def says_why(self) -> bool:
        """Tell whether its own words, or its node's, name a cause."""
        return any(event.role is Role.ORIGIN for event in self.cited)


def strength(event: Event) -> tuple[int, int, int]:
    """Order a rank's root causes: a specific one before a generic one, then the earliest."""
    hardware = CATEGORY_OF.get(event.failure_class or "", "") == "hardware"
    moment = event.when.local_ns if event.when is not None else 0
    return (event.precedence, int(hardware and event.evidence), -(moment or event.sequence))
