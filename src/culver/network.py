"""The network port: listening and connecting, so that a simulator can carry the bytes instead."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol


class Listener(Protocol):
    """A bound address that hands new connections to a protocol factory."""

    @property
    def address(self) -> tuple[str, int]:
        """The host as asked for and the real port (port 0 asks for any free one)."""
        ...

    def close(self) -> None: ...


class Network(Protocol):
    """Byte streams between hosts, in the shape of asyncio's transports and protocols."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener: ...


class AsyncioListener:
    """A server of the running event loop."""

    def __init__(self, host: str, server: asyncio.AbstractServer, port: int) -> None:
        self._server = server
        self._address = (host, port)

    @property
    def address(self) -> tuple[str, int]:
        return self._address

    def close(self) -> None:
        self._server.close()


class AsyncioNetwork:
    """TCP through the running event loop."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> AsyncioListener:
        server = await self._loop.create_server(factory, host, port, backlog=1024)
        bound = server.sockets[0].getsockname()[1]
        return AsyncioListener(host, server, bound)
