"""Fits the evidence weights (denpex/engine/weights.py) to kept runs, and measures them on kinds of fault left out.

The model is the engine's own: a softmax over what speaks for each rank, and for "a rank that is not known". How a
rank's score depends on each weight is found by moving that weight. The fit is the maximum likelihood of the ranks that
faults were injected at, held near the weights that stand by a Gaussian prior.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from unittest import mock

import numpy as np
from numpy.typing import NDArray

from denpex.engine import evidence, infer
from denpex.engine import weights as w
from denpex.engine.facts import Case

Vector = NDArray[np.float64]

# The weights in nats: all above the constants that are times or probabilities.
NAMES = tuple(name for name in vars(w) if name.isupper() and name not in (
    "UNORDERED_ENDS_NS", "LATER_NS", "NAME_RANK", "TIE", "NO_CLOCK", "NO_EXITS", "UNHEARD", "MOST",
))  # fmt: skip
_MOVED = 1 / 64
_STEEPEST = 2
_ROUNDS = 600
_RATE = 0.03


@dataclass(frozen=True)
class Sample:
    """One run under one set of evidence, as a choice among ranks and "not known"."""

    kind: str  # the fault
    terms: Vector  # [choices, weights]: what each weight adds to each choice's score, for a weight of 1
    rest: Vector  # [choices]: what stands in the score besides
    share: Vector  # [choices]: of a hypothesis that several ranks share, each has so much
    truth: int  # the right choice


@contextmanager
def weights(values: Mapping[str, float]) -> Iterator[None]:
    """Let the engine weigh with other values."""
    with mock.patch.dict(vars(w), values):
        yield


def standing() -> dict[str, float]:
    """Return the weights that stand in the engine."""
    return {name: float(getattr(w, name)) for name in NAMES}


def sample(kind: str, case: Case, rank: int | None) -> Sample | None:
    """Return a case as a choice; None where nothing is weighed. ``rank``: the origin, None where it is no rank's."""
    suspects = evidence.weigh(case).suspects
    if not suspects or (rank is not None and all(s.rank.rank != rank for s in suspects)):
        return None
    groups: dict[tuple[float, str], list[int]] = defaultdict(list)
    for number, s in enumerate(suspects):
        groups[round(s.score, 3), s.failure_class].append(number)
    base = _scores(case)
    terms = np.zeros((len(base), len(NAMES)))
    for column, name in enumerate(NAMES):
        with weights({name: getattr(w, name) + _MOVED}):
            moved = np.rint((_scores(case) - base) / _MOVED)
        # A jump is another reading of the case at a threshold, no slope.
        terms[:, column] = np.where(abs(moved) > _STEEPEST, 0, moved)
    listed = [members[0] for members in groups.values()]
    shares = [1 / len(members) for members in groups.values()]
    holds = [any(suspects[n].rank.rank == rank for n in members) for members in groups.values()]
    chosen = [*listed, len(base) - 1]
    terms = terms[chosen]
    rest = base[chosen] - terms @ np.array(list(standing().values()))
    truth = holds.index(True) if rank is not None else len(listed)
    return Sample(kind, terms, rest, np.array([*shares, 1.0]), truth)


def _scores(case: Case) -> Vector:
    """Return every rank's score, and last that of "not known"."""
    suspects = evidence.weigh(case).suspects
    best = max(suspects, key=lambda s: s.score)
    return np.array([*(s.score for s in suspects), infer.unknown_score(case, best)])


def loss(samples: Sequence[Sample], values: Vector) -> tuple[float, Vector]:
    """Return the mean negative log-likelihood of the right choices (nats), and its gradient."""
    total, slope = 0.0, np.zeros_like(values)
    for one in samples:
        scores = one.rest + one.terms @ values
        chance = np.exp(scores - scores.max())
        chance /= chance.sum()
        total -= float(np.log(chance[one.truth] * one.share[one.truth]))
        slope += chance @ one.terms - one.terms[one.truth]
    return total / len(samples), slope / len(samples)


def fit(samples: Sequence[Sample], hold: float) -> Vector:
    """Return the weights that fit best; ``hold``: standard deviation of the prior around those that stand, in nats.

    Kinds count alike, however many of their runs there are. No weight changes its sign.
    """
    start = np.array(list(standing().values()))
    low, high = np.where(start > 0, 0.1, -np.inf), np.where(start < 0, -0.1, np.inf)
    low[start == 0], high[start == 0] = -2.0, 2.0
    values: Vector = start.copy()
    mean, square = np.zeros_like(start), np.zeros_like(start)
    for number in range(1, _ROUNDS + 1):  # Adam (Kingma and Ba 2015)
        slope = loss(samples, values)[1] + (values - start) / hold**2 / len(samples)
        mean = 0.9 * mean + 0.1 * slope
        square = 0.999 * square + 0.001 * slope**2
        step = mean / (1 - 0.9**number) / (np.sqrt(square / (1 - 0.999**number)) + 1e-9)
        values = np.minimum(np.maximum(values - _RATE * step, low), high)
    return values


def rounded(values: Vector) -> dict[str, float]:
    """Return weights by name, rounded to what a table can say."""
    return {name: round(float(value), 1) for name, value in zip(NAMES, values, strict=True)}


def used(samples: Sequence[Sample]) -> dict[str, int]:
    """Return how many kinds of fault each weight tells choices apart in."""
    kinds = {
        name: {one.kind for one in samples if np.ptp(one.terms[:, column]) > 0} for column, name in enumerate(NAMES)
    }
    return {name: len(found) for name, found in kinds.items()}
