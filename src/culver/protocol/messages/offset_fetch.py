"""OffsetFetch, versions 1 to 10: reads back a group's committed offsets."""

from __future__ import annotations

from culver.protocol.schema import ZERO_UUID, Message, array, boolean, int16, int32, int64, string, uuid


class OffsetFetchRequestTopic(Message):
    name: str = string()
    partition_indexes: list[int] = array(int32())


class OffsetFetchRequestTopics(Message):
    name: str = string(until=9, default="")
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    partition_indexes: list[int] = array(int32())


class OffsetFetchRequestGroup(Message):
    group_id: str = string()
    member_id: str | None = string(since=9, nullable_since=9, default=None)
    member_epoch: int = int32(since=9, default=-1)
    topics: list[OffsetFetchRequestTopics] | None = array(OffsetFetchRequestTopics, nullable_since=0)


class OffsetFetchRequest(Message, api_key=9, versions=(1, 10), flexible_since=6):
    # 2: null topics asks for all. 7: only stable offsets on demand. 8: several groups at once.
    # 9: member id and epoch. 10: topic ids instead of names.
    group_id: str = string(until=7, default="")
    topics: list[OffsetFetchRequestTopic] | None = array(
        OffsetFetchRequestTopic, until=7, nullable_since=2, default=()
    )
    groups: list[OffsetFetchRequestGroup] = array(OffsetFetchRequestGroup, since=8, default=())
    require_stable: bool = boolean(since=7, default=False)


class OffsetFetchResponsePartition(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(since=5, default=-1)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


class OffsetFetchResponseTopic(Message):
    name: str = string()
    partitions: list[OffsetFetchResponsePartition] = array(OffsetFetchResponsePartition)


class OffsetFetchResponsePartitions(Message):
    partition_index: int = int32()
    committed_offset: int = int64()
    committed_leader_epoch: int = int32(default=-1)
    metadata: str | None = string(nullable_since=0)
    error_code: int = int16()


class OffsetFetchResponseTopics(Message):
    name: str = string(until=9, default="")
    topic_id: bytes = uuid(since=10, default=ZERO_UUID)
    partitions: list[OffsetFetchResponsePartitions] = array(OffsetFetchResponsePartitions)


class OffsetFetchResponseGroup(Message):
    group_id: str = string()
    topics: list[OffsetFetchResponseTopics] = array(OffsetFetchResponseTopics)
    error_code: int = int16(default=0)


class OffsetFetchResponse(Message, api_key=9, versions=(1, 10), flexible_since=6):
    throttle_time_ms: int = int32(since=3, default=0)
    topics: list[OffsetFetchResponseTopic] = array(OffsetFetchResponseTopic, until=7, default=())
    error_code: int = int16(since=2, until=7, default=0)
    groups: list[OffsetFetchResponseGroup] = array(OffsetFetchResponseGroup, since=8, default=())
