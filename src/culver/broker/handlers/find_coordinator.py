"""FindCoordinator: which broker owns a group or a transaction. Serves versions 0 to 6.

1: transactions. 4: many keys at once. 6: share groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

GROUP = 0
TRANSACTION = 1


def handle(node: Node, exchange: Exchange, request: FindCoordinatorRequest) -> FindCoordinatorResponse | None:
    """Name this broker; the internal topic is made when the first group asks."""
    if request.key_type != GROUP:
        return _response(node, exchange, request, _refusal(request.key_type))
    if GROUP_OFFSETS_TOPIC in node.image.topics:
        return _response(node, exchange, request, None)

    def made(error: KafkaError | None) -> None:
        if error is not None and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            error = None
        if error is not None:
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
        exchange.reply(_response(node, exchange, request, error))

    node.groups.ensure_topic(made)
    return None


def _refusal(key_type: int) -> KafkaError:
    if key_type == TRANSACTION:
        # An error that clients do not retry: waiting would not help.
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served by this broker")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"unknown kind of coordinator {key_type}")


def _response(
    node: Node, exchange: Exchange, request: FindCoordinatorRequest, error: KafkaError | None
) -> FindCoordinatorResponse:
    me = node.image.brokers[node.broker_id]
    code = ErrorCode.NONE if error is None else error.code
    # Kafka's way of saying that all is well depends on the version.
    message = ("NONE" if exchange.version < 4 else "") if error is None else error.message
    where = (me.id, me.host, me.port) if error is None else (-1, "", -1)
    if exchange.version < 4:
        return FindCoordinatorResponse(
            error_code=code, error_message=message, node_id=where[0], host=where[1], port=where[2]
        )
    return FindCoordinatorResponse(
        coordinators=[
            Coordinator(
                key=key,
                node_id=where[0],
                host=where[1],
                port=where[2],
                error_code=code,
                error_message=message,
            )
            for key in request.coordinator_keys
        ]
    )
