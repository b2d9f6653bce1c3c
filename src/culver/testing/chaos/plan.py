"""What a chaos run consists of: its cluster, topics, load and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from culver.testing.broker import SettingValue
from culver.testing.history import Partition

ZOOKEEPER = "zookeeper"
LOCAL = "local"
GROUP = "group"


@dataclass(frozen=True)
class TopicPlan:
    """A topic as it is created."""

    name: str
    partitions: int
    factor: int
    config: Mapping[str, SettingValue] = field(default_factory=dict)


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a run. With `schedule` these faults happen, one after the other; without,
    faults are drawn from the seed until the time is over."""

    seed: int
    seconds: float = 60.0
    store: str = ZOOKEEPER
    brokers: int = 3
    session_timeout_ms: int = 2_000
    records_per_second: int = 150
    schedule: tuple[str, ...] = ()
    # Only these kinds are drawn, if any are named.
    kinds: tuple[str, ...] = ()
    topics: tuple[TopicPlan, ...] = (
        TopicPlan("orders", 2, 3, {"min.insync.replicas": 2, "segment.bytes": 1 << 20}),
        TopicPlan("events", 1, 3, {"min.insync.replicas": 1, "segment.ms": 10_000}),
        TopicPlan("pairs", 1, 2, {"min.insync.replicas": 1}),
    )
    # Whether Kafka's client library writes down what it does.
    client_logs: bool = False
    # How long it may take after a fault until every partition takes writes again, and until all is in sync.
    progress_seconds: float = 60.0
    whole_seconds: float = 90.0

    def partitions(self) -> list[Partition]:
        return [(topic.name, index) for topic in self.topics for index in range(topic.partitions)]

    def settings(self) -> dict[str, SettingValue]:
        """Of every broker: as delivered but for times, which are shorter so that more happens in a minute."""
        return {
            "log.level": "info",
            "culver.session.timeout.ms": self.session_timeout_ms,
            "replica.lag.time.max.ms": 3_000,
            "replica.socket.timeout.ms": 5_000,
            "leader.imbalance.check.interval.seconds": 10,
            "offsets.topic.num.partitions": 3,
            "group.initial.rebalance.delay.ms": 500,
        }
