"""The report and the columns: narrow, readable, and safe whatever a job has printed."""

import re
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from denpex import hostlist
from denpex.errors import UsageError
from denpex.model import Alternative, Category, Fix, Gap, GpuRef, Hardware, Order, Place, Requeue, Scope, Step, Verdict
from denpex.render import pending, table, text
from denpex.render.terminal import report
from tests.unit.samples import START, job, verdict

HOSTILE = (
    "\x1b[2J\x1b]0;owned\x07", "\r\nfake: all is well", "\u202eevil\u202c", "\x9b31m", "\u200b\ufeff\u2028", "\x00",
    "漢字" * 60, "e\u0301" * 300, "x" * 5000, "\ud800", "\U0001f600" * 90, "\t\t\t",
)  # fmt: skip


def shown(told: Verdict, **options) -> str:
    return report(told.to_json(), **{"color": False, **options})


def assert_narrow_and_safe(printed: str, width: int = 80) -> None:
    for line in printed.split("\n"):
        assert text.width_of(line) <= width, line
        assert all(c.isprintable() for c in line), ascii(line)


def test_the_report_answers_in_order_what_who_where_and_what_to_do():
    assert shown(verdict()) == EXPECTED


EXPECTED = """\
Job 4711 (train.sh): FAILED, exit 1:0, after 1 min 12 s, on n[1-4]
The training code raised an exception

Class     ml_numerical/user-code-exception, very likely (97%)
Where     rank 2, node n3, step 0
          known from: its own traceback, before every other sign
What      Rank 2 raised IndexError at train.py:50; ranks 0, 1 and 3 lost their
          peer afterwards.
Fix       Correct the index where the traceback ends, then run again.
Command   sbatch train.sh
Whose     training; run again: after the fix

When      +0 s is 2026-09-21 14:14:30.000Z ±0.4 ms by the reference clock
  +0.000 s ±0.4 ms  rank 2       n3        IndexError: index 50 is out
  +0.412 s ±0.4 ms  ranks 0-1,3  n[1-2,4]  later: RuntimeError: Connection clos…

Evidence  e1 origin, rank 2 on n3: tasks/0.2.err:1001
            Traceback (most recent call last):
            File "train.py", line 50, in <module>
            IndexError: index 50 is out
          e2 cascade, rank 0 on n1: tasks/0.0.err:1002
            RuntimeError: [../gloo/transport/tcp/pair.cc:534] Connection closed
            by peer [10.9.0.3]:40123
            the same: e3, e4

Not       process-killed at rank 1, node n2, step 0 (2%): rank 1 ended with
          status 1
Gap       kernel records were not read (n[1-2]); closed by: dmesg for root
Clocks    already added to each node's own times:
          n1 -44.999 s ±0.4 ms, n3 +3.001 s ±0.4 ms"""


def test_documentation_explains_the_report_that_is_printed():
    """docs/show.md quotes the report of the sample verdict."""
    page = (Path(__file__).parents[2] / "docs" / "show.md").read_text()
    assert EXPECTED in page


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_whatever_a_job_says_the_report_is_narrow_and_steers_no_terminal(hostile):
    told = verdict(
        job(name=hostile, nodes=(hostile, "n2"), state=hostile, steps=(Step("0", hostile, hostile, hostile),) * 3),
        title=hostile,
        summary=hostile,
        fix=Fix(hostile, f"echo {hostile}"),
        origin=Place(hostile, 2, hostile, GpuRef(hostile, hostile, 1), hostile),
        alternatives=(Alternative(hostile, Place(node=hostile), 0.1, hostile),),
        gaps=(Gap(hostile, hostile, hostile),),
        hardware=Hardware.SUSPECTED,
        clocks=((hostile, verdict().clocks[0][1]),),
    )
    evidence = tuple(replace(e, text=hostile, file=hostile, node=hostile, stream=hostile) for e in told.evidence)
    assert_narrow_and_safe(shown(replace(told, evidence=evidence)))
    assert_narrow_and_safe(shown(replace(told, evidence=evidence), width=52), 52)


@settings(max_examples=60, deadline=None)
@given(st.text(max_size=200), st.integers(40, 80))
def test_any_text_is_wrapped_clipped_and_escaped(words, width):
    told = verdict(job(name=words), title=words, summary=words, fix=Fix(words, words))
    assert_narrow_and_safe(
        shown(replace(told, evidence=tuple(replace(e, text=words) for e in told.evidence)), width=width), width
    )


def test_a_message_of_megabytes_is_shown_at_once():
    huge = "error " + "\x1b" * 4_000_000
    begin = time.monotonic()
    shown(verdict(evidence=tuple(replace(e, text=huge) for e in verdict().evidence)))
    assert time.monotonic() - begin < 10


def test_colours_are_added_to_the_same_words():
    plain, coloured = shown(verdict()), shown(verdict(), color=True)
    assert "\x1b[" not in plain
    assert "\x1b[1;31m" in coloured
    assert re.sub(r"\x1b\[[0-9;]*m", "", coloured) == plain


