"""Which topics are busy: how their ends move, looked at while somebody asks.

The Kafka protocol tells no rates, but every broker tells where partitions end, of any number of them in one request.
"""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import deque
from typing import NamedTuple

from culver.gateway.cluster.cluster import Cluster, OffsetAt
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.places import LATEST, is_internal
from culver.gateway.console.recent import Recent

INTERVAL_S = 2.0
_KEPT_S = 15 * 60
# A look that is older says nothing about now.
_LOOK_SECONDS_MAX = 60.0


class RatePoint(NamedTuple):
    """Messages written to all topics in a second, on average since the point before."""

    at_ms: int
    messages_per_s: float


class TopicRates:
    """Rates from one look to the next; none before the second."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._looks: Recent[dict[str, float]] = Recent(INTERVAL_S, kept_max=1)
        self._ends: dict[str, int] = {}
        self._looked_s = float("-inf")
        self._points: deque[RatePoint] = deque(maxlen=round(_KEPT_S / INTERVAL_S))

    async def busiest(self, count: int) -> dict[str, float]:
        """Messages per second of the topics that have most, without those that have none."""
        rates = await self._looks.get("", self._look)
        found = heapq.nlargest(count, rates.items(), key=lambda rate: rate[1])
        return {topic: round(rate, 3) for topic, rate in found if rate > 0}

    def series(self) -> list[RatePoint]:
        """The sums of all topics, oldest first."""
        return list(self._points)

    async def _look(self) -> dict[str, float]:
        view = await self._cluster.view()
        topics = [topic for topic in view.topics.values() if not is_internal(topic)]
        places = [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]
        found = await self._cluster.list_offsets(dict.fromkeys(places, LATEST), retry_ms=0)
        now_s = asyncio.get_running_loop().time()
        ends: dict[str, int] = {}
        for place, at in found.items():
            if isinstance(at, OffsetAt):
                ends[place.topic] = ends.get(place.topic, 0) + at.offset
        seconds = now_s - self._looked_s
        rates = {
            topic: (end - self._ends[topic]) / seconds
            for topic, end in ends.items()
            # One that ends before its end was deleted and made again, or a partition could not be asked.
            if topic in self._ends and end >= self._ends[topic] and seconds <= _LOOK_SECONDS_MAX
        }
        self._ends, self._looked_s = ends, now_s
        if rates:
            self._points.append(RatePoint(time.time_ns() // 1_000_000, round(sum(rates.values()), 3)))
        return rates
