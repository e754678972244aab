"""Kernel records of the job's window: marks the place in the prolog, reads from there in the epilog."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable
from typing import Any

KMSG = "/dev/kmsg"
JOURNALCTL = "/usr/bin/journalctl"
# Of what is more, the middle is dropped: the first record may be the cause, the last the end.
LIMIT = 4000
# Where no prolog set a mark, records this old may belong to the job.
_UNMARKED_NS = 60 * 10**9

Gap = Callable[[str, str, str], None]
Record = dict[str, Any]
_WHERE = "kernel.jsonl"


def source(settings: dict[str, Any]) -> str:
    """Return which source is read: kmsg, journald, file or none."""
    wanted: str = settings["kernel_source"]
    if wanted in ("kmsg", "journald", "file"):
        return wanted
    # Root's access(2) says yes where the kernel then refuses (containers), so it is opened.
    try:
        os.close(_open_kmsg())
        return "kmsg"
    except OSError:
        return "journald" if os.access(JOURNALCTL, os.X_OK) else "none"


def mark(settings: dict[str, Any]) -> Record:
    """Return where the kernel log stands now; never raises."""
    kind = source(settings)
    result: Record = {
        "source": kind,
        "monotonic_us": time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000,
        "realtime_ns": time.time_ns(),
        "seq": None,
        "offset": None,
        "inode": None,
    }
    try:
        if kind == "kmsg":
            result["seq"] = _last_sequence()
        elif kind == "file":
            info = os.stat(settings["kernel_trusted_file"])
            result.update(offset=info.st_size, inode=info.st_ino)
    except OSError:
        # The epilog meets the same, and says so.
        pass
    return result


def since(mark: Record | None, settings: dict[str, Any], gap: Gap, *, same_boot: bool) -> list[Record]:
    """Return the records since ``mark`` as kernel.jsonl has them; what was lost is told to ``gap``.

    ``mark`` None: no prolog set one; the last minute is taken. ``same_boot`` False: the node was restarted since.
    """
    kind = mark["source"] if isinstance(mark, dict) and "source" in mark else source(settings)
    begin_ns = time.time_ns() - _UNMARKED_NS
    if isinstance(mark, dict) and isinstance(mark.get("realtime_ns"), int):
        begin_ns = mark["realtime_ns"]
    if not same_boot:
        gap("the node was restarted after the job began there", _WHERE, "nothing: it is a fact of the run")
    known = dict(mark or {})
    try:
        if kind == "kmsg":
            return _kmsg(known.get("seq"), begin_ns, same_boot, gap)
        if kind == "journald":
            return _journald(begin_ns, gap)
        if kind == "file":
            from denpex.node import kernelfile

            offset = int(known["offset"]) if known.get("offset") is not None else None
            return kernelfile.read(settings["kernel_trusted_file"], offset, known.get("inode"), gap)
    except (OSError, ValueError) as error:
        gap(f"kernel records could not be read from {kind}: {error}", _WHERE, "kernel.source in denpex.yaml")
        return []
    gap("kernel records were not read: no source is readable", _WHERE, "kernel.source in denpex.yaml")
    return []


def times(kernel_us: int) -> dict[str, int]:
    """Convert a stamp of the kernel log to both clocks of the contract.

    The kernel stamps its log by its scheduler's clock, which nobody disciplines, as CLOCK_MONOTONIC_RAW is not; the
    two begin within a second of each other at boot. CLOCK_MONOTONIC would be wrong by the clock's whole correction
    since boot (20 ppm are 1.7 s a day).
    """
    raw_ns = kernel_us * 1000
    ago = time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW) - raw_ns
    return {"realtime_ns": time.time_ns() - ago, "raw_ns": raw_ns}


def _open_kmsg() -> int:
    fd = os.open(KMSG, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        # The oldest record that the kernel still holds; also the test that this is the kernel's log.
        os.lseek(fd, 0, os.SEEK_SET)
    except OSError:
        os.close(fd)
        raise
    return fd


def _next(fd: int, lost: Callable[[], None]) -> bytes | None:
    """Return the next raw record, None at the end; ``lost`` is called where records were overwritten meanwhile."""
    while True:
        try:
            return os.read(fd, 16384) or None
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            lost()


def _last_sequence() -> int | None:
    """Return the number of the newest record: there is no cheaper way than to pass over all (1.5 us each)."""
    fd = _open_kmsg()
    last = None
    try:
        while raw := _next(fd, lambda: None):
            last = raw
    finally:
        os.close(fd)
    return -1 if last is None else int(last.split(b",", 2)[1])


def _kmsg(after: int | None, begin_ns: int, same_boot: bool, gap: Gap) -> list[Record]:
    found: list[Record] = []
    if not same_boot:
        # Numbers began anew.
        after = -1
    previous = after
    dropped = False

    def lost() -> None:
        nonlocal dropped
        dropped = True

    fd = _open_kmsg()
    try:
        while raw := _next(fd, lost):
            head, _, text = raw.decode("utf-8", "replace").partition(";")
            fields = head.split(",")
            if len(fields) < 3 or not all(field.isdigit() for field in fields[:3]):
                continue
            priority, number, stamp_us = (int(field) for field in fields[:3])
            if after is not None:
                if number <= after:
                    continue
                if previous is not None and number > previous + 1:
                    dropped = True
                previous = number
            record: Record = {
                "seq": number,
                "facility": priority >> 3,
                "level": priority & 7,
                **times(stamp_us),
                # Further lines are the record's fields (SUBSYSTEM=, DEVICE=), not its text.
                "text": text.split("\n", 1)[0],
                "source": "kmsg",
                "evidence": priority >> 3 == 0,
            }
            if after is not None or record["realtime_ns"] >= begin_ns:
                found.append(record)
    finally:
        os.close(fd)
    if dropped:
        gap("kernel records were overwritten before they were read", _WHERE, "a larger log_buf_len of the kernel")
    return bounded(found, gap)


def bounded(found: list[Record], gap: Gap) -> list[Record]:
    """Return at most LIMIT records, without the middle where there are more (a gap)."""
    if len(found) <= LIMIT:
        return found
    gap(f"{len(found) - LIMIT} kernel records in the middle were not kept", _WHERE, "a quieter kernel log")
    return found[: LIMIT // 2] + found[-LIMIT // 2 :]


def _journald(begin_ns: int, gap: Gap) -> list[Record]:
    from denpex.node import child

    fields = "MESSAGE,PRIORITY,SYSLOG_FACILITY,_TRANSPORT,_SOURCE_MONOTONIC_TIMESTAMP,_BOOT_ID"
    # Not -k, which is this boot only: the node may have been restarted in the job's window.
    argv = [JOURNALCTL, "-q", "-o", "json", "--no-pager", f"--output-fields={fields}", f"--lines={2 * LIMIT}"]
    status, output = child.ask([*argv, f"--since=@{begin_ns // 10**9}", "_TRANSPORT=kernel"], 1.5, 64 << 20)
    if status is None:
        raise OSError(errno.ETIMEDOUT, "journalctl did not end in time")
    if status != 0:
        raise OSError(errno.EIO, f"journalctl ended with status {status}")
    found = [record for line in output.splitlines() if (record := journal_record(line)) is not None]
    return bounded([record for record in found if record["realtime_ns"] >= begin_ns], gap)


def journal_record(line: bytes) -> Record | None:
    """Return the kernel record of one line of ``journalctl -o json``; None where it is none."""
    import json

    try:
        entry = json.loads(line)
        message = entry["MESSAGE"]
        received_ns = int(entry["__REALTIME_TIMESTAMP"]) * 1000
        facility = int(entry["SYSLOG_FACILITY"]) if "SYSLOG_FACILITY" in entry else None
        level = int(entry.get("PRIORITY", 6))
        # journald gives text that is not UTF-8 as numbers, and none at all of what is too long.
        text = message if isinstance(message, str) else bytes(message or []).decode("utf-8", "replace")
    except (ValueError, KeyError, TypeError):
        return None
    return {
        "seq": None,
        "facility": facility,
        "level": level,
        # The moment at which journald got it from the kernel; how its clock stood to RAW then is not known.
        "realtime_ns": received_ns,
        "raw_ns": None,
        "text": text,
        "source": "journald",
        "evidence": facility == 0 and entry.get("_TRANSPORT") == "kernel",
    }
