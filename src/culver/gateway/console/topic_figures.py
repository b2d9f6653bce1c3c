"""How much is in topics: records, bytes on disk and records per second, for as many topics as a page shows."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition, TopicView
from culver.gateway.console.browsing import Bounds
from culver.gateway.console.places import bounds_of
from culver.gateway.console.recent import Recent
from culver.protocol.messages.describe_log_dirs import (
    DescribableLogDirTopic,
    DescribeLogDirsRequest,
    DescribeLogDirsResponse,
)
from culver.wire_client import Unreachable

# Sorting by these figures needs them of all topics, which is much to ask for on every look.
ALL_TOPICS_MAX_AGE_S = 10.0
_PAGE_MAX_AGE_S = 1.0
# A rate is told over at least this long, and from a look that is not older than this.
_RATE_SECONDS_MIN, _RATE_SECONDS_MAX = 1.0, 60.0
_RATES_KEPT_MAX = 20_000
# A broker that hangs leaves sizes unknown; the page is shown without them.
_TIMEOUT_MS = 3000.0


@dataclass(frozen=True, slots=True)
class TopicFigures:
    """Of one topic. None: not known, for instance because a partition has no leader."""

    messages: int | None
    bytes: int | None
    messages_per_s: float | None


@dataclass(frozen=True, slots=True)
class LogDirectory:
    """A data directory of a broker. Sizes are None where the broker does not tell."""

    path: str
    bytes: int | None
    total_bytes: int | None
    usable_bytes: int | None
    error: str | None


@dataclass(frozen=True, slots=True)
class Disk:
    """What replicas take up on one broker."""

    directories: tuple[LogDirectory, ...]
    replica_bytes: dict[TopicPartition, int]


@dataclass(slots=True)
class _Look:
    """The end of a topic as it was at two moments."""

    at_s: float
    end: int
    rate: float | None = None


class Figures:
    """Asks for figures, and remembers ends of topics so that rates can be told."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._pages: Recent[dict[str, TopicFigures]] = Recent(_PAGE_MAX_AGE_S)
        self._all: Recent[dict[str, TopicFigures]] = Recent(ALL_TOPICS_MAX_AGE_S)
        self._looks: dict[str, _Look] = {}

    async def of(self, topics: Collection[TopicView]) -> dict[str, TopicFigures]:
        """The figures of some topics, by name."""
        names = frozenset(topic.name for topic in topics)
        return await self._pages.get(names, lambda: self._ask(topics))

    async def of_all(self, topics: Collection[TopicView]) -> dict[str, TopicFigures]:
        """The figures of all topics, which may be some seconds old."""
        return await self._all.get(len(topics), lambda: self._ask(topics))

    async def _ask(self, topics: Collection[TopicView]) -> dict[str, TopicFigures]:
        places = [TopicPartition(topic.name, each.index) for topic in topics for each in topic.partitions]
        (bounds, _), disks = await asyncio.gather(
            bounds_of(self._cluster, places, committed=False),
            self.disks([topic.name for topic in topics]),
        )
        return {topic.name: self._figures(topic, bounds, disks.values()) for topic in topics}

    def _figures(
        self, topic: TopicView, bounds: dict[TopicPartition, Bounds], disks: Iterable[Disk | Exception]
    ) -> TopicFigures:
        places = [TopicPartition(topic.name, each.index) for each in topic.partitions]
        known = [bounds[place] for place in places if place in bounds]
        is_whole = len(known) == len(places)
        return TopicFigures(
            sum(each.latest - each.earliest for each in known) if is_whole else None,
            bytes_of(places, disks),
            self._rate(topic.name, sum(each.latest for each in known)) if is_whole else None,
        )

    def _rate(self, topic: str, end: int) -> float | None:
        now_s = asyncio.get_running_loop().time()
        look = self._looks.get(topic)
        if look is None or end < look.end or now_s - look.at_s > _RATE_SECONDS_MAX:
            if len(self._looks) >= _RATES_KEPT_MAX:
                self._looks.clear()
            self._looks[topic] = _Look(now_s, end)
            return None
        if now_s - look.at_s >= _RATE_SECONDS_MIN:
            look.rate = (end - look.end) / (now_s - look.at_s)
            look.at_s, look.end = now_s, end
        return look.rate

    async def disks(
        self, topics: Collection[str] | None = None, brokers: Collection[int] | None = None
    ) -> dict[int, Disk | Exception]:
        """What these topics, or all, take up on these brokers, or all; an exception where it could not be asked."""
        asked = (await self._cluster.view()).brokers if brokers is None else brokers
        answers = await asyncio.gather(*(self._disk(broker, topics) for broker in asked))
        return dict(zip(asked, answers, strict=True))

    async def _disk(self, broker_id: int, topics: Collection[str] | None) -> Disk | Exception:
        view = await self._cluster.view()
        asked = None
        if topics is not None:
            asked = [
                DescribableLogDirTopic(
                    topic=name, partitions=[each.index for each in view.topics[name].partitions]
                )
                for name in topics
                if name in view.topics
            ]
        try:
            answer = await self._cluster.ask(
                DescribeLogDirsRequest(topics=asked),
                DescribeLogDirsResponse,
                broker_id=broker_id,
                timeout_ms=_TIMEOUT_MS,
            )
        except (KafkaError, Unreachable) as error:
            return error
        return _disk_of(answer)


def _disk_of(answer: DescribeLogDirsResponse) -> Disk:
    replicas: dict[TopicPartition, int] = {}
    directories = []
    for result in answer.results:
        sizes = {
            TopicPartition(topic.name, each.partition_index): each.partition_size
            for topic in result.topics
            for each in topic.partitions
            if not each.is_future_key
        }
        replicas |= sizes
        directories.append(
            LogDirectory(
                path=result.log_dir,
                bytes=sum(sizes.values()),
                total_bytes=result.total_bytes if result.total_bytes >= 0 else None,
                usable_bytes=result.usable_bytes if result.usable_bytes >= 0 else None,
                error=f"error {result.error_code}" if result.error_code else None,
            )
        )
    return Disk(tuple(directories), replicas)


def bytes_of(places: Iterable[TopicPartition], disks: Iterable[Disk | Exception]) -> int | None:
    """What partitions take up, counting of each the largest replica; None where nobody says."""
    known = [disk.replica_bytes for disk in disks if isinstance(disk, Disk)]
    sizes = [
        max((replicas[place] for replicas in known if place in replicas), default=None) for place in places
    ]
    return None if None in sizes or not sizes else sum(size for size in sizes if size is not None)
