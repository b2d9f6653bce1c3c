"""Requests that arrive late: their senders have given up on the connection, and it delivers them all the same."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from culver.errors import KafkaError
from culver.protocol.schema import Message
from culver.testing.simulation.client import Client, Connection, Disconnected

Way = Callable[[Client], Awaitable[Connection]]
"""How to get a connection to whoever a request is for."""


class Postman:
    """Takes some of the requests that clients are about to send, and delivers them to whoever is responsible then."""

    def __init__(self, client: Client, share: float, delay_ms: tuple[int, int] = (200, 8_000)) -> None:
        self._client = client
        self._share = share
        self._delay_ms = delay_ms
        self._under_way = 0
        self.stopping = False
        self.delivered = 0

    @property
    def done(self) -> bool:
        return self._under_way == 0

    def takes(self, request: Message, version: int, way: Way) -> bool:
        """Whether the request is delivered late: its sender is to think that the connection is gone."""
        client = self._client
        if self.stopping or client.random.random() >= self._share:
            return False
        self._under_way += 1
        client.process.start(self._deliver(request, version, way))
        return True

    async def _deliver(self, request: Message, version: int, way: Way) -> None:
        await self._client.pause(*self._delay_ms)
        try:
            connection = await way(self._client)
            await connection.ask(request, version)
            self.delivered += 1
        except (Disconnected, KafkaError):
            pass  # lost on the way
        finally:
            self._under_way -= 1
