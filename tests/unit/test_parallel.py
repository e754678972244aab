"""Work that several processes share gives what one alone would give."""

from __future__ import annotations

import os
import threading

import pytest

from denpex import parallel


@pytest.fixture(autouse=True)
def _three_processors(monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2})


def process(item):
    return item, os.getpid()


@pytest.mark.parametrize("count", [96, 97, 98, 500])
def test_the_results_come_in_the_items_order_from_several_processes(count):
    found = parallel.each(process, range(count))
    assert [item for item, _ in found] == list(range(count))
    assert len({pid for _, pid in found}) == 3


def test_few_items_are_not_worth_a_process():
    assert {pid for _, pid in parallel.each(process, range(40))} == {os.getpid()}


def test_beside_another_thread_nothing_is_forked():
    stop = threading.Event()
    other = threading.Thread(target=stop.wait)
    other.start()
    try:
        assert {pid for _, pid in parallel.each(process, range(200))} == {os.getpid()}
    finally:
        stop.set()
        other.join()


def test_what_a_lost_process_owed_is_computed_here():
    here = os.getpid()

    def dies(item):
        if os.getpid() != here and item == 100:
            os._exit(9)
        return item

    assert parallel.each(dies, range(200)) == list(range(200))


def test_an_error_is_raised_here():
    def fails(item):
        if item == 101:
            raise ValueError("no good")
        return item

    with pytest.raises(ValueError, match="no good"):
        parallel.each(fails, range(200))
