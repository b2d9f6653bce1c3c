"""One ingest: sources on one side, a topic on the other, and where each source stands in between."""

from __future__ import annotations

import fcntl
import glob
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from culver.ingest.checkpoints import Checkpoints
from culver.ingest.shipper import Shipper
from culver.ingest.source import Source, State
from culver.ingest.splitting import LineSplitter
from culver.ingest.spool import Spool, SpoolFull
from culver.ingest.syslog import SyslogListener
from culver.ingest.tail import Tail
from culver.logging import get_logger

_log = get_logger("culver.ingest")

_BATCH_LINES = 2_000
_SAVE_EVERY_SECONDS = 0.5
_LOOK_FOR_FILES_SECONDS = 1.0
_IDLE_SECONDS = 0.05


class AlreadyRunning(Exception):
    """Another process uses the same state directory."""


@dataclass
class Plan:
    """What to take in, and where to."""

    bootstrap: str
    topic: str
    state_dir: Path
    # Patterns of paths.
    files: Sequence[str] = ()
    stdin: BinaryIO | None = None
    syslog_udp: tuple[str, int] | None = None
    syslog_tcp: tuple[str, int] | None = None
    # End when all that is there has arrived, rather than wait for more.
    once: bool = False
    # Files that are met for the first time when it begins: only what is added to them.
    from_end: bool = False
    spool_max_bytes: int = 1 << 30
    line_max_bytes: int = 900_000
    producer: Mapping[str, Any] = field(default_factory=dict)


class Ingest:
    """Runs a plan until it is stopped, or, with `once`, until there is nothing left to do."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        plan.state_dir.mkdir(parents=True, exist_ok=True)
        self._lock = _lock(plan.state_dir)
        self._checkpoints = Checkpoints(plan.state_dir / "positions.json")
        self._shipper = Shipper(
            plan.bootstrap, plan.topic, {"host": socket.gethostname()}, plan.producer, self._advanced
        )
        self._tails: dict[str, Tail] = {}
        self._spool: Spool | None = None
        self._reader: threading.Thread | None = None
        self.syslog: SyslogListener | None = None
        self._stopping = threading.Event()
        self._looked_for_files_at = 0.0
        self._began = False

    @property
    def delivered(self) -> int:
        return self._shipper.delivered

    @property
    def in_flight(self) -> int:
        return self._shipper.in_flight

    @property
    def spooled_bytes(self) -> int:
        return 0 if self._spool is None else self._spool.waiting_bytes

    def begin(self) -> None:
        """Open what is listened to; OSError when an address cannot be had."""
        plan = self.plan
        if plan.stdin is not None or plan.syslog_udp is not None or plan.syslog_tcp is not None:
            self._spool = Spool(
                plan.state_dir / "spool",
                max_bytes=plan.spool_max_bytes,
                state=self._checkpoints.get(Spool.name),
            )
        if plan.syslog_udp is not None or plan.syslog_tcp is not None:
            assert self._spool is not None
            self.syslog = SyslogListener(self._spool, _now_ms, udp=plan.syslog_udp, tcp=plan.syslog_tcp)
        if plan.stdin is not None:
            self._reader = threading.Thread(target=self._read_stdin, args=(plan.stdin,), daemon=True)
            self._reader.start()

    def run(self, progress: Callable[[Ingest], object] | None = None) -> None:
        """Until `stop`, or until everything has arrived. DeliveryRefused when the cluster refuses a line for good."""
        saved_at = time.monotonic()
        try:
            while not self._stopping.is_set():
                moved = self._step()
                now = time.monotonic()
                if now - saved_at >= _SAVE_EVERY_SECONDS:
                    saved_at = now
                    self._save()
                    if progress is not None:
                        progress(self)
                if self.plan.once and not moved and self._finished():
                    break
        finally:
            self._close(progress)

    def stop(self) -> None:
        """Ask it to end; from a signal handler or another thread."""
        self._stopping.set()

    # -- steps ------------------------------------------------------------------------------------------

    def _step(self) -> bool:
        self._look_for_files()
        moved = False
        for source in self._sources():
            limit = min(_BATCH_LINES, self._shipper.room(source))
            lines = source.read(limit) if limit > 0 else []
            if lines:
                moved = True
                self._shipper.send(source, lines)
        self._shipper.poll(0 if moved else _IDLE_SECONDS)
        return moved

    def _sources(self) -> list[Source]:
        sources: list[Source] = list(self._tails.values())
        if self._spool is not None:
            sources.append(self._spool)
        return sources

    def _look_for_files(self) -> None:
        now = time.monotonic()
        if self._began and now - self._looked_for_files_at < _LOOK_FOR_FILES_SECONDS:
            return
        self._looked_for_files_at = now
        for pattern in self.plan.files:
            for name in sorted(glob.glob(pattern, recursive=True)):
                path = Path(os.path.abspath(name))
                if str(path) in self._tails or not path.is_file():
                    continue
                state = self._checkpoints.get(str(path))
                # What appears later is new altogether.
                from_end = self.plan.from_end and not self._began
                tail = Tail(path, self.plan.line_max_bytes, _now_ms, state, from_end=from_end)
                self._tails[str(path)] = tail
        self._began = True

    def _read_stdin(self, stdin: BinaryIO) -> None:
        """On a thread: a pipe must be read whether or not a broker is there, or whoever writes to it stalls."""
        assert self._spool is not None
        splitter = LineSplitter(self.plan.line_max_bytes)
        while True:
            data = os.read(stdin.fileno(), 1 << 16)
            lines = splitter.feed(data) if data else splitter.finish()
            entries = [("stdin", line, _now_ms()) for line, _ in lines]
            while not self._stopping.is_set():
                try:
                    self._spool.append(entries)
                    break
                except SpoolFull:
                    self._stopping.wait(_IDLE_SECONDS)
            if not data:
                self._spool.closed_for_writing = True
                return

    def _finished(self) -> bool:
        if self._shipper.in_flight:
            return False
        if self.syslog is not None:
            return False  # nobody knows what may yet come
        return all(source.exhausted for source in self._sources())

    def _advanced(self, source: Source, state: State) -> None:
        self._checkpoints.set(source.name, state, _now_ms())
        source.acknowledge(state)

    def _save(self) -> None:
        if self._spool is not None:
            self._spool.sync()
        self._checkpoints.save()

    def _close(self, progress: Callable[[Ingest], object] | None) -> None:
        self._stopping.set()
        if self.syslog is not None:
            self.syslog.close()
        late = self._shipper.close(5.0)
        self._save()
        if progress is not None:
            progress(self)
        if late:
            _log.warning("stopped before everything had arrived; the rest is sent next time", lines=late)
        for source in self._sources():
            source.close()
        self._lock.close()


def _now_ms() -> int:
    return time.time_ns() // 1_000_000


def _lock(state_dir: Path) -> BinaryIO:
    file = (state_dir / "lock").open("wb")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise AlreadyRunning(f"another process uses {state_dir}: give each its own --state") from None
    return file
