"""The metrics as one text, gathered when someone reads them: at most once a second, however many read."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from typing import TypeVar

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.recent import Recent
from culver.gateway.metrics.broker_reports import BrokerReports
from culver.gateway.metrics.collection import ClusterFigures, collect
from culver.gateway.metrics.exposition import Waiting, exposition
from culver.gateway.metrics.gateway_metrics import GatewayMetrics
from culver.gateway.metrics.lag_time import LagTimes
from culver.gateway.reading.partition_reader import Readers
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.metrics")

_MAX_AGE_S = 1.0
# Records read at one look to learn when they came, and how long that may take: the rest has its turn at the next.
_READS_MAX = 20
_READS_MAX_S = 2.0
# Groups that are looked at without letting others have a turn.
_GROUPS_PER_TURN = 200

T = TypeVar("T")


class Metrics:
    """One for the gateway (`services.metrics`)."""

    def __init__(
        self, cluster: Cluster, readers: Readers, reports: BrokerReports, gateway: GatewayMetrics
    ) -> None:
        self._cluster = cluster
        self._readers = readers
        self._reports = reports
        self.gateway = gateway
        self._texts: Recent[str] = Recent(_MAX_AGE_S)
        self._lag_times = LagTimes()

    async def text(self) -> bytes:
        """All metrics. Without a cluster those of the gateway alone: they are what tells why."""
        cluster = await self._texts.get("cluster", self._gather)
        return (cluster + self.gateway.text()).encode()

    async def _gather(self) -> str:
        began_s = time.monotonic()
        pieces = []
        try:
            figures = await collect(self._cluster, self._reports)
        except (Unreachable, KafkaError, TimeoutError) as error:
            _log.warning("the cluster cannot be asked for metrics", error=str(error) or "it takes too long")
        else:
            waiting = await self._waiting(figures)
            for piece in exposition(figures, waiting, time.monotonic() - began_s):
                pieces.append(piece)
                await asyncio.sleep(0)
        return "".join(pieces)

    async def _waiting(self, figures: ClusterFigures) -> dict[str, list[Waiting]]:
        """How far every group is behind, in offsets and in time."""
        now_ms = time.time_ns() // 1_000_000
        latest, earliest = figures.latest, figures.earliest
        read_by_groups: set[TopicPartition] = set()
        # What retention took before it was read does not wait any more.
        first_unread: set[tuple[TopicPartition, int]] = set()
        async for group in _in_turns(figures.groups.values()):
            read_by_groups.update(group.committed)
            for place, committed in group.committed.items():
                if latest.get(place, 0) > committed:
                    first_unread.add((place, max(committed, earliest.get(place, 0))))
        self._lag_times.look(now_ms, [(place, latest[place]) for place in read_by_groups if place in latest])
        self._lag_times.forget_reads_but(first_unread)
        await self._read_some(first_unread)
        waiting: dict[str, list[Waiting]] = {}
        async for name, group in _in_turns(figures.groups.items()):
            waiting[name] = [
                self._one(place, committed, latest[place], earliest.get(place, 0), now_ms)
                for place, committed in group.committed.items()
                if place in latest
            ]
        return waiting

    def _one(self, place: TopicPartition, committed: int, latest: int, earliest: int, now_ms: int) -> Waiting:
        if latest <= committed:
            return Waiting(place, committed, 0, 0.0)
        came_at_ms = self._lag_times.came_at_ms(place, max(committed, earliest))
        seconds = None if came_at_ms is None else round(max(0.0, now_ms - came_at_ms) / 1000, 3)
        return Waiting(place, committed, latest - committed, seconds)

    async def _read_some(self, first_unread: Iterable[tuple[TopicPartition, int]]) -> None:
        unknown = [(place, at) for place, at in first_unread if self._lag_times.came_at_ms(place, at) is None]
        if unknown:
            some = sorted(unknown)[:_READS_MAX]
            await asyncio.gather(*(self._read(place, offset) for place, offset in some))

    async def _read(self, place: TopicPartition, offset: int) -> None:
        try:
            async with asyncio.timeout(_READS_MAX_S):
                records = await self._readers.read_range(*place, offset, records_max=1, bytes_max=1)
        except (TimeoutError, KafkaError, Unreachable):
            return
        if records:
            self._lag_times.has_been_read(place, offset, records[0].timestamp_ms)


async def _in_turns(items: Iterable[T]) -> AsyncIterator[T]:
    for number, item in enumerate(items, start=1):
        yield item
        if not number % _GROUPS_PER_TURN:
            await asyncio.sleep(0)
