"""SyncGroup, versions 0 to 5: the leader hands in a generation's assignment, everyone gets their own."""

from __future__ import annotations

from culver.protocol.schema import Message, array, bytes_, int16, int32, string


class SyncGroupRequestAssignment(Message):
    member_id: str = string()
    assignment: bytes = bytes_()


class SyncGroupRequest(Message, api_key=14, versions=(0, 5), flexible_since=4):
    # 3: static members. 5: protocol type and name, which must match the group's.
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignments: list[SyncGroupRequestAssignment] = array(SyncGroupRequestAssignment)


class SyncGroupResponse(Message, api_key=14, versions=(0, 5), flexible_since=4):
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16()
    protocol_type: str | None = string(since=5, nullable_since=5, default=None)
    protocol_name: str | None = string(since=5, nullable_since=5, default=None)
    assignment: bytes = bytes_()
