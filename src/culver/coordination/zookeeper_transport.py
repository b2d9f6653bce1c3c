"""kazoo's sockets with few system calls: what waits to be sent leaves together, what came together is read at once.

Left to itself kazoo makes some thirty system calls for a request and its answer, each of them a moment at which the
broker's thread may take over. It does all its waiting through the `select` of its handler, with sockets that the
handler makes; so these know what is in memory, and ask the kernel only when nothing is.
"""

from __future__ import annotations

import os
import select
import socket
import time
from collections import deque
from collections.abc import Sequence
from typing import Any

_READ_BYTES = 1 << 16
_WRITE_BYTES = 1 << 16
_PASSED_OVER_MAX = 32


class BufferedSocket:
    """A socket that reads ahead and writes behind; used by one thread."""

    def __init__(self, inner: socket.socket) -> None:
        self._inner = inner
        self._read = b""
        self._read_at = 0
        self._unsent = bytearray()
        self._passed_over = 0
        self._received_at = time.monotonic()

    def fileno(self) -> int:
        return self._inner.fileno()

    def setblocking(self, blocking: bool) -> None:
        self._inner.setblocking(bool(blocking))

    def getpeername(self) -> Any:
        return self._inner.getpeername()

    def pending(self) -> int:
        """Bytes that can be read without asking the kernel; kazoo looks at this before it waits."""
        return len(self._read) - self._read_at

    @property
    def silent_ms(self) -> float:
        """For how long nothing has been received."""
        return (time.monotonic() - self._received_at) * 1000

    def recv(self, size: int) -> bytes:
        if self._read_at == len(self._read):
            self._read, self._read_at = self._inner.recv(max(size, _READ_BYTES)), 0
            self._received_at = time.monotonic()
        start = self._read_at
        self._read_at = min(start + size, len(self._read))
        return self._read[start : self._read_at]

    def send(self, data: Any) -> int:
        """Sent for good by `flush`, which is called before anyone waits for an answer."""
        self._unsent += data
        return len(data)

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    @property
    def has_room(self) -> bool:
        return len(self._unsent) < _WRITE_BYTES

    def passed_over(self, has_its_turn: bool) -> bool:
        """Whether others had their turn so often that it is time to ask the kernel about this one."""
        self._passed_over = (
            0 if has_its_turn or self._passed_over == _PASSED_OVER_MAX else self._passed_over + 1
        )
        return self._passed_over == _PASSED_OVER_MAX

    def flush(self) -> None:
        """Send what the kernel takes now."""
        while self._unsent:
            try:
                sent = self._inner.send(self._unsent)
            except BlockingIOError:
                return
            del self._unsent[:sent]

    def close(self) -> None:
        self._inner.close()


class Bell:
    """The two ends of kazoo's alarm: any thread rings, kazoo's hears. In memory unless somebody sleeps."""

    def __init__(self) -> None:
        self._rings: deque[None] = deque()
        self._descriptor = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._asleep = False

    def fileno(self) -> int:
        return self._descriptor

    def send(self, _data: bytes) -> int:
        if self._descriptor < 0:
            raise OSError("closed")
        self._rings.append(None)
        if self._asleep:
            os.eventfd_write(self._descriptor, 1)
        return 1

    def recv(self, _size: int) -> bytes:
        if not self._rings:
            return b""
        self._rings.popleft()
        return b"\0"

    def pending(self) -> int:
        return len(self._rings)

    def fall_asleep(self) -> bool:
        """From now on the descriptor tells of a ring; False when there has been one already."""
        self._asleep = True
        return not self._rings

    def wake(self) -> None:
        self._asleep = False
        try:
            os.eventfd_read(self._descriptor)
        except BlockingIOError:
            return

    def close(self) -> None:
        # Both ends are this object.
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1


def wait(
    reading: Sequence[Any], writing: Sequence[Any], timeout_s: float | None
) -> tuple[list[Any], list[Any]]:
    """Which of the ends can be read and written; those of which memory tells, if there are any."""
    readable = [end for end in reading if end.pending()]
    writable = [end for end in writing if end.has_room]
    sockets = [end for end in (*reading, *writing) if isinstance(end, BufferedSocket)]
    if readable or writable:
        if not any([end.passed_over(end in readable) for end in sockets]):  # noqa: C419 - each of them counts
            return readable, writable
        timeout_s = 0.0
    for end in sockets:
        end.flush()
    bells = [end for end in reading if isinstance(end, Bell)]
    for bell in bells:
        if not bell.fall_asleep():
            timeout_s = 0.0
    received = _poll(reading, writing, sockets, timeout_s)
    for bell in bells:
        bell.wake()
    readable = [end for end in reading if end in received or end.pending()]
    return readable, [end for end in writing if end.has_room]


def _poll(
    reading: Sequence[Any], writing: Sequence[Any], sockets: Sequence[BufferedSocket], timeout_s: float | None
) -> list[Any]:
    """Ask the kernel which have something to read, sending meanwhile what had to wait."""
    deadline = None if timeout_s is None else time.monotonic() + timeout_s
    while not any(end.has_room for end in writing):
        poll = select.poll()
        for end in reading:
            poll.register(end.fileno(), select.POLLIN)
        unsent = [end for end in sockets if end.unsent]
        for end in unsent:
            poll.register(end.fileno(), select.POLLOUT | (select.POLLIN if end in reading else 0))
        left_ms = None if deadline is None else max(0.0, (deadline - time.monotonic()) * 1000)
        happened = dict(poll.poll(left_ms))
        for end in unsent:
            end.flush()
        ready = [end for end in reading if happened.get(end.fileno(), 0) & ~select.POLLOUT]
        if ready or (deadline is not None and time.monotonic() >= deadline):
            # That a bell's descriptor tells of a ring is of use here only: the ring itself may have been heard.
            return [end for end in ready if isinstance(end, BufferedSocket)]
    return []
