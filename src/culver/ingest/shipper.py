"""Sends lines to a topic, those of one source in their order, and says up to where they have arrived."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from culver.ingest.source import Line, Source, State
from culver.logging import get_logger

_log = get_logger("culver.ingest")

# Fewer than the client's own bound, so that a source that stalls does not fill the queue for the others.
_IN_FLIGHT_MAX = 50_000


class DeliveryRefused(Exception):
    """The cluster will never take a line: going on would lose it."""


class _Flight:
    """A line that was sent, and whether it has arrived."""

    __slots__ = ("arrived", "state")

    def __init__(self, state: State) -> None:
        self.state = state
        self.arrived = False


class Shipper:
    """One idempotent producer for all sources. It tries for as long as it takes: an outage only makes it wait.

    A line's key is its source, so that one partition gets all of its lines, in order.
    """

    def __init__(
        self,
        bootstrap: str,
        topic: str,
        headers: Mapping[str, str],
        settings: Mapping[str, Any],
        advanced: Callable[[Source, State], object],
    ) -> None:
        from confluent_kafka import Producer

        self._topic = topic
        self._headers: dict[str, str | bytes | None] = dict(headers)
        self._advanced = advanced
        self._flights: dict[Source, deque[_Flight]] = {}
        self._refusal: DeliveryRefused | None = None
        self.delivered = 0
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap,
                "client.id": "culver-ingest",
                "enable.idempotence": True,
                "message.timeout.ms": 0,
                "linger.ms": 20,
                "compression.type": "lz4",
                "queue.buffering.max.messages": 2 * _IN_FLIGHT_MAX,
                "reconnect.backoff.max.ms": 1_000,
                "error_cb": self._trouble,
                **settings,
            }
        )

    @property
    def in_flight(self) -> int:
        return sum(map(len, self._flights.values()))

    def room(self, source: Source) -> int:
        """How many more lines of a source may be sent now."""
        return _IN_FLIGHT_MAX - len(self._flights.get(source, ()))

    def send(self, source: Source, lines: list[Line]) -> None:
        """Take lines on their way. Waits while the client's queue is full."""
        flights = self._flights.setdefault(source, deque())
        for line in lines:
            flight = _Flight(line.state)
            flights.append(flight)
            while True:
                try:
                    self._producer.produce(
                        self._topic,
                        key=line.source,
                        value=line.text,
                        timestamp=line.received_ms,
                        headers=self._headers,
                        on_delivery=partial(self._arrived, source, flight),
                    )
                    break
                except BufferError:
                    self.poll(0.1)

    def _arrived(self, source: Source, flight: _Flight, error: Any, _message: Any) -> None:
        if error is not None:
            self._refusal = self._refusal or DeliveryRefused(
                f"{self._topic} does not take a line: {error.str()}"
            )
            return
        flight.arrived = True
        self.delivered += 1
        flights = self._flights[source]
        last = None
        while flights and flights[0].arrived:
            last = flights.popleft()
        if last is not None:
            self._advanced(source, last.state)

    def _trouble(self, error: Any) -> None:
        _log.warning("trouble with the cluster; lines wait", error=error.str())

    def poll(self, seconds: float) -> None:
        """Hear of deliveries. Raises DeliveryRefused when a line cannot be delivered at all."""
        self._producer.poll(seconds)
        if self._refusal is not None:
            raise self._refusal

    def close(self, seconds: float) -> int:
        """Wait for what is in flight; how many lines did not arrive in that time (they come again next time)."""
        self._producer.flush(seconds)
        return self.in_flight
