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


class Connecting(Protocol):
    """A connection that is being made."""

    def cancel(self) -> None:
        """Have it not made: neither `connection_made` nor `failed` is called any more.

        Only before one of them was. A connection that has been made is ended through its transport.
        """
        ...


class Network(Protocol):
    """Byte streams between hosts, in the shape of asyncio's transports and protocols."""

    async def listen(
        self, host: str, port: int, factory: Callable[[], asyncio.BufferedProtocol]
    ) -> Listener: ...

    def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        failed: Callable[[OSError], object],
    ) -> Connecting:
        """Connect, without delay for small writes. Either the protocol's `connection_made` is called, or `failed`.

        Neither before this returns. How long it may take is the caller's business: see `Connecting.cancel`.
        """
        ...


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


class AsyncioConnecting:
    """A connection attempt of the running event loop."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        failed: Callable[[OSError], object],
    ) -> None:
        self._factory = factory
        self._failed = failed
        self._task = loop.create_task(self._connect(loop, host, port))

    async def _connect(self, loop: asyncio.AbstractEventLoop, host: str, port: int) -> None:
        try:
            # The event loop turns Nagle's algorithm off for every TCP connection it makes.
            await loop.create_connection(self._factory, host, port)
        except OSError as error:
            self._failed(error)

    def cancel(self) -> None:
        self._task.cancel()


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

    def connect(
        self,
        host: str,
        port: int,
        factory: Callable[[], asyncio.BufferedProtocol],
        failed: Callable[[OSError], object],
    ) -> AsyncioConnecting:
        return AsyncioConnecting(self._loop, host, port, factory, failed)
