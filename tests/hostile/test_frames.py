"""Frames and headers that are wrong: sizes, keys, versions, client ids, tags, and bytes that come slowly."""

from __future__ import annotations

import contextlib
import socket
import struct
import time
from pathlib import Path

import pytest

from culver.protocol.messages.api_versions import ApiVersionsRequest
from culver.protocol.messages.describe_cluster import DescribeClusterRequest
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from hostile.victim import PREY, Victim, fetch_request, produce_request, record_batch
from raw_connection import Closed, RawConnection, encode_request, framed

METADATA = encode_request(MetadataRequest(topics=[]), 4)


@pytest.mark.parametrize("size", [0, 1, 9, -1, -2, -(2**31), 100 * (1 << 20) + 1, 2**31 - 1])
def test_a_size_that_cannot_be_closes_the_connection(victim: Victim, size: int) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(struct.pack(">i", size) + b"\0" * 9)
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("key", [-1, -32768, 4, 7, 52, 93, 1000, 32767])
def test_an_unknown_api_closes_the_connection(victim: Victim, key: int) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(framed(struct.pack(">hhih", key, 0, 1, -1) + bytes(100)))
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("version", [-1, -32768, 14, 100, 32767])
def test_an_unknown_version_closes_the_connection(victim: Victim, version: int) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(framed(struct.pack(">hhih", 3, version, 1, -1) + bytes(100)))
        assert connection.is_closed_by_peer()


@pytest.mark.parametrize("client_id", [b"\xff\xfe", b"\xed\xa0\x80", b"\xc0\xaf", b"abc\x80"])
def test_a_client_id_that_is_no_text_closes_the_connection(victim: Victim, client_id: bytes) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(framed(struct.pack(">hhih", 3, 4, 1, len(client_id)) + client_id + bytes(5)))
        assert connection.is_closed_by_peer()


def test_a_long_client_id_is_taken(victim: Victim) -> None:
    with RawConnection(victim.address) as connection:
        for client_id in ("x" * 32767, "", None, "\0", "../../etc/passwd", "ü" * 10_000):
            assert connection.call(MetadataRequest(topics=[]), 4, client_id=client_id).brokers


@pytest.mark.parametrize("bad", [b"\xff\xfe\xfd", b"\xed\xbf\xbf", b"\xf8\x88\x80\x80\x80"])
def test_a_name_that_is_no_text_closes_the_connection(victim: Victim, bad: bytes) -> None:
    good = encode_request(MetadataRequest(topics=[MetadataRequestTopic(name="abc")]), 4)
    with RawConnection(victim.address) as connection:
        connection.send(framed(good.replace(b"\x00\x03abc", struct.pack(">h", len(bad)) + bad)))
        assert connection.is_closed_by_peer()


def test_unknown_tags_are_skipped_and_those_that_overrun_are_not(victim: Victim) -> None:
    header = struct.pack(">hhih", 60, 0, 1, -1)
    with RawConnection(victim.address) as connection:
        connection.send(framed(header + b"\x02\x05\x03abc\x09\x00" + b"\x00" + b"\x01\x7f\x02zz"))
        assert connection.receive_frame()
    many = b"".join(struct.pack("BB", 0x80 | tag & 0x7F, 1 + (tag >> 7)) + b"\0" for tag in range(5000))
    for tags in (
        b"\x01\x05\x7fabc",
        b"\x01\x05\xff\xff\xff\xff\x0f",
        b"\xff\xff\xff\xff\x0f",
        b"\xff" * 200,
        b"\x88\x27" + many,
    ):
        with RawConnection(victim.address) as connection:
            connection.send(framed(header + tags))
            connection.half_close()
            connection.is_closed_by_peer()


def test_good_requests_before_a_bad_one_are_answered(victim: Victim) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(framed(METADATA) * 3 + framed(b"\xff" * 20))
        for _ in range(3):
            connection.receive_frame()
        with pytest.raises(Closed):
            connection.receive_frame()


def test_a_request_that_comes_byte_by_byte_is_answered(victim: Victim) -> None:
    frame = framed(encode_request(produce_request(PREY, record_batch(b"slow")), 9))
    with RawConnection(victim.address) as connection, victim.others_are_served():
        for position in range(len(frame)):
            connection.send(frame[position : position + 1])
        assert connection.receive_frame()


def test_many_slow_clients_hold_nobody_up(victim: Victim) -> None:
    """Each sends a byte now and then, as a slow-loris attack does."""
    frame = framed(encode_request(MetadataRequest(topics=None), 9))
    connections = [socket.create_connection(victim.address) for _ in range(500)]
    try:
        with victim.others_are_served(), victim.grows_by_less_than(20 << 20):
            for position in range(len(frame) - 1):
                for connection in connections:
                    connection.send(frame[position : position + 1])
        for connection in connections:
            connection.send(frame[-1:])
            assert connection.recv(4)
    finally:
        for connection in connections:
            connection.close()


def test_clients_that_vanish_leave_nothing_behind(victim: Victim) -> None:
    """They go in the middle of a request, of a response, or of a long poll."""
    waiting = framed(encode_request(fetch_request(PREY, 10**6, max_wait_ms=60_000), 11))
    polling = framed(encode_request(fetch_request(PREY, 0, max_wait_ms=60_000), 11))
    reset = struct.pack("ii", 1, 0)
    before = open_sockets(victim)
    with victim.others_are_served():
        for round_ in range(300):
            connection = socket.create_connection(victim.address)
            connection.sendall((waiting, polling, framed(METADATA) * 50, framed(METADATA)[:7])[round_ % 4])
            if round_ % 2:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)  # close with a reset
            connection.close()
    deadline = time.monotonic() + 5
    while (left := open_sockets(victim)) > before and time.monotonic() < deadline:
        victim.round_trip()
    assert left <= before, "connections that are gone are still open in the broker"


def open_sockets(victim: Victim) -> int:
    sockets = 0
    for descriptor in Path(f"/proc/{victim.broker.pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            sockets += str(descriptor.readlink()).startswith("socket:")
    return sockets


def test_api_versions_of_the_future_gets_the_answer_that_clients_rely_on(victim: Victim) -> None:
    with RawConnection(victim.address) as connection:
        connection.send(framed(struct.pack(">hhih", 18, 999, 77, -1) + b"\0" + b"\xff" * 50))
        correlation_id, code, count = struct.unpack_from(">ihi", connection.receive_frame())
        assert (correlation_id, code, count) == (77, 35, 1)
        assert connection.call(ApiVersionsRequest(), 0).api_keys
        assert connection.call(DescribeClusterRequest(), 0).brokers
