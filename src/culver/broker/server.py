"""The server: all connections of one listener, what they hold together, and who is closed for holding too much."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

from culver.broker.buffers import ReceiveBuffers
from culver.broker.connection import Connection
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.dispatch import Dispatcher, Route
    from culver.broker.exchange import Exchange
    from culver.config import BrokerConfig
    from culver.scheduler import Scheduler

_log = get_logger("culver.server")

_SWEEP_INTERVAL_MS = 5_000
_STALL_MAX_MS = 30_000


class AfterRequests(Protocol):
    """What the broker does once after each bunch of requests, such as waking long polls."""

    def __call__(self) -> None: ...


class Server:
    """All connections of one listener."""

    def __init__(
        self,
        config: BrokerConfig,
        dispatcher: Dispatcher,
        scheduler: Scheduler,
        monotonic_ms: Callable[[], float],
        after_requests: AfterRequests,
    ) -> None:
        self.dispatcher = dispatcher
        self.after_requests = after_requests
        self.request_max_bytes = config.socket_request_max_bytes
        self.buffers = ReceiveBuffers(
            max(config.queued_max_request_bytes, 2 * config.socket_request_max_bytes)
        )
        # In the order in which they came: what is done to all of them is done in the same order every time.
        self.connections: dict[Connection, None] = {}
        self.unsent_bytes = 0  # of responses that clients are slow to take
        # Counted since the start.
        self.connections_opened = 0
        self.received_bytes = 0
        self.sent_bytes = 0
        self.now_ms = 0.0
        self.monotonic_ms = monotonic_ms
        self._scheduler = scheduler
        self._connections_max = config.max_connections
        self._idle_max_ms = config.connections_max_idle_ms
        self._waiting_for_memory: dict[Connection, None] = {}
        self._over_budget: Connection | None = None
        self._sweep()

    def new_connection(self) -> Connection:
        return Connection(self)

    def opened(self, connection: Connection) -> None:
        if len(self.connections) >= self._connections_max:
            _log.warning(
                "refused a connection", peer=connection.peer_host, max_connections=self._connections_max
            )
            connection.abort()
            return
        connection.last_active_ms = self.now_ms
        self.connections_opened += 1
        self.connections[connection] = None

    def closed(self, connection: Connection) -> None:
        self.connections.pop(connection, None)
        self._waiting_for_memory.pop(connection, None)

    def answered(self, route: Route, times: int, began_ms: float) -> None:
        """So many requests that were read together have been answered at once. Hot: for each bunch of requests."""
        route.statistics.latency.record(self.monotonic_ms() - began_ms, times)

    def answered_late(self, waited: list[Exchange]) -> None:
        """These had to wait, each for its own reasons."""
        now_ms = self.monotonic_ms()
        for exchange in waited:
            exchange.route.statistics.latency.record(now_ms - exchange.began_ms)

    def continue_later(self, connection: Connection) -> None:
        self._scheduler.call_soon(connection._continue)

    def may_hold_more(self, connection: Connection) -> bool:
        """Whether a partial request may grow. Past the budget one at a time may, so that none waits for ever."""
        if not self.buffers.exhausted:
            return True
        if self._over_budget is None:
            self._over_budget = connection
        return self._over_budget is connection

    def wait_for_memory(self, connection: Connection) -> None:
        self._waiting_for_memory[connection] = None

    def released(self, connection: Connection) -> None:
        """The connection's partial request is complete, or the connection is gone."""
        if self._over_budget is connection:
            self._over_budget = None
        if self._waiting_for_memory:
            waiting = list(self._waiting_for_memory)
            self._waiting_for_memory.clear()
            for connection in waiting:
                self._scheduler.call_soon(connection.memory_available)

    def _sweep(self) -> None:
        """Close the idle, and those that sit on a partial request while others want the memory."""
        self.now_ms = now_ms = self.monotonic_ms()
        starved = bool(self._waiting_for_memory)
        for connection in list(self.connections):
            silent_ms = now_ms - connection.last_active_ms
            if silent_ms > self._idle_max_ms and not connection._pending:
                _log.info("closed an idle connection", peer=connection.peer_host)
                connection.close()
            elif starved and silent_ms > _STALL_MAX_MS and connection.holds_up_others:
                _log.warning("closed a stalled connection", peer=connection.peer_host)
                connection.abort()
        self._sweep_timer = self._scheduler.call_later(_SWEEP_INTERVAL_MS, self._sweep)

    def close(self) -> None:
        self._sweep_timer.cancel()
        for connection in list(self.connections):
            connection.close()
