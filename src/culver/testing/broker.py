"""A real broker in a subprocess, for tests: ready in a fraction of a second, gone without a trace."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeAlias

from culver.testing.announced_process import AnnouncedProcess, BrokerFailed, ForTheBlock, NotAnnounced

SettingValue: TypeAlias = str | int | float | bool
READY_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0


class Broker(ForTheBlock):
    """One broker process of its own, on a free port, with a data directory that goes away afterwards.

    `topics` maps the names of topics to create to their partition counts. `config` holds broker
    settings by their Kafka names. `data_dir` is used and kept when given; otherwise a temporary one is
    made and removed. `broker_id`, `coordination` and `rack` make it one of several; `Cluster` sees to that.
    `arguments` are passed on to `culver serve` as they are. `http` serves HTTP too: True on a free port, or an address.

    The process dies with this one, however this one ends.
    """

    def __init__(
        self,
        topics: Mapping[str, int] | None = None,
        config: Mapping[str, SettingValue] | None = None,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        listen: str = "127.0.0.1:0",
        broker_id: int | None = None,
        coordination: str | None = None,
        rack: str | None = None,
        http: bool | str = False,
        arguments: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        ready_timeout_s: float = READY_TIMEOUT_SECONDS,
    ) -> None:
        self._topics = dict(topics or {})
        self._config = {name: setting_text(value) for name, value in (config or {}).items()}
        self._given_data_dir = None if data_dir is None else Path(data_dir)
        self._listen = listen
        self._http = "127.0.0.1:0" if http is True else http or None
        self._http_url: str | None = None
        self.broker_id = 1 if broker_id is None else broker_id
        options = {"--broker-id": broker_id, "--coordination": coordination, "--rack": rack}
        given = [(name, str(value)) for name, value in options.items() if value is not None]
        self._arguments = [word for option in given for word in option] + list(arguments)
        self._environment = dict(environment or {})
        self._ready_timeout_s = ready_timeout_s
        self._child: AnnouncedProcess | None = None
        self._suspended = False
        self._told_to_stop = False
        self._workspace: Path | None = None
        self._bootstrap_servers: str | None = None

    # --- what a test asks for ---

    @property
    def bootstrap_servers(self) -> str:
        """The address to give to a Kafka client, `host:port`. Stays the same across `restart()`."""
        if self._bootstrap_servers is None:
            raise BrokerFailed(
                "the broker has not been started: use `with Broker() as broker`, or call start()"
            )
        return self._bootstrap_servers

    @property
    def http_url(self) -> str:
        """The address of the gateway, `http://host:port`, once it serves. Needs `http`; stays across `restart()`."""
        if self._child is None or self._http is None:
            raise BrokerFailed("there is no HTTP: start the broker with http=True")
        self._http_url = self._announced("http")
        return self._http_url

    @property
    def pid(self) -> int:
        """The process id of the running broker."""
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the process is alive."""
        return self._process is not None and self._process.poll() is None

    @property
    def suspended(self) -> bool:
        """Whether it is stopped in its tracks, between `suspend()` and `resume()`."""
        return self._suspended

    @property
    def data_dir(self) -> Path:
        """Where the broker keeps its logs."""
        if self._given_data_dir is not None:
            return self._given_data_dir
        if self._workspace is None:
            raise BrokerFailed("the broker has no data directory before start() and after the `with` block")
        return self._workspace / "data"

    @property
    def log_text(self) -> str:
        """What the broker wrote to stderr so far, over all its restarts."""
        if self._workspace is None:
            return ""
        return (self._workspace / "broker.log").read_text(errors="replace")

    def create_topic(
        self, name: str, partitions: int = 1, config: Mapping[str, SettingValue] | None = None
    ) -> None:
        """Create one topic; raises culver.errors.KafkaError when the broker refuses it."""
        settings = {key: setting_text(value) for key, value in (config or {}).items()}
        self._create_topics(self.bootstrap_servers, {name: partitions}, settings)

    # --- its life ---

    def start(self) -> Broker:
        """Start the process, wait until it is ready, create the topics. A failure leaves nothing running."""
        self.launch()
        self.wait_until_ready()
        return self

    def launch(self) -> None:
        """Start the process and do not wait for it: `wait_until_ready()` does. So several start side by side."""
        if self._process is not None:
            raise BrokerFailed("the broker is already running")
        if self._workspace is None:
            self._workspace = Path(tempfile.mkdtemp(prefix="culver-test-"))
            (self._workspace / "broker.log").touch()
        try:
            self._spawn()
        except BaseException:
            self._give_up()
            raise

    def wait_until_ready(self) -> None:
        """Wait until a launched broker serves clients, then create the topics. A failure leaves nothing running."""
        first_start = self._bootstrap_servers is None
        try:
            address = self._announced("ready")
            if first_start and self._topics:
                self._create_topics(address, self._topics)
        except BaseException:
            self._give_up()
            raise
        self._bootstrap_servers = address

    def stop(self, timeout_s: float = STOP_TIMEOUT_SECONDS) -> None:
        """Ask the broker to end (SIGTERM) and insist on a clean exit. The data stays."""
        if self._process is None:
            return
        process = self._process
        self.begin_to_stop()
        try:
            exit_code = process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._end(signal.SIGKILL)
            raise BrokerFailed(
                self._with_log(f"the broker had not ended {timeout_s:g} s after SIGTERM")
            ) from None
        self._end(None)
        if exit_code != 0:
            raise BrokerFailed(self._with_log(f"the broker ended with exit code {exit_code}"))

    def begin_to_stop(self) -> None:
        """Ask the broker to end and do not wait for it: `stop()` does. So several stop side by side."""
        if self._process is not None and not self._told_to_stop:
            # Told a second time, when it has stopped listening to signals, it would not end cleanly.
            self._told_to_stop = True
            self._process.send_signal(signal.SIGTERM)
            self.resume()

    def kill(self) -> None:
        """End the broker at once (SIGKILL), as a crash would."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Stop the broker in its tracks (SIGSTOP): alive, its connections open, but deaf and mute."""
        if self._process is None:
            raise BrokerFailed("the broker is not running")
        self._process.send_signal(signal.SIGSTOP)
        self._suspended = True

    def resume(self) -> None:
        """Let a suspended broker go on (SIGCONT), as if no time had passed for it."""
        if self._process is not None and self._suspended:
            self._process.send_signal(signal.SIGCONT)
        self._suspended = False

    def restart(self) -> None:
        """Stop the broker if it runs, then start it again on the same port and data directory."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the broker and remove what it left on the disk."""
        try:
            self.stop()
        finally:
            self._remove_workspace()

    def _create_topics(
        self, address: str, partitions_by_topic: Mapping[str, int], config: Mapping[str, str] | None = None
    ) -> None:
        # Imported late: the codecs are no concern of a pytest run that starts no broker.
        from culver.testing.topics import create_topics

        create_topics(address, partitions_by_topic, config)

    # --- the process ---

    def _command(self) -> list[str]:
        # A restart keeps the port that was picked the first time.
        listen = self._bootstrap_servers or self._listen if self._listen.endswith(":0") else self._listen
        command = [
            sys.executable,
            "-m",
            "culver",
            "serve",
            "--listen",
            listen,
            "--data-dir",
            str(self.data_dir),
        ]
        if self._http is None:
            command += ["--no-http"]
        else:
            command += ["--http", (self._http_url or self._http).removeprefix("http://")]
        for name, value in self._config.items():
            command += ["--set", f"{name}={value}"]
        return command + self._arguments

    def _spawn(self) -> None:
        assert self._workspace is not None
        self._child = AnnouncedProcess(self._command(), self._workspace / "broker.log", self._environment)

    @property
    def _process(self) -> subprocess.Popen[bytes] | None:
        return None if self._child is None else self._child.process

    def _announced(self, word: str) -> str:
        """What comes first in the line `ready HOST:PORT ...`, or in that of another word."""
        assert self._child is not None
        try:
            return self._child.wait_for(word, self._ready_timeout_s)[0]
        except NotAnnounced as failure:
            raise BrokerFailed(self._with_log(f"the broker {failure}")) from None

    def _end(self, send: signal.Signals | None) -> None:
        """Send the signal, reap the process, close its pipes."""
        if self._child is not None:
            if send is not None:
                self._child.process.send_signal(send)
            self._child.reap()
            self._child = None
        self._suspended = False
        self._told_to_stop = False

    def _give_up(self) -> None:
        """After a failed start: nothing runs, and nothing is left on the disk that was not there before."""
        self._end(signal.SIGKILL)
        if self._bootstrap_servers is None:
            self._remove_workspace()

    def _remove_workspace(self) -> None:
        if self._workspace is not None:
            shutil.rmtree(self._workspace, ignore_errors=True)
            self._workspace = None

    def _with_log(self, message: str) -> str:
        log = self.log_text.strip()
        return f"{message}; its log:\n{log}" if log else f"{message}; it logged nothing"


def setting_text(value: SettingValue) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
