"""Sending ranges of files straight from the page cache to a socket, past its transport.

A fetch of old records is bytes of a file. With sendfile they never enter this process: the kernel hands its own
pages to the socket, which costs a fraction of reading and writing them, and a slow client holds no memory here.
"""

from __future__ import annotations

import asyncio
import os
import socket
from collections import deque
from collections.abc import Callable
from typing import TypeAlias

from culver.filesystem import Buffer, FileRange

# What one connection may send before the others have their turn: about a tenth of a millisecond's worth.
_TURN_BYTES = 256 << 10

Piece: TypeAlias = Buffer | FileRange


class DirectSender:
    """What one connection sends past its transport, in order. Only to be used while the transport has nothing.

    It works on a descriptor of its own for the same socket, because an event loop lets nobody else wait for one
    that a transport has. The connection stays open until both are closed.
    """

    def __init__(
        self,
        transport_socket: socket.socket,
        on_drained: Callable[[], object],
        on_failed: Callable[[], object],
    ) -> None:
        self._socket = socket.socket(fileno=os.dup(transport_socket.fileno()))
        self._loop = asyncio.get_running_loop()
        self._on_drained = on_drained
        self._on_failed = on_failed
        self._queue: deque[Piece] = deque()
        self._waiting = False

    @property
    def busy(self) -> bool:
        """Something is still to be sent: whatever comes next has to queue up behind it."""
        return self._waiting

    def send(self, pieces: list[Piece]) -> None:
        """Send in order, now or as the socket takes it. OSError when the connection is gone."""
        self._queue += pieces
        if not self._waiting and not self._flush():
            self._waiting = True
            self._loop.add_writer(self._socket, self._writable)

    def _flush(self) -> bool:
        """Send what the socket takes, within one turn; whether that was all."""
        queue = self._queue
        left = _TURN_BYTES
        descriptor = self._socket.fileno()
        try:
            while queue:
                if left <= 0:
                    return False
                piece = queue[0]
                if isinstance(piece, FileRange):
                    sent = piece.send_to(descriptor, left)
                    left -= sent
                    if not sent:
                        raise OSError("a segment became shorter than what was promised of it")
                    if piece.size:
                        continue
                    piece.close()
                else:
                    more = socket.MSG_MORE if len(queue) > 1 else 0
                    sent = self._socket.send(piece, more)
                    left -= sent
                    if sent < len(piece):
                        queue[0] = memoryview(piece)[sent:]
                        continue
                queue.popleft()
        except BlockingIOError:
            return False
        return True

    def _writable(self) -> None:
        try:
            if not self._flush():
                return
        except OSError:
            self._on_failed()
            return
        self._waiting = False
        self._loop.remove_writer(self._socket)
        self._on_drained()

    def close(self) -> None:
        """Let go of the socket and of what was not sent."""
        if self._socket.fileno() < 0:
            return
        if self._waiting:
            self._loop.remove_writer(self._socket)
            self._waiting = False
        for piece in self._queue:
            if isinstance(piece, FileRange):
                piece.close()
        self._queue.clear()
        self._socket.close()
