"""OffsetCommit, versions 2 to 10: stores a group's offsets."""

from __future__ import annotations

from culver.protocol.schema import ZERO_UUID, Message, array, int16, int32, int64, string, uuid


class OffsetCommitRequestPartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=6, default=-1)
    committed_metadata: str | None = string(nullable_since=0)


class OffsetCommitRequestTopic(Message):
    name: str = string(until=9, default="")
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitRequestPartition] = array(OffsetCommitRequestPartition)


class OffsetCommitRequest(Message, api_key=8, versions=(2, 10), flexible_since=8):
    # 5: retention time is gone. 6: leader epoch. 7: static members. 9: member epochs.
    # 10: topic ids instead of names.
    group_id: str = string()
    generation_id_or_member_epoch: int = int32(default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=7, nullable_since=7, default=None)
    retention_time_ms: int = int64(until=4, default=-1)
    topics: list[OffsetCommitRequestTopic] = array(OffsetCommitRequestTopic)


class OffsetCommitResponsePartition(Message):
    partition_index: int = int32()
    error_code: int = int16()


class OffsetCommitResponseTopic(Message):
    name: str = string(until=9, default="")
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    partitions: list[OffsetCommitResponsePartition] = array(OffsetCommitResponsePartition)


class OffsetCommitResponse(Message, api_key=8, versions=(2, 10), flexible_since=8):
    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetCommitResponseTopic] = array(OffsetCommitResponseTopic)
