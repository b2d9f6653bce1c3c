"""Whether a partition is part of a producer's transaction: asked of its coordinator before the first write (KIP-890).

Without it a delayed request could begin a transaction that no coordinator knows of, and that would never end.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from culver.broker.peer import Call
from culver.broker.transactions import ADD_PARTITIONS_VERSION
from culver.errors import ErrorCode
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)

if TYPE_CHECKING:
    from culver.broker.node import Node

ADD_PARTITIONS_TO_TXN_KEY = 24

Target: TypeAlias = tuple[str, int]
Verdicts: TypeAlias = dict[Target, ErrorCode]
"""For each partition NONE, or why nothing may be written to it in the transaction."""


# The coordinator cannot say now.
_ASK_AGAIN = frozenset(
    {
        ErrorCode.NETWORK_EXCEPTION,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.REQUEST_TIMED_OUT,
    }
)


def as_told(
    verdict: ErrorCode, *, try_again: ErrorCode, knows_abortable: bool, second_generation: bool
) -> ErrorCode:
    """A verdict in words that the producer's version of the request knows; `try_again` is what it retries after."""
    if verdict is ErrorCode.PRODUCER_FENCED:
        return ErrorCode.INVALID_PRODUCER_EPOCH
    if verdict is ErrorCode.TRANSACTION_ABORTABLE and not knows_abortable:
        return ErrorCode.INVALID_TXN_STATE
    if verdict in _ASK_AGAIN or (verdict is ErrorCode.CONCURRENT_TRANSACTIONS and not second_generation):
        return try_again
    return verdict


class Verification:
    """Asks coordinators, here or on other brokers, on behalf of producers."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._call: Call | None = None

    def ask(
        self,
        transactional_id: str,
        producer_id: int,
        producer_epoch: int,
        targets: Sequence[Target],
        *,
        adds: bool,
        answered: Callable[[Verdicts], object],
    ) -> None:
        """Whether `targets` are part of the transaction; with `adds` they are made so. May answer at once."""
        node = self._node
        coordinator = node.transactions.coordinator_of(transactional_id)
        if coordinator is None:
            answered(dict.fromkeys(targets, ErrorCode.COORDINATOR_NOT_AVAILABLE))
            return
        topics: dict[str, list[int]] = {}
        for name, index in targets:
            topics.setdefault(name, []).append(index)
        request = AddPartitionsToTxnRequest(
            transactions=[
                AddPartitionsToTxnTransaction(
                    transactional_id=transactional_id,
                    producer_id=producer_id,
                    producer_epoch=producer_epoch,
                    verify_only=not adds,
                    topics=[
                        AddPartitionsToTxnTopic(name=name, partitions=indexes)
                        for name, indexes in topics.items()
                    ],
                )
            ]
        )

        def heard(response: AddPartitionsToTxnResponse) -> None:
            answered(_verdicts(targets, response))

        if coordinator.id == node.broker_id:
            node.transactions.ask(request, heard)
            return
        if self._call is None:
            self._call = Call(ADD_PARTITIONS_TO_TXN_KEY, ADD_PARTITIONS_VERSION)
        lost = partial(answered, dict.fromkeys(targets, ErrorCode.NETWORK_EXCEPTION))
        node.peers.ask(coordinator.id, self._call, request, heard, lost)


def _verdicts(targets: Sequence[Target], response: AddPartitionsToTxnResponse) -> Verdicts:
    if response.error_code:
        return dict.fromkeys(targets, ErrorCode(response.error_code))
    verdicts = dict.fromkeys(targets, ErrorCode.UNKNOWN_SERVER_ERROR)
    for transaction in response.results_by_transaction:
        for topic in transaction.topic_results:
            for result in topic.results_by_partition:
                verdicts[topic.name, result.partition_index] = ErrorCode(result.partition_error_code)
    return verdicts
