"""DescribeProducers: the idempotent producers that a partition remembers. Serves version 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.core.names import is_valid_topic_name
from culver.errors import ErrorCode
from culver.protocol.messages.describe_producers import (
    DescribeProducersRequest,
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: DescribeProducersRequest) -> DescribeProducersResponse:
    return DescribeProducersResponse(
        topics=[
            TopicResponse(
                name=topic.name,
                partitions=[_describe(node, topic.name, index) for index in topic.partition_indexes],
            )
            for topic in request.topics
        ]
    )


def _describe(node: Node, topic: str, index: int) -> PartitionResponse:
    partition = node.partitions.get(topic, index)
    if partition is None or not partition.leading:
        valid = is_valid_topic_name(topic)
        code = node.partition_error(topic, index) if valid else ErrorCode.INVALID_TOPIC_EXCEPTION
        return PartitionResponse(
            partition_index=index, error_code=code, error_message=code.text, active_producers=[]
        )
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=-1,
                current_txn_start_offset=-1,
            )
            for producer in partition.log.producers()
        ],
    )
