"""Failed jobs explain themselves: unmodified scripts on a real Slurm, by what `denpex show` says of them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import pytest

from tests.lab.conftest import DENPEX, TRAIN, Lab, Outcome

pytestmark = pytest.mark.slurm

FOUR = ("--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--mem=1200M")


@dataclass(frozen=True)
class Case:
    """A job, and what its verdict must be."""

    body: str
    options: tuple[str, ...] = FOUR
    classes: tuple[str, ...] = ()
    category: str = ""
    rank: int | None = None
    node: str | None = None
    # Told to cancel the job once this text is in its output.
    cancel_at: str = ""


def srun(arguments: str, options: str = "") -> str:
    return f"srun {options} python {TRAIN} {arguments}\n"


CASES = {
    "exception": Case(
        srun("--fault index-error --fault-rank 2"),
        classes=("user-code-exception", "corrupt-record", "malformed-dataset", "index-out-of-range"),
        category="ml_numerical", rank=2, node="n3",
    ),
    "killed": Case(
        srun("--fault kill --fault-rank 1"),
        classes=("process-killed",), category="environment_configuration", rank=1, node="n2",
    ),
    "stopped": Case(
        srun("--fault stop --fault-rank 3 --timeout 15", "--kill-on-bad-exit=1"),
        classes=("collective-missing-rank",), category="distributed_communication", rank=3, node="n4",
    ),
    "memory": Case(
        srun("--fault memory --fault-rank 1 --fault-step 20"),
        classes=("host-out-of-memory",), category="environment_configuration", rank=1, node="n2",
    ),
    "disk-full": Case(
        srun("--checkpoint-dir /mnt/small"),
        classes=("disk-full",), category="environment_configuration", rank=0, node="n1",
    ),
    "torchrun-without-srun": Case(
        f"python -m torch.distributed.run --nproc-per-node=2 --master-port $MASTER_PORT {TRAIN}"
        " --fault index-error --fault-rank 1\n",
        options=("--nodes=1", "--ntasks=1", "--cpus-per-task=2", "--mem=1200M"),
        classes=("user-code-exception", "corrupt-record", "malformed-dataset", "index-out-of-range"),
        category="ml_numerical", rank=1,
    ),
    "script-goes-on": Case(
        srun("--fault index-error --fault-rank 2") + "exit 0\n",
        classes=("user-code-exception", "corrupt-record", "malformed-dataset", "index-out-of-range"),
        category="ml_numerical", rank=2, node="n3",
    ),
    "retried": Case(
        f"srun python {TRAIN} --fault index-error --fault-rank 2 || srun python {TRAIN}\n",
        classes=("no-failure",), category="none",
    ),
    "time-limit": Case(
        srun("--steps 100000 --step-seconds 0.2"), options=(*FOUR, "--time=1"),
        classes=("slurm-time-limit",), category="environment_configuration",
    ),
    "cancelled": Case(
        srun("--steps 100000 --step-seconds 0.2"),
        classes=("cancelled-by-user",), category="none", cancel_at="step 10 ",
    ),
    "alarming-but-fine": Case(
        srun("--fault scare --fault-rank 0"),
        classes=("no-failure",), category="none",
    ),
}  # fmt: skip


def run_case(lab: Lab, name: str) -> Outcome:
    """Submit one job, help it to its end, and read what its owner would read."""
    case = CASES[name]
    job = lab.submit(case.body, *case.options)
    if case.cancel_at:
        end = time.monotonic() + 120
        while case.cancel_at not in lab.run("sh", "-c", f"cat slurm-{job}.out 2>/dev/null || true"):
            assert time.monotonic() < end, f"job {job} never printed {case.cancel_at!r}"
            time.sleep(1)
        lab.run("scancel", job)
    verdict = lab.verdict(job)
    return Outcome(job, verdict, lab.run("denpex", "show", job))


@pytest.fixture(scope="module")
def outcomes(lab: Lab) -> Iterator[dict[str, Outcome]]:
    """Every case's outcome; three jobs at a time, for a machine with two cores."""
    lab.node("n1", "sh", "-c", "mkdir -p /mnt/small && mount -t tmpfs -o size=3m,mode=1777 small /mnt/small")
    with ThreadPoolExecutor(3) as pool:
        yield dict(zip(CASES, pool.map(lambda name: run_case(lab, name), CASES), strict=True))


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_names_what_failed_and_where(outcomes, name):
    case, outcome = CASES[name], outcomes[name]
    verdict = outcome.verdict
    assert verdict["failure_class"] in case.classes, outcome.report
    assert verdict["category"] == case.category, outcome.report
    origin = verdict["origin"] or {}
    assert origin.get("rank") == case.rank, outcome.report
    if case.node:
        assert origin.get("node") == case.node, outcome.report
    if case.rank is None:
        assert not [place for place in verdict["origins"] if place["rank"] is not None], outcome.report
    assert all(len(line) <= 80 for line in outcome.report.splitlines()), outcome.report


def test_the_other_ranks_are_cascade(outcomes):
    for name in ("exception", "killed", "script-goes-on"):
        outcome = outcomes[name]
        others = {0, 1, 2, 3} - {CASES[name].rank}
        assert {edge["rank"] for edge in outcome.verdict["cascade"]} == others, outcome.report


def test_a_kill_says_how_it_is_known(outcomes):
    assert "signal 9" in outcomes["killed"].report or "SIGKILL" in outcomes["killed"].report


def test_a_failed_step_that_was_retried_is_listed(outcomes):
    steps = outcomes["retried"].verdict["steps"]
    assert [step["exit"] for step in steps if step["id"] in ("0", "1")] == ["1:0", "0:0"]
    assert "FAILED" in outcomes["retried"].report


def test_every_failure_has_a_fix(outcomes):
    for name, outcome in outcomes.items():
        if CASES[name].category != "none":
            assert outcome.verdict["fix"]["text"], name


def test_clocks_are_measured_and_their_error_is_shown(outcomes, request):
    """Offsets are as the lab set them, known to better than 100 ms, and the report shows the bounds."""
    skewed = "skewed" in request.node.callspec.id if hasattr(request.node, "callspec") else False
    clocks = {clock["node"]: clock["offset_s"] for clock in outcomes["exception"].verdict["clocks"]}
    true = {"n1": 0.0, "n2": -45.0 if skewed else 0.0, "n3": 3.0 if skewed else 0.0, "n4": 0.0}
    assert clocks.keys() == true.keys()
    for node, offset in clocks.items():
        assert offset["hi"] - offset["lo"] < 0.1
        assert offset["lo"] - 0.1 < true[node] < offset["hi"] + 0.1
    assert "±" in outcomes["exception"].report


def test_another_user_sees_nothing(outcomes, lab):
    assert lab.show(outcomes["exception"].job, user="bob") is None
    assert lab.run("denpex", "list", "-n", user="bob") == ""


def test_list_finds_the_failures(outcomes, lab):
    listed = lab.run("denpex", "list", "-n", "-P", "--category=none", "--format=JobID").split()
    assert outcomes["cancelled"].job in listed
    assert outcomes["killed"].job not in listed


def test_show_works_from_a_node(outcomes, lab):
    """`denpex show` asks the worker over the network where its socket is not."""
    job = outcomes["exception"].job
    shown = lab.node("n2", "su", "alice", "-s", "/bin/sh", "-c", f"{DENPEX} show {job}").stdout
    assert "rank 2" in shown
