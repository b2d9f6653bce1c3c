"""DeleteRecords: cut a partition's history. Serves versions 0 to 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.delete_records import (
    DeleteRecordsPartitionResult,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

TO_HIGH_WATERMARK = -1


def handle(node: Node, exchange: Exchange, request: DeleteRecordsRequest) -> DeleteRecordsResponse:
    return DeleteRecordsResponse(
        topics=[
            DeleteRecordsTopicResult(
                name=topic.name,
                partitions=[
                    _delete(node, topic.name, asked.partition_index, asked.offset)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _delete(node: Node, topic: str, index: int, offset: int) -> DeleteRecordsPartitionResult:
    result = DeleteRecordsPartitionResult(partition_index=index, low_watermark=-1)
    partition = node.partitions.get(topic, index)
    if partition is None or not partition.leading:
        result.error_code = node.partition_error(topic, index)
        return result
    log = partition.log
    try:
        if "delete" not in log.config.cleanup_policy and log.config.cleanup_policy:
            # What a compacted topic holds is its state; cutting it would silently lose keys.
            raise KafkaError(
                ErrorCode.POLICY_VIOLATION, f"{topic} is compacted; its records cannot be deleted"
            )
        target = log.high_watermark if offset == TO_HIGH_WATERMARK else offset
        if target < 0 or target > log.high_watermark:
            raise KafkaError(ErrorCode.OFFSET_OUT_OF_RANGE)
        log.delete_records(target)
        result.low_watermark = log.start_offset
    except KafkaError as error:
        result.error_code = error.code
    except OSError:
        result.error_code = ErrorCode.KAFKA_STORAGE_ERROR
    return result
