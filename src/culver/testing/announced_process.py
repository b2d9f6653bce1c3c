"""A process tied to this one that says, in lines on its standard output, what it is ready for."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from culver.lifeline import Lifeline


class BrokerFailed(Exception):
    """A broker or gateway did not start, or did not stop, as it should; the message ends with its log."""


class ForTheBlock(ABC):
    """What is started by a `with` block and closed behind it."""

    @abstractmethod
    def start(self) -> Self: ...

    @abstractmethod
    def close(self) -> None: ...

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.close()
            return
        # The test has failed already: what also ends badly must not hide why.
        with contextlib.suppress(BrokerFailed):
            self.close()


class NotAnnounced(Exception):
    """The line did not come: the process ended, or took too long."""


class AnnouncedProcess:
    """A running process; its standard error goes to the end of a file."""

    def __init__(self, command: Sequence[str], log: Path, environment: Mapping[str, str]) -> None:
        with open(log, "ab") as stream, Lifeline() as lifeline:
            self.process = subprocess.Popen(
                command,
                stdin=lifeline.child_end,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=os.environ | {"PYTHONUNBUFFERED": "1"} | dict(environment),
                # A Ctrl-C at the terminal is for the tests; the process is stopped by them.
                start_new_session=True,
            )
            lifeline.tie(self.process.pid)
        self._lifeline = lifeline
        self._unread = b""
        self._announced: dict[str, list[str]] = {}

    def wait_for(self, word: str, timeout_s: float) -> list[str]:
        """The words behind the first one of the line that begins with `word`."""
        assert self.process.stdout is not None
        descriptor = self.process.stdout.fileno()
        deadline = time.monotonic() + timeout_s
        while word not in self._announced:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise NotAnnounced(f"did not say {word!r} within {timeout_s:g} s")
            chunk = os.read(descriptor, 4096)
            if not chunk:
                raise NotAnnounced(f"ended at start with exit code {self.process.wait()}")
            *lines, self._unread = (self._unread + chunk).split(b"\n")
            for line in lines:
                first, *others = line.decode(errors="replace").split() or [""]
                self._announced[first] = others
        return self._announced[word]

    def reap(self) -> None:
        """Wait until it has ended, and close what leads to it."""
        self.process.wait()
        if self.process.stdout is not None:
            self.process.stdout.close()
        self._lifeline.cut()
