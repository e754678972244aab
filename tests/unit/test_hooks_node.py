"""Prolog and epilog as Slurm starts them: what they leave in the spool, and that nothing makes them fail."""

import os
import shutil
import subprocess
import time

import pytest

from tests.unit.hooksite import HOOKS, OTHER, UID, as_user, document, lines, site, tree

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")


@pytest.fixture
def node():
    with site() as made:
        yield made


def rights(path):
    info = path.lstat()
    return info.st_uid, info.st_gid, info.st_mode & 0o7777


def test_the_prolog_opens_a_run_with_the_rights_of_the_contract(node):
    node.hook("prolog")
    run, daemon = node.only_run(), 1
    assert rights(run) == (0, daemon, 0o751)
    assert rights(run / "meta.json") == (0, daemon, 0o640)
    assert rights(run / "tasks") == (0, daemon, 0o750)
    assert rights(run / "user") == rights(run / "user" / "streams") == (UID, UID, 0o700)
    meta = document(run / "meta.json")
    assert (meta["format"], meta["cluster"], meta["node"], meta["job_id"], meta["prolog"]) == (1, "lab", "n1", 77, True)
    assert (meta["job_gpus"], meta["uid"], meta["boot_id"] != "") == (["0", "1"], UID, True)
    assert run.name == f"77.0.{meta['opened']}"
    pointer = node.run / "jobs" / "77"
    assert pointer.read_text() == f"{run}\n"
    assert rights(pointer) == (0, 0, 0o644)
    assert as_user(f"echo claim > {run}/user/claims.jsonl"), "the job's user reaches the own part"
    assert not as_user(f"ls {run.parent}")
    assert not as_user(f"echo x > {run}/tasks/x")
    assert not as_user(f"cat {run}/user/claims.jsonl", OTHER)


def test_the_epilog_closes_the_run_and_a_second_one_changes_nothing(node):
    node.hook("prolog")
    node.output()
    node.hook("epilog", SLURM_JOB_EXIT_CODE="256", SLURM_JOB_EXIT_CODE2="1:0", SLURM_JOB_DERIVED_EC="0")
    run = node.only_run()
    assert (run / "DONE").read_bytes() == b""
    assert not (node.run / "jobs" / "77").exists()
    epilog = document(run / "epilog.json")
    assert (epilog["exit_code"], epilog["exit_code2"], epilog["derived_ec"]) == ("256", "1:0", "0")
    assert (run / "tasks" / "batch.out").read_bytes() == b"hello\n"
    assert not list(run.rglob(".*")), "nothing is left aside"
    before = tree(node.spool)
    node.hook("epilog")
    assert tree(node.spool) == before


def test_an_epilog_that_was_cut_off_is_made_good_by_the_next_without_saying_anything_twice(node):
    node.hook("prolog")
    node.kernel_log.write_text("[    1.000000] one\n")
    node.hook("epilog")
    run = node.only_run()
    (run / "DONE").unlink()
    node.hook("epilog")
    assert [record["text"] for record in lines(run / "kernel.jsonl")] == ["one"]
    assert (run / "DONE").exists()


def test_without_a_prolog_the_epilog_opens_the_run_and_says_so(node):
    node.hook("epilog")
    assert document(node.only_run() / "meta.json")["prolog"] is False
    assert "no prolog ran here" in node.gaps()
    assert (node.only_run() / "DONE").exists()


def test_after_a_restart_of_the_node_the_epilog_finds_the_run_without_its_pointer(node):
    node.hook("prolog")
    shutil.rmtree(node.run)
    node.hook("epilog")
    assert (node.only_run() / "DONE").exists()
    assert document(node.only_run() / "meta.json")["prolog"] is True


def test_a_late_second_epilog_is_known_by_the_jobs_start(node):
    node.hook("prolog")
    node.hook("epilog")
    day_ago = time.time() - 86400
    os.utime(node.only_run() / "DONE", (day_ago, day_ago))
    node.hook("epilog", SLURM_JOB_START_TIME=str(int(day_ago - 600)))
    assert len(node.runs()) == 1
    node.hook("epilog", SLURM_JOB_START_TIME=str(int(day_ago + 7200)))
    assert len(node.runs()) == 2, "a later start is another run of the job"


