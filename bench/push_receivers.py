"""Many receivers of pushed records in one process: how long each record took from its producer to each of them."""

from __future__ import annotations

import asyncio
import base64
import os
import socket
import time
from collections.abc import Callable
from contextlib import suppress
from urllib.parse import urlsplit

# In a record's value, followed by the time of its making and something that is no digit.
MARK = b"sent-at-ns-"
_CONNECT_AT_ONCE = 100
_STALLED_RECEIVE_BYTES = 4096


class Receiver(asyncio.Protocol):
    """One connection. Times are those of arrival, before anything is parsed."""

    def __init__(
        self, request: tuple[bytes, bytes], arrived: Callable[[int], None], ready: Callable[[], None]
    ) -> None:
        self._request, self._subscribe = request
        self._transport: asyncio.WriteTransport | None = None
        self._arrived = arrived
        self._ready = ready
        self._is_ready = False
        self._rest = b""

    def connection_made(self, transport: asyncio.WriteTransport) -> None:
        transport.write(self._request)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        now_ns = time.monotonic_ns()
        if self._subscribe and self._transport is not None:  # not before the handshake is answered
            self._transport.write(self._subscribe)
            self._subscribe = b""
        data = self._rest + data
        at = data.find(MARK)
        while at >= 0:
            begin = at + len(MARK)
            end = begin
            while data[end : end + 1].isdigit():
                end += 1
            if end == len(data):
                break
            self._arrived(now_ns - int(data[begin:end]))
            at = data.find(MARK, end)
        self._rest = data[at:] if at >= 0 else data[-len(MARK) :]
        if not self._is_ready and b"assigned" in data:
            self._is_ready = True
            self._ready()


class Receivers:
    """All of them, connected to one gateway and listening to one topic."""

    def __init__(self, url: str) -> None:
        self._host, self._port = urlsplit(url).hostname or "", urlsplit(url).port or 0
        self._ready = 0
        self._transports: list[asyncio.BaseTransport] = []
        self._stalled: list[socket.socket] = []
        self.latencies_ns: list[int] = []

    async def connect(self, count: int, request: tuple[bytes, bytes]) -> None:
        """Connect, and wait until all have been told what they are assigned."""
        loop = asyncio.get_running_loop()
        wanted = self._ready + count
        for begin in range(0, count, _CONNECT_AT_ONCE):
            made = await asyncio.gather(
                *[
                    loop.create_connection(
                        lambda: Receiver(request, self.latencies_ns.append, self._one_ready),
                        self._host,
                        self._port,
                    )
                    for _ in range(min(_CONNECT_AT_ONCE, count - begin))
                ]
            )
            self._transports += [transport for transport, _ in made]
        async with asyncio.timeout(60):
            while self._ready < wanted:
                await asyncio.sleep(0.01)

    def _one_ready(self) -> None:
        self._ready += 1

    async def connect_stalled(self, count: int, request: tuple[bytes, bytes]) -> None:
        """Connect receivers that never read."""
        loop = asyncio.get_running_loop()
        for _ in range(count):
            stalled = socket.socket()
            stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _STALLED_RECEIVE_BYTES)
            stalled.setblocking(False)
            await loop.sock_connect(stalled, (self._host, self._port))
            await loop.sock_sendall(stalled, request[0])
            self._stalled.append(stalled)

    async def all_arrived(self, count: int, timeout_seconds: float) -> None:
        """Wait until so many records have arrived, at all receivers together."""
        async with asyncio.timeout(timeout_seconds):
            while len(self.latencies_ns) < count:
                await asyncio.sleep(0.01)

    def close(self) -> None:
        for transport in self._transports:
            transport.close()
        for stalled in self._stalled:
            with suppress(OSError):
                stalled.close()


def sse_request(url: str, topic: str, start: str = "latest") -> tuple[bytes, bytes]:
    head = f"GET /push/sse?topic={topic}&from={start} HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\n\r\n"
    return head.encode(), b""


def websocket_request(url: str, topic: str) -> tuple[bytes, bytes]:
    """The handshake, and the message that subscribes."""
    message = f'{{"type":"subscribe","topics":["{topic}"]}}'.encode()
    assert len(message) < 126
    key = base64.b64encode(os.urandom(16)).decode()
    handshake = (
        f"GET /push/ws HTTP/1.1\r\nHost: {urlsplit(url).netloc}\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
        f"Sec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n\r\n"
    )
    # A mask of zeros leaves the message as it is.
    return handshake.encode(), bytes([0x81, 0x80 | len(message), 0, 0, 0, 0]) + message
