"""The requests that go to the transaction coordinator, which answers or keeps them.

| request | versions | what changed |
|---|---|---|
| AddPartitionsToTxn | 0-5 | 2: PRODUCER_FENCED. 4: from brokers, also to verify only. 5: TRANSACTION_ABORTABLE |
| AddOffsetsToTxn | 0-4 | 2: PRODUCER_FENCED. 4: TRANSACTION_ABORTABLE |
| EndTxn | 0-5 | 2: PRODUCER_FENCED. 4: TRANSACTION_ABORTABLE. 5: every end raises the epoch (KIP-890) |
| DescribeTransactions | 0 | |
| ListTransactions | 0-2 | 1: by duration. 2: by a pattern of the id |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

APIS = frozenset(
    {
        "add_partitions_to_txn",
        "add_offsets_to_txn",
        "end_txn",
        "describe_transactions",
        "list_transactions",
    }
)
_BROKERS_ONLY_SINCE_VERSION = 4


def handler(api: str) -> Callable[[Node, Exchange, Any], Any]:
    """The handler of one of APIS."""
    if api == "add_partitions_to_txn":
        return _add_partitions
    if api == "add_offsets_to_txn":
        return _add_offsets
    method = f"handle_{api}"

    def handle(node: Node, exchange: Exchange, request: Any) -> Any:
        return node.transactions.handle(exchange, method, request)

    return handle


def _add_partitions(node: Node, exchange: Exchange, request: AddPartitionsToTxnRequest) -> Any:
    if exchange.version >= _BROKERS_ONLY_SINCE_VERSION and exchange.connection.peer_broker is None:
        return AddPartitionsToTxnResponse(error_code=ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
    return node.transactions.handle(exchange, "handle_add_partitions_to_txn", request)


def _add_offsets(node: Node, exchange: Exchange, request: AddOffsetsToTxnRequest) -> Any:
    """A producer may commit offsets of a group before any group has been heard of."""
    outcome: Any = None
    inside = True

    def made(error: KafkaError | None) -> None:
        nonlocal outcome
        if error is not None and error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            outcome = AddOffsetsToTxnResponse(error_code=ErrorCode.COORDINATOR_NOT_AVAILABLE)
        else:
            outcome = node.transactions.handle(exchange, "handle_add_offsets_to_txn", request)
        if not inside and outcome is not None:
            exchange.reply(outcome)

    node.groups.ensure_topic(made)
    inside = False
    return outcome
