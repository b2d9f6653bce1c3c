"""A real gateway in a subprocess, in front of a cluster that a test has started."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from culver.testing.announced_process import AnnouncedProcess, BrokerFailed, ForTheBlock, NotAnnounced
from culver.testing.broker import (
    READY_TIMEOUT_SECONDS,
    STOP_TIMEOUT_SECONDS,
    SettingValue,
    setting_text,
)


class Gateway(ForTheBlock):
    """`culver gateway` on a free port of the loopback. `config` holds settings by their names (`culver.http.*`).

    The process dies with this one, however this one ends.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        config: Mapping[str, SettingValue] | None = None,
        *,
        http: str = "127.0.0.1:0",
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self._bootstrap_servers = bootstrap_servers
        self._config = {name: setting_text(value) for name, value in (config or {}).items()}
        self._http = http
        self._arguments = list(arguments)
        self._environment = dict(environment or {})
        self._child: AnnouncedProcess | None = None
        self._workspace: Path | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """Its address, `http://host:port`. Stays the same across `restart()`."""
        if self._url is None:
            raise BrokerFailed("the gateway has not been started: use `with Gateway(...) as gateway`")
        return self._url

    @property
    def pid(self) -> int:
        """The process id of the running gateway."""
        if self._child is None:
            raise BrokerFailed("the gateway is not running")
        return self._child.process.pid

    @property
    def log_text(self) -> str:
        """What it wrote to stderr so far, over all its restarts."""
        return (
            "" if self._workspace is None else (self._workspace / "gateway.log").read_text(errors="replace")
        )

    def start(self) -> Gateway:
        """Start it and wait until it serves. A failure leaves nothing running."""
        if self._workspace is None:
            self._workspace = Path(tempfile.mkdtemp(prefix="culver-test-gateway-"))
        self._child = AnnouncedProcess(self._command(), self._workspace / "gateway.log", self._environment)
        try:
            (self._url,) = self._child.wait_for("http", READY_TIMEOUT_SECONDS)
        except NotAnnounced as failure:
            told = f"the gateway {failure}; its log:\n{self.log_text}"
            self.kill()
            raise BrokerFailed(told) from None
        return self

    def _command(self) -> list[str]:
        # A restart keeps the port that was picked the first time.
        http = self._http if self._url is None else self._url.removeprefix("http://")
        command = [sys.executable, "-m", "culver", "gateway", "--http", http]
        command += ["--bootstrap", self._bootstrap_servers]
        for name, value in self._config.items():
            command += ["--set", f"{name}={value}"]
        return command + self._arguments

    def stop(self, timeout_s: float = 2 * STOP_TIMEOUT_SECONDS) -> None:
        """Ask it to end (SIGTERM) and insist on a clean exit."""
        if self._child is None:
            return
        process = self._child.process
        process.send_signal(signal.SIGTERM)
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            raise BrokerFailed(
                f"the gateway had not ended {timeout_s:g} s after SIGTERM:\n{self.log_text}"
            ) from None
        self._child.reap()
        self._child = None
        if exit_code != 0:
            raise BrokerFailed(f"the gateway ended with exit code {exit_code}; its log:\n{self.log_text}")

    def kill(self) -> None:
        """End it at once (SIGKILL), as a crash would."""
        if self._child is not None:
            self._child.process.kill()
            self._child.reap()
            self._child = None

    def restart(self) -> None:
        """Stop it if it runs, then start it again at the same address."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop it and remove its log."""
        try:
            self.stop()
        finally:
            if self._workspace is not None:
                shutil.rmtree(self._workspace, ignore_errors=True)
                self._workspace = None
