"""Measures this node's clock as intervals that hold ``reference - local``, in nanoseconds."""

from __future__ import annotations

import os
import select
import struct
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from denpex.node.records import both_clocks, now

# Seconds from 1900 (NTP's era 0) to 1970: RFC 5905, section 6.
_NTP_TO_UNIX = 2_208_988_800
_EXCHANGES = 8
# An exchange that takes longer than this bounds nothing useful, and the prolog must not wait: for one server, for all.
_WAIT_S = 0.05
_TOTAL_S = 0.1
_NTP_PORT = 123
_SERVER_MODE = 4
_UNSYNCHRONISED = 16

# adjtimex(2): the clock is not synchronised.
_STA_UNSYNC = 0x40
_TIME_ERROR = 5
# chronyd running free ("local" mode) names itself with this reference: chrony.conf(5), "local".
_CHRONY_LOCAL = "7F7F0101"
_CHRONY_SOCKETS = ("/run/chrony/chronyd.sock", "/var/run/chrony/chronyd.sock")
_CHRONYC = ("/usr/bin/chronyc", "/usr/sbin/chronyc")
_CHRONY_S = 0.3

Reading = tuple[int, int, int]


class ClockGap(Exception):  # noqa: N818 - not an error: a measurement that a source could not give
    """A clock source that could not be used, in a sentence."""


