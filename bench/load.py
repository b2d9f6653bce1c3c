"""Runs a wire-level load: the C program where a compiler is at hand, the same in Python where not."""

from __future__ import annotations

import json
import signal
import socket
import struct
import subprocess
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from anchors import Unavailable, debian
from anchors.broker_process import BrokerProcess

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE.parent / ".cache" / "bench"
GRACE_SECONDS = 120


class LoadFailed(Exception):
    """A request was refused, or the load ended early; the text says which."""


@dataclass(frozen=True)
class LoadResult:
    """What one run of a load measured."""

    requests: int
    seconds: float
    sent_bytes: int
    received_bytes: int
    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float

    @property
    def requests_per_second(self) -> float:
        return self.requests / self.seconds

    @property
    def sent_mb_per_second(self) -> float:
        return self.sent_bytes / self.seconds / 1e6

    @property
    def received_mb_per_second(self) -> float:
        return self.received_bytes / self.seconds / 1e6


@dataclass(frozen=True)
class Load:
    """Requests to send over one connection, and when to stop."""

    requests: Sequence[bytes]
    error_offset: int
    in_flight: int = 1
    requests_max: int = 1 << 40
    seconds_max: float = 3600.0
    rate: float = 0.0
    response_bytes_min: int = 0


@cache
def program(name: str, *libraries: str) -> Path:
    """The compiled C program, built again when its source is newer."""
    source = HERE / f"{name}.c"
    target = PROGRAMS / name
    if not target.exists() or target.stat().st_mtime < source.stat().st_mtime:
        debian.compile_c(source, target, *libraries)
    return target


@cache
def generator() -> str:
    """Which generator runs the wire-level loads, for the record of settings."""
    try:
        program("wire_load")
    except Unavailable as reason:
        return f"Python ({reason})"
    return "C"


class RunningLoad:
    """A load in the background; `result` waits for its end."""

    def __init__(self, broker: BrokerProcess, load: Load, directory: Path) -> None:
        self._file = directory / f"requests-{time.monotonic_ns()}.bin"
        self._file.write_bytes(b"".join(load.requests))
        command: list[str] = [str(program("wire_load")), broker.address[0], str(broker.address[1])]
        command += [str(self._file), str(load.in_flight), str(load.requests_max), str(load.seconds_max)]
        command += [str(load.rate), str(load.error_offset), str(load.response_bytes_min)]
        self._timeout_seconds = load.seconds_max + GRACE_SECONDS
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def stop(self) -> LoadResult:
        """Sends nothing more, and returns what was measured until now."""
        self._process.send_signal(signal.SIGTERM)
        return self.result()

    def result(self) -> LoadResult:
        try:
            output, errors = self._process.communicate(timeout=self._timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            raise LoadFailed("the load did not end in time") from None
        finally:
            self._file.unlink(missing_ok=True)
        if self._process.returncode != 0:
            raise LoadFailed(errors.strip())
        return LoadResult(**json.loads(output))


def run(broker: BrokerProcess, load: Load, directory: Path) -> LoadResult:
    """Runs the load to its end."""
    if generator() == "C":
        return RunningLoad(broker, load, directory).result()
    return _run_in_python(broker.address, load)


def _run_in_python(address: tuple[str, int], load: Load) -> LoadResult:
    """The same protocol as wire_load.c; on small requests this generator is itself the limit."""
    frames = [bytearray(request) for request in load.requests]
    started: list[float] = []
    latencies: list[float] = []
    sent_bytes = received_bytes = sent = 0
    interval_seconds = 1 / load.rate if load.rate else 0.0
    with socket.create_connection(address, timeout=GRACE_SECONDS) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        reader = connection.makefile("rb", buffering=1 << 20)
        begun = last = time.perf_counter()
        sending = True
        while sending or len(latencies) < sent:
            while sending and sent - len(latencies) < load.in_flight:
                now = time.perf_counter()
                if sent >= load.requests_max or now - begun >= load.seconds_max:
                    sending = False
                    break
                due = begun + sent * interval_seconds
                if now < due:
                    time.sleep(due - now)
                    now = time.perf_counter()
                request = frames[sent % len(frames)]
                struct.pack_into(">i", request, 8, sent)
                started.append(now)
                connection.sendall(request)
                sent += 1
                sent_bytes += len(request)
            if len(latencies) == sent:
                continue
            size = struct.unpack(">i", reader.read(4))[0]
            body = reader.read(size)
            last = time.perf_counter()
            received_bytes += size + 4
            if len(body) < size or size + 4 < load.response_bytes_min:
                raise LoadFailed("a response is too short")
            error = struct.unpack_from(">h", body, load.error_offset - 4)[0]
            if error != 0:
                raise LoadFailed(f"error code {error} in a response")
            latencies.append(last - started[len(latencies)])
    latencies.sort()
    count = len(latencies)
    ranks = (count // 2, count * 99 // 100, count * 999 // 1000, count - 1)
    p50, p99, p999, worst = (latencies[rank] * 1e6 for rank in ranks)
    return LoadResult(count, last - begun, sent_bytes, received_bytes, p50, p99, p999, worst)
