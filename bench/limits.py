"""Rows: what this machine can do at most, measured beside the brokers, and how far from it Culver stays."""

from __future__ import annotations

import os
import socket
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from anchors.broker_process import HOST

from bench import fetch, latency, produce
from bench.session import Session, progress
from bench.table import Distance

CHUNK_BYTES = 1 << 20
WRITE_BYTES = 1_000_000_000
SYNCS = 300
ROUND_TRIPS = 20_000
MESSAGE_BYTES = 170  # one 100-byte message in a batch of its own
RAW_PWRITE_TARGET = 0.8
PWRITE = "pwrite to fresh blocks"
GROUP = "limits"


@dataclass(frozen=True)
class Limits:
    """Medians over the rounds of one run."""

    loopback_mb_per_second: float
    pwrite_mb_per_second: float
    receive_and_pwrite_mb_per_second: float
    fdatasync_us: float
    round_trip_us: float


def measure(session: Session) -> Limits | None:
    """The limits, medians of the same number of rounds as the rows; None when not wanted."""
    if not session.wanted(GROUP, "of this machine"):
        return None
    seconds = session.scale.seconds

    def rounds(one: Callable[[], float]) -> float:
        return median(one() for _ in range(session.scale.rounds))

    limits = Limits(
        rounds(lambda: loopback_mb_per_second(seconds)),
        rounds(lambda: pwrite_mb_per_second(session.directory)),
        rounds(lambda: receive_and_pwrite_mb_per_second(session.directory, seconds)),
        rounds(lambda: fdatasync_us(session.directory)),
        rounds(round_trip_us),
    )
    progress(f"limits: {limits}")
    return limits


def distances(session: Session, limits: Limits) -> None:
    """Rows for what was measured in this run: Culver beside the limit that bounds it."""
    report = session.report
    large_batches = (produce.GROUP, "1 MB batches, acks=1", "MB/s")
    chosen = (
        (*large_batches, PWRITE, limits.pwrite_mb_per_second),
        (*large_batches, "receive and pwrite", limits.receive_and_pwrite_mb_per_second),
        (*large_batches, "loopback copy", limits.loopback_mb_per_second),
        (fetch.GROUP, "1 MB batches", "MB/s", "loopback copy", limits.loopback_mb_per_second),
        (latency.GROUP, "one message, acks=1, p50", "us", "loopback round trip", limits.round_trip_us),
        (latency.GROUP, "one message, acks=1, fsync, p50", "us", "fdatasync", limits.fdatasync_us),
    )
    for group, label, unit, limit_name, limit in chosen:
        culver = report.culver_value(group, label)
        if culver is None:
            continue
        target = RAW_PWRITE_TARGET if limit_name == PWRITE else None
        row = Distance(f"{group}: {label}", unit, culver, limit_name, limit, target, unit == "MB/s")
        report.distances.append(row)


def loopback_mb_per_second(seconds: float) -> float:
    """How fast one process hands bytes to another through TCP on the loopback device."""
    return _received_mb_per_second(seconds, lambda _chunk, _position: None)


def receive_and_pwrite_mb_per_second(directory: Path, seconds: float) -> float:
    """The same with every megabyte written to a new file: what a broker that did nothing else would reach."""
    os.sync()
    with tempfile.TemporaryFile(dir=directory) as file:
        descriptor = file.fileno()
        return _received_mb_per_second(
            seconds, lambda chunk, position: os.pwrite(descriptor, chunk, position)
        )


def _received_mb_per_second(seconds: float, use: Callable[[memoryview, int], object]) -> float:
    with socket.create_server((HOST, 0)) as listener:
        child = os.fork()
        if child == 0:
            _send_for(listener.getsockname(), seconds)
            os._exit(0)
        connection, _ = listener.accept()
        with connection:
            buffer = memoryview(bytearray(CHUNK_BYTES))
            begun = time.perf_counter()
            total = filled = 0
            while received := connection.recv_into(buffer[filled:]):
                filled += received
                if filled == CHUNK_BYTES:
                    use(buffer, total)
                    total += filled
                    filled = 0
            elapsed = time.perf_counter() - begun
        os.waitpid(child, 0)
    return total / elapsed / 1e6


def _send_for(address: tuple[str, int], seconds: float) -> None:
    with socket.create_connection(address) as connection:
        chunk = bytes(CHUNK_BYTES)
        deadline = time.perf_counter() + seconds
        while time.perf_counter() < deadline:
            connection.sendall(chunk)


def pwrite_mb_per_second(directory: Path) -> float:
    """How fast pwrite fills a new file through the page cache, as a log does: every block is fresh."""
    os.sync()
    chunk = os.urandom(CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=directory) as file:
        begun = time.perf_counter()
        for position in range(0, WRITE_BYTES, CHUNK_BYTES):
            os.pwrite(file.fileno(), chunk, position)
        elapsed = time.perf_counter() - begun
    return WRITE_BYTES / elapsed / 1e6


def fdatasync_us(directory: Path) -> float:
    """The median time to make one appended message durable."""
    message = os.urandom(MESSAGE_BYTES)
    times = []
    with tempfile.TemporaryFile(dir=directory) as file:
        for index in range(SYNCS):
            os.pwrite(file.fileno(), message, index * MESSAGE_BYTES)
            begun = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - begun)
    return median(times) * 1e6


def round_trip_us() -> float:
    """The median time of one message to another process and back, neither doing anything with it."""
    with socket.create_server((HOST, 0)) as listener:
        child = os.fork()
        if child == 0:
            _echo(listener.getsockname())
            os._exit(0)
        connection, _ = listener.accept()
        message = bytes(MESSAGE_BYTES)
        times = []
        with connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for _ in range(ROUND_TRIPS):
                begun = time.perf_counter()
                connection.send(message)
                connection.recv(MESSAGE_BYTES)
                times.append(time.perf_counter() - begun)
        os.waitpid(child, 0)
    return median(times) * 1e6


def _echo(address: tuple[str, int]) -> None:
    with socket.create_connection(address) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        while message := connection.recv(MESSAGE_BYTES):
            connection.send(message)
