"""AlterPartitionReassignments, versions 0 to 1: begins or cancels moving partitions to other brokers."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, int16, int32, string


class ReassignablePartition(Message):
    partition_index: int = int32()
    # Null cancels the reassignment that is under way.
    replicas: list[int] | None = array(int32(), nullable_since=0, default=None)


class ReassignableTopic(Message):
    name: str = string()
    partitions: list[ReassignablePartition] = array(ReassignablePartition)


class AlterPartitionReassignmentsRequest(Message, api_key=45, versions=(0, 1), flexible_since=0):
    timeout_ms: int = int32(default=60_000)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    topics: list[ReassignableTopic] = array(ReassignableTopic)


class ReassignablePartitionResponse(Message):
    partition_index: int = int32()
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0)


class ReassignableTopicResponse(Message):
    name: str = string()
    partitions: list[ReassignablePartitionResponse] = array(ReassignablePartitionResponse)


class AlterPartitionReassignmentsResponse(Message, api_key=45, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    allow_replication_factor_change: bool = boolean(since=1, default=True)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0)
    responses: list[ReassignableTopicResponse] = array(ReassignableTopicResponse)
