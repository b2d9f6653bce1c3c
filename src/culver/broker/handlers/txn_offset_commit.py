"""TxnOffsetCommit: a group's offsets, which count when the producer's transaction is committed. Serves versions 0 to 5.

2: leader epochs. 3: the consumer's place in its group. 4: TRANSACTION_ABORTABLE. 5: becomes part of the transaction
by itself.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.broker.verification import as_told
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.verification import Verdicts
    from culver.log.partition_log import PartitionLog

_ABORTABLE_SINCE_VERSION = 4
_ADDS_SINCE_VERSION = 5


def handle(node: Node, exchange: Exchange, request: TxnOffsetCommitRequest) -> TxnOffsetCommitResponse | None:
    if not request.group_id:
        return failed(request, ErrorCode.INVALID_GROUP_ID)
    if not request.transactional_id:
        # No coordinator could be asked whether there is such a transaction.
        return failed(request, ErrorCode.INVALID_REQUEST)
    target = (GROUP_OFFSETS_TOPIC, node.groups.coordinator.partition_for(request.group_id))
    partition = node.partitions.get(*target)
    if partition is None or partition.state is None:
        # The coordinator knows what to say.
        return _commit(node, exchange, request)
    log = partition.log
    try:
        guard = log.begin_verification(request.producer_id, request.producer_epoch)
    except KafkaError as error:
        return failed(request, error.code)
    if guard is None:
        return _commit(node, exchange, request)
    outcome: TxnOffsetCommitResponse | None = None
    inside = True

    def answered(verdicts: Verdicts) -> None:
        nonlocal outcome
        code = as_told(
            verdicts[target],
            try_again=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
            knows_abortable=exchange.version >= _ABORTABLE_SINCE_VERSION,
            second_generation=exchange.version >= _ADDS_SINCE_VERSION,
        )
        if code is ErrorCode.NONE:
            code = _still_verified(log, request, guard)
        outcome = _commit(node, exchange, request) if code is ErrorCode.NONE else failed(request, code)
        if not inside and outcome is not None:
            exchange.reply(outcome)
        node.after_requests()

    node.verification.ask(
        request.transactional_id,
        request.producer_id,
        request.producer_epoch,
        [target],
        adds=exchange.version >= _ADDS_SINCE_VERSION,
        answered=answered,
    )
    inside = False
    return outcome


def _still_verified(log: PartitionLog, request: TxnOffsetCommitRequest, guard: object) -> ErrorCode:
    """Whether no marker has come since the question; what waited for the same answer may have begun it meanwhile."""
    try:
        current = log.begin_verification(request.producer_id, request.producer_epoch)
    except KafkaError as error:
        return error.code
    return ErrorCode.NONE if current is None or current is guard else ErrorCode.INVALID_TXN_STATE


def _commit(
    node: Node, exchange: Exchange, request: TxnOffsetCommitRequest
) -> TxnOffsetCommitResponse | None:
    response: TxnOffsetCommitResponse | None = node.groups.handle(
        exchange, "handle_txn_offset_commit", request
    )
    return response


def failed(request: TxnOffsetCommitRequest, code: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error for every partition."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=code)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )
