"""BrokerHello: let another broker of this cluster fetch as a replica on the connection. Serves version 0."""

from __future__ import annotations

import hmac
from typing import TYPE_CHECKING

from culver.broker.follower_feed import FollowerFeed
from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger
from culver.protocol.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse

if TYPE_CHECKING:
    from culver.broker.connection import Connection
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

_log = get_logger("culver.replication")


def handle(node: Node, exchange: Exchange, request: BrokerHelloRequest) -> BrokerHelloResponse:
    connection = exchange.connection
    if connection.peer_broker is not None:
        connection.peer_broker.close()
        connection.peer_broker = None
    try:
        _check(node, request)
    except KafkaError as error:
        _log.warning(
            "refused a connection that claims to be a broker",
            peer=exchange.client_host,
            broker=request.broker_id,
            epoch=request.broker_epoch,
            reason=error.message,
        )
        return BrokerHelloResponse(
            error_code=error.code, error_message=error.message, broker_id=node.broker_id
        )
    if request.sole_purpose:
        _take_place(node, connection, (request.broker_id, request.sole_purpose))
    connection.peer_broker = FollowerFeed(node, connection, request.broker_id, request.broker_epoch)
    return BrokerHelloResponse(broker_id=node.broker_id)


def _take_place(node: Node, connection: Connection, place: tuple[int, str]) -> None:
    """Give up an earlier connection of the same purpose.

    A marker that was sent on it, and that its sender has given up, must not be written any more: sent again on the new
    connection, it may have been answered, and the next transaction of the producer have begun.
    """
    earlier = node.sole_connections.get(place)
    if earlier is not None and earlier is not connection:
        earlier.abort()
    node.sole_connections[place] = connection


def _check(node: Node, request: BrokerHelloRequest) -> None:
    """Raises KafkaError unless the one who asks is a living broker of this cluster."""
    image = node.image
    if request.cluster_id != image.cluster_id:
        raise KafkaError(
            ErrorCode.INCONSISTENT_CLUSTER_ID,
            f"it belongs to cluster {request.cluster_id!r}, this broker to {image.cluster_id!r}: give both the "
            "same culver.coordination, or an address of their own",
        )
    secret = node.cluster_secret
    if not secret or not hmac.compare_digest(request.secret.encode(), secret.encode()):
        raise KafkaError(
            ErrorCode.CLUSTER_AUTHORIZATION_FAILED,
            "it does not know the secret that the cluster's brokers share",
        )
    if request.broker_id == node.broker_id:
        raise KafkaError(
            ErrorCode.DUPLICATE_BROKER_REGISTRATION,
            f"it has broker.id {request.broker_id}, which is this broker's: give each its own",
        )
    # A newer epoch than the image's is fine: the image follows the store with a delay.
    known = image.brokers.get(request.broker_id) or image.registrations.get(request.broker_id)
    if known is not None and known.epoch > request.broker_epoch:
        raise KafkaError(
            ErrorCode.STALE_BROKER_EPOCH,
            f"it is in epoch {request.broker_epoch}, but broker {request.broker_id} has started again since, in "
            f"epoch {known.epoch}: stop one of the two",
        )
