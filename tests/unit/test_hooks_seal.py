"""The epilog takes user/ from the job's user, whatever the user put there."""

import os
import subprocess

import pytest

from tests.unit.hooksite import OTHER, UID, as_user, site

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")


@pytest.fixture
def node():
    with site() as made:
        made.hook("prolog")
        yield made


def test_what_the_user_wrote_becomes_roots_and_the_groups(node):
    user = node.only_run() / "user"
    assert as_user(f"mkdir -m 777 {user}/trace && echo x > {user}/trace/0.jsonl && chmod 4777 {user}/trace/0.jsonl")
    node.hook("epilog")
    for path, mode in ((user, 0o40750), (user / "trace", 0o40750), (user / "trace" / "0.jsonl", 0o100640)):
        info = path.lstat()
        assert (info.st_uid, info.st_gid, info.st_mode) == (0, 1, mode), path
    for command in (f"echo y > {user}/trace/0.jsonl", f"rm {user}/claims.jsonl", f"ls {user}"):
        assert not as_user(command)


def test_links_pipes_and_hard_links_are_removed_and_named(node):
    user = node.only_run() / "user"
    secret = node.top / "secret"
    secret.write_text("root's")
    secret.chmod(0o600)
    foreign = node.output("foreign", uid=OTHER)
    assert as_user(f"ln -s {secret} {user}/streams/0.0.out && mkfifo {user}/pipe && ln -s /etc {user}/folder")
    os.link(foreign, user / "hard")
    assert as_user(f"echo own > {user}/twice && ln {user}/twice {user}/again")
    node.hook("epilog")
    left = {path.name for path in user.rglob("*")} - {"streams"}
    assert left in ({"twice"}, {"again"}), "of two names of one file of the user's the first is removed"
    assert secret.stat().st_mode & 0o777 == 0o600
    assert foreign.stat().st_uid == OTHER, "a file that has another name elsewhere is not touched"
    for name in ("streams/0.0.out", "pipe", "folder", "hard", *({"twice", "again"} - left)):
        assert f"user/{name} was removed" in node.gaps()


def test_a_directory_that_the_user_still_has_open_takes_nothing_any_more(node):
    streams = node.only_run() / "user" / "streams"
    inside = subprocess.Popen(
        ["sh", "-c", "echo ready; read go; echo x > planted; ln -s /etc/passwd 0.0.out"],
        cwd=streams, user=UID, group=UID, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    assert inside.stdout.readline() == b"ready\n"
    node.hook("epilog")
    inside.communicate(b"go\n", timeout=10)
    assert list(streams.iterdir()) == []


def test_too_deep_and_odd_names_do_not_stop_the_seal(node):
    user = node.only_run() / "user"
    assert as_user(f"mkdir -p {user}/{'d/' * 30}")
    assert as_user(f"touch \"$(printf '{user}/a\\nb\\377')\"")
    node.hook("epilog")
    assert (node.only_run() / "DONE").exists()
    assert "it lies too deep" in node.gaps()
    assert not as_user(f"ls {user}/{'d/' * 10}")
    assert all(path.lstat().st_uid == 0 for path in user.iterdir())


def test_a_user_directory_in_which_the_user_removed_everything_is_sealed(node):
    assert as_user(f"rm -rf {node.only_run()}/user/*")
    node.hook("epilog")
    assert (node.only_run() / "DONE").exists()
