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
    # Only another broker of the cluster, known by its greeting, may ask as a replica.
    peer = exchange.connection.peer_broker
    refused = request.replica_id >= 0 and (peer is None or peer.broker_id != request.replica_id)
    return OffsetForLeaderEpochResponse(
        topics=[
            OffsetForLeaderTopicResult(
                topic=topic.topic,
                partitions=[
                    EpochEndOffset(
                        partition=asked.partition, error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED
                    )
                    if refused
                    else _end_of(node, topic.topic, asked)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _end_of(node: Node, topic: str, asked: OffsetForLeaderPartition) -> EpochEndOffset:
    answer = EpochEndOffset(partition=asked.partition)
    partition = node.partitions.get(topic, asked.partition)
    if partition is None or not partition.leading:
        answer.error_code = node.partition_error(topic, asked.partition)
        return answer
    answer.error_code = partition.epoch_error(asked.current_leader_epoch)
    if not answer.error_code:
        answer.leader_epoch, answer.end_offset = partition.epoch_end_offset(asked.leader_epoch)
    return answer
