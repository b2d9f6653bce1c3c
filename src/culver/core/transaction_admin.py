"""DescribeTransactions and ListTransactions: what the coordinator knows, for people and their tools."""

from __future__ import annotations

from collections.abc import Iterable

from culver.core.patterns import compile_pattern
from culver.core.transaction_partition import TransactionEntry, TransactionPartition
from culver.core.transaction_state import STATE_BY_LABEL
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages import describe_transactions, list_transactions


def describe_error(transactional_id: str, error: ErrorCode) -> describe_transactions.TransactionState:
    return describe_transactions.TransactionState(
        error_code=error,
        transactional_id=transactional_id,
        transaction_state="",
        transaction_timeout_ms=0,
        transaction_start_time_ms=0,
        producer_id=0,
        producer_epoch=0,
        topics=[],
    )


def describe_transaction(
    entry: TransactionEntry | None, transactional_id: str
) -> describe_transactions.TransactionState:
    """A transactional id as the log has it."""
    metadata = None if entry is None else entry.metadata
    if metadata is None:
        return describe_error(transactional_id, ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(metadata.partitions):
        by_topic.setdefault(topic, []).append(partition)
    return describe_transactions.TransactionState(
        error_code=ErrorCode.NONE,
        transactional_id=transactional_id,
        transaction_state=metadata.state.label,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_start_time_ms=metadata.started_ms,
        producer_id=metadata.producer_id,
        producer_epoch=metadata.producer_epoch,
        topics=[
            describe_transactions.TopicData(topic=topic, partitions=partitions)
            for topic, partitions in by_topic.items()
        ],
    )


def list_matching(
    partitions: Iterable[TransactionPartition],
    request: list_transactions.ListTransactionsRequest,
    now_wall_ms: int,
) -> list_transactions.ListTransactionsResponse:
    """The transactional ids that pass all filters of the request."""
    response = list_transactions.ListTransactionsResponse(
        error_code=ErrorCode.NONE,
        unknown_state_filters=[label for label in request.state_filters if label not in STATE_BY_LABEL],
        transaction_states=[],
    )
    states = {STATE_BY_LABEL[label] for label in request.state_filters if label in STATE_BY_LABEL}
    producer_ids = set(request.producer_id_filters)
    try:
        pattern = (
            compile_pattern(request.transactional_id_pattern) if request.transactional_id_pattern else None
        )
    except KafkaError as error:
        response.error_code = error.code
        response.unknown_state_filters = []
        return response
    for partition in partitions:
        for entry in partition.entries.values():
            metadata = entry.metadata
            if (
                metadata is None
                or (producer_ids and metadata.producer_id not in producer_ids)
                # States that nobody knows match nothing, rather than everything.
                or (request.state_filters and metadata.state not in states)
                # An id without a transaction counts as running for ever, as in Kafka.
                or (
                    request.duration_filter >= 0
                    and now_wall_ms - metadata.started_ms <= request.duration_filter
                )
                or (pattern is not None and pattern.fullmatch(entry.transactional_id) is None)
            ):
                continue
            response.transaction_states.append(
                list_transactions.TransactionState(
                    transactional_id=entry.transactional_id,
                    producer_id=metadata.producer_id,
                    transaction_state=metadata.state.label,
                )
            )
    return response
