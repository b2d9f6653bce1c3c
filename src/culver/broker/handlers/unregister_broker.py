"""UnregisterBroker: strike a broker that is gone for good off the cluster's list. Serves version 0."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node


def handle(node: Node, exchange: Exchange, request: UnregisterBrokerRequest) -> None:
    """Refused while it runs or holds replicas: they would be waited for by nobody, and missed by no one."""

    def removed(error: KafkaError | None) -> None:
        exchange.reply(
            UnregisterBrokerResponse(
                error_code=ErrorCode.NONE if error is None else error.code,
                error_message=None if error is None else error.message,
            )
        )

    # Not before the request has been put in its place among those of its connection.
    node.scheduler.call_soon(lambda: node.administration.remove_broker(request.broker_id, removed))
