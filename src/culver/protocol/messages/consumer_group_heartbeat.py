"""ConsumerGroupHeartbeat, versions 0 and 1: joins, keeps up with and leaves a group whose broker assigns."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, string, struct, uuid


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    partitions: list[int] = array(int32())


class ConsumerGroupHeartbeatRequest(Message, api_key=68, versions=(0, 1), flexible_since=0):
    # What did not change since the last heartbeat is null, or -1.
    # 1: subscription by pattern; the consumer makes its own member id.
    group_id: str = string()
    member_id: str = string()
    member_epoch: int = int32()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    rebalance_timeout_ms: int = int32(default=-1)
    subscribed_topic_names: list[str] | None = array(string(), nullable_since=0, default=None)
    subscribed_topic_regex: str | None = string(since=1, nullable_since=1, default=None)
    server_assignor: str | None = string(nullable_since=0, default=None)
    topic_partitions: list[TopicPartitions] | None = array(TopicPartitions, nullable_since=0, default=None)


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class ConsumerGroupHeartbeatResponse(Message, api_key=68, versions=(0, 1), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    member_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    heartbeat_interval_ms: int = int32()
    assignment: Assignment | None = struct(Assignment, nullable_since=0, default=None)
