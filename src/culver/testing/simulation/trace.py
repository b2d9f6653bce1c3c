"""The trace of a simulation: a hash over everything that happened, and lines for people about what matters."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from culver.testing.simulation.loop import Process

_FIELDS = "culver_fields"


class Trace:
    """Two runs of one seed have the same digest, or something depends on what it must not."""

    def __init__(self, now_us: Callable[[], int], running: Callable[[], Process | None]) -> None:
        self._now_us = now_us
        self._running = running
        self._hash = blake2b(digest_size=16)
        self._lines: list[tuple[int, str, str]] = []

    def step(self, who: str) -> None:
        """One event. Hot: many thousands in a run."""
        self._hash.update(b"%d %s;" % (self._now_us(), who.encode()))

    def content(self, checksum: int) -> None:
        """What an event was about, where its moment alone does not say it."""
        self._hash.update(b"%x," % checksum)

    def note(self, text: str, error: BaseException | None = None) -> None:
        """A line for people."""
        process = self._running()
        self._lines.append((self._now_us(), "-" if process is None else process.name, text))
        self._hash.update(text.encode())
        if error is not None:
            for line in "".join(traceback.format_exception(error)).splitlines():
                self._lines.append((self._now_us(), "-", f"    {line}"))

    @property
    def digest(self) -> str:
        return self._hash.hexdigest()

    def lines(self, last: int | None = None) -> list[str]:
        """The newest lines, all of them if it is not said how many."""
        chosen = self._lines if last is None else self._lines[-last:]
        return [f"{now_us / 1e6:10.6f} {who:10} {text}" for now_us, who, text in chosen]


class TraceHandler(logging.Handler):
    """Brings the brokers' own log lines into the trace."""

    def __init__(self, trace: Trace, failed: Callable[[str, BaseException | None], object]) -> None:
        super().__init__(logging.INFO)
        self._trace = trace
        self._failed = failed

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, _FIELDS, {})
        text = f"{record.levelname.lower()} {record.getMessage()}"
        if fields:
            text += " " + " ".join(f"{key}={value}" for key, value in fields.items())
        if record.exc_info and record.exc_info[1] is not None:
            # An exception that nobody expected: the broker survives it, the run does not pass.
            self._failed(text, record.exc_info[1])
        else:
            self._trace.note(text)
