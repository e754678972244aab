"""Kernel records of the job's window: by number, by offset across rotation, and what may count as evidence."""

import json
import os
import time

import pytest

from denpex.node import kernel, kernelfile
from tests.unit.hooksite import lines, site

root = pytest.mark.skipif(os.geteuid() != 0, reason="slurmd runs these hooks as root")


@pytest.fixture
def gaps():
    class Gaps(list):
        def __call__(self, what, where, closed_by):
            assert where
            assert closed_by
            self.append(what)

    return Gaps()


@root
def test_only_what_was_written_during_the_job_is_kept():
    with site() as node:
        node.kernel_log.write_text("[    1.000000] before\n")
        node.hook("prolog")
        with open(node.kernel_log, "a") as file:
            file.write("<2>[    2.500000] NVRM: Xid (PCI:0000:3b:00): 79\n<14>[    3.000000] a user's word\n")
        node.hook("epilog")
        first, second = lines(node.only_run() / "kernel.jsonl")
        assert first["text"] == "NVRM: Xid (PCI:0000:3b:00): 79"
        assert (first["facility"], first["level"], first["evidence"], first["source"]) == (0, 2, True, "file")
        assert first["raw_ns"] == 2_500_000_000
        assert (second["facility"], second["evidence"]) == (1, False)


