"""Job ids and times as Slurm's commands take them."""

import time

import pytest

from denpex import times
from denpex.errors import UsageError
from denpex.jobid import JobId, parse


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("123", [JobId("123")]),
        ("123_4", [JobId("123", "4")]),
        ("123+1", [JobId("123", None, "1")]),
        ("123_[1-3]", [JobId("123", "1"), JobId("123", "2"), JobId("123", "3")]),
        ("123_[1,3-4],7", [JobId("123", "1"), JobId("123", "3"), JobId("123", "4"), JobId("7")]),
        ("1,2_3,4+0", [JobId("1"), JobId("2", "3"), JobId("4", None, "0")]),
        (" 1 , 2 ", [JobId("1"), JobId("2")]),
        ("123.0,124.batch,125_1.extern,126+1.interactive",
         [JobId("123"), JobId("124"), JobId("125", "1"), JobId("126", None, "1")]),
        ("1,1,1.batch", [JobId("1")]),
        ("0123_04", [JobId("123", "4")]),
    ],
)  # fmt: skip
def test_every_form_that_sacct_takes_is_understood(text, expected):
    assert parse(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", ",", "1,", "abc", "-1", "1_2+3", "1+2_3", "1_", "1+", "1_[", "1_[]", "1_[a]", "1_[1-]", "1_[3-1]", "1_[1]]",
        "1.x", "1.", "1 2", "1;2", "²", "١٢", "1_[0-99999999]", "1_[1-9000],2_[1-9000]", "9" * 40, "[1-3]", "1%",
    ],
)  # fmt: skip
def test_what_is_no_job_id_is_a_sentence(text):
    with pytest.raises(UsageError, match=r"is not a job id|too many|more than"):
        parse(text)


def test_a_hostile_list_is_read_in_linear_time():
    begin = time.monotonic()
    with pytest.raises(UsageError):
        parse("1," * 30_000 + "_[" + "," * 30_000)
    assert time.monotonic() - begin < 0.5


# 2026-12-01 11:52:39 in the zone that is set below, two hours east of Greenwich in winter, three in summer.
NOW = 1796118759.0


@pytest.fixture
def zone(monkeypatch):
    monkeypatch.setenv("TZ", "EET-2EEST,M3.5.0/3,M10.5.0/4")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-12-01T11:52:39", "2026-12-01 11:52:39"), ("2026-12-01T11:52", "2026-12-01 11:52:00"),
        ("2026-12-01", "2026-12-01 00:00:00"), ("12/01", "2026-12-01 00:00:00"), ("12/01/26", "2026-12-01 00:00:00"),
        ("12/01/2026", "2026-12-01 00:00:00"), ("12.01.26", "2026-12-01 00:00:00"), ("1201", "2026-12-01 00:00:00"),
        ("120126", "2026-12-01 00:00:00"), ("12/01/26-11:52", "2026-12-01 11:52:00"),
        ("02/29/24", "2024-02-29 00:00:00"), ("11:52", "2026-12-01 11:52:00"), ("11:52:07", "2026-12-01 11:52:07"),
        ("1:30pm", "2026-12-01 13:30:00"), ("12:05 AM", "2026-12-01 00:05:00"), ("today", "2026-12-01 00:00:00"),
        ("midnight", "2026-12-01 00:00:00"), ("noon", "2026-12-01 12:00:00"), ("teatime", "2026-12-01 16:00:00"),
        ("tomorrow", "2026-12-02 00:00:00"), ("NOW", "2026-12-01 11:52:39"), ("now-2hours", "2026-12-01 09:52:39"),
        ("now+1day", "2026-12-02 11:52:39"), ("now-90", "2026-12-01 11:51:09"), ("now-1week", "2026-11-24 11:52:39"),
        ("2026-07-01T12:00", "2026-07-01 12:00:00"),
    ],
)  # fmt: skip
def test_times_are_read_as_slurm_reads_them_in_the_local_zone(text, expected):
    assert time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(times.parse(text, NOW))) == expected


@pytest.mark.parametrize(
    "text",
    ["", "yesterday?", "25:00", "11:60", "13:00pm", "06/31/26", "2026-13-01", "now*2", "now-2years", "1", "12/01/26-",
     "0000-01-01", "99999-01-01", "now-" + "9" * 30],
)  # fmt: skip
def test_what_is_no_time_is_a_sentence(text):
    with pytest.raises(UsageError, match="is not a time"):
        times.parse(text, NOW)
