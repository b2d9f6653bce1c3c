"""A real ZooKeeper server in a subprocess, for tests: killed, frozen and brought back at will.

    with ZooKeeper() as zookeeper:
        Broker(arguments=["--coordination", f"zookeeper://{zookeeper.address}/culver"])

The server comes with PySpark, among whose jars ZooKeeper is; it needs Java 11 or newer.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from types import TracebackType

from culver.lifeline import Lifeline

READY_TIMEOUT_SECONDS = 30.0
STOP_TIMEOUT_SECONDS = 10.0
# Of PySpark's three hundred jars the ones that the server needs: looking through all of them costs a second.
JARS = (
    "zookeeper-[0-9]*.jar",
    "zookeeper-jute-*.jar",
    "slf4j-api-*.jar",
    "metrics-core-*.jar",
    "snappy-java-*.jar",
    "commons-io-*.jar",
    # Only for its own errors, on standard output: why a port cannot be had, say.
    "log4j-api-*.jar",
    "log4j-core-*.jar",
    "log4j-slf4j2-impl-*.jar",
)
_MAIN_CLASS = "org.apache.zookeeper.server.ZooKeeperServerMain"
_JVM_OPTIONS = (
    "-Xmx128m",
    # A short life with little work: start fast, compile little, one thread for the garbage.
    "-Xshare:auto",
    "-XX:TieredStopAtLevel=1",
    "-XX:+UseSerialGC",
    "-Dzookeeper.jmx.log4j.disable=true",
    # A killed server leaves its writes to the kernel, and that is all a test kills; 64 MB log files are for others.
    "-Dzookeeper.forceSync=no",
    "-Dzookeeper.preAllocSize=1024",
)
_PAUSE_SECONDS = 0.01


class ZooKeeperFailed(Exception):
    """The server cannot be started, or did not do as it was told; the message says why."""


class ZooKeeper:
    """One standalone server on a free port of 127.0.0.1, with a data directory that goes away afterwards.

    `tick_time_ms` is the server's unit of time: it grants sessions of no less than two of them, and notices a
    dead one up to one of them late. The process dies with this one, however this one ends.
    """

    def __init__(self, *, tick_time_ms: int = 200, ready_timeout_s: float = READY_TIMEOUT_SECONDS) -> None:
        self._tick_time_ms = tick_time_ms
        self._ready_timeout_s = ready_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lifeline: Lifeline | None = None
        self._workspace: Path | None = None
        self._port: int | None = None

    # --- what a test asks for ---

    @property
    def address(self) -> str:
        """`host:port`. Stays the same when the server is started again."""
        if self._port is None:
            raise ZooKeeperFailed(
                "ZooKeeper has not been started: use `with ZooKeeper() as zookeeper`, or call start()"
            )
        return f"127.0.0.1:{self._port}"

    @property
    def pid(self) -> int:
        """The process id of the running server."""
        if self._process is None:
            raise ZooKeeperFailed("ZooKeeper is not running")
        return self._process.pid

    @property
    def running(self) -> bool:
        """Whether the server has been started and not been stopped or killed since."""
        return self._process is not None

    # --- its life ---

    def start(self) -> ZooKeeper:
        """Start the server, on the port and data of last time if there was one, and wait until it serves."""
        if self._process is not None:
            raise ZooKeeperFailed("ZooKeeper is already running")
        command = _command()
        first_start = self._port is None
        if self._workspace is None:
            self._workspace = Path(tempfile.mkdtemp(prefix="culver-zookeeper-"))
        try:
            if self._port is None:
                self._port = _free_port()
            self._spawn(command)
            self._wait_until_it_serves()
        except BaseException:
            self._end(signal.SIGKILL)
            if first_start:
                self._port = None
                self._remove_workspace()
            raise
        return self

    def stop(self, timeout_s: float = STOP_TIMEOUT_SECONDS) -> None:
        """Ask the server to end (SIGTERM); the data stays."""
        if self._process is None:
            return
        self.resume()
        self._process.send_signal(signal.SIGTERM)
        try:
            self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self._end(signal.SIGKILL)
            raise ZooKeeperFailed(f"ZooKeeper had not ended {timeout_s:g} s after SIGTERM") from None
        self._end(None)

    def kill(self) -> None:
        """End the server at once (SIGKILL), as a crash would; the data stays."""
        self._end(signal.SIGKILL)

    def suspend(self) -> None:
        """Freeze the server (SIGSTOP): connections stay open, and nothing is answered."""
        os.kill(self.pid, signal.SIGSTOP)
        # Not before this has returned have all its threads stopped.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)

    def resume(self) -> None:
        """Let a frozen server go on (SIGCONT)."""
        os.kill(self.pid, signal.SIGCONT)

    def close(self) -> None:
        """End the server and remove what it left on the disk."""
        self._end(signal.SIGKILL)
        self._remove_workspace()

    def __enter__(self) -> ZooKeeper:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- the process ---

    def _spawn(self, command: list[str]) -> None:
        assert self._workspace is not None
        configuration = self._workspace / "zoo.cfg"
        configuration.write_text(
            f"tickTime={self._tick_time_ms}\n"
            f"dataDir={self._workspace / 'data'}\n"
            "clientPortAddress=127.0.0.1\n"
            f"clientPort={self._port}\n"
            "maxClientCnxns=0\n"
            "admin.enableServer=false\n"
            "4lw.commands.whitelist=conf\n"
        )
        with open(self._workspace / "zookeeper.log", "ab") as log, Lifeline() as lifeline:
            self._process = subprocess.Popen(
                [*command, str(configuration)],
                cwd=self._workspace,
                stdin=lifeline.child_end,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
            lifeline.tie(self._process.pid)
        self._lifeline = lifeline

    def _wait_until_it_serves(self) -> None:
        assert self._process is not None
        deadline = time.monotonic() + self._ready_timeout_s
        while not self._serves():
            exit_code = self._process.poll()
            if exit_code is not None:
                raise ZooKeeperFailed(self._with_log(f"ZooKeeper ended at start with exit code {exit_code}"))
            if time.monotonic() > deadline:
                raise ZooKeeperFailed(
                    self._with_log(f"ZooKeeper did not serve within {self._ready_timeout_s:g} s")
                )
            time.sleep(_PAUSE_SECONDS)

    def _serves(self) -> bool:
        """The port is open before the data has been read; and who answers there might be another server."""
        assert self._port is not None
        answer = b""
        with (
            contextlib.suppress(OSError),
            socket.create_connection(("127.0.0.1", self._port), timeout=1.0) as connection,
        ):
            connection.sendall(b"conf")
            while chunk := connection.recv(4096):
                answer += chunk
        return f"dataDir={self._workspace}".encode() in answer

    def _end(self, send: signal.Signals | None) -> None:
        """Send the signal, reap the process, close its pipe."""
        if self._process is not None:
            if send is not None:
                self._process.send_signal(send)
            self._process.wait()
            self._process = None
        if self._lifeline is not None:
            self._lifeline.cut()
            self._lifeline = None

    def _remove_workspace(self) -> None:
        if self._workspace is not None:
            shutil.rmtree(self._workspace, ignore_errors=True)
            self._workspace = None

    def _with_log(self, message: str) -> str:
        assert self._workspace is not None
        log = (self._workspace / "zookeeper.log").read_text(errors="replace").strip()
        return f"{message}; its output:\n{log}" if log else f"{message}; it wrote nothing"


def _command() -> list[str]:
    """Up to the configuration file. Raises ZooKeeperFailed when Java or PySpark is missing."""
    java_home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{java_home}/bin" if java_home else None)
    if java is None:
        raise ZooKeeperFailed(
            "ZooKeeper needs Java 11 or newer: install it (Debian: openjdk-17-jre-headless) so that `java` is on "
            "the PATH, or set JAVA_HOME"
        )
    found = importlib.util.find_spec("pyspark")
    if found is None or not found.submodule_search_locations:
        raise ZooKeeperFailed("the ZooKeeper server comes with PySpark: pip install pyspark")
    jars_dir = Path(found.submodule_search_locations[0]) / "jars"
    jars = [str(jar) for pattern in JARS for jar in jars_dir.glob(pattern)]
    if len(jars) < len(JARS):
        raise ZooKeeperFailed(f"{jars_dir} holds no ZooKeeper server: is PySpark installed in full?")
    return [java, *_JVM_OPTIONS, "-cp", os.pathsep.join(jars), _MAIN_CLASS]


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