def test_equal_consequences_of_many_ranks_are_one_line():
    first = verdict()
    ranks = [r for r in range(1024) if r != 2]
    like = first.evidence[1]
    many = tuple(replace(like, id=f"c{r}", rank=r, node=f"node{r // 8:04}") for r in ranks)
    edges = tuple(replace(first.cascade[0], rank=r, evidence=f"c{r}") for r in ranks)
    evidence = (first.evidence[0], *many)
    printed = shown(verdict(evidence=evidence, cascade=edges, timeline=tuple(e.id for e in evidence)))
    assert "ranks 0-1,3-1023" in printed
    assert "128 nodes" in printed
    assert len(printed.splitlines()) < 70


def test_consequences_without_times_are_shown_with_their_order():
    first = verdict()
    evidence = tuple(replace(e, time=None) for e in first.evidence)
    edges = tuple(replace(e, order=Order.UNDETERMINED, gap_ms=None) for e in first.cascade)
    printed = shown(verdict(evidence=evidence, cascade=edges))
    assert "When" not in printed
    assert re.search(r"ranks 0-1,3 +n\[1-2,4\] +order not known: ", printed)


def test_a_tie_set_is_shown_as_one():
    places = tuple(Place("0", rank, f"n{rank + 1}", None, "no log separates them") for rank in (1, 2, 3))
    printed = shown(verdict(origin=None, origins=places, scope=Scope.RANKS))
    assert "one of ranks 1-3 on n[2-4]; the evidence does not separate" in printed


def test_a_gpu_is_named_as_the_driver_names_it():
    printed = shown(verdict(origin=Place("0", 2, "n3", GpuRef("GPU-12ab", "0000:3b:00.0", 1), "kernel log")))
    assert "GPU 1 0000:3b:00.0 GPU-12ab" in printed


@pytest.mark.parametrize(
    ("scope", "words"),
    [
        (Scope.JOB, "the whole job"),
        (Scope.EXTERNAL, "no rank is accused"),
        (Scope.UNKNOWN, "not established"),
    ],
)
def test_where_there_is_no_origin_it_says_so(scope, words):
    assert words in shown(verdict(origin=None, scope=scope))


def test_a_verdict_of_no_failure_is_short_and_lists_the_step_that_failed():
    steps = (Step("0", "python", "FAILED", "1:0"), Step("1", "python", "COMPLETED", "0:0"))
    told = Verdict(
        "no-failure", Category.NONE, "Nothing failed", "The last step succeeded.", Scope.NONE, 0.9, job(steps=steps)
    )  # fmt: skip
    printed = shown(told)
    assert "Steps     0 python: FAILED, exit 1:0\n          1 python: COMPLETED, exit 0:0" in printed
    assert "run again" not in printed
    assert len(printed.splitlines()) < 12


def test_a_revision_and_each_word_of_requeue_is_told():
    assert "(revision 2)" in shown(verdict(revision=2))
    for requeue, words in (("yes", "again: yes"), ("no", "would fail again"), ("elsewhere", "on other nodes")):
        assert words in shown(verdict(requeue=Requeue(requeue)))


def test_outside_slurm_there_is_no_job_to_name():
    told = verdict()
    printed = shown(replace(told, job=replace(job(), job_id=None, name="", state="", nodes=())))
    assert printed.startswith("Outside Slurm")


def _words(command: str) -> str:
    """Return the words that a shell makes of a command, each in brackets."""
    script = f"show() {{ printf '<%s>' \"$@\"; }}; show {command}"
    return subprocess.run(["sh", "-c", script], capture_output=True, text=True, check=True).stdout


@pytest.mark.parametrize(
    "command",
    [
        "scontrol update NodeName=n1 State=DRAIN Reason='denpex: GPU off the bus, job 4711'",
        'echo "a quoted  text with  double spaces that must not be broken" and then more words after it \\  end',
        "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen",
    ],
)
def test_a_long_command_is_broken_so_that_a_copy_still_runs(command):
    lines = shown(verdict(fix=Fix("Do it.", command))).splitlines()
    begin = next(i for i, line in enumerate(lines) if line.startswith("Command"))
    end = next(i for i in range(begin, len(lines)) if not lines[i].endswith("\\"))
    copied = "\n".join(line.removeprefix("Command") for line in lines[begin : end + 1])
    assert _words(copied) == _words(command)
    assert end > begin


def test_a_command_with_a_word_that_fits_no_line_is_not_broken_but_pointed_to():
    printed = shown(verdict(fix=Fix("Do it.", "rm -rf /scratch/" + "x" * 100)))
    assert "rm -rf" not in printed
    assert "see --json" in printed


@pytest.mark.parametrize(
    ("names", "folded"),
    [
        (["n1", "n2", "n4"], "n[1-2,4]"), (["n1"], "n1"), ([], ""), (["login", "n1", "n1"], "login,n1"),
        (["n08", "n09", "n10", "n11"], "n[08-11]"), (["n1", "n01"], "n1,n01"), (["a1", "b1", "b2"], "a1,b[1-2]"),
        (["n9", "n10"], "n[9-10]"), (["r1n1", "r1n2"], "r1n[1-2]"), (["gpu-a", "gpu-b"], "gpu-a,gpu-b"),
    ],
)  # fmt: skip
def test_node_names_are_folded_as_slurm_writes_them(names, folded):
    assert hostlist.fold(names) == folded


