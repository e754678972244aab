"""Does one thing to many items in several processes, where that is worth it."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TypeVar

Item = TypeVar("Item")
Result = TypeVar("Result")

# More processes gain little: one alone puts together what all have found.
_MOST = 4
# Of fewer items the start of a process costs as much as it saves.
_LEAST_ITEMS = 32


def each(function: Callable[[Item], Result], items: Sequence[Item]) -> list[Result]:
    """Return ``function`` of each item, in the items' order; raises what ``function`` raises.

    Processes share the work where there are processors and items enough, and where the caller has no other thread,
    whose locks a fork would copy as they stand. What a lost process owed is computed here.
    """
    workers = min(_MOST, len(os.sched_getaffinity(0)), len(items) // _LEAST_ITEMS)
    if workers < 2 or threading.active_count() > 1:
        return [function(item) for item in items]
    # Neighbours are alike, as one node's streams are: dealt out in turn, every process gets as many of each kind.
    helpers = [_Helper(function, items[first::workers]) for first in range(1, workers)]
    try:
        shares = [[function(item) for item in items[::workers]], *(helper.results() for helper in helpers)]
    finally:
        for helper in helpers:
            helper.end()
    found = []
    for number, item in enumerate(items):
        place, share = divmod(number, workers)
        found.append(shares[share][place] if shares[share] else function(item))
    return found


class _Helper:
    """A copy of this process that does a share of the items."""

    def __init__(self, function: Callable[[Item], Result], items: Sequence[Item]) -> None:
        receiver, sender = os.pipe()
        self._pid = os.fork()
        if self._pid == 0:
            # Whatever happens: the copy must never go on with what its origin was doing.
            try:
                os.close(receiver)
                with open(sender, "wb") as file:
                    pickle.dump([function(item) for item in items], file, pickle.HIGHEST_PROTOCOL)
            finally:
                os._exit(0)
        os.close(sender)
        self._answer = open(receiver, "rb")  # noqa: SIM115 - `end` closes it

    def results(self) -> list[Result]:
        """Wait for the results; [] where the process was lost, or could not do an item."""
        with suppress(EOFError, pickle.UnpicklingError):
            found: list[Result] = pickle.load(self._answer)  # written by a copy of this process
            return found
        return []

    def end(self) -> None:
        """Wait for the process; one that still works is ended by its closed pipe at the latest."""
        self._answer.close()
        os.waitpid(self._pid, 0)
