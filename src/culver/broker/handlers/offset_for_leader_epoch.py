"""OffsetForLeaderEpoch: where an epoch ended, so that a reader can tell whether history changed. Versions 2 to 4."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.errors import ErrorCode
from culver.protocol.messages.offset_for_leader_epoch import (
    EpochEndOffset,
    OffsetForLeaderEpochRequest,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderPartition,
    OffsetForLeaderTopicResult,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(
    node: Node, exchange: Exchange, request: OffsetForLeaderEpochRequest
) -> OffsetForLeaderEpochResponse:
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[_end_of(node, topic.topic, asked) for asked in topic.partitions],
            )
            for topic in request.topics
        ]
    )


def _end_of(node: Node, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    partition = node.partitions.get(topic, asked.partition)
    if partition is None:
        answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
        return answer
    answer.error_code = partition.epoch_error(asked.current_leader_epoch)
    if not answer.error_code:
        answer.leader_epoch, answer.end_offset = partition.epoch_end_offset(asked.leader_epoch)
    return answer
