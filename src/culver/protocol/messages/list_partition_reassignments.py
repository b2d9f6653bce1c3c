"""ListPartitionReassignments, version 0: the partitions that are being moved."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, string


class ListPartitionReassignmentsTopics(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32())


class ListPartitionReassignmentsRequest(Message, api_key=46, versions=(0, 0), flexible_since=0):
    timeout_ms: int = int32(default=60_000)
    # Null asks for all.
    topics: list[ListPartitionReassignmentsTopics] | None = array(
        ListPartitionReassignmentsTopics, nullable_since=0, default=None
    )


class OngoingPartitionReassignment(Message):
    partition_index: int = int32()
    replicas: list[int] = array(int32())
    adding_replicas: list[int] = array(int32())
    removing_replicas: list[int] = array(int32())


class OngoingTopicReassignment(Message):
    name: str = string()
    partitions: list[OngoingPartitionReassignment] = array(OngoingPartitionReassignment)


class ListPartitionReassignmentsResponse(Message, api_key=46, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0)
    topics: list[OngoingTopicReassignment] = array(OngoingTopicReassignment)
