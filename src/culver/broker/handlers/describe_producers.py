"""DescribeProducers: the producers that a partition remembers, and their transactions in it. Serves version 0."""

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
    log = partition.log
    open_since = {one.producer_id: one.first_offset for one in log.open_transactions()}
    return PartitionResponse(
        partition_index=index,
        active_producers=[
            ProducerState(
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                last_sequence=producer.last_sequence,
                last_timestamp=producer.last_timestamp_ms,
                coordinator_epoch=producer.coordinator_epoch,
                current_txn_start_offset=open_since.get(producer.producer_id, -1),
            )
            for producer in log.producers()
        ],
    )
