"""The brokers of a cluster: those that are up, and those that belong to it and are not."""

from __future__ import annotations

from dataclasses import dataclass

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import BrokerAddress, refusal
from culver.protocol.messages.describe_cluster import DescribeClusterRequest, DescribeClusterResponse


@dataclass(frozen=True, slots=True)
class Member:
    """A broker that belongs to the cluster, whether it is up or not."""

    address: BrokerAddress
    is_up: bool


async def ask_members(cluster: Cluster) -> dict[int, Member]:
    """All brokers, by id. Metadata names those that have died for a while, for clients' sake, and does not say so."""
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    try:
        answer = await cluster.ask(request, DescribeClusterResponse)
    except KafkaError as error:
        if error.code is not ErrorCode.UNSUPPORTED_VERSION:
            raise
        view = await cluster.view()
        return {address.id: Member(address, True) for address in view.brokers.values()}
    if answer.error_code:
        raise refusal(answer.error_code, "the cluster's brokers", answer.error_message)
    return {
        broker.broker_id: Member(
            BrokerAddress(broker.broker_id, broker.host, broker.port, broker.rack), not broker.is_fenced
        )
        for broker in sorted(answer.brokers, key=lambda broker: broker.broker_id)
    }
