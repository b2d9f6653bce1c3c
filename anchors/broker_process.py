"""A broker as a process of its own: started, waited for, stopped, killed, restarted, cleaned up after."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
import time
from abc import ABC, abstractmethod
from pathlib import Path
from types import TracebackType
from typing import Self

HOST = "127.0.0.1"
POLL_SECONDS = 0.002
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


class StartFailed(Exception):
    """The broker process ended, or did not answer in time; the text holds the end of its log."""


def free_port() -> int:
    """A TCP port that nobody listens on at the moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


def serves_metadata(port: int, timeout_seconds: float = 2.0) -> bool:
    """Whether a broker answers Metadata there and names at least one broker (itself)."""
    return known_brokers(port, timeout_seconds) > 0


def known_brokers(port: int, timeout_seconds: float = 2.0) -> int:
    """How many brokers the one there names; 0 when it does not answer."""
    body = struct.pack(">hhih4si", 3, 1, 1, 4, b"wait", 0)
    try:
        with socket.create_connection((HOST, port), timeout=timeout_seconds) as connection:
            connection.sendall(struct.pack(">i", len(body)) + body)
            answer = b""
            while len(answer) < 12:
                received = connection.recv(4096)
                if not received:
                    return 0
                answer += received
    except OSError:
        return 0
    count: int = struct.unpack_from(">i", answer, 8)[0]
    return count


class BrokerProcess(ABC):
    """One broker, in a directory of its own that is removed in the end.

    A context manager. `start_seconds` is the time from process start to the first answered Metadata.
    """

    name: str
    start_timeout_seconds = 60.0
    stop_timeout_seconds = 30.0

    def __init__(self, directory: Path | None = None) -> None:
        self.port = free_port()
        self._base = Path(tempfile.mkdtemp(prefix=f"{self.name.lower()}-", dir=directory))
        self.data_dir = self._base / "data"
        self.log_file = self._base / "broker.log"
        self._process: subprocess.Popen[bytes] | None = None
        self.start_seconds = 0.0
        # A test run that dies between start and exit must not leave a broker behind.
        atexit.register(self.close)

    @abstractmethod
    def command(self) -> list[str]:
        """The command that serves on `self.port` from `self.data_dir`."""

    def is_ready(self) -> bool:
        return serves_metadata(self.port)

    def environment(self) -> dict[str, str]:
        return dict(os.environ)

    @property
    def bootstrap(self) -> str:
        return f"{HOST}:{self.port}"

    @property
    def address(self) -> tuple[str, int]:
        return (HOST, self.port)

    @property
    def pid(self) -> int:
        if self._process is None:
            raise RuntimeError(f"{self.name} is not running")
        return self._process.pid

    def start(self) -> None:
        """Starts the process and returns once it serves Metadata."""
        if self._process is not None:
            raise RuntimeError(f"{self.name} is already running")
        with self.log_file.open("ab") as log:
            begun = time.perf_counter()
            self._process = subprocess.Popen(
                self.command(), stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment()
            )
        while not self.is_ready():
            if self._process.poll() is not None:
                self._process = None
                raise StartFailed(f"{self.name} ended while starting:\n{self.log_tail()}")
            if time.perf_counter() - begun > self.start_timeout_seconds:
                self.kill()
                raise StartFailed(f"{self.name} did not answer in time:\n{self.log_tail()}")
            time.sleep(POLL_SECONDS)
        self.start_seconds = time.perf_counter() - begun

    def stop(self) -> None:
        """SIGTERM and wait; SIGKILL when that is not enough. Does nothing when not running."""
        if self._process is None:
            return
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(self.stop_timeout_seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process = None

    def kill(self) -> None:
        """SIGKILL: what a crash of the process leaves on disk."""
        if self._process is None:
            return
        self._process.kill()
        self._process.wait()
        self._process = None

    def restart(self) -> None:
        """Stops cleanly if still running, and starts again on the same port and data."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Ends the process and removes its directory."""
        self.kill()
        shutil.rmtree(self._base, ignore_errors=True)
        atexit.unregister(self.close)

    def log_tail(self, size_bytes: int = 4000) -> str:
        with contextlib.suppress(FileNotFoundError):
            return self.log_file.read_bytes()[-size_bytes:].decode(errors="replace")
        return ""

    def resident_bytes(self) -> int:
        """VmRSS of the process."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1]) * 1024
        raise RuntimeError("no VmRSS in /proc")

    def cpu_seconds(self) -> float:
        """User and system time of the process, all threads, since its start."""
        # The command name in parentheses may hold spaces, so fields are counted from its end.
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND

    def __enter__(self) -> Self:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            self.stop()
        finally:
            self.close()
