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
    """Name the leader of each group's partition; the internal topic is made when the first group asks."""
    if request.key_type != GROUP:
        return _response(node, exchange, request, _refusal(request.key_type))
    if GROUP_OFFSETS_TOPIC in node.image.topics:
        return _response(node, exchange, request, None)

    def made(error: KafkaError | None) -> None:
        if error is not None and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            error = None
        if error is not None:
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
        exchange.reply(_response(node, exchange, request, error, fresh=True))

    node.groups.ensure_topic(made)
    return None


def _refusal(key_type: int) -> KafkaError:
    if key_type == TRANSACTION:
        # An error that clients do not retry: waiting would not help.
        return KafkaError(ErrorCode.UNSUPPORTED_VERSION, "transactions are not served by this broker")
    return KafkaError(ErrorCode.INVALID_REQUEST, f"unknown kind of coordinator {key_type}")


def _response(
    node: Node,
    exchange: Exchange,
    request: FindCoordinatorRequest,
    error: KafkaError | None,
    *,
    fresh: bool = False,
) -> FindCoordinatorResponse:
    if exchange.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[_find(node, key, error, "", fresh) for key in request.coordinator_keys]
        )
    found = _find(node, request.key, error, "NONE", fresh)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(node: Node, key: str, error: KafkaError | None, all_is_well: str, fresh: bool) -> Coordinator:
    """`all_is_well` is Kafka's text for no error, which depends on the version.

    A topic that is `fresh` has not been heard of by the other brokers: their groups' clients shall ask again.
    """
    broker = node.groups.coordinator_of(key) if error is None else None
    if broker is None or (fresh and broker.id != node.broker_id):
        error = error or KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE)
        return Coordinator(
            key=key, node_id=-1, host="", port=-1, error_code=error.code, error_message=error.message
        )
    return Coordinator(
        key=key,
        node_id=broker.id,
        host=broker.host,
        port=broker.port,
        error_code=0,
        error_message=all_is_well,
    )
