"""`denpex list` at the command line."""

import json
import time

import pytest

from denpex import cli, config, service
from denpex.model import Category
from denpex.store import Store
from tests.unit.samples import job, verdict

NOW = int(time.time())


@pytest.fixture(autouse=True)
def worker(tmp_path, monkeypatch):
    """A worker that answers: jobs 1 to 4 ended in the last minutes, 9 a week ago."""
    (tmp_path / "denpex.yaml").write_text(f"run_dir: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    configuration = config.load()
    store = Store(configuration.database)

    def ended(number, ago=0.0, **values):
        times = {"submit": NOW - ago - 30, "start": NOW - ago - 20, "end": NOW - ago - 10}
        return job(number, **times, **values)

    store.save(verdict(ended("1")), 1.0)
    store.save(
        verdict(ended("2", user="bob", uid=1002, state="TIMEOUT", nodes=("n7",)), failure_class="slurm-time-limit",
                category=Category.ENVIRONMENT_CONFIGURATION), 1.0,
    )  # fmt: skip
    store.save(verdict(ended("3", account="other", partition="cpu", state="OUT_OF_MEMORY")), 1.0)
    store.waiting(ended("4"), ["n1"], NOW - 5)
    store.save(verdict(ended("9", ago=7 * 86400)), 1.0)
    store.close()
    running = service.serve(configuration)
    yield configuration
    running.close()


def listed(capsys, *words):
    """Return the job numbers that `denpex list WORDS` prints."""
    assert cli.main(["list", "-nPo", "jobid", *words]) == 0
    return capsys.readouterr().out.split()


# Around midnight "today" has hardly begun.
HOUR = ("-S", "now-1hour", "-E", "now+1hour")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([], "1 2 3 4"), (["-u", "bob"], "2"), (["-u", "alice,bob"], "1 2 3 4"), (["-u", "1002"], "2"),
        (["-N", "n7"], "2"), (["-N", "n[1-2]"], "1 3 4"), (["-s", "TO"], "2"), (["-s", "f,oom"], "1 3 4"),
        (["-s", "timeout"], "2"), (["-A", "other"], "3"), (["-r", "cpu"], "3"), (["--class", "slurm-time-limit"], "2"),
        (["--category", "ml_numerical"], "1 3"), (["--category", "ML_NUMERICAL,environment_configuration"], "1 2 3"),
        (["--category", "hardware"], ""),
        (["-u", "alice", "-s", "F", "-N", "n1", "--class", "user-code-exception"], "1"),
    ],
)  # fmt: skip
def test_filters_are_saccts_and_all_must_hold(capsys, words, expected):
    assert listed(capsys, *HOUR, *words) == expected.split()


def test_the_window_is_by_the_jobs_end_and_start(capsys):
    assert listed(capsys, "-S", "now-8days") == ["9", "1", "2", "3", "4"]
    assert listed(capsys, "-S", "now-8days", "-E", "now-6days") == ["9"]
    assert listed(capsys, "-S", "now+1hour", "-E", "now+2hours") == []


def test_the_table_has_a_header_and_a_line_a_job(capsys):
    cli.main(["list", *HOUR])
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:4] == ["JobID", "JobName", "User", "State"]
    assert set(lines[1]) == {"-", " "}
    assert len(lines) == 6


def test_json_is_one_document_with_an_object_a_job(capsys):
    cli.main(["list", *HOUR, "--json"])
    document = json.loads(capsys.readouterr().out)
    assert document["format"] == 1
    first, *_, waiting = document["jobs"]
    assert (first["job_id"], first["failure_class"], first["rank"]) == ("1", "user-code-exception", 2)
    assert (first["confidence"], first["nodes"]) == (0.97, ["n1", "n2", "n3", "n4"])
    assert (waiting["failure_class"], waiting["awaited"]) == (None, ["n1"])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-S", "soon"], "'soon' is not a time"), (["-s", "RUNNING"], "'RUNNING' is not a state in which a job ends"),
        (["--category", "ml"], "'ml' is not a category; they are hardware"), (["-o", "x"], "'x' is not a field"),
        (["-S", "now", "-E", "now-1day"], "lies before"),
    ],
)  # fmt: skip
def test_a_filter_that_cannot_be_understood_is_one_sentence_and_status_2(capsys, words, said):
    assert cli.main(["list", *words]) == 2
    printed = capsys.readouterr()
    assert printed.out == ""
    assert said in printed.err


def test_more_jobs_than_an_answer_holds_are_said_to_be_more(capsys, monkeypatch):
    from denpex import answers

    monkeypatch.setattr(answers, "_MOST_ROWS", 2)
    assert cli.main(["list", *HOUR]) == 0
    assert "only the first 2 are shown" in capsys.readouterr().err
