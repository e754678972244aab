"""Makes lines as healthy runs print them, alarming ones included, for patterns to be silent on."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

# Each is a line of a run that did what it should; {i}, {f}, {h} stand for an integer, a fraction and hex digits.
_FORMS = (Path(__file__).parent / "forms.txt").read_text(encoding="utf-8").splitlines()


def lines(count: int, seed: int = 1) -> Iterator[str]:
    """Yield ``count`` lines: every form in turn with other numbers, so that each is there."""
    chance = random.Random(seed)
    for number in range(count):
        form = _FORMS[number % len(_FORMS)]
        yield form.format(i=chance.randrange(1, 60), f=chance.uniform(0.01, 9.0), h=f"{chance.getrandbits(24):06x}")
