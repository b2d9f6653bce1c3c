"""Receivers that do not receive: plain sockets that ask for a push and then never read, nor answer a ping."""

from __future__ import annotations

import asyncio
import base64
import json
import socket
from types import TracebackType
from typing import Any
from urllib.parse import urlencode, urlsplit

_RECEIVE_BYTES = 4096


class Stalled:
    """One such connection. Closed at the end of the block."""

    def __init__(self, url: str) -> None:
        self._netloc = urlsplit(url).netloc
        self._address = (urlsplit(url).hostname, urlsplit(url).port)
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BYTES)
        self._socket.setblocking(False)

    async def sse(self, **query: Any) -> Stalled:
        """Ask for server-sent events; `start` stands for the parameter `from`."""
        query = {"from" if name == "start" else name: value for name, value in query.items()}
        await self._ask(f"/push/sse?{urlencode(query)}")
        return self

    async def websocket(self, **subscribe: Any) -> Stalled:
        """Subscribe over a WebSocket, having read the handshake and nothing more."""
        key = base64.b64encode(b"0123456789abcdef").decode()
        await self._ask(
            "/push/ws",
            f"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Key: {key}\r\nSec-WebSocket-Version: 13\r\n",
        )
        loop = asyncio.get_running_loop()
        head = b""
        while b"\r\n\r\n" not in head:
            head += await loop.sock_recv(self._socket, 1)
        assert head.startswith(b"HTTP/1.1 101"), head
        message = json.dumps({"type": "subscribe", **subscribe}).encode()
        assert 126 <= len(message) < 2**16 or len(message) < 126
        size = (
            bytes([0x80 | len(message)]) if len(message) < 126 else b"\xfe" + len(message).to_bytes(2, "big")
        )
        # A mask of zeros leaves the message as it is.
        await loop.sock_sendall(self._socket, b"\x81" + size + bytes(4) + message)
        return self

    async def _ask(self, path: str, headers: str = "") -> None:
        loop = asyncio.get_running_loop()
        await loop.sock_connect(self._socket, self._address)
        await loop.sock_sendall(
            self._socket, f"GET {path} HTTP/1.1\r\nHost: {self._netloc}\r\n{headers}\r\n".encode()
        )

    def __enter__(self) -> Stalled:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._socket.close()
