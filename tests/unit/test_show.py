"""`denpex show` at the command line."""

import json
import os
import pty
import re
import subprocess
import sys

import pytest

from denpex import cli, config, service
from denpex.render.text import width_of
from denpex.store import Store
from tests.unit.samples import START, job, verdict


@pytest.fixture
def worker(tmp_path, monkeypatch):
    """A worker that answers: job 1 requeued once, 2_1 and 2_2 an array, 3 waiting, 4 with a hostile name."""
    (tmp_path / "denpex.yaml").write_text(f"run_dir: {tmp_path}\nstate_dir: {tmp_path}/state\n")
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path))
    configuration = config.load()
    store = Store(configuration.database)
    store.save(verdict(job("1", restart=0), title="The first run"), 1.0)
    store.save(verdict(job("1", restart=1, start=START + 100, end=START + 172), title="The second run"), 1.0)
    for number, task in (("3", "1"), ("2", "2")):
        store.save(verdict(job(number, array_job="2", array_task=task)), 1.0)
    store.waiting(job("5"), ["n1", "n2", "n4"], START)
    store.save(verdict(job("6", name="\x1b[31mred\u202e")), 1.0)
    store.close()
    running = service.serve(configuration)
    yield tmp_path
    running.close()


pytestmark = pytest.mark.usefixtures("worker")


def show(capsys, *words):
    """Return (status, stdout, stderr) of `denpex show WORDS`."""
    status = cli.main(["show", *words])
    printed = capsys.readouterr()
    return status, printed.out, printed.err


def test_a_job_is_shown_as_a_report_of_80_columns(capsys):
    status, out, err = show(capsys, "1")
    assert (status, err) == (0, "")
    assert "The second run" in out
    assert "rank 2, node n3" in out
    assert max(width_of(line) for line in out.splitlines()) <= 80
    assert "\x1b" not in out


def test_all_runs_of_a_requeued_job_on_request(capsys):
    _, out, _ = show(capsys, "1", "-D")
    assert out.index("The first run") < out.index("The second run")


def test_json_is_one_document_for_one_job_and_a_list_for_several(capsys):
    document = json.loads(show(capsys, "2_1", "--json")[1])
    assert (document["format"], document["job_id"], document["array"]) == (1, "3", {"job": "2", "task": "1"})
    assert [d["job_id"] for d in json.loads(show(capsys, "2", "--json")[1])] == ["3", "2"]
    assert json.loads(show(capsys, "999", "--json")[1]) == []


def test_a_run_that_waits_shows_what_is_awaited(capsys):
    _, out, _ = show(capsys, "5")
    assert "Not diagnosed yet" in out
    assert "n[1-2,4]" in out
    document = json.loads(show(capsys, "5", "--json")[1])
    assert (document["failure_class"], document["awaited"]) == (None, ["n1", "n2", "n4"])


def test_an_unknown_job_is_a_header_a_hint_and_status_0_as_with_sacct(capsys):
    status, out, err = show(capsys, "999")
    assert status == 0
    assert out.split()[0] == "JobID"
    assert len(out.splitlines()) == 2
    assert "no verdict on '999' is known, or it is not your job" in err


def test_columns_header_and_delimiters_are_saccts(capsys):
    assert show(capsys, "1", "--format", "jobid,rank%-4,class%10", "-n")[1] == "           1 2    user-code+ \n"
    assert show(capsys, "1,2", "-P", "-o", "jobid,node")[1] == "JobID|Node\n1|n3\n2_1|n3\n2_2|n3\n"
    assert show(capsys, "1", "-p", "-n", "-o", "jobid,node")[1] == "1|n3|\n"
    assert show(capsys, "1", "-P", "--delimiter", "::", "-n", "-o", "jobid,node")[1] == "1::n3\n"
    assert show(capsys, "5", "-nPo", "jobid,class,awaited")[1] == "5||n1,n2,n4\n"


def test_the_j_option_and_several_words_are_job_lists_too(capsys):
    assert show(capsys, "-j", "1,3", "-nPo", "jobid")[1] == "1\n2_1\n"
    assert show(capsys, "1", "2_[2]", "-nPo", "jobid")[1] == "1\n2_2\n"


