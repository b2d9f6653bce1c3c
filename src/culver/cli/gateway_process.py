"""The gateway that runs beside brokers: its socket, its process, started again when it dies.

The socket is bound here and inherited by the process. So a taken port is known before any broker starts, the address
stays the same when the gateway is started again, and connections wait meanwhile.

Light on imports, and without the module subprocess: this runs inside the broker.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Sequence

from culver.cli.restart_pause import RestartPause
from culver.config import parse_address
from culver.lifeline import Lifeline
from culver.logging import get_logger

_log = get_logger("culver.gateway")

STOP_SECONDS = 15.0
_BACKLOG = 2048


def listen(address: str) -> socket.socket:
    """A socket that listens for HTTP. OSError when the address cannot be used."""
    host, port = parse_address(address)
    found = socket.getaddrinfo(host or None, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, where = found[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(_BACKLOG)
    except BaseException:
        listener.close()
        raise
    return listener


class GatewayProcess:
    """One gateway for one cluster. `start` when brokers are ready, `stop` before they go."""

    def __init__(self, listener: socket.socket, address: str, arguments: Sequence[str]) -> None:
        self._listener = listener
        self._arguments = ["--http", address, "--listen-fd", str(listener.fileno()), *arguments]
        self._stopping = threading.Event()
        # The process that may be signalled, or 0: from before it is collected, as its number may then be another's.
        self._process_id = 0
        self._lock = threading.Lock()
        self._watcher: threading.Thread | None = None

    def start(self, bootstrap: str) -> None:
        """Begin to run it, in the background; `bootstrap` are the addresses of brokers, with commas between."""
        os.set_inheritable(self._listener.fileno(), True)
        self._watcher = threading.Thread(
            target=self._keep_running, args=(bootstrap,), name="gateway", daemon=True
        )
        self._watcher.start()

    def stop(self) -> None:
        """Tell it to end and wait until it has; kill it if it does not."""
        if self._watcher is None:
            self._listener.close()
            return
        self._stopping.set()
        self._signal(signal.SIGTERM)
        self._watcher.join(STOP_SECONDS)
        if self._watcher.is_alive():
            _log.error("gateway did not stop and is killed", after_s=f"{STOP_SECONDS:g}")
            self._signal(signal.SIGKILL)
            self._watcher.join()
        self._listener.close()

    def _keep_running(self, bootstrap: str) -> None:
        pause = RestartPause()
        command = [sys.executable, "-m", "culver", "gateway", "--bootstrap", bootstrap, *self._arguments]
        while not self._stopping.is_set():
            started_at_s = time.monotonic()
            status = self._run(command)
            if self._stopping.is_set():
                return
            pause_s = pause.after(time.monotonic() - started_at_s)
            _log.error("gateway died and is started again", exit_code=status, pause_s=pause_s)
            self._stopping.wait(pause_s)

    def _run(self, command: list[str]) -> int:
        """Run it once; the exit code, or the number of the signal below zero."""
        with Lifeline() as lifeline:
            process_id = os.posix_spawn(
                command[0],
                command,
                os.environ,
                file_actions=[(os.POSIX_SPAWN_DUP2, lifeline.child_end, 0)],
                # A Ctrl-C at the terminal is for the broker, which then stops the gateway first.
                setsid=True,
            )
            lifeline.tie(process_id)
            self._process_id = process_id
            if self._stopping.is_set():  # told to stop while it was being started
                self._signal(signal.SIGTERM)
            os.waitid(os.P_PID, process_id, os.WEXITED | os.WNOWAIT)
            with self._lock:
                self._process_id = 0
            _, status = os.waitpid(process_id, 0)
            lifeline.cut()
        return os.waitstatus_to_exitcode(status)

    def _signal(self, number: signal.Signals) -> None:
        with self._lock:
            if self._process_id:
                os.kill(self._process_id, number)
