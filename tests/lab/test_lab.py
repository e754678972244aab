"""The lab itself: what it promises of a cluster on one machine."""

from __future__ import annotations

import subprocess

import pytest

from tests.lab.conftest import LAB, Lab

pytestmark = pytest.mark.slurm


@pytest.mark.usefixtures("lab")
def test_up_twice_is_up_once():
    shown = subprocess.run([LAB, "up"], capture_output=True, text=True, check=True, timeout=60).stdout
    assert "it is up already" in shown


def test_every_node_has_its_own_name_address_and_spool(lab: Lab):
    names = lab.run("srun", "-N4", "--ntasks-per-node=1", "hostname").split()
    assert sorted(names) == ["n1", "n2", "n3", "n4"]
    addresses = lab.run("srun", "-N4", "sh", "-c", "ip -4 -o addr show eth0 | cut -d' ' -f7").split()
    assert sorted(addresses) == [f"10.77.0.{10 + i}/24" for i in (1, 2, 3, 4)]


def test_gpus_are_a_resource(lab: Lab):
    devices = lab.run("srun", "-N1", "--gres=gpu:2", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert devices == "0,1"


def test_users_are_ordinary(lab: Lab):
    assert lab.run("id", "-un") == "alice"
    assert lab.run("srun", "-N1", "id", "-un", user="bob") == "bob"
    denied = subprocess.run(
        [LAB, "run", "--user", "bob", "--", "ls", "/home/alice"], capture_output=True, text=True, check=False
    )
    assert denied.returncode != 0


def test_a_memory_limit_is_enforced(lab: Lab):
    job = lab.submit("srun python3 -c 'x = b\"1\" * (1 << 30)'\n", "-N1", "--mem=100M")
    states = ""
    for _ in range(60):
        states = lab.run("sacct", "-j", job, "-n", "-P", "--format=State")
        if "OUT_OF_MEMORY" in states:
            return
        lab.run("sleep", "0.5")
    raise AssertionError(states)


@pytest.mark.usefixtures("lab")
def test_standard_input_and_exit_status_pass():
    done = subprocess.run(
        [LAB, "run", "--", "sh", "-c", "cat; exit 5"], input=b"in\n", capture_output=True, check=False
    )
    assert (done.stdout, done.returncode) == (b"in\n", 5)
