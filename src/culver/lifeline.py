"""Tie a child process to this one: it is killed when this one ends, however this one ends.

    with Lifeline() as lifeline:
        process = subprocess.Popen(command, stdin=lifeline.child_end, ...)
        lifeline.tie(process.pid)

The child's standard input is a pipe to which nobody writes. The kernel kills the child when the pipe's other end is
closed, by `cut()` or because this process is gone. That needs no thread and no help from the child, and unlike
PR_SET_PDEATHSIG it does not fire when merely the thread that started the child ends.
"""

from __future__ import annotations

import fcntl
import os
import signal
from types import TracebackType


class Lifeline:
    """A pipe whose reading end is the child's standard input; as a context manager it is cut when starting fails."""

    def __init__(self) -> None:
        self.child_end, self._our_end = os.pipe()
        self._uncut = True

    def tie(self, pid: int) -> None:
        """From now on the child dies when our end is closed. Our copy of its end is closed."""
        set_signal = getattr(fcntl, "F_SETSIG", None)
        if set_signal is not None:  # Linux; elsewhere the child is ended by whoever started it, or not at all
            fcntl.fcntl(self.child_end, fcntl.F_SETOWN, pid)
            fcntl.fcntl(self.child_end, set_signal, signal.SIGKILL)
            flags = fcntl.fcntl(self.child_end, fcntl.F_GETFL)
            fcntl.fcntl(self.child_end, fcntl.F_SETFL, flags | os.O_ASYNC)
        self._close_child_end()

    def cut(self) -> None:
        """Close our end: the child is killed if it still runs."""
        self._close_child_end()
        if self._uncut:
            self._uncut = False
            os.close(self._our_end)

    def _close_child_end(self) -> None:
        if self.child_end >= 0:
            os.close(self.child_end)
            self.child_end = -1

    def __enter__(self) -> Lifeline:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.cut()
