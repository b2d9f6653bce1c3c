"""One request and its response: what a handler gets, and what it answers with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from culver.broker.connection import Connection
    from culver.broker.dispatch import Route


class NoResponse:
    """What a handler returns for a request that gets no response (acks=0)."""


NO_RESPONSE = NoResponse()


class Exchange:
    """One request and the place its response will take among those of its connection.

    A handler returns the response, or keeps the exchange and calls `reply` later.
    """

    __slots__ = (
        "abandoned",
        "began_ms",
        "buffers",
        "client_id",
        "connection",
        "correlation_id",
        "on_abandon",
        "route",
        "version",
    )

    def __init__(
        self, connection: Connection, route: Route, version: int, correlation_id: int, client_id: str | None
    ) -> None:
        self.connection = connection
        self.route = route
        self.version = version
        self.correlation_id = correlation_id
        self.client_id = client_id
        self.began_ms: float  # when its bytes were read: the connection sets it once the handler has run
        self.buffers: list[Any] | None = None
        self.abandoned = False
        self.on_abandon: Callable[[], object] | None = None

    def reply(self, response: Any) -> None:
        """Answer a request that was kept. Harmless when the client is gone."""
        assert self.buffers is None, "a request is answered once"
        if response is NO_RESPONSE:
            self.buffers = []
        elif self.abandoned:
            return
        else:
            self.buffers = self.route.encode_response(self.correlation_id, response)
        self.connection.answered(self)

    @property
    def client_host(self) -> str:
        return self.connection.peer_host
