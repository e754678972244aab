"""The worker's key can list and fetch runs on a node, and nothing else."""

import io
import json
import os
import subprocess
import sys
import tarfile
import time

import pytest

from tests.unit.hooksite import HOOKS, OTHER, as_user, site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")


@pytest.fixture(scope="module")
def python():
    """An interpreter that another account may start, which one in root's home is not."""
    for path in (sys.executable, "/usr/bin/python3"):
        if as_user(f"{path} -c 'import sys; sys.exit(sys.version_info < (3, 10))'"):
            return path
    pytest.skip("no interpreter here may be started by another account than root")


@pytest.fixture
def node(python):
    with site(python=python) as made:
        made.hook("prolog")
        yield made


def ask(node, request, group=1):
    """Answer one request as the account of the worker's key would, whose group is the spool's."""
    environ = {"DENPEX_ETC": str(node.etc)} | ({} if request is None else {"SSH_ORIGINAL_COMMAND": request})
    return subprocess.run(
        [HOOKS / "handout"], env=environ, user=OTHER, group=group, extra_groups=[], capture_output=True,
        stdin=subprocess.DEVNULL, timeout=20, check=False,
    )  # fmt: skip


def members(data):
    with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as tar:
        return {info.name: info for info in tar}


def test_a_closed_run_is_listed_and_handed_out_whole(node):
    streams = node.only_run() / "user" / "streams"
    assert as_user(f"printf 'a\\0b' > {streams}/0.0.out; : > {streams}/{'n' * 200}")
    node.output(text=b"x" * 3000)
    node.hook("epilog")
    run = node.only_run()
    listed = json.loads(ask(node, "list 77").stdout)
    assert listed["runs"] == [{"run": run.name, "opened": int(run.name.split(".")[2]), "done": True, "node": "n1"}]
    assert abs(listed["now_ns"] - time.time_ns()) < 10**10
    answer = ask(node, f"get {run.name} 0")
    assert (answer.returncode, answer.stderr) == (0, b"")
    with tarfile.open(fileobj=io.BytesIO(answer.stdout)) as tar:
        for path in run.rglob("*"):
            if path.is_file():
                assert tar.extractfile(f"{run.name}/{path.relative_to(run)}").read() == path.read_bytes()


def test_a_broken_transfer_goes_on_where_it_stopped(node):
    node.output(text=bytes(range(256)) * 50)
    node.hook("epilog")
    name = node.only_run().name
    whole = ask(node, f"get {name} 0").stdout
    for offset in (1, 511, 512, 513, 5000, len(whole) - 1, len(whole), len(whole) + 7):
        assert ask(node, f"get {name} {offset}").stdout == whole[offset:], offset


def test_an_open_run_is_handed_out_without_what_is_the_users(node):
    assert as_user(f"echo x > {node.only_run()}/user/claims.jsonl")
    name = node.only_run().name
    assert json.loads(ask(node, "list 77").stdout)["runs"][0]["done"] is False
    names = members(ask(node, f"get {name} 0").stdout)
    assert f"{name}/meta.json" in names
    assert not any("claims" in member for member in names)


def test_links_pipes_and_depths_are_left_out(node):
    node.hook("epilog")
    run = node.only_run()
    (run / "user" / "link").symlink_to("/etc/passwd")
    (run / "user" / "folder").symlink_to("/etc")
    os.mkfifo(run / "user" / "pipe")
    os.link(run / "meta.json", run / "user" / "hard")
    deep = run / "user" / "1/2/3/4/5/6/7/8/9"
    deep.mkdir(parents=True)
    (deep / "file").touch()
    names = members(ask(node, f"get {run.name} 0").stdout)
    assert all(info.isreg() or info.isdir() for info in names.values())
    assert not {name.rpartition("/")[2] for name in names} & {"link", "folder", "pipe", "file", "passwd"}
    assert max(name.count("/") for name in names) == 7


@pytest.mark.parametrize(
    "request_",
    [
        None, "", "list", "list 77 ", "list 77\n", "list -1", "list 77;id", "list \u0667\u0667", "LIST 77",
        "get 77.0.1", "get 77.0.1 -1", "get  77.0.1 0", "get 77.0 0", "get 1.1.1.1 0", "get ..... 0",
        "get ../../etc 0", "get 77.0.1/../../.. 0", "scp -f /etc/passwd", "sh",
    ],
)  # fmt: skip
def test_nothing_else_is_possible(node, request_):
    answer = ask(node, request_)
    assert (answer.returncode, answer.stdout) == (2, b"")
    assert b"neither" in answer.stderr


@pytest.mark.parametrize("request_", ["get 99.0.1 0", "get 77.0.1 99"])
def test_a_run_that_is_not_there_is_named(node, request_):
    answer = ask(node, request_)
    assert (answer.returncode, answer.stdout) == (1, b"")
    assert b"there is no run" in answer.stderr


def test_an_account_outside_the_group_gets_nothing(node):
    node.hook("epilog")
    assert json.loads(ask(node, "list 77", group=OTHER).stdout)["runs"] == []


def test_another_jobs_run_is_not_listed(node):
    assert json.loads(ask(node, "list 7").stdout)["runs"] == []
