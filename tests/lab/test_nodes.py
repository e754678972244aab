"""Nodes that do not report as they should: the verdict comes all the same, and says what is missing and why."""

from __future__ import annotations

import subprocess
import time

import pytest

from tests.lab.conftest import LAB, TRAIN

pytestmark = pytest.mark.slurm

FOUR = ("--nodes=4", "--ntasks=4", "--ntasks-per-node=1", "--mem=1200M")
FAILS = f"srun python {TRAIN} --fault index-error --fault-rank 2\n"


def gaps_of(verdict, node):
    return [gap["what"] for gap in verdict["gaps"] if node in gap["where"]]


SSHD = "kill -{signal} $(cat /run/sshd.pid)"
RESTART = "setsid --fork /usr/sbin/sshd -D -e -f /etc/ssh/lab_sshd_config >/dev/null 2>&1"
OTHER_KEY = "cd /etc/ssh && cp lab_host_key kept && ssh-keygen -q -t ed25519 -N '' -f /run/k; cp /run/k lab_host_key; "


@pytest.mark.parametrize(
    ("break_it", "mend_it", "words"),
    [
        (SSHD.format(signal="TERM"), RESTART, "refused"),
        (
            OTHER_KEY + SSHD.format(signal="HUP"),
            f"cp /etc/ssh/kept /etc/ssh/lab_host_key; {SSHD.format(signal='HUP')}",
            "key",
        ),
        (SSHD.format(signal="STOP"), SSHD.format(signal="CONT"), "sends nothing"),
    ],
    ids=["unreachable", "wrong-host-key", "hangs"],
)
def test_a_node_that_cannot_be_asked_is_a_gap_with_its_reason(lab, break_it, mend_it, words):
    """The other nodes' evidence still names the rank; the node's reason is told."""
    lab.node("n4", "sh", "-c", break_it)
    try:
        job = lab.submit(FAILS, *FOUR)
        verdict = lab.verdict(job)
    finally:
        lab.node("n4", "sh", "-c", mend_it)
    assert verdict["origin"]["rank"] == 2
    assert verdict["origin"]["node"] == "n3"
    assert any(words in what for what in gaps_of(verdict, "n4")), verdict["gaps"]


def test_a_job_whose_node_runs_no_epilog_has_its_verdict_with_the_gap(lab):
    """slurmd is killed during the job; the job fails by itself; the node's epilog never runs."""
    job = lab.submit(f"srun -K python {TRAIN} --steps 400 --fault index-error --fault-rank 2 --fault-step 390\n", *FOUR)
    lab.run("sh", "-c", f"for i in $(seq 60); do grep -q 'step 10 ' slurm-{job}.out && break; sleep 1; done")
    lab.run("sh", "-c", f"grep -q 'step 10 ' slurm-{job}.out")
    subprocess.run([LAB, "slurmd", "n4", "stop"], check=True, timeout=30)
    try:
        verdict = lab.verdict(job, seconds=300)
    finally:
        subprocess.run([LAB, "slurmd", "n4", "start"], check=True, timeout=30)
    assert verdict["failure_class"] in ("user-code-exception", "index-out-of-range", "node-unresponsive"), verdict
    assert gaps_of(verdict, "n4"), verdict["gaps"]
    lab.run(
        "sh",
        "-c",
        "for i in $(seq 60); do test $(sinfo -h -N -p main -t idle -o %N | wc -l) = 4 && break; sleep 1; done",
    )


def test_while_nodes_are_awaited_show_says_which(lab):
    lab.node("n2", "sh", "-c", "kill -STOP $(cat /run/sshd.pid)")
    try:
        job = lab.submit("srun false\n", "--nodes=4", "--ntasks=4", "--mem=200M")
        # The other three answer at once; the job may have to wait for the scheduler first.
        end = time.monotonic() + 60
        document: dict[str, object] = {}
        while document.get("awaited") != ["n2"] and time.monotonic() < end:
            document = lab.show_json(job)
            time.sleep(0.2)
        assert document.get("awaited") == ["n2"], document
    finally:
        lab.node("n2", "sh", "-c", "kill -CONT $(cat /run/sshd.pid)")
    assert lab.verdict(job)["revision"] >= 1
