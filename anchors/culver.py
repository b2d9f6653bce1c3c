"""Culver as a process of its own, in the same harness as Kafka: a comparison treats both alike."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path

from anchors.broker_process import HOST, BrokerProcess


class Culver(BrokerProcess):
    """`python -m culver serve` with settings by name."""

    name = "Culver"

    def __init__(self, settings: Mapping[str, str] | None = None, *, directory: Path | None = None) -> None:
        super().__init__(directory)
        self._settings = dict(settings or {})

    def command(self) -> list[str]:
        command = [sys.executable, "-m", "culver", "serve", "--data-dir", str(self.data_dir)]
        command += ["--listen", f"{HOST}:{self.port}"]
        for name, value in self._settings.items():
            command += ["--set", f"{name}={value}"]
        return command
