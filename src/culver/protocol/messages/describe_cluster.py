"""DescribeCluster, versions 0 to 2: names the brokers, the controller and the cluster."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, int8, int16, int32, string


class DescribeClusterRequest(Message, api_key=60, versions=(0, 2), flexible_since=0):
    # 1: brokers or controllers. 2: fenced brokers.
    include_cluster_authorized_operations: bool = boolean()
    endpoint_type: int = int8(since=1, default=1)
    include_fenced_brokers: bool = boolean(since=2, default=False)


class DescribeClusterBroker(Message):
    broker_id: int = int32()
    host: str = string()
    port: int = int32()
    rack: str | None = string(nullable_since=0, default=None)
    is_fenced: bool = boolean(since=2, default=False)


class DescribeClusterResponse(Message, api_key=60, versions=(0, 2), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    endpoint_type: int = int8(since=1, default=1)
    cluster_id: str = string()
    controller_id: int = int32(default=-1)
    brokers: list[DescribeClusterBroker] = array(DescribeClusterBroker)
    cluster_authorized_operations: int = int32(default=-0x80000000)
