"""Culver as a process of its own, in the same harness as Kafka: a comparison treats both alike."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from anchors.broker_process import HOST, BrokerProcess


class Culver(BrokerProcess):
    """`python -m culver serve` with settings by name."""

    name = "Culver"
    start_timeout_seconds = 30.0

    def __init__(self, settings: Mapping[str, str] | None = None, *, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._settings = dict(settings or {})
        self._log_bytes_before = 0
        self.arguments: list[str] = []

    def start(self) -> None:
        # The log is kept across restarts; only what this start prints says that it is ready.
        self._log_bytes_before = self.log_file.stat().st_size if self.log_file.exists() else 0
        super().start()

    def is_ready(self) -> bool:
        """It serves, and it has said so: the line that starts with `ready`."""
        if not super().is_ready():
            return False
        printed = self.log_file.read_bytes()[self._log_bytes_before :]
        return any(line.startswith(b"ready") for line in printed.splitlines())

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "culver", "serve", "--no-http", "--data-dir", str(self.data_dir)]
        command += ["--listen", f"{HOST}:{self.port}"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return command + self.arguments