@given(st.lists(st.from_regex(r"[a-z]{1,3}[0-9]{1,4}", fullmatch=True), max_size=30))
def test_folded_node_names_unfold_to_the_same(names):
    assert sorted(hostlist.expand(hostlist.fold(names))) == sorted(set(names))


@pytest.mark.parametrize(
    ("seconds", "words"),
    [
        (0.2, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (72, "1 min 12 s"),
        (11100, "3 h 5 min"),
        (187200, "2 d 4 h"),
    ],
)
def test_lengths_of_time_have_two_units(seconds, words):
    assert text.duration(seconds) == words


# ---------------------------------------------------------------------- a run that waits


def waiting(**values):
    row = {"job_id": "7", "name": "train", "state": "FAILED", "awaited": ["n1", "n2", "n4"], "waiting_since": START}
    return pending.report({**row, **values}, START + 75, color=False)


def test_a_run_that_waits_says_for_whom_and_how_long():
    printed = waiting()
    assert printed.startswith("Job 7 (train): FAILED\nNot diagnosed yet\n")
    assert "the epilog of n[1-2,4] leaves" in printed
    assert "1 min 15 s" in printed
    assert_narrow_and_safe(printed)
    assert "the worker" in waiting(awaited=[])


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_run_that_waits_is_narrow_and_safe_too(hostile):
    assert_narrow_and_safe(waiting(name=hostile, state=hostile, awaited=[hostile] * 50))


# ---------------------------------------------------------------------- columns

ROW = {
    "job_id": "4711", "array_job": None, "array_task": None, "het_job": None, "het_offset": None,
    "name": "training-of-it", "state": "FAILED", "failure_class": "user-code-exception",
    "category": "ml_numerical", "confidence": 0.9712,
    "rank": 0, "node": "n3", "awaited": [], "start": START, "ended": None, "uid": 1001, "user": "alice",
}  # fmt: skip


def columns(fields, rows=(ROW,), **options):
    return table.table(
        rows, table.parse(fields), **{"header": True, "delimiter": None, "trailing": False, **options}
    )  # fmt: skip


def test_columns_are_right_justified_cut_with_a_plus_and_under_dashes():
    assert columns("jobid%6,jobname,rank") == [
        " JobID    JobName  Rank ",
        "------ ---------- ----- ",
        "  4711 training-+     0 ",
    ]


def test_a_negative_width_justifies_left_and_names_are_short_and_of_any_case():
    assert columns("JOBID%-6,Cla%-8,CONF", header=False)[0] == "4711   user-co+       0.97 "


def test_parsable_output_has_no_padding_and_no_cut():
    assert columns("jobid,jobname,rank", delimiter="|", trailing=True) == [
        "JobID|JobName|Rank|",
        "4711|training-of-it|0|",
    ]
    assert columns("jobid,rank", delimiter="^", header=False) == ["4711^0"]


def test_array_tasks_and_components_have_their_names():
    rows = ({**ROW, "array_job": "10", "array_task": "3"}, {**ROW, "het_job": "20", "het_offset": "1"})
    assert columns("jobid,jobidraw", rows, delimiter="|", header=False) == ["10_3|4711", "20+1|4711"]


def test_times_that_are_not_known_are_unknown_as_with_sacct():
    assert columns("end", delimiter="|", header=False) == ["Unknown"]


def test_a_row_that_waits_says_for_whom():
    rows = ({**ROW, "failure_class": None, "awaited": ["n1", "n2"]}, {**ROW, "failure_class": None})
    assert columns("awaited", rows, delimiter="|", header=False) == ["n1,n2", "worker"]


@pytest.mark.parametrize("hostile", HOSTILE, ids=range(len(HOSTILE)))
def test_a_cell_keeps_its_width_whatever_stands_in_it(hostile):
    for width in ("%12", "%-12"):
        (line,) = columns(f"jobname{width},rank", ({**ROW, "name": hostile},), header=False)
        assert text.width_of(line) == 12 + 1 + 5 + 1
        assert line.isprintable()


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ("nonsense", "is not a field; the fields are JobID"),
        ("c", "may be Cluster or Category or Class or Confidence"),
        ("jobid%x", "is not a field"), ("jobid%0", "is not a field"), ("jobid%99999", "is not a field"),
        ("jobid%--5", "is not a field"), ("jobid%", "is not a field"), ("", "names no field"), (",", "names no field"),
    ],
)  # fmt: skip
def test_a_format_that_cannot_be_read_is_a_sentence(fields, words):
    with pytest.raises(UsageError, match=words):
        table.parse(fields)


def test_helpformat_lists_every_field():
    assert set(table.help_format().split()) == {field.name for field in table.FIELDS}
