"""What a cluster looked like at one moment: its brokers, its topics, and who leads each partition."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from culver.errors import ERRORS, ErrorCode, KafkaError
from culver.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponsePartition,
    MetadataResponseTopic,
)

NO_LEADER = -1


class TopicPartition(NamedTuple):
    """A partition by its name, written topic-partition."""

    topic: str
    partition: int

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition}"


@dataclass(frozen=True, slots=True)
class BrokerAddress:
    """A broker and where clients find it."""

    id: int
    host: str
    port: int
    rack: str | None = None


@dataclass(frozen=True, slots=True)
class PartitionView:
    """One partition. `leader` is NO_LEADER while there is none."""

    index: int
    leader: int
    leader_epoch: int
    replicas: tuple[int, ...]
    isr: tuple[int, ...]
    offline: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic. `partitions` are in order, beginning with 0."""

    name: str
    topic_id: bytes
    internal: bool
    partitions: list[PartitionView]


@dataclass(frozen=True, slots=True)
class ClusterView:
    """All of it. Nobody changes a view: a newer one takes its place."""

    cluster_id: str | None
    controller_id: int
    brokers: dict[int, BrokerAddress]
    topics: dict[str, TopicView]

    def partition(self, place: TopicPartition) -> PartitionView:
        """KafkaError(UNKNOWN_TOPIC_OR_PARTITION) when there is none."""
        topic = self.topics.get(place.topic)
        if topic is None:
            raise KafkaError(ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"there is no topic {place.topic}")
        if not 0 <= place.partition < len(topic.partitions):
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
                f"topic {place.topic} has no partition {place.partition}",
            )
        return topic.partitions[place.partition]

    def leader(self, place: TopicPartition) -> PartitionView:
        """The partition, if it has a leader that is known; otherwise KafkaError(LEADER_NOT_AVAILABLE)."""
        partition = self.partition(place)
        if partition.leader not in self.brokers:
            raise KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, f"{place} has no leader at the moment")
        return partition

    def topic_names(self) -> dict[bytes, str]:
        """The names of topics by their ids."""
        return {topic.topic_id: topic.name for topic in self.topics.values()}


def view_of(answer: MetadataResponse) -> ClusterView:
    """The view that a broker's answer gives. Topics it reports an error for (being deleted) are left out."""
    topics = [_topic(topic) for topic in answer.topics if not topic.error_code and topic.name]
    return ClusterView(
        cluster_id=answer.cluster_id,
        controller_id=answer.controller_id,
        brokers={
            broker.node_id: BrokerAddress(broker.node_id, broker.host, broker.port, broker.rack)
            for broker in answer.brokers
        },
        topics={topic.name: topic for topic in sorted(topics, key=lambda topic: topic.name)},
    )


def refusal(code: int, what: str, message: str | None = None) -> KafkaError:
    """The exception for an error code in an answer; `what` was asked for, `message` is what the broker says to it."""
    known = ERRORS[code].code if code in ERRORS else ErrorCode.UNKNOWN_SERVER_ERROR
    return KafkaError(known, f"{what}: {message or known.text}")


def _topic(topic: MetadataResponseTopic) -> TopicView:
    partitions = sorted(topic.partitions, key=lambda partition: partition.partition_index)
    return TopicView(topic.name or "", topic.topic_id, topic.is_internal, [_partition(p) for p in partitions])


def _partition(partition: MetadataResponsePartition) -> PartitionView:
    return PartitionView(
        index=partition.partition_index,
        leader=partition.leader_id,
        leader_epoch=partition.leader_epoch,
        replicas=tuple(partition.replica_nodes),
        isr=tuple(partition.isr_nodes),
        offline=tuple(partition.offline_replicas),
    )
