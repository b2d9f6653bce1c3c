"""Syslog over UDP and TCP, in both framings."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from culver.ingest.spool import Spool
from culver.ingest.syslog import SyslogListener

LOOPBACK = ("127.0.0.1", 0)


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    spool = Spool(tmp_path, max_bytes=1 << 20)
    yield spool
    spool.close()


@pytest.fixture
def listener(spool: Spool) -> Iterator[SyslogListener]:
    listener = SyslogListener(spool, lambda: 1, udp=LOOPBACK, tcp=LOOPBACK, message_max_bytes=1000)
    yield listener
    listener.close()


def received(spool: Spool, count: int) -> list[bytes]:
    lines: list[bytes] = []
    deadline = time.monotonic() + 10
    while len(lines) < count:
        assert time.monotonic() < deadline, f"only {lines} came"
        lines += [line.text for line in spool.read(1000)]
    return lines


def connect(listener: SyslogListener) -> socket.socket:
    assert listener.tcp_address is not None
    return socket.create_connection(listener.tcp_address)


def test_datagrams(listener: SyslogListener, spool: Spool) -> None:
    assert listener.udp_address is not None
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
        for number in range(50):
            sender.sendto(b"<13>1 - host app - - - %d\n" % number, listener.udp_address)
    assert received(spool, 50) == [b"<13>1 - host app - - - %d" % number for number in range(50)]


def test_lines(listener: SyslogListener, spool: Spool) -> None:
    with connect(listener) as sender:
        sender.sendall(b"<13>one\n<13>tw")
        sender.sendall(b"o\n<13>three without an end")
    assert received(spool, 3) == [b"<13>one", b"<13>two", b"<13>three without an end"]


def test_lengths(listener: SyslogListener, spool: Spool) -> None:
    message = b"<13>two\nlines"
    with connect(listener) as sender:
        for piece in (b"7 <13>one", b"%d " % len(message), message[:4], message[4:], b"5 <1>x\n"):
            sender.sendall(piece)
    assert received(spool, 3) == [b"<13>one", message, b"<1>x"]


@pytest.mark.parametrize("lie", [b"9999999 x", b"12x34 ", b"1" * 30])
def test_a_length_that_lies_ends_that_connection_only(
    listener: SyslogListener, spool: Spool, lie: bytes
) -> None:
    with connect(listener) as sender:
        sender.sendall(lie)
        assert sender.recv(1) == b""
    with connect(listener) as sender:
        sender.sendall(b"fine\n")
    assert received(spool, 1) == [b"fine"]


def test_an_address_that_is_taken(spool: Spool) -> None:
    with socket.create_server(LOOPBACK) as taken, pytest.raises(OSError):
        SyslogListener(spool, lambda: 1, tcp=taken.getsockname()[:2])


def test_a_full_spool_holds_a_connection_back_and_loses_nothing(tmp_path: Path) -> None:
    spool = Spool(tmp_path / "small", max_bytes=4_000, segment_bytes=500)
    listener = SyslogListener(spool, lambda: 1, tcp=LOOPBACK)
    try:
        lines: list[bytes] = []
        with connect(listener) as sender:
            sender.sendall(b"".join(b"line %04d\n" % number for number in range(200)))
        deadline = time.monotonic() + 20
        while len(lines) < 200:
            assert time.monotonic() < deadline
            batch = spool.read(10)
            lines += [line.text for line in batch]
            if batch:
                spool.acknowledge(batch[-1].state)
        assert lines == [b"line %04d" % number for number in range(200)]
    finally:
        listener.close()
        spool.close()
