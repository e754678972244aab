"""The worker's clock is served as RFC 4330 says, and the nodes' own measurement understands it."""

import socket
import struct
import time

import pytest

from denpex import sntp
from denpex.errors import ServiceError
from denpex.node import clock


@pytest.fixture
def responder():
    made = sntp.Responder("127.0.0.1:0")
    yield made
    made.stop()


def test_a_node_measures_itself_against_the_worker(responder):
    sample = clock.sntp(f"127.0.0.1:{responder.port}")
    assert sample["lo_ns"] <= 0 <= sample["hi_ns"]
    assert sample["hi_ns"] - sample["lo_ns"] < 50_000_000


def test_an_answer_carries_the_askers_stamp_and_the_moments_of_receipt_and_sending():
    asked = struct.pack(">B39xQ", 0x1B, 0x0123456789ABCDEF)
    packet = sntp.answer(asked, 10**18, 10**18 + 5)
    first, stratum, _, _, _, _, name, reference, origin, received, sent = struct.unpack(">BBbbII4sQQQQ", packet)
    assert (first >> 6, first >> 3 & 7, first & 7) == (0, 3, 4)  # no leap, the asker's version, server
    assert (stratum, name, origin) == (10, b"LOCL", 0x0123456789ABCDEF)
    assert reference <= received <= sent
    assert (received >> 32) - 2_208_988_800 == 10**9
    assert len(packet) == len(asked)


@pytest.mark.parametrize("first", [0x24, 0x26, 0x1C, 0x00, 0x3B])
def test_only_a_clients_request_is_answered(first):
    assert sntp.answer(struct.pack(">B47x", first), 1, 1) is None
    assert sntp.answer(b"\x1b" * 20, 1, 1) is None


def test_the_era_of_2036_begins_by_itself():
    assert sntp.stamp(2_085_978_496 * 10**9) >> 32 == 0


def test_garbage_does_not_stop_it(responder):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for junk in (b"", b"\x00", b"\xff" * 512):
            sock.sendto(junk, ("127.0.0.1", responder.port))
    assert clock.sntp(f"127.0.0.1:{responder.port}")["method"] == "sntp"


def test_it_ends_at_once():
    made = sntp.Responder("127.0.0.1:0")
    began = time.monotonic()
    made.stop()
    assert time.monotonic() - began < 1.0


def test_an_address_that_cannot_be_served_is_named():
    with pytest.raises(ServiceError, match=r"clock\.serve"):
        sntp.Responder("127.0.0.1:http?")
