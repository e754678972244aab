"""Clock samples: intervals that hold the truth, bounded waits, and sources that are not believed."""

import socket
import struct
import threading
import time

import pytest

from denpex import sntp
from denpex.node import clock


class Server:
    """An SNTP server on this machine whose clock is ``ahead_ns`` ahead and whose answers ``change`` may spoil."""

    def __init__(self, ahead_ns=0, change=lambda packet, _number: packet, delay=0.0):
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))
        self.asked = 0
        self._arguments = (ahead_ns, change, delay)
        self._thread = threading.Thread(target=self._serve)
        self._thread.start()

    @property
    def name(self):
        return f"127.0.0.1:{self.socket.getsockname()[1]}"

    def _serve(self):
        ahead_ns, change, delay = self._arguments
        while True:
            request, peer = self.socket.recvfrom(512)
            if not request:
                return
            self.asked += 1
            received = time.time_ns() + ahead_ns
            time.sleep(delay)
            packet = change(sntp.answer(request, received, time.time_ns() + ahead_ns), self.asked)
            if packet:
                self.socket.sendto(packet, peer)

    def close(self):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
            sock.sendto(b"", self.socket.getsockname())
        self._thread.join()
        self.socket.close()


@pytest.fixture
def serve():
    made = []

    def start(*arguments, **more):
        made.append(Server(*arguments, **more))
        return made[-1]

    yield start
    for server in made:
        server.close()


@pytest.mark.parametrize("ahead_ns", [0, 45 * 10**9, -3 * 10**9])
def test_the_interval_holds_the_true_difference(serve, ahead_ns):
    server = serve(ahead_ns)
    sample = clock.sntp(server.name)
    assert sample["lo_ns"] <= ahead_ns <= sample["hi_ns"]
    assert server.asked == 8
    assert abs(sample["realtime_ns"] - time.time_ns()) < 10**9
    assert abs(sample["raw_ns"] - time.clock_gettime_ns(time.CLOCK_MONOTONIC_RAW)) < 10**9


def test_a_slow_server_widens_nothing_but_the_wait(serve):
    sample = clock.sntp(serve(10**9, delay=0.004).name)
    assert sample["lo_ns"] <= 10**9 <= sample["hi_ns"]


def spoiled(offset, value):
    def change(packet, _number):
        return packet[:offset] + value + packet[offset + len(value) :]

    return change


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (spoiled(0, b"\xe4"), "not synchronised"),  # leap 3
        (spoiled(1, b"\x10"), "not synchronised"),  # stratum 16
        (lambda packet, _: packet[:1] + b"\x00" + packet[2:12] + b"RATE" + packet[16:], "RATE"),  # kiss of death
        (spoiled(24, b"\x00" * 8), "does not answer"),  # an answer to something else
        (spoiled(0, b"\x23"), "does not answer"),  # a client's packet
        (lambda packet, _: packet[:47], "does not answer"),
        (lambda *_: b"", "does not answer"),
    ],
)
def test_a_server_that_cannot_be_believed_gives_no_sample(serve, change, why):
    began = time.monotonic()
    with pytest.raises(clock.ClockGap, match=why):
        clock.sntp(serve(change=change).name)
    assert time.monotonic() - began < 0.3


def test_a_server_that_limits_its_rate_in_the_middle_has_been_heard(serve):
    server = serve(change=lambda packet, number: packet if number <= 3 else b"")
    assert clock.sntp(server.name)["lo_ns"] <= 0
    assert server.asked == 4


def test_a_clock_that_is_set_meanwhile_gives_no_sample(serve):
    def set_back(packet, number):
        received, sent = struct.unpack_from(">QQ", packet, 32)
        return packet[:32] + struct.pack(">QQ", received - (9 << 32), sent - (9 << 32)) if number > 4 else packet

    with pytest.raises(clock.ClockGap, match="does not fit together"):
        clock.sntp(serve(change=set_back).name)


def test_servers_that_cannot_be_reached_cost_a_tenth_of_a_second_in_all(serve):
    silent = [serve(change=lambda *_: b"").name for _ in range(6)]
    began = time.monotonic()
    found, problems = clock.samples(silent, "prolog")
    assert time.monotonic() - began < 0.5
    assert not [sample for sample in found if sample["method"] == "sntp"]
    assert len([text for text in problems if "127.0.0.1" in text]) == 6


def test_the_next_server_is_asked_where_the_first_does_not_answer(serve):
    found, _ = clock.samples([serve(change=lambda *_: b"").name, serve(5 * 10**9).name], "task")
    (sample,) = [sample for sample in found if sample["method"] == "sntp"]
    assert sample["lo_ns"] <= 5 * 10**9 <= sample["hi_ns"]
    assert sample["when"] == "task"


@pytest.mark.parametrize(
    "reference", ["", ":", "host:", "h:x", "h:0", "h:99999", "[::1", "no such host:123", "\udcff:1"]
)
def test_what_names_no_server_is_a_gap(reference):
    with pytest.raises(clock.ClockGap):
        clock.sntp(reference)


def test_a_name_server_that_does_not_answer_is_not_waited_for(monkeypatch):
    real = socket.getaddrinfo

    def slow(host, port, *arguments, flags=0, **more):
        if flags & socket.AI_NUMERICHOST:
            return real(host, port, *arguments, flags=flags, **more)
        time.sleep(1)
        raise OSError("late")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    began = time.monotonic()
    with pytest.raises(clock.ClockGap, match="not resolved in time"):
        clock.sntp("ntp.example:123")
    assert time.monotonic() - began < 0.5


# chronyc(1), "tracking": the fields of its CSV form in the order of the text form.
TRACKING = "C0A80001,ntp1,3,1796129728.1,{0},0.0,0.0,-12.3,0.0,0.1,0.000400,0.000100,64.0,Normal\n"


def test_chronys_offset_is_positive_where_the_clock_is_slow():
    lo, hi = clock.chrony_bounds(TRACKING.format("0.500000"))
    assert lo == pytest.approx(499_700_000, abs=10)
    assert hi == pytest.approx(500_300_000, abs=10)


@pytest.mark.parametrize(
    "line",
    [
        TRACKING.format("0.0").replace("C0A80001", "7F7F0101"),  # "local": free-running, and says Normal
        TRACKING.format("0.0").replace("Normal", "Not synchronised"),
        TRACKING.format("0.0").replace("C0A80001", "00000000"),
        "506 Cannot talk to daemon\n",
        "",
        TRACKING.format("x"),
    ],
)
def test_a_chronyd_that_is_not_synchronised_gives_no_bounds(line):
    with pytest.raises(clock.ClockGap):
        clock.chrony_bounds(line)


def test_the_kernels_own_word_is_an_interval_or_a_gap():
    found, problems = clock.samples([], "task")
    own = [sample for sample in found if sample["method"] == "adjtimex"]
    assert len(own) + sum("the kernel says" in text for text in problems) == 1
    assert all(sample["lo_ns"] == -sample["hi_ns"] <= 0 for sample in own)
