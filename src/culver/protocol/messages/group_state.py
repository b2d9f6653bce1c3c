"""Keys and values of the records in `__consumer_offsets`: an int16 before each, then one of these.

Before a key the int16 is the record's type: 1 an offset (0 is an older form with the same key), 2 a group.
Before a value it is the value's version.
"""

from __future__ import annotations

from culver.protocol.schema import ZERO_UUID, Message, array, bytes_, int32, int64, string, uuid


class OffsetCommitKey(Message, versions=(0, 0)):
    group: str = string()
    topic: str = string()
    partition: int = int32()


class OffsetCommitValue(Message, versions=(0, 4), flexible_since=4):
    offset: int = int64()
    leader_epoch: int = int32(since=3, default=-1)
    metadata: str = string()
    commit_timestamp: int = int64()
    expire_timestamp: int = int64(since=1, until=1, default=-1)
    topic_id: bytes = uuid(since=4, tag=0, default=ZERO_UUID)


class GroupMetadataKey(Message, versions=(0, 0)):
    group: str = string()


class MemberMetadata(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    client_id: str = string()
    client_host: str = string()
    rebalance_timeout: int = int32(since=1, default=-1)
    session_timeout: int = int32()
    subscription: bytes = bytes_()
    assignment: bytes = bytes_()


class GroupMetadataValue(Message, versions=(0, 4), flexible_since=4):
    protocol_type: str = string()
    generation: int = int32()
    protocol: str | None = string(nullable_since=0)
    leader: str | None = string(nullable_since=0)
    current_state_timestamp: int = int64(since=2, default=-1)
    members: list[MemberMetadata] = array(MemberMetadata)
