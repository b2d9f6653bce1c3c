"""DescribeCluster: the brokers and the controller. Serves versions 0 to 2.

1: brokers or controllers. 2: fenced brokers too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.core import authorized_operations
from culver.errors import ErrorCode
from culver.protocol.messages.describe_cluster import (
    DescribeClusterBroker,
    DescribeClusterRequest,
    DescribeClusterResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node

BROKERS = 1
CONTROLLERS = 2


def handle(node: Node, exchange: Exchange, request: DescribeClusterRequest) -> DescribeClusterResponse:
    image = node.image
    if request.endpoint_type != BROKERS:
        known = request.endpoint_type == CONTROLLERS
        return DescribeClusterResponse(
            error_code=ErrorCode.MISMATCHED_ENDPOINT_TYPE if known else ErrorCode.UNSUPPORTED_ENDPOINT_TYPE,
            error_message="this is a broker; ask for endpoint type 1",
            cluster_id="",
            brokers=[],
        )
    shown = image.registrations if request.include_fenced_brokers else image.brokers
    return DescribeClusterResponse(
        endpoint_type=BROKERS,
        cluster_id=image.cluster_id,
        controller_id=image.controller_id,
        brokers=[
            DescribeClusterBroker(
                broker_id=broker.id,
                host=broker.host,
                port=broker.port,
                rack=broker.rack,
                # It belongs to the cluster, but is not running.
                is_fenced=broker.id not in image.brokers,
            )
            for broker in shown.values()
        ],
        cluster_authorized_operations=authorized_operations.ON_CLUSTER
        if request.include_cluster_authorized_operations
        else authorized_operations.NOT_ASKED,
    )
