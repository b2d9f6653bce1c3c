"""DescribeTopicPartitions: topics page by page. Serves version 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.administration import is_internal
from culver.core import authorized_operations
from culver.core.image import NO_LEADER
from culver.core.names import is_valid_topic_name
from culver.errors import ErrorCode
from culver.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsRequest,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

PARTITIONS_PER_PAGE_MAX = 2000


def handle(
    node: Node, exchange: Exchange, request: DescribeTopicPartitionsRequest
) -> DescribeTopicPartitionsResponse:
    """Topics in the order of their names from the cursor on, until the page is full."""
    names = sorted({topic.name for topic in request.topics} or node.image.topics)
    first_index = 0
    if request.cursor is not None and (
        request.cursor.partition_index < 0 or (request.topics and request.cursor.topic_name not in names)
    ):
        return DescribeTopicPartitionsResponse(
            topics=[
                DescribeTopicPartitionsResponseTopic(
                    error_code=ErrorCode.INVALID_REQUEST, name=topic.name, partitions=[]
                )
                for topic in request.topics
            ],
            next_cursor=None,
        )
    if request.cursor is not None:
        names = [name for name in names if name >= request.cursor.topic_name]
        if names and names[0] == request.cursor.topic_name:
            first_index = request.cursor.partition_index
    left = max(min(request.response_partition_limit, PARTITIONS_PER_PAGE_MAX), 1)
    response = DescribeTopicPartitionsResponse(topics=[], next_cursor=None)
    for name in names:
        if left <= 0:
            response.next_cursor = Cursor(topic_name=name, partition_index=0)
            break
        described = _describe(node, name, first_index, left)
        first_index = 0
        left -= len(described.partitions)
        response.topics.append(described)
        topic = node.image.topics.get(name)
        if topic is not None and described.partitions:
            following = described.partitions[-1].partition_index + 1
            if following < len(topic.partitions):
                response.next_cursor = Cursor(topic_name=name, partition_index=following)
                break
    return response


def _describe(node: Node, name: str, first_index: int, most: int) -> DescribeTopicPartitionsResponseTopic:
    topic = node.image.topics.get(name)
    if topic is None:
        code = (
            ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if is_valid_topic_name(name)
            else ErrorCode.INVALID_TOPIC_EXCEPTION
        )
        return DescribeTopicPartitionsResponseTopic(
            error_code=code,
            name=name,
            partitions=[],
            topic_authorized_operations=authorized_operations.ON_TOPIC,
        )
    alive = node.image.brokers
    return DescribeTopicPartitionsResponseTopic(
        name=name,
        topic_id=topic.topic_id,
        is_internal=is_internal(name),
        partitions=[
            DescribeTopicPartitionsResponsePartition(
                error_code=ErrorCode.NONE if partition.leader in alive else ErrorCode.LEADER_NOT_AVAILABLE,
                partition_index=partition.index,
                leader_id=partition.leader if partition.leader in alive else NO_LEADER,
                leader_epoch=partition.leader_epoch,
                replica_nodes=list(partition.replicas),
                isr_nodes=list(partition.isr),
                eligible_leader_replicas=list(partition.elr),
                last_known_elr=[],
                offline_replicas=[replica for replica in partition.replicas if replica not in alive],
            )
            for partition in topic.partitions[first_index : first_index + most]
        ],
        topic_authorized_operations=authorized_operations.ON_TOPIC,
    )