def samples(references: Iterable[str], when: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Measure against every source there is; return records for clock.jsonl, and sentences on what gave none.

    Of the SNTP servers the first that answers is enough: all nodes have the same list.
    """
    found: list[dict[str, Any]] = []
    problems: list[str] = []
    end = time.monotonic() + _TOTAL_S
    for reference in references:
        if time.monotonic() >= end:
            problems.append(f"for the clock reference {reference} no time was left")
        elif _measure(partial(sntp, reference, end), when, found, problems):
            break
    for source in (chronyc, adjtimex):
        _measure(source, when, found, problems)
    return found, problems


def _measure(source: Callable[[], dict[str, Any]], when: str, found: list[dict[str, Any]], problems: list[str]) -> bool:
    try:
        found.append({**source(), "when": when})
    except ClockGap as gap:
        problems.append(str(gap))
        return False
    return True


def _stamps(before: Reading, after: Reading) -> dict[str, int]:
    """Return both clocks at the middle of a measurement; raises ClockGap where the clock was set meanwhile."""
    raw = after[1] - before[1]
    # A clock is slewed by at most a tenth (chrony.conf(5), maxslewrate); what is more is a step.
    if abs((after[0] - before[0]) - raw) > raw // 10 + before[2] + after[2] + 1_000_000:
        raise ClockGap("the clock was set while it was measured")
    return {"realtime_ns": (before[0] + after[0]) // 2, "raw_ns": (before[1] + after[1]) // 2}


def sntp(reference: str, end: float | None = None) -> dict[str, Any]:
    """Exchange packets with the SNTP server ``reference`` ("host:port") and intersect what each says.

    Only non-negative delays are assumed: ``t3 - t4 <= reference - local <= t2 - t1`` (RFC 4330, section 5, with
    t1 sent, t2 received there, t3 sent there, t4 received). ``end``: when to stop waiting, by time.monotonic().
    Raises ClockGap.
    """
    import socket

    end = time.monotonic() + _TOTAL_S if end is None else end
    begin = both_clocks()
    lo, hi = -(1 << 62), 1 << 62
    answered = 0
    try:
        family, address = _address(reference, end)
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(address)
            sock.setblocking(False)
            while answered < _EXCHANGES:
                bounds = _exchange(sock, reference, min(_WAIT_S, end - time.monotonic()), answered > 0)
                # A server that is silent or refuses in the middle limits its rate: what it said before holds.
                if bounds is None:
                    break
                lo, hi = max(lo, bounds[0]), min(hi, bounds[1])
                answered += 1
    except OSError as error:
        if not answered:
            raise ClockGap(f"the clock reference {reference} cannot be asked: {error}") from error
    if not answered:
        raise ClockGap(f"the clock reference {reference} does not answer")
    if lo > hi:
        raise ClockGap(f"what the clock reference {reference} said does not fit together: one of the clocks was set")
    return {"method": "sntp", "reference": reference, "lo_ns": lo, "hi_ns": hi, **_stamps(begin, both_clocks())}


def _address(reference: str, end: float) -> tuple[int, Any]:
    """Return family and address of "host:port"; a name server gets no more time than there is. Raises OSError."""
    import _thread
    import socket

    host, colon, port_text = reference.rpartition(":")
    if not colon or port_text.endswith("]") or (":" in host and not host.startswith("[")):
        host, port_text = reference, str(_NTP_PORT)
    host = host.strip("[]")
    port = int(port_text) if port_text.isascii() and port_text.isdigit() else 0
    if not host or not 0 < port < 65536:
        raise OSError("it is not host:port")
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM, flags=socket.AI_NUMERICHOST)
        return found[0][0], found[0][4]
    except (socket.gaierror, ValueError):
        # Not a number, so a name. getaddrinfo(3) cannot be interrupted, only left behind.
        answer: list[tuple[int, Any] | str] = []
    over = _thread.allocate_lock()
    over.acquire()

    def resolve() -> None:
        try:
            first = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
            answer.append((first[0], first[4]))
        except (OSError, ValueError) as error:
            answer.append(f"its name cannot be resolved: {error}")
        finally:
            over.release()

    _thread.start_new_thread(resolve, ())
    if not over.acquire(timeout=max(0.0, end - time.monotonic())):
        raise OSError("its name was not resolved in time; an address needs no name server")
    if isinstance(answer[0], str):
        raise OSError(answer[0])
    return answer[0]


def _exchange(sock: Any, reference: str, wait: float, lenient: bool) -> tuple[int, int] | None:
    """Exchange one packet; return the bounds of (reference - local) that it gives, None where no answer came.

    Raises ClockGap where the server says that it cannot be used (unless ``lenient``: then None).
    """
    deadline = time.monotonic() + wait
    t1 = time.time_ns()
    asked = _to_ntp(t1)
    # Version 4, mode 3 (client); the transmit stamp comes back as the origin stamp of the answer.
    sock.send(struct.pack(">B39xQ", 0x23, asked))
    while (left := deadline - time.monotonic()) > 0 and select.select([sock], [], [], left)[0]:
        packet = sock.recv(512)
        t4 = time.time_ns()
        if len(packet) < 48:
            continue
        first, stratum, precision = struct.unpack_from(">BBxb", packet)
        origin, received, sent = struct.unpack_from(">QQQ", packet, 24)
        # A late answer to an earlier question has another origin.
        if origin != asked or first & 7 != _SERVER_MODE:
            continue
        # Leap 3 and stratum 16: not synchronised; stratum 0: kiss of death (RFC 4330, section 8).
        if first >> 6 == 3 or not 0 < stratum < _UNSYNCHRONISED:
            if lenient:
                return None
            code = packet[12:16].decode("ascii", "replace").strip("\0") if stratum == 0 else "not synchronised"
            raise ClockGap(f"the clock reference {reference} gives no time: it says {code!r}")
        # The server's stamps are no finer than it says (log2 of seconds); NTP's own are 2^-32 s, below 1 ns.
        grain = 1 + (round(2.0**precision * 1e9) if -32 <= precision < 0 else 0)
        return _from_ntp(sent) - t4 - grain, _from_ntp(received) - t1 + grain
    return None


def _to_ntp(unix_ns: int) -> int:
    seconds, rest = divmod(unix_ns, 10**9)
    return ((seconds + _NTP_TO_UNIX) & 0xFFFFFFFF) << 32 | (rest << 32) // 10**9


def _from_ntp(stamp: int) -> int:
    seconds = (stamp >> 32) - _NTP_TO_UNIX
    # Era 1 begins in February 2036.
    if seconds < 0:
        seconds += 1 << 32
    return seconds * 10**9 + ((stamp & 0xFFFFFFFF) * 10**9 >> 32)


def chronyc() -> dict[str, Any]:
    """Ask the local chronyd how far the clock is from UTC; raises ClockGap.

    The bound is ``|system time| + root dispersion + root delay / 2`` (chronyc(1), "tracking"); field 5 is positive
    where the clock is slow, that is, it is ``reference - local``.
    """
    program = next((path for path in _CHRONYC if os.access(path, os.X_OK)), None)
    if program is None or not any(map(os.path.exists, _CHRONY_SOCKETS)):
        raise ClockGap("chronyd does not run")
    from denpex.node import child

    begin = both_clocks()
    try:
        status, output = child.ask([program, "-n", "-c", "tracking"], _CHRONY_S)
    except OSError as error:
        raise ClockGap(f"chronyc cannot be started: {error}") from error
    after = both_clocks()
    if status is None:
        raise ClockGap(f"chronyc did not answer within {_CHRONY_S:g} s")
    if status != 0:
        raise ClockGap("chronyd does not answer chronyc")
    lo, hi = chrony_bounds(output.decode("ascii", "replace"))
    return {"method": "chronyc", "reference": "utc", "lo_ns": lo, "hi_ns": hi, **_stamps(begin, after)}


def chrony_bounds(line: str) -> tuple[int, int]:
    """Return the bounds of (UTC - local) that one line of ``chronyc -n -c tracking`` gives; raises ClockGap."""
    fields = line.strip().split(",")
    try:
        offset, delay, dispersion = float(fields[4]), float(fields[10]), float(fields[11])
        leap = fields[13]
    except (ValueError, IndexError) as error:
        raise ClockGap("chronyc printed what is no tracking report") from error
    if fields[0] in (_CHRONY_LOCAL, "00000000") or leap == "Not synchronised":
        raise ClockGap("chronyd is not synchronised")
    half = dispersion + delay / 2
    return int((offset - half) * 1e9) - 1, int((offset + half) * 1e9) + 1


def adjtimex() -> dict[str, Any]:
    """Ask the kernel for the clock's maximum error against UTC; raises ClockGap where it is not synchronised."""
    import ctypes

    class Timex(ctypes.Structure):
        """struct timex of adjtimex(2), as far as it is read."""

        _fields_ = (
            ("modes", ctypes.c_uint),
            ("offset", ctypes.c_long),
            ("freq", ctypes.c_long),
            ("maxerror", ctypes.c_long),
            ("esterror", ctypes.c_long),
            ("status", ctypes.c_int),
            ("rest", ctypes.c_byte * 256),
        )

    timex = Timex()
    state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(timex))
    if state < 0 or state == _TIME_ERROR or timex.status & _STA_UNSYNC:
        raise ClockGap("the kernel says that the clock is not synchronised")
    error_ns = int(timex.maxerror) * 1000
    return {"method": "adjtimex", "reference": "utc", "lo_ns": -error_ns, "hi_ns": error_ns, **now()}
