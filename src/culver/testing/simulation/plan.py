"""The plan of one simulated run, drawn from its seed: cluster, topics, clients and faults."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from culver.testing.history import Partition
from culver.testing.simulation.cluster import ClusterShape
from culver.testing.simulation.nemesis import COORDINATOR_FAULTS, FAULTS, FaultPlan
from culver.testing.simulation.transactional_load import COPY_TOPIC, SOURCE_TOPIC, TransactionPlan


@dataclass(frozen=True)
class TopicPlan:
    """A topic as it is created."""

    name: str
    partitions: int
    factor: int
    config: Mapping[str, str] = field(default_factory=dict)

    def all_partitions(self) -> list[Partition]:
        return [(self.name, index) for index in range(self.partitions)]


@dataclass(frozen=True)
class Plan:
    """Everything about a run that is decided before it begins."""

    cluster: ClusterShape = field(default_factory=ClusterShape)
    topics: tuple[TopicPlan, ...] = (TopicPlan("a", 2, 3),)
    faults: FaultPlan = field(default_factory=FaultPlan)
    flush_always: bool = False
    producers: int = 2
    in_flight: int = 3
    weak_producers: bool = True  # one each with acks=1 and acks=0
    consumers: int = 1
    members: int = 2
    # How long faults go on, and how long the cluster may take afterwards to be whole again.
    chaos_seconds: float = 40.0
    recovery_seconds: float = 40.0
    slow_network: bool = False
    transactions: TransactionPlan | None = None

    def partitions(self) -> list[Partition]:
        return [partition for topic in self.topics for partition in topic.all_partitions()]

    def forgetful(self) -> set[Partition]:
        """Partitions that a machine can lose what it has shown of: nobody else holds it, or all may be unplugged."""
        if not {"power", "disk error", "rot"} & set(self.faults.kinds):
            return set()
        return {
            partition
            for topic in self.topics
            if topic.factor == 1 or self.flush_always
            for partition in topic.all_partitions()
        }

    def written_by_all(self) -> list[Partition]:
        """Partitions that any producer may write to; copies come from copiers alone."""
        return [partition for partition in self.partitions() if partition[0] != COPY_TOPIC]

    def describe(self) -> str:
        topics = ", ".join(f"{t.name}: {t.partitions}x{t.factor} {dict(t.config)}" for t in self.topics)
        return (
            f"{self.cluster.brokers} brokers, session {self.cluster.session_timeout_ms} ms, "
            f"settings {dict(self.cluster.settings)}, topics {topics}, {self.producers} producers with "
            f"{self.in_flight} in flight, {self.members} members, faults {', '.join(self.faults.kinds)}"
            f"{'' if self.transactions is None else '; ' + self.transactions.describe()}"
        )


# The logs of coordinators are compacted all the time, and little is kept.
_EAGER_COMPACTION = {
    "log.cleaner.backoff.ms": "1000",
    "log.cleaner.min.cleanable.ratio": "0.1",
    "log.cleaner.delete.retention.ms": "1000",
    "log.roll.ms": "1000",
}


def draw_plan(seed: int) -> Plan:
    """The plan of a seed."""
    generator = random.Random(f"{seed}/plan")
    brokers = generator.choice((1, 3, 3, 3, 3, 3, 5))
    flush_always = generator.random() < 0.15
    settings = {"culver.flush": "always"} if flush_always else {}
    kinds = tuple(kind for kind in FAULTS if generator.random() < generator.choice((0.3, 0.7, 1.0))) or (
        "kill",
    )
    topics = _draw_topics(generator, brokers)
    if not flush_always and any(t.factor > 1 and t.config["min.insync.replicas"] == "1" for t in topics):
        # When an injected error strikes is left to the disk; there it must be known. See `safety`.
        kinds = tuple(kind for kind in kinds if kind != "disk error") or ("kill",)
    fast = generator.random() < 0.3
    plan = Plan(
        cluster=ClusterShape(
            brokers,
            session_timeout_ms=generator.choice((600, 1_000, 2_000)),
            settings=settings,
            death_seen_at_once=generator.random() < 0.4,
        ),
        topics=topics,
        faults=FaultPlan(
            kinds,
            gap_ms=(100, 1_500) if fast else (500, 5_000),
            lasts_ms=(100, 2_000) if generator.random() < 0.4 else (300, 6_000),
        ),
        flush_always=flush_always,
        producers=generator.choice((1, 2, 3)),
        in_flight=generator.choice((1, 2, 5)),
        weak_producers=generator.random() < 0.5,
        consumers=generator.choice((1, 1, 2)),
        members=generator.choice((0, 1, 2, 3)),
        chaos_seconds=generator.choice((20.0, 30.0, 45.0)),
        slow_network=generator.random() < 0.2,
    )
    # Every other seed has transactions.
    return _with_transactions(seed, plan) if seed % 2 == 0 else plan


def _with_transactions(seed: int, plan: Plan) -> Plan:
    """The plan with transactions in the place of most of its other load."""
    generator = random.Random(f"{seed}/transactions")
    brokers = plan.cluster.brokers
    tellers = generator.choice((1, 2, 3))
    topics = plan.topics
    copiers = 0
    kinds = (*plan.faults.kinds, *COORDINATOR_FAULTS)
    generations = generator.choice(((1,), (2,), (1, 2)))
    late_peer_share = generator.choice((0.0, 0.02, 0.05))
    if brokers > 1 and not plan.flush_always and generator.random() < 0.6:
        copiers = generator.choice((1, 2))
        topics = topics[:1]
        for name in (SOURCE_TOPIC, COPY_TOPIC):
            config = {"min.insync.replicas": "2"}
            if generator.random() < 0.5:
                config["segment.ms"] = str(generator.choice((2_000, 10_000)))
            topics += (TopicPlan(name, generator.choice((1, 2)), min(3, brokers), config),)
    return replace(
        plan,
        # In the older generation a late marker cannot be told from the next transaction's: as in Kafka, more than is
        # promised.
        cluster=replace(
            plan.cluster,
            settings={**plan.cluster.settings, **(_EAGER_COMPACTION if generator.random() < 0.4 else {})},
            late_peer_share=late_peer_share if generations == (2,) else 0.0,
        ),
        topics=topics,
        faults=replace(plan.faults, kinds=kinds),
        producers=1,
        weak_producers=plan.weak_producers and generator.random() < 0.3,
        members=min(plan.members, 1),
        consumers=1,
        chaos_seconds=min(plan.chaos_seconds, 20.0 if copiers else 30.0),
        transactions=TransactionPlan(
            generations=generations,
            tellers=tellers,
            hijacked=generator.choice((0, 0, 1)) if tellers > 1 else 0,
            copiers=copiers,
            mishap_gap_ms=generator.choice((None, (500, 6_000), (2_000, 15_000))),
            late_share=generator.choice((0.0, 0.01, 0.05)),
            timeouts_ms=generator.choice(((2_000,), (1_000, 4_000), (6_000,))),
        ),
    )


def _draw_topics(generator: random.Random, brokers: int) -> tuple[TopicPlan, ...]:
    topics = []
    for name in ("a", "b")[: generator.choice((1, 2))]:
        factor = min(brokers, generator.choice((1, 2, 3, 3, 3)))
        config = {"min.insync.replicas": str(min(factor, generator.choice((1, 2, 2))))}
        if generator.random() < 0.5:
            config["segment.ms"] = str(generator.choice((2_000, 10_000)))
        if generator.random() < 0.3:
            config["flush.messages"] = str(generator.choice((1, 5)))
        topics.append(TopicPlan(name, generator.choice((1, 2, 3)), factor, config))
    return tuple(topics)
