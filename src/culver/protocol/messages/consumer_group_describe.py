"""ConsumerGroupDescribe, versions 0 and 1: shows groups whose broker assigns, and their members."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, int8, int16, int32, string, struct, uuid


class ConsumerGroupDescribeRequest(Message, api_key=69, versions=(0, 1), flexible_since=0):
    group_ids: list[str] = array(string())
    include_authorized_operations: bool = boolean()


class TopicPartitions(Message):
    topic_id: bytes = uuid()
    topic_name: str = string()
    partitions: list[int] = array(int32())


class Assignment(Message):
    topic_partitions: list[TopicPartitions] = array(TopicPartitions)


class Member(Message):
    member_id: str = string()
    instance_id: str | None = string(nullable_since=0, default=None)
    rack_id: str | None = string(nullable_since=0, default=None)
    member_epoch: int = int32()
    client_id: str = string()
    client_host: str = string()
    subscribed_topic_names: list[str] = array(string())
    subscribed_topic_regex: str | None = string(nullable_since=0, default=None)
    assignment: Assignment = struct(Assignment)
    target_assignment: Assignment = struct(Assignment)
    member_type: int = int8(since=1, default=-1)


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0, default=None)
    group_id: str = string()
    group_state: str = string()
    group_epoch: int = int32()
    assignment_epoch: int = int32()
    assignor_name: str = string()
    members: list[Member] = array(Member)
    authorized_operations: int = int32(default=-0x80000000)


class ConsumerGroupDescribeResponse(Message, api_key=69, versions=(0, 1), flexible_since=0):
    # 1: whether a member speaks the classic protocol (0) or the consumer's (1).
    throttle_time_ms: int = int32(default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)
