"""The cluster image: one immutable picture of brokers, topics and partitions that handlers read."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from culver.core.names import collision_key

NO_LEADER = -1


@dataclass(frozen=True, slots=True)
class BrokerInfo:
    """One broker and where clients reach it. Its epoch counts the times it has joined the cluster."""

    id: int
    host: str
    port: int
    rack: str | None = None
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class PartitionImage:
    """One partition's entry: who holds it, who leads it, and since which epoch."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    # Eligible to lead though not in sync: they have everything up to the high watermark (KIP-966).
    elr: tuple[int, ...] = ()
    # The version of the entry in the store: what a compare-and-set of it expects.
    partition_epoch: int = 0
    # A reassignment under way: replicas that are to come, and to go once those are in sync.
    adding: tuple[int, ...] = ()
    removing: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class TopicImage:
    """One topic; `partitions[i].index == i`, and `config` holds only what was set on the topic."""

    name: str
    topic_id: bytes
    partitions: tuple[PartitionImage, ...]
    config: Mapping[str, str] = field(default_factory=dict)
    # The version of its entry in the store.
    version: int = 0

    def __post_init__(self) -> None:
        assert len(self.topic_id) == 16
        assert all(partition.index == i for i, partition in enumerate(self.partitions))

    def partition(self, index: int) -> PartitionImage | None:
        return self.partitions[index] if 0 <= index < len(self.partitions) else None

    def with_partitions(self, partitions: Iterable[PartitionImage]) -> TopicImage:
        """This topic with some partitions replaced, or added at the end."""
        by_index = {partition.index: partition for partition in self.partitions}
        by_index.update((partition.index, partition) for partition in partitions)
        return replace(self, partitions=tuple(by_index[i] for i in sorted(by_index)))

    def with_config(self, config: Mapping[str, str]) -> TopicImage:
        return replace(self, config=MappingProxyType(dict(config)))


@dataclass(frozen=True, slots=True)
class ClusterImage:
    """Everything a handler may know of the cluster at one moment.

    A change makes a new image and leaves the old one whole, so a handler that holds one never sees half a
    change. A copy is a few dictionary copies (about 10 us with 1,000 topics); `with_topics` and
    `without_topics` pay for it once for many.
    """

    cluster_id: str
    controller_id: int = -1
    # Those alive.
    brokers: Mapping[int, BrokerInfo] = field(default_factory=dict)
    # All that belong to the cluster, alive or not.
    registrations: Mapping[int, BrokerInfo] = field(default_factory=dict)
    topics: Mapping[str, TopicImage] = field(default_factory=dict)
    topics_by_id: Mapping[bytes, TopicImage] = field(default_factory=dict)
    _collisions: Mapping[str, str] = field(default_factory=dict, repr=False)

    def topic(self, name: str) -> TopicImage | None:
        return self.topics.get(name)

    def topic_by_id(self, topic_id: bytes) -> TopicImage | None:
        return self.topics_by_id.get(topic_id)

    def partition(self, name: str, index: int) -> PartitionImage | None:
        topic = self.topics.get(name)
        return None if topic is None else topic.partition(index)

    def colliding_topic(self, name: str) -> str | None:
        """An existing topic that differs from `name` only by '.' against '_'."""
        other = self._collisions.get(collision_key(name))
        return other if other != name else None

    def with_topic(self, topic: TopicImage) -> ClusterImage:
        return self.with_topics((topic,))

    def with_topics(self, changed: Iterable[TopicImage]) -> ClusterImage:
        """Add these topics, or put them in place of those with the same name."""
        topics, by_id, collisions = dict(self.topics), dict(self.topics_by_id), dict(self._collisions)
        for topic in changed:
            old = topics.get(topic.name)
            # A topic deleted and made anew keeps its name but not its id: the old id must stop resolving.
            if old is not None and old.topic_id != topic.topic_id:
                del by_id[old.topic_id]
            topics[topic.name] = topic
            by_id[topic.topic_id] = topic
            collisions[collision_key(topic.name)] = topic.name
        return replace(self, topics=topics, topics_by_id=by_id, _collisions=collisions)

    def without_topic(self, name: str) -> ClusterImage:
        return self.without_topics((name,))

    def without_topics(self, names: Iterable[str]) -> ClusterImage:
        """Drop these topics; names that are not there are ignored."""
        topics, by_id, collisions = dict(self.topics), dict(self.topics_by_id), dict(self._collisions)
        for name in names:
            topic = topics.pop(name, None)
            if topic is not None:
                del by_id[topic.topic_id]
                collisions.pop(collision_key(name), None)
        return replace(self, topics=topics, topics_by_id=by_id, _collisions=collisions)

    def with_broker(self, broker: BrokerInfo) -> ClusterImage:
        return replace(self, brokers={**self.brokers, broker.id: broker})

    def without_broker(self, broker_id: int) -> ClusterImage:
        return replace(self, brokers={id: info for id, info in self.brokers.items() if id != broker_id})

    def with_controller(self, controller_id: int) -> ClusterImage:
        return replace(self, controller_id=controller_id)
