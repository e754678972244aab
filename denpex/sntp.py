"""Answers SNTP requests, so that all nodes measure their clocks against one: the worker's own (RFC 4330).

It claims no accuracy against UTC: stratum 10, reference "LOCL" (RFC 5905, figure 12). What counts is that every node
measures against the same clock, and that the two stamps of an answer are read where the packet is read and sent.
"""

from __future__ import annotations

import socket
import struct
import threading
import time

from denpex.errors import ServiceError

# Seconds from 1900, NTP's era 0, to 1970 (RFC 5905, section 6).
_NTP_TO_UNIX = 2_208_988_800
_PACKET = struct.Struct(">BBbbII4sQQQQ")
_CLIENT, _SERVER = 3, 4
_STRATUM = 10
# log2 of seconds: a clock read is good to about a microsecond.
_PRECISION = -20
# Root dispersion, NTP short format (16.16): 1 s, for the worker's own clock is of unknown accuracy.
_DISPERSION = 1 << 16


def answer(request: bytes, received_ns: int, sent_ns: int) -> bytes | None:
    """Return the answer to one datagram, times in nanoseconds since 1970; None where it is no client's request.

    Only requests are answered (mode 3), never answers, so that two servers cannot keep each other busy; and never
    with more bytes than came, so that nobody's traffic is multiplied.
    """
    if len(request) < _PACKET.size:
        return None
    first, _, poll = struct.unpack_from(">BBb", request)
    version, mode = first >> 3 & 7, first & 7
    if mode != _CLIENT or not 1 <= version <= 4:
        return None
    (transmitted,) = struct.unpack_from(">Q", request, 40)
    return _PACKET.pack(
        version << 3 | _SERVER, _STRATUM, poll, _PRECISION, 0, _DISPERSION, b"LOCL",
        stamp(received_ns), transmitted, stamp(received_ns), stamp(sent_ns),
    )  # fmt: skip


def stamp(unix_ns: int) -> int:
    """Return nanoseconds since 1970 as NTP's 64 bits; era 1 begins in February 2036 by itself."""
    seconds, rest = divmod(unix_ns, 10**9)
    return ((seconds + _NTP_TO_UNIX) & 0xFFFFFFFF) << 32 | (rest << 32) // 10**9


class Responder:
    """A thread that answers at one address until it is stopped."""

    def __init__(self, address: str) -> None:
        """Bind to ``address`` ("host:port"); raises ServiceError."""
        host, _, port = address.rpartition(":")
        try:
            family, kind, _, _, place = socket.getaddrinfo(
                host.strip("[]") or None, int(port), type=socket.SOCK_DGRAM, flags=socket.AI_PASSIVE
            )[0]
            self._socket = socket.socket(family, kind)
            self._socket.bind(place)
        except (OSError, ValueError) as error:
            raise ServiceError(f"SNTP requests cannot be answered at {address!r} (clock.serve): {error}") from error
        # So that the thread sees the stop without a packet.
        self._socket.settimeout(0.5)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._serve, name="sntp", daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        """The port that is answered at."""
        number: int = self._socket.getsockname()[1]
        return number

    def _serve(self) -> None:
        while not self._stop.is_set():
            try:
                request, peer = self._socket.recvfrom(512)
            except TimeoutError:
                continue
            except OSError:
                # An ICMP error of an earlier answer.
                continue
            received_ns = time.time_ns()
            packet = answer(request, received_ns, time.time_ns())
            if packet is None:
                continue
            try:
                self._socket.sendto(packet, peer)
            except OSError:
                # The asker is gone; the next one is not.
                continue

    def stop(self) -> None:
        """End the thread and close the socket."""
        self._stop.set()
        self._thread.join(1.0)
        self._socket.close()
