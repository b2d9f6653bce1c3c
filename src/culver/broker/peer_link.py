"""The byte stream to another broker: frames are found in one receive buffer, which grows with what arrives."""

from __future__ import annotations

import asyncio
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from culver.broker.peer import Peer

_SIZE = Struct(">i")
_FRAME_BYTES_MIN = 4  # a correlation id
_SMALL_BYTES = 64 << 10
# A buffer that has grown is kept, because a follower that catches up gets one large answer after another. When so
# many answers in a row would have fitted into a quarter of it, it is let go.
_KEPT_BYTES = 1 << 20
_SMALL_ANSWERS_MAX = 64
_JOIN_MAX_BYTES = 64 << 10


class PeerLink(asyncio.BufferedProtocol):
    """One connection that was made to a peer. What it announces never sizes an allocation: room comes as bytes do."""

    __slots__ = (
        "_buffer",
        "_end",
        "_frame_bytes_max",
        "_peer",
        "_small_answers",
        "_start",
        "_transport",
        "closed",
    )

    def __init__(self, peer: Peer, frame_bytes_max: int) -> None:
        self._peer = peer
        self._frame_bytes_max = frame_bytes_max
        self._transport: asyncio.Transport | None = None
        self._buffer = bytearray(_SMALL_BYTES)
        self._start = 0
        self._end = 0
        self._small_answers = 0
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.closed:
            transport.close()
        else:
            self._peer.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        if not self.closed:
            self.closed = True
            self._peer.lost(self, exc)

    def eof_received(self) -> bool:
        return False

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        self._end += nbytes
        start, end = self._start, self._end
        buffer = self._buffer
        view = memoryview(buffer)
        needed = _SIZE.size
        while end - start >= _SIZE.size and not self.closed:
            (size,) = _SIZE.unpack_from(buffer, start)
            if not _FRAME_BYTES_MIN <= size <= self._frame_bytes_max:
                self.closed = True
                self._peer.lost(self, ValueError(f"it announced an answer of {size} bytes"))
                break
            needed = _SIZE.size + size
            if start + needed > end:
                break
            self._peer.received(self, view[start + _SIZE.size : start + needed])
            self._note_size(size)
            start += needed
            needed = _SIZE.size
        if not self.closed:
            self._start = start
            self._make_room(needed)

    def _note_size(self, size: int) -> None:
        self._small_answers = self._small_answers + 1 if size * 4 < len(self._buffer) else 0

    def _make_room(self, needed: int) -> None:
        """See to it that the rest of a frame of `needed` bytes can be read."""
        length = self._end - self._start
        if length == 0:
            self._start = self._end = 0
            if len(self._buffer) > _KEPT_BYTES and self._small_answers > _SMALL_ANSWERS_MAX:
                self._buffer = bytearray(_SMALL_BYTES)
        elif self._start + needed > len(self._buffer):
            capacity = len(self._buffer)
            if needed > capacity and 2 * length > capacity:
                larger = bytearray(min(needed, 2 * capacity))
                larger[:length] = memoryview(self._buffer)[self._start : self._end]
                self._buffer = larger
            elif self._start:
                self._buffer[:length] = self._buffer[self._start : self._end]
            self._start, self._end = 0, length

    def send(self, buffers: list[Any]) -> None:
        if self._transport is None or self.closed:
            return
        if sum(map(len, buffers)) <= _JOIN_MAX_BYTES:
            self._transport.write(b"".join(buffers))
        else:
            self._transport.writelines(buffers)

    def abort(self) -> None:
        self.closed = True
        if self._transport is not None:
            self._transport.abort()
