"""Which GPU is whose, and the words that the engine shares with the pattern library."""

from __future__ import annotations

import re

import pytest

from denpex import library
from denpex.engine import launchers, placement
from denpex.engine.ranks import Rank
from denpex.model import Gpu, NodeInfo

GPUS = tuple(Gpu(i, m, pci, f"GPU-{i}") for i, m, pci in (
    (0, 1, "00000000:3B:00.0"), (1, 0, "00000000:5E:00.0"), (2, 2, "00000000:86:00.0")))  # fmt: skip


def node(*job_gpus):
    return NodeInfo("n1", gpus=GPUS, job_gpus=job_gpus)


@pytest.mark.parametrize(
    ("a", "b", "same"),
    [
        ("00000000:3B:00.0", "0000:3b:00", True),
        ("0000:3b:00.0", "3b:00.0", True),
        ("0001:3b:00", "0000:3b:00", False),
        ("0000:3b:00", "0000:3c:00", False),
    ],
)
def test_pci_addresses_are_compared_as_addresses(a, b, same):
    assert placement.same_pci(a, b) is same


def test_a_gpu_is_the_jobs_by_uuid_or_where_both_numberings_agree():
    assert placement.is_jobs(node("GPU-0"), GPUS[0]) is True
    assert placement.is_jobs(node("GPU-1"), GPUS[0]) is False
    assert placement.is_jobs(node("2"), GPUS[2]) is True
    assert placement.is_jobs(node("0", "1"), GPUS[2]) is False
    assert placement.is_jobs(node("0"), GPUS[0]) is None  # NVML's 0 is /dev/nvidia1
    assert placement.is_jobs(node(), GPUS[0]) is None


def test_the_only_rank_of_a_node_has_its_gpu():
    rank = Rank(3)
    assert placement.rank_of(GPUS[2], node("2"), [rank]) is rank


def test_several_ranks_are_told_apart_only_where_the_numbering_is_plain():
    by_uuid = [Rank(0, gpus=("GPU-0",)), Rank(1, gpus=("GPU-2",))]
    assert placement.rank_of(GPUS[2], node("GPU-0", "GPU-2"), by_uuid) is by_uuid[1]
    whole = [Rank(r, gpus=(str(r),)) for r in range(3)]
    assert placement.rank_of(GPUS[1], node("0", "1", "2"), whole) is whole[1]
    part = [Rank(0, gpus=("0",)), Rank(1, gpus=("1",))]  # constrained: 1, 2; unconstrained: 0, 1
    assert placement.rank_of(GPUS[1], node("1", "2"), part) is None
    shared = [Rank(r, local_rank=r, gpus=("0", "1", "2")) for r in range(3)]
    assert placement.rank_of(GPUS[2], node("0", "1", "2"), shared) is shared[2]


def test_rank_lists_are_read_as_srun_and_torch_print_them():
    assert list(launchers.numbers("0-2,5")) == [0, 1, 2, 5]
    assert list(launchers.numbers("7, 3")) == [3, 7]
    assert list(launchers.numbers("x,-1,5-3,99999999999,1-99999999999999999")) == []


SHARED = {
    "torchelastic-failure-table": {"rank", "exitcode"},
    "torchelastic-child-failed": set(),
    "srun-task-exit": {"host", "tasks", "code", "signal"},
    "slurm-oom-task": {"host", "tasks"},
    "slurmstepd-oom-kill": {"host", "step_id"},
    "gloo-timed-out": {"elapsed_ms"},
}


@pytest.mark.parametrize("name", SHARED)
def test_the_patterns_that_the_engine_knows_by_name_are_there_with_their_fields(name):
    pattern = next(p for p in library.load().patterns if p.id == name)
    fields = {field for e in pattern.expressions for field in re.compile(e).groupindex}
    assert SHARED[name] <= fields