@root
def test_a_file_that_was_rotated_during_the_job_is_read_to_its_end(gaps, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text("[    1.000000] before\n")
    begin, inode = log.stat().st_size, log.stat().st_ino
    with open(log, "a") as file:
        file.write("[    2.000000] old file\n")
    log.rename(tmp_path / "kern.log.1")
    log.write_text("[    3.000000] new file\n")
    found = kernelfile.read(str(log), begin, inode, gaps)
    assert [record["text"] for record in found] == ["old file", "new file"]
    assert gaps == []


@root
def test_a_file_that_was_cut_or_is_gone_is_a_gap(gaps, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text("[    3.000000] new\n")
    assert [r["text"] for r in kernelfile.read(str(log), 1000, log.stat().st_ino, gaps)] == ["new"]
    assert [r["text"] for r in kernelfile.read(str(log), 10, 1, gaps)] == ["new"]
    assert len(gaps) == 2
    mark = {"source": "file", "offset": 0, "inode": 1, "realtime_ns": 0}
    assert kernel.since(mark, {"kernel_trusted_file": str(tmp_path / "none")}, gaps, same_boot=True) == []
    assert "could not be read from file" in gaps[-1]


@root
@pytest.mark.parametrize("spoil", [lambda path: path.chmod(0o662), lambda path: os.chown(path, 1, 1)])
def test_a_file_that_others_may_write_proves_nothing(gaps, tmp_path, spoil):
    log = tmp_path / "kern.log"
    log.write_text("[    3.000000] NVRM: Xid\n")
    spoil(log)
    (record,) = kernelfile.read(str(log), 0, log.stat().st_ino, gaps)
    assert record["evidence"] is False
    assert "nothing in it proves anything" in gaps[0]


@root
def test_a_link_or_a_pipe_is_no_kernel_log(gaps, tmp_path):
    (tmp_path / "link").symlink_to("/etc/passwd")
    os.mkfifo(tmp_path / "pipe")
    for name in ("link", "pipe"):
        settings = {"kernel_source": "file", "kernel_trusted_file": str(tmp_path / name)}
        assert kernel.since(None, settings, gaps, same_boot=True) == []
    assert len(gaps) == 2


@root
def test_syslog_heads_are_taken_off_and_give_the_time(gaps, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text(
        "2026-12-01T10:00:00.250000+00:00 n1 kernel: [  12.000000] iso\n"
        "Dec  1 10:00:00 n1 kernel: [ 12.000000] bsd\n"
        "Dec  1 10:00:00 n1 kernel: no uptime\n"
        "no head\n"
    )
    iso, bsd, no_uptime, bare = kernelfile.read(str(log), 0, log.stat().st_ino, gaps)
    assert (iso["text"], iso["realtime_ns"]) == ("iso", 1796119200_250000000)
    assert (bsd["text"], bsd["raw_ns"]) == ("bsd", 12_000_000_000)
    assert time.localtime(no_uptime["realtime_ns"] / 1e9)[1:6] == (12, 1, 10, 0, 0)
    assert (bare["text"], abs(bare["realtime_ns"] - time.time_ns()) < 10**9) == ("no head", True)


@root
def test_a_flood_loses_its_middle_and_says_so(gaps, tmp_path):
    log = tmp_path / "kern.log"
    log.write_text("".join(f"[    {i % 9}.000000] {i}\n" for i in range(10_000)))
    found = kernelfile.read(str(log), 0, log.stat().st_ino, gaps)
    assert [found[0]["text"], found[-1]["text"], len(found)] == ["0", "9999", kernel.LIMIT]
    assert "6000 kernel records in the middle" in gaps[0]


@root
def test_the_kernels_own_log_is_read_by_number(gaps):
    settings = {"kernel_source": "kmsg"}
    mark = kernel.mark(settings)
    if mark["seq"] is None:
        pytest.skip("/dev/kmsg cannot be read here")
    try:
        with open("/dev/kmsg", "wb", buffering=0) as file:
            file.write(b"<12>denpex unit test: one\n")
    except OSError:
        pytest.skip("/dev/kmsg cannot be written here")
    time.sleep(0.05)
    found = [r for r in kernel.since(mark, settings, gaps, same_boot=True) if "denpex unit test" in r["text"]]
    assert found, "a record after the mark is found"
    assert all(record["seq"] > mark["seq"] for record in found)
    # Written by a process, not by the kernel: context, never evidence.
    assert found[-1]["facility"] == 1
    assert found[-1]["evidence"] is False
    assert abs(found[-1]["realtime_ns"] - time.time_ns()) < 2 * 10**9
    again = kernel.since(kernel.mark(settings), settings, gaps, same_boot=True)
    assert "denpex unit test: one" not in [record["text"] for record in again]


@root
def test_records_that_were_overwritten_are_a_gap(gaps):
    mark = kernel.mark({"kernel_source": "kmsg"})
    if not mark["seq"] or mark["seq"] < 10:
        pytest.skip("/dev/kmsg cannot be read here")
    kernel.since(mark | {"seq": -100}, {"kernel_source": "kmsg"}, gaps, same_boot=True)
    assert "overwritten" in gaps[0]


def test_a_log_that_cannot_be_read_is_a_gap(gaps, monkeypatch):
    monkeypatch.setattr(kernel, "KMSG", "/nowhere/kmsg")
    monkeypatch.setattr(kernel, "JOURNALCTL", "/nowhere/journalctl")
    settings = {"kernel_source": "auto", "kernel_trusted_file": ""}
    mark = kernel.mark(settings)
    assert mark["source"] == "none"
    assert kernel.since(mark, settings, gaps, same_boot=True) == []
    assert gaps == ["kernel records were not read: no source is readable"]


def test_a_node_that_restarted_is_a_gap(gaps, monkeypatch):
    monkeypatch.setattr(kernel, "KMSG", "/nowhere/kmsg")
    kernel.since({"source": "kmsg", "seq": 5, "realtime_ns": 0}, {}, gaps, same_boot=False)
    assert "restarted" in gaps[0]


def test_the_journal_is_asked_within_a_bound(gaps, monkeypatch, tmp_path):
    program = tmp_path / "journalctl"
    entry = {
        "MESSAGE": "oom",
        "__REALTIME_TIMESTAMP": "5000000",
        "SYSLOG_FACILITY": "0",
        "PRIORITY": "3",
        "_TRANSPORT": "kernel",
    }
    program.write_text(f"#!/bin/sh\necho '{json.dumps(entry)}'\necho broken\n")
    program.chmod(0o755)
    monkeypatch.setattr(kernel, "JOURNALCTL", str(program))
    (record,) = kernel.since({"source": "journald", "realtime_ns": 1}, {}, gaps, same_boot=True)
    assert (record["text"], record["realtime_ns"], record["evidence"]) == ("oom", 5 * 10**9, True)
    program.write_text("#!/bin/sh\nsleep 60\n")
    began = time.monotonic()
    assert kernel.since({"source": "journald", "realtime_ns": 1}, {}, gaps, same_boot=True) == []
    assert time.monotonic() - began < 2
    assert "did not end in time" in gaps[0]


@pytest.mark.parametrize(
    ("entry", "text", "evidence"),
    [
        ({"MESSAGE": "m", "SYSLOG_FACILITY": "0", "_TRANSPORT": "kernel"}, "m", True),
        ({"MESSAGE": "m", "SYSLOG_FACILITY": "1", "_TRANSPORT": "kernel"}, "m", False),
        ({"MESSAGE": "m", "SYSLOG_FACILITY": "0", "_TRANSPORT": "syslog"}, "m", False),
        ({"MESSAGE": "m", "_TRANSPORT": "kernel"}, "m", False),
        ({"MESSAGE": [104, 105, 255], "SYSLOG_FACILITY": "0", "_TRANSPORT": "kernel"}, "hi\ufffd", True),
        ({"MESSAGE": None, "SYSLOG_FACILITY": "0"}, "", False),
    ],
)
def test_only_what_the_kernel_said_is_evidence_in_the_journal(entry, text, evidence):
    record = kernel.journal_record(json.dumps({"__REALTIME_TIMESTAMP": "1", **entry}).encode())
    assert (record["text"], record["evidence"]) == (text, evidence)


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"[]",
        b"{}",
        b"\xff",
        b'{"MESSAGE": "m", "__REALTIME_TIMESTAMP": "x"}',
        b'{"MESSAGE": [999], "__REALTIME_TIMESTAMP": "1"}',
    ],
)
def test_what_is_no_journal_record_is_passed_over(line):
    assert kernel.journal_record(line) is None
