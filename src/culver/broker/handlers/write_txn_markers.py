"""WriteTxnMarkers: end transactions in partitions that this broker leads. Serves versions 1 and 2.

1: flexible. 2: the generation of the transaction's protocol, by which a stale marker is known (KIP-1228).

Coordinators on other brokers send it. From a client it is an administrator's tool against a transaction that hangs: one
that has been open in a partition for longer than any coordinator allows, and so is known to none.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from culver.broker.marker_writing import write_marker
from culver.core.coordinator_effects import Marker
from culver.errors import ErrorCode
from culver.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse | None:
    from_broker = exchange.connection.peer_broker is not None
    response = WriteTxnMarkersResponse(markers=[])
    left = 1
    inside = True

    def one_done(answer: WritableTxnMarkerPartitionResult | None, code: ErrorCode) -> None:
        nonlocal left
        if answer is not None:
            answer.error_code = code
        left -= 1
        if left == 0 and not inside:
            exchange.reply(response)

    for asked in request.markers:
        result = WritableTxnMarkerResult(producer_id=asked.producer_id, topics=[])
        response.markers.append(result)
        marker = Marker(
            asked.producer_id,
            asked.producer_epoch,
            asked.transaction_result,
            asked.coordinator_epoch,
            asked.transaction_version,
        )
        for topic in asked.topics:
            answers = WritableTxnMarkerTopicResult(name=topic.name, partitions=[])
            result.topics.append(answers)
            for index in topic.partition_indexes:
                answer = WritableTxnMarkerPartitionResult(partition_index=index, error_code=0)
                answers.partitions.append(answer)
                left += 1
                if from_broker or _hangs(node, topic.name, index, asked):
                    write_marker(node, topic.name, index, marker, partial(one_done, answer))
                else:
                    one_done(answer, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    one_done(None, ErrorCode.NONE)
    inside = False
    return response if left == 0 else None


def _hangs(node: Node, topic: str, index: int, asked: WritableTxnMarker) -> bool:
    """Whether the marker aborts a transaction of which no coordinator can know any more."""
    partition = node.partitions.get(topic, index)
    if asked.transaction_result or partition is None:
        return False
    oldest_ms = node.clock.now_ms() - node.config.transaction_max_timeout_ms
    return any(
        open_transaction.producer_id == asked.producer_id
        and open_transaction.epoch == asked.producer_epoch
        and open_transaction.started_ms < oldest_ms
        for open_transaction in partition.log.open_transactions()
    )
