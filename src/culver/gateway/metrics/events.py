"""The cluster's last events: what brokers tell, merged, each once.

For endpoints (`services.events`):

    events.recent(after=0, limit=100)   the newest 100 with a number above `after`, oldest first
    await events.wait(after)            returns when there is one with a number above `after`

A number says nothing but the order. Numbers grow from one gateway to the next that is started in its place, so a
client that comes back with the last number it saw misses nothing that is still known, and gets nothing twice.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable

import msgspec

from culver.core.broker_report import ClusterEvent
from culver.core.cluster_events import EVENTS_MAX

# Brokers see the same change at about the same time, by clocks that differ a little. An event with the same key that
# is further away than this is another one: the same broker may become controller again.
_SAME_WITHIN_MS = 30_000


class Event(msgspec.Struct, frozen=True):
    """One event, as the console shows it.

    Kinds: election, leaderless, isr, broker_up, broker_down, controller, topic_created, topic_deleted, topic_settings,
    partitions_added, reassignment, log_failed.
    """

    number: int
    at_ms: int
    kind: str
    text: str
    topic: str | None = None
    partition: int | None = None
    broker: int | None = None


class Events:
    """The last thousand."""

    def __init__(self, first_number: int) -> None:
        self.last_number = first_number - 1
        self._ring: deque[tuple[str, Event]] = deque()  # with their keys
        self._seen_at_ms: dict[str, int] = {}
        self._came = asyncio.Event()

    def recent(self, after: int = 0, limit: int = 100) -> list[Event]:
        """The newest, at most `limit`, with a number above `after`; oldest first."""
        found: list[Event] = []
        for _, event in reversed(self._ring):
            if event.number <= after or len(found) >= limit:
                break
            found.append(event)
        return found[::-1]

    async def wait(self, after: int) -> None:
        """Until there is one with a number above `after`."""
        while not self._ring or self.last_number <= after:
            await self._came.wait()

    def add(self, told: Iterable[ClusterEvent]) -> None:
        """Take what brokers have told; what another has told already is left out."""
        fresh = []
        for event in sorted(told, key=lambda event: event.at_ms):
            seen_at_ms = self._seen_at_ms.get(event.key)
            if seen_at_ms is None or abs(event.at_ms - seen_at_ms) > _SAME_WITHIN_MS:
                self._seen_at_ms[event.key] = event.at_ms
                fresh.append(event)
        for event in fresh:
            self._append(event)
        if fresh:
            came, self._came = self._came, asyncio.Event()
            came.set()

    def _append(self, event: ClusterEvent) -> None:
        self.last_number += 1
        shown = Event(
            self.last_number, event.at_ms, event.kind, event.text, event.topic, event.partition, event.broker
        )
        self._ring.append((event.key, shown))
        if len(self._ring) > EVENTS_MAX:
            key, gone = self._ring.popleft()
            if self._seen_at_ms.get(key) == gone.at_ms:
                del self._seen_at_ms[key]