def test_a_requeued_job_opens_a_run_of_its_own(node):
    node.hook("prolog")
    node.hook("epilog")
    node.hook("prolog", SLURM_JOB_RESTART_COUNT="1")
    node.hook("epilog", SLURM_JOB_RESTART_COUNT="2")
    assert [path.name.split(".")[1] for path in node.runs()] == ["0", "1"]
    assert all((path / "DONE").exists() for path in node.runs())


def test_a_run_is_named_by_the_next_second_where_its_own_is_taken(node):
    for _ in range(3):
        node.hook("prolog")
    assert len(node.runs()) == 3


def hanging(node):
    path = node.top / "python"
    path.write_text("#!/bin/sh\ntrap '' TERM INT HUP\nwhile :; do sleep 60; done\n")
    path.chmod(0o755)
    return str(path)


def a_pipe_for_settings(node):
    (node.etc / "node.sh").unlink()
    os.mkfifo(node.etc / "node.sh")


FAULTS = {
    "no interpreter": lambda node: node.configure(python="/nowhere/python"),
    "an interpreter that is a directory": lambda node: node.configure(python="/tmp"),
    "an interpreter that hangs": lambda node: node.configure(python=hanging(node), hooks={"timeout": 1}),
    "no package": lambda node: node.configure(package="/nowhere"),
    "no node.sh": lambda node: (node.etc / "node.sh").unlink(),
    "a node.sh that is no shell": lambda node: (node.etc / "node.sh").write_text("if then ((( '\n\0\xff"),
    "a node.sh that ends a shell": lambda node: (node.etc / "node.sh").write_text("exit 3\n"),
    "a node.sh that nobody writes": a_pipe_for_settings,
    "a spool that cannot be": lambda node: node.configure(spool_dir="/proc/denpex"),
    "a spool that is a file": lambda node: node.spool.write_text("x"),
    "a run directory that cannot be": lambda node: node.configure(run_dir="/proc/denpex"),
    "a full disk by spool_min_free": lambda node: node.configure(spool_min_free="1000T"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_no_fault_fails_a_hook_or_holds_it(node, fault):
    FAULTS[fault](node)
    for hook in ("prolog", "epilog"):
        assert node.hook(hook) < 6


@pytest.mark.parametrize(
    "more",
    [
        {"SLURM_JOB_ID": None},
        {"SLURM_JOB_ID": "../../etc"},
        {"SLURM_JOB_ID": "9" * 40},
        {"SLURM_JOB_UID": "-1"},
        {"SLURM_CLUSTER_NAME": "../x"},
        {"SLURM_CLUSTER_NAME": None},
        {"SLURMD_NODENAME": "a/b"},
    ],
)
def test_what_is_no_hooks_environment_leaves_nothing(node, more):
    node.hook("prolog", **more)
    node.hook("epilog", **more)
    assert not list(node.spool.rglob("meta.json"))
    assert not list(node.run.rglob("*"))


def test_a_hook_without_its_other_half_ends_well(node):
    alone = node.top / "hooks"
    alone.mkdir()
    for name in ("prolog.sh", "epilog.sh", "jobcomp.sh", "epilogctld.sh"):
        shutil.copy(HOOKS / name, alone / name)
        node.hook(name.removesuffix(".sh"), hooks=alone)


def test_a_link_to_a_hook_is_the_hook(node):
    links = node.top / "prolog.d"
    links.mkdir()
    (links / "prolog.sh").symlink_to(HOOKS / "prolog.sh")
    node.hook("prolog", hooks=links)
    assert node.only_run()


@pytest.mark.parametrize("content", ['{"spool_dir": 7}', '{"spool_dir": "/x', "[]", "\xff", "[" * 100_000, None])
def test_broken_settings_are_a_gap_and_not_the_end(node, content):
    if content is None:
        shutil.rmtree(node.etc)
    else:
        (node.etc / "node.json").write_text(content)
    done = node.defaults("prolog", "cat /var/spool/denpex/lab/n1/*/gaps.jsonl && ls /run/denpex/jobs")
    if "permission denied" in done.stderr or "Operation not permitted" in done.stderr:
        pytest.skip("mounting is not allowed here")
    assert done.returncode == 0, done.stderr
    assert "built-in defaults hold" in done.stdout
    assert done.stdout.endswith("77\n")


@pytest.fixture
def small_disk(node):
    node.spool.mkdir()
    made = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=751", "none", node.spool], check=False)
    if made.returncode != 0:
        pytest.skip("mounting is not allowed here")
    yield node
    subprocess.run(["umount", "-l", node.spool], check=True)


def test_a_full_spool_before_the_prolog_leaves_no_half_of_a_run(small_disk):
    node = small_disk
    (node.spool / "filler").write_bytes(b"x" * (256 << 10))
    node.hook("prolog")
    node.hook("epilog")
    assert not list(node.spool.rglob("meta.json"))
    assert not (node.run / "jobs" / "77").exists()


def test_a_spool_that_fills_up_during_the_job_is_no_obstacle(small_disk):
    node = small_disk
    node.hook("prolog")
    with pytest.raises(OSError, match="No space"):
        (node.spool / "filler").write_bytes(b"x" * (1 << 20))
    node.output(text=b"x" * 100_000)
    assert node.hook("epilog") < 3


def test_a_spool_that_turns_read_only_is_no_obstacle(small_disk):
    node = small_disk
    node.hook("prolog")
    subprocess.run(["mount", "-o", "remount,ro", node.spool], check=True)
    assert node.hook("epilog") < 3
    assert node.hook("prolog", SLURM_JOB_ID="78") < 3


def test_hostile_values_are_kept_as_text_and_do_nothing(node):
    hostile = "a'\"$(touch {0})`touch {0}`;\ntouch {0}\n\x1b[2J\udcff%s".format(node.top / "pwned")
    names = ["JOB_WORK_DIR", "JOB_STDOUT", "JOB_COMMENT", "JOB_USER", "JOB_PARTITION", "NODELIST", "JOB_GPUS"]
    more = dict.fromkeys([*(f"SLURM_{name}" for name in names), "SPANK_X"], hostile)
    node.hook("prolog", **more)
    node.hook("epilog", **more)
    assert not (node.top / "pwned").exists()
    meta = document(node.only_run() / "meta.json")
    assert meta["work_dir"] == hostile.replace("\udcff", "\ufffd")
    assert (node.only_run() / "DONE").exists()


def test_a_group_that_is_not_there_is_a_gap(node):
    node.configure(group="no-such-group")
    node.hook("prolog")
    assert "there is no group 'no-such-group'" in node.gaps()
    assert rights(node.only_run() / "meta.json")[1] == 0


def test_below_spool_min_free_an_open_run_is_closed_without_the_jobs_output(node):
    node.hook("prolog")
    node.output()
    node.configure(spool_min_free="1000T")
    node.hook("epilog")
    assert (node.only_run() / "DONE").exists()
    assert not (node.only_run() / "tasks" / "batch.out").exists()
    assert "spool_min_free" in node.gaps()


def test_old_runs_are_removed_and_open_ones_never(node):
    node.configure(spool_max_age="1h")
    now = int(time.time())
    node.hook("prolog", SLURM_JOB_ID="5")
    open_ = node.only_run()
    # A job that has run for a day, one that ended a day ago, one whose epilog never came, one that ended just now.
    long_lived = open_.rename(open_.with_name(f"5.0.{now - 86400}"))
    (node.run / "jobs" / "5").write_text(f"{long_lived}\n")
    for job, age in (("6", 86400), ("7", 86400), ("8", 60)):
        made = open_.with_name(f"{job}.0.{now - 90_000}")
        (made / "user").mkdir(parents=True)
        (made / "user" / "link").symlink_to(node.work)
        if job != "7":
            (made / "DONE").touch()
            os.utime(made / "DONE", (now - age, now - age))
    node.output()
    node.hook("prolog")
    node.hook("epilog")
    assert {path.name.split(".")[0] for path in node.runs()} == {"5", "8", "77"}
    assert (node.work / "slurm-77.out").exists()


def test_without_node_sh_the_hooks_find_the_code_beside_them(node):
    (node.etc / "node.sh").unlink()
    node.hook("prolog")
    node.hook("epilog")
    assert (node.only_run() / "DONE").exists()
