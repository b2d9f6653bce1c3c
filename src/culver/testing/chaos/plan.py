"""What a chaos run consists of: its cluster, topics, load and faults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from culver.core.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from culver.testing.broker import SettingValue
from culver.testing.history import Partition

ZOOKEEPER = "zookeeper"
LOCAL = "local"
GROUP = "group"
SOURCE = "source"
COPIES = "copies"
COPY_GROUP = "copiers"
OFFSETS_PARTITIONS = 3
TRANSACTION_STATE_PARTITIONS = 3
COPY_RATE = 3_000
# What a copying run is put through: brokers that crash and brokers that are restarted, whatever they are in charge of.
BOUNCES = (
    "kill leader",
    "kill follower",
    "kill coordinator",
    "kill transaction coordinator",
    "kill controller",
    "restart",
    "restart transaction coordinator",
)


@dataclass(frozen=True)
class TopicPlan:
    """A topic as it is created."""

    name: str
    partitions: int
    factor: int
    config: Mapping[str, SettingValue] = field(default_factory=dict)


@dataclass(frozen=True)
class TransactionPlan:
    """Who works in transactions, each in a process of its own, and what happens to them."""

    tellers: int = 2
    # Tellers that have one transactional id for all of them.
    hijackers: int = 2
    copiers: int = 2
    # Of the copiers' group: "classic", or "consumer", in which the broker assigns.
    group_protocol: str = "classic"
    # How long a transaction may take.
    timeout_ms: int = 6_000
    # Of tellers, between two transactions; on average.
    pause_s: float = 0.05
    # A copier's transaction: so many records, or those that came in that time; and how long it takes besides its work.
    copy_size: int = 50
    copy_linger_s: float = 0.4
    copy_pause_s: float = 0.3
    source_partitions: int = 2
    copy_partitions: int = 3
    session_timeout_ms: int = 3_000
    # Between two mishaps of clients; most are killed, some are frozen.
    mishap_gap_s: tuple[float, float] = (0.5, 3.0)
    frozen_share: float = 0.15
    # Tellers that are killed in the end and never come back: only time ends what they had begun.
    deserters: int = 1
    # In the end every transaction must have ended within its time-out and this.
    end_slack_s: float = 5.0
    # The records that are there to be copied from the start; with any, the run goes on until they are copied.
    seeds: int = 0

    def topics(self) -> tuple[TopicPlan, ...]:
        return (
            TopicPlan(
                SOURCE, self.source_partitions, 3, {"min.insync.replicas": 2, "segment.bytes": 1 << 20}
            ),
            TopicPlan(COPIES, self.copy_partitions, 3, {"min.insync.replicas": 2, "segment.ms": 10_000}),
        )


@dataclass(frozen=True)
class Plan:
    """Everything that is decided before a run. With `schedule` these faults happen, one after the other; without,
    faults are drawn from the seed until the time is over, or until everything is copied."""

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
    transactions: TransactionPlan | None = None
    # Whether Kafka's client library writes down what it does.
    client_logs: bool = False
    # How long it is left in peace between faults, at most.
    peace_seconds: float = 0.0
    # How long it may take after a fault until every partition takes writes again, and until all is in sync.
    progress_seconds: float = 60.0
    whole_seconds: float = 90.0

    def all_topics(self) -> tuple[TopicPlan, ...]:
        return self.topics + (() if self.transactions is None else self.transactions.topics())

    def factors(self) -> dict[Partition, int]:
        """How many replicas each partition has: those of the topics, and with transactions the coordinators' own."""
        topics = self.all_topics()
        if self.transactions is not None:
            factor = min(3, self.brokers)
            topics += (
                TopicPlan(GROUP_OFFSETS_TOPIC, OFFSETS_PARTITIONS, factor),
                TopicPlan(TRANSACTION_STATE_TOPIC, TRANSACTION_STATE_PARTITIONS, factor),
            )
        return {(topic.name, index): topic.factor for topic in topics for index in range(topic.partitions)}

    def partitions(self) -> list[Partition]:
        """Those that ordinary producers write to."""
        return [(topic.name, index) for topic in self.topics for index in range(topic.partitions)]

    def settings(self) -> dict[str, SettingValue]:
        """Of every broker: as delivered but for times, which are shorter so that more happens in a minute."""
        return {
            "log.level": "info",
            "culver.session.timeout.ms": self.session_timeout_ms,
            "replica.lag.time.max.ms": 3_000,
            "replica.socket.timeout.ms": 5_000,
            "leader.imbalance.check.interval.seconds": 10,
            "offsets.topic.num.partitions": OFFSETS_PARTITIONS,
            "transaction.state.log.num.partitions": TRANSACTION_STATE_PARTITIONS,
            "group.initial.rebalance.delay.ms": 500,
            "group.min.session.timeout.ms": 2_000,
            "group.consumer.session.timeout.ms": 3_000,
            "group.consumer.heartbeat.interval.ms": 500,
        }


def copying(
    seed: int,
    messages: int,
    size: int,
    *,
    store: str = ZOOKEEPER,
    brokers: int = 3,
    rate: int = COPY_RATE,
    group_protocol: str = "classic",
    client_logs: bool = False,
) -> Plan:
    """So many messages, copied in transactions of that size, at no more than that rate (messages a second), while
    brokers and copiers are killed and restarted again and again."""
    copiers = 3
    return Plan(
        seed,
        store=store,
        brokers=brokers,
        kinds=BOUNCES,
        topics=(),
        client_logs=client_logs,
        peace_seconds=2.0,
        transactions=TransactionPlan(
            tellers=0,
            hijackers=0,
            copiers=copiers,
            group_protocol=group_protocol,
            timeout_ms=10_000,
            copy_size=size,
            # Half of it is spent within the transaction and half behind it, on average.
            copy_pause_s=copiers * size / rate,
            source_partitions=4,
            copy_partitions=4,
            mishap_gap_s=(1.0, 5.0),
            frozen_share=0.05,
            seeds=messages,
        ),
    )