def test_helpformat_lists_the_fields_without_a_job_or_a_worker(capsys, monkeypatch):
    monkeypatch.setenv("DENPEX_ETC", "/nonexistent")
    status, out, _ = show(capsys, "-e")
    assert status == 0
    assert "Confidence" in out


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["abc"], "'abc' is not a job id"),
        (["1", "--format", "nope"], "'nope' is not a field"),
        (["1_[3-1]"], "is no range of array tasks"),
    ],
)
def test_a_command_line_that_cannot_be_understood_is_one_sentence_and_status_2(capsys, words, said):
    status, out, err = show(capsys, *words)
    assert (status, out) == (2, "")
    assert said in err
    assert err.startswith("denpex show: ")


def test_without_a_job_it_asks_which(capsys):
    with pytest.raises(SystemExit) as ended:
        show(capsys)
    assert ended.value.code == 2
    assert "which job?" in capsys.readouterr().err


def test_without_a_worker_it_says_what_was_tried(capsys, monkeypatch, tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "denpex.yaml").write_text(f"run_dir: {tmp_path}/other\n")
    monkeypatch.setenv("DENPEX_ETC", str(tmp_path / "other"))
    status, _, err = show(capsys, "1")
    assert status == 1
    assert "there is no socket" in err
    assert "is `denpex worker` running?" in err


def test_a_hostile_name_steers_no_terminal_in_any_form(capsys):
    for words in ([], ["-P"], ["-o", "jobname%30"]):
        _, out, _ = show(capsys, "6", *words)
        assert "\x1b" not in out
        assert "\u202e" not in out
        assert "\\x1b[31mred" in out


def command(worker, **environ):
    return {
        **{name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLUMNS")},
        "DENPEX_ETC": str(worker),
        **environ,
    }


def test_a_terminal_whose_character_set_is_small_gets_question_marks_not_an_error(worker):
    done = subprocess.run(
        [sys.executable, "-m", "denpex", "show", "1"],
        env=command(worker, PYTHONIOENCODING="ascii"),
        capture_output=True,
        check=True,
    )
    assert b"?0.4 ms" in done.stdout
    assert done.stderr == b""


@pytest.mark.parametrize(("environ", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"NO_COLOR": ""}, True)])
def test_colours_are_for_terminals_and_not_where_no_color_is_set(worker, environ, coloured):
    leader, follower = pty.openpty()
    with subprocess.Popen(
        [sys.executable, "-m", "denpex", "show", "1"], env=command(worker, **environ), stdout=follower
    ):
        os.close(follower)
        out = b""
        try:
            while piece := os.read(leader, 65536):
                out += piece
        except OSError:
            pass  # the other side has closed
    os.close(leader)
    assert bool(re.search(rb"\x1b\[", out)) is coloured


def test_showing_imports_neither_sqlite_utils_nor_jinja2_nor_the_engine(worker):
    """They would cost more than all the rest."""
    code = (
        "import sys; from denpex import cli; cli.main(['show', '1']);"
        " print([m for m in ('sqlite_utils', 'jinja2', 'paramiko', 'hyperscan', 'sqlite3', 'denpex.engine',"
        " 'denpex.library', 'denpex.store', 'subprocess') if m in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], env=command(worker), capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_reader_that_leaves_early_is_no_error(worker):
    done = subprocess.run(
        f"{sys.executable} -m denpex show 1,2,6 | head -1",
        shell=True,
        env=command(worker),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""


def test_a_verdict_stored_by_an_earlier_denpex_without_the_newer_keys_is_shown(capsys):
    store = Store(config.load().database)
    store.save(verdict(job("8")), 1.0)
    document = json.loads(
        store._db.conn.execute("SELECT document FROM verdicts WHERE document LIKE '%\"8\"%'").fetchone()[0]
    )
    for newer in ("job", "clocks"):
        del document[newer]
    store._db.conn.execute("UPDATE verdicts SET document = ? WHERE document LIKE '%\"8\"%'", (json.dumps(document),))
    store.close()
    assert "Job 8" in show(capsys, "8")[1]
