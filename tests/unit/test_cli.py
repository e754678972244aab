"""The command line's own edges: closed or full outputs are sentences, never tracebacks."""

import gzip
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DENPEX = f"{sys.executable} -m denpex"


def shell(line, **environment):
    return subprocess.run(
        ["sh", "-c", line],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"PATH": "/usr/bin:/bin", **environment},
    )


@pytest.fixture
def log(tmp_path):
    file = tmp_path / "job.log"
    file.write_text('step 1 loss 0.1\nTraceback (most recent call last):\n  File "a.py", line 1\nValueError: ✗\n')
    return file


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("diagnose {log} >/dev/full", "the output cannot be written"),
        ("diagnose {log} >&-", "standard output is closed"),
        ("diagnose - <&-", "standard input is closed"),
        ("no-such-verb", "there is no verb"),
        ("diagnose /no/such/file", "/no/such/file"),
    ],
)
def test_what_cannot_be_done_is_one_sentence(log, line, words):
    done = shell(f"{DENPEX} {line.format(log=log)}")
    assert words in done.stderr
    assert "Traceback" not in done.stderr
    assert done.returncode in (1, 2)


def test_a_terminal_without_the_character_still_gets_the_verdict(log):
    done = shell(f"{DENPEX} diagnose {log}", LC_ALL="C", PYTHONIOENCODING="ascii")
    assert "user-code-exception" in done.stdout


def test_a_reader_that_leaves_is_no_error(log):
    assert "Traceback" not in shell(f"{DENPEX} diagnose {log} | head -n 1").stderr


def test_a_compressed_log_that_breaks_off_is_a_gap(log, tmp_path):
    whole = gzip.compress(log.read_bytes() * 200)
    (tmp_path / "cut.log.gz").write_bytes(whole[:-40])
    done = shell(f"{DENPEX} diagnose {tmp_path}/cut.log.gz")
    assert "breaks off" in " ".join(done.stdout.split())


def test_an_exception_that_quotes_the_kernel_accuses_no_hardware(tmp_path):
    (tmp_path / "job.log").write_text(
        'Traceback (most recent call last):\n  File "a.py", line 1\n'
        "ValueError: NVRM: Xid (PCI:0000:01:00): 79, pid=1, GPU has fallen off the bus.\n"
    )
    assert "hardware/" not in shell(f"{DENPEX} diagnose {tmp_path}/job.log").stdout
