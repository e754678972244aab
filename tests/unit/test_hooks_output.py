"""The job's output file is read by a child that is the job's user, and only what is plainly that file."""

import os
import time

import pytest

from denpex.node import outname
from tests.unit.hooksite import OTHER, UID, site

root = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")


@pytest.fixture
def node():
    with site(capture={"max_output_file": 1000}) as made:
        made.hook("prolog")
        yield made


def copied(node, name="batch.out"):
    path = node.only_run() / "tasks" / name
    return path.read_bytes() if path.exists() else None


def index(node, name="batch.out"):
    return (node.only_run() / "tasks" / f"{name}.idx").read_text().splitlines()


@root
def test_the_default_output_file_is_copied_with_its_end(node):
    node.output(text=b"one\ntwo\xff\n")
    node.hook("epilog")
    assert copied(node) == b"one\ntwo\xff\n"
    assert index(node) == ["end 9 eof"]
    info = (node.only_run() / "tasks" / "batch.out").stat()
    assert (info.st_uid, info.st_mode & 0o777) == (0, 0o640)


@root
def test_of_a_long_file_head_and_tail_are_kept_and_the_cut_is_stated(node):
    text = bytes(i % 251 for i in range(5000))
    node.output(text=text)
    node.hook("epilog")
    assert copied(node) == text[:500] + text[-500:]
    assert index(node) == ["cut 500 4500", "end 5000 eof"]


@root
def test_standard_error_with_a_file_of_its_own_is_copied_too(node):
    node.output("o.77", b"out")
    node.output("logs/e-nobody-known.077", b"err")
    os.chown(node.work / "logs", UID, UID)
    node.hook("epilog", SLURM_JOB_STDOUT="o.%j", SLURM_JOB_STDERR=f"{node.work}/logs/e-%u.%3j")
    assert (copied(node), copied(node, "batch.err")) == (b"out", b"err")


@root
def test_only_the_first_node_reads_it(node):
    node.output()
    node.hook("epilog", SLURM_NODELIST="n[0-4]")
    assert copied(node) is None


@root
@pytest.mark.parametrize("kind", ["pipe", "link", "directory", "device", "absent", "foreign", "hidden"])
def test_what_is_no_plain_file_of_the_users_is_not_read(node, kind):
    secret = node.output("secret", b"not the user's", uid=OTHER)
    path = node.work / "slurm-77.out"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "link":
        path.symlink_to("other.out")
        node.output("other.out")
    elif kind == "directory":
        path.mkdir()
    elif kind == "foreign":
        secret.rename(path)
    elif kind == "hidden":
        secret = node.top / "root-only"
        secret.mkdir(mode=0o700)
        (secret / "slurm-77.out").write_text("root's")
    pattern = {"device": "/dev/null", "hidden": f"{node.top}/root-only/slurm-%j.out"}.get(kind)
    assert node.hook("epilog", SLURM_JOB_STDOUT=pattern) < 2
    assert copied(node) is None
    assert "the job's output file" in node.gaps()
    assert (node.only_run() / "DONE").exists()


@root
def test_roots_own_job_is_not_read(node):
    node.output()
    node.hook("epilog", SLURM_JOB_UID="0")
    assert copied(node) is None
    assert "root opens no user's path" in node.gaps()


@root
def test_a_name_with_the_jobs_name_is_looked_for_beside_the_number(node):
    node.output("logs/my job/train-77.out", b"found")
    node.output("logs/my job/train-177.out", b"another's")
    for folder in ("logs", "logs/my job"):
        os.chown(node.work / folder, UID, UID)
    node.hook("epilog", SLURM_JOB_STDOUT="logs/%x/%x-%j.out")
    assert copied(node) == b"found"


@root
def test_of_several_that_fit_none_is_taken(node):
    node.output("a-77.out")
    node.output("b-77.out")
    node.hook("epilog", SLURM_JOB_STDOUT="%x-%j.out")
    assert copied(node) is None
    assert "2 files can be meant" in node.gaps()


@root
def test_the_name_of_an_array_is_a_gap(node):
    node.output("slurm-77_1.out")
    node.hook("epilog", SLURM_JOB_STDOUT="slurm-%A_%a.out")
    assert copied(node) is None
    assert "only the controller knows" in node.gaps()


@root
def test_a_file_system_that_does_not_answer_costs_two_seconds_and_not_the_run(node, monkeypatch):
    from denpex.node import outfile, rundir

    monkeypatch.setattr(outfile, "_open", lambda _name: time.sleep(60))
    monkeypatch.setattr(outfile, "_SECONDS", 0.3)
    run = rundir.Run(str(node.only_run()), 0)
    began = time.monotonic()
    outfile.copy(run, node.environment(), 1000)
    assert time.monotonic() - began < 1
    assert "was not opened within" in node.gaps()


@pytest.mark.parametrize(
    ("nodelist", "first"),
    [("n1", "n1"), ("n1,n2", "n1"), ("n[03-07,9],m1", "n03"), ("n[2,1]", "n2"), ("r[1-2]n[4-5]", "r1n4"),
     ("r[1-2]n4-ib", "r1n4-ib"), ("a-b[001]-x,c", "a-b001-x"), ("", ""), ("[", ""), ("n[", "n")],
)  # fmt: skip
def test_the_first_host_of_a_host_list(nodelist, first):
    assert outname.first_host(nodelist) == first


@pytest.mark.parametrize(
    ("pattern", "path"),
    [
        (None, "/w/slurm-77.out"),
        ("o", "/w/o"),
        ("/x/%j", "/x/77"),
        ("%5j.%J.%u.%N.%n.%t.%s.%%", "/w/00077.77.eve.n1.0.0.batch.%"),
        ("slurm-%A.out", "/w/slurm-77.out"),
        (r"\%j.out", "/w/%j.out"),
        ("%q%j", "/w/%q77"),
        ("%x", None),
        ("%x/log", None),
        ("%A_%a", None),
        ("%x/%j.out", "/w/%x/77.out"),
    ],
)
def test_an_output_name_is_expanded_as_far_as_the_node_knows(pattern, path):
    known = {"SLURM_JOB_ID": "77", "SLURM_JOB_USER": "eve", "SLURMD_NODENAME": "n1", "SLURM_JOB_WORK_DIR": "/w"}
    name = outname.expand(pattern, known)
    assert (name and name.shown) == path


def test_a_percent_sign_in_the_work_directory_is_none_of_slurms():
    name = outname.expand("a", {"SLURM_JOB_ID": "7", "SLURM_JOB_WORK_DIR": "/w/%j"})
    assert name is not None
    assert name.shown == "/w/%j/a"
