"""ListPartitionReassignments: the partitions that are being moved. Serves version 0."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from culver.core import reassignment
from culver.core.image import PartitionImage, TopicImage
from culver.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
    OngoingPartitionReassignment,
    OngoingTopicReassignment,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(
    node: Node, exchange: Exchange, request: ListPartitionReassignmentsRequest
) -> ListPartitionReassignmentsResponse:
    """Partitions that are asked for by name and stay where they are, or are not there at all, are left out."""
    topics = node.image.topics
    asked: Iterable[tuple[TopicImage, Iterable[PartitionImage]]]
    if request.topics is None:
        asked = [(topic, topic.partitions) for topic in topics.values()]
    else:
        asked = [
            (topics[named.name], _named(topics[named.name], named.partition_indexes))
            for named in request.topics
            if named.name in topics
        ]
    found = []
    for topic, partitions in asked:
        moving = [_ongoing(partition) for partition in partitions if reassignment.is_under_way(partition)]
        if moving:
            found.append(OngoingTopicReassignment(name=topic.name, partitions=moving))
    return ListPartitionReassignmentsResponse(error_message=None, topics=found)


def _named(topic: TopicImage, indexes: Iterable[int]) -> list[PartitionImage]:
    found = (topic.partition(index) for index in dict.fromkeys(indexes))
    return [partition for partition in found if partition is not None]


def _ongoing(partition: PartitionImage) -> OngoingPartitionReassignment:
    return OngoingPartitionReassignment(
        partition_index=partition.index,
        replicas=list(partition.replicas),
        adding_replicas=list(partition.adding),
        removing_replicas=list(partition.removing),
    )
