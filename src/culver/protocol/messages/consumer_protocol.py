"""What consumers put into the bytes of JoinGroup and SyncGroup: an int16 version, then one of these."""

from __future__ import annotations

from culver.protocol.schema import Message, array, bytes_, int32, string


class TopicPartition(Message):
    topic: str = string()
    partitions: list[int] = array(int32())


class ConsumerProtocolSubscription(Message, versions=(0, 3)):
    topics: list[str] = array(string())
    user_data: bytes | None = bytes_(nullable_since=0, default=None)
    owned_partitions: list[TopicPartition] = array(TopicPartition, since=1, default=())
    generation_id: int = int32(since=2, default=-1)
    rack_id: str | None = string(since=3, nullable_since=3, default=None)


class ConsumerProtocolAssignment(Message, versions=(0, 3)):
    assigned_partitions: list[TopicPartition] = array(TopicPartition)
    user_data: bytes | None = bytes_(nullable_since=0, default=None)
