"""FindCoordinator: which broker owns a group or a transaction. Serves versions 0 to 6.

1: transactions. 4: many keys at once. 6: share groups.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from culver.core.names import GROUP_OFFSETS_TOPIC, TRANSACTION_STATE_TOPIC
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.find_coordinator import (
    Coordinator,
    FindCoordinatorRequest,
    FindCoordinatorResponse,
)

if TYPE_CHECKING:
    from culver.broker.coordinator_runtime import CoordinatorRuntime
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

GROUP = 0
TRANSACTION = 1
_TOPICS = {GROUP: GROUP_OFFSETS_TOPIC, TRANSACTION: TRANSACTION_STATE_TOPIC}


def handle(node: Node, exchange: Exchange, request: FindCoordinatorRequest) -> FindCoordinatorResponse | None:
    """Name the leader of each key's partition; the internal topic is made when somebody first asks."""
    topic = _TOPICS.get(request.key_type)
    if topic is None:
        refusal = KafkaError(ErrorCode.INVALID_REQUEST, f"unknown kind of coordinator {request.key_type}")
        return _response(exchange, request, None, refusal)
    runtime = node.coordinators[topic]
    if topic in node.image.topics:
        connection = exchange.connection
        keys = request.coordinator_keys if exchange.version >= 4 else [request.key]

        def leaders() -> set[int]:
            partitions = (node.image.partition(topic, runtime.coordinator.partition_for(key)) for key in keys)
            return {partition.leader for partition in partitions if partition is not None}

        def answer() -> None:
            exchange.reply(_response(exchange, request, runtime, None))

        again = connection.asked_for_coordinators == (topic, keys)
        connection.asked_for_coordinators = (topic, keys)
        if node.suspects.wait(leaders, answer, again=again):
            return None  # the client has lost its coordinator: it shall hear of the next, not be sent back
        return _response(exchange, request, runtime, None)

    def made(error: KafkaError | None) -> None:
        if error is not None and error.code is ErrorCode.TOPIC_ALREADY_EXISTS:
            error = None
        if error is not None:
            error = KafkaError(ErrorCode.COORDINATOR_NOT_AVAILABLE, error.message)
        exchange.reply(_response(exchange, request, runtime, error, only=node.broker_id))

    runtime.ensure_topic(made)
    return None


def _response(
    exchange: Exchange,
    request: FindCoordinatorRequest,
    runtime: CoordinatorRuntime[Any] | None,
    error: KafkaError | None,
    *,
    only: int | None = None,
) -> FindCoordinatorResponse:
    if exchange.version >= 4:
        return FindCoordinatorResponse(
            coordinators=[_find(runtime, key, error, "", only) for key in request.coordinator_keys]
        )
    found = _find(runtime, request.key, error, "NONE", only)
    return FindCoordinatorResponse(
        error_code=found.error_code,
        error_message=found.error_message,
        node_id=found.node_id,
        host=found.host,
        port=found.port,
    )


def _find(
    runtime: CoordinatorRuntime[Any] | None,
    key: str,
    error: KafkaError | None,
    all_is_well: str,
    only: int | None,
) -> Coordinator:
    """`all_is_well` is Kafka's text for no error, which depends on the version.

    A topic that was made just now has not been heard of by the other brokers: `only` this one can be named.
    """
    broker = None if runtime is None or error is not None else runtime.coordinator_of(key)
    if broker is None or (only is not None and broker.id != only):
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
