"""JoinGroup, versions 0 to 9: a member enters a classic group, and waits for the next generation."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, bytes_, int16, int32, string


class JoinGroupRequestProtocol(Message):
    name: str = string()
    metadata: bytes = bytes_()


class JoinGroupRequest(Message, api_key=11, versions=(0, 9), flexible_since=6):
    # 1: rebalance timeout. 4: a member must first be given its id. 5: static members. 8: reason.
    group_id: str = string()
    session_timeout_ms: int = int32()
    rebalance_timeout_ms: int = int32(since=1, default=-1)
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    protocol_type: str = string()
    protocols: list[JoinGroupRequestProtocol] = array(JoinGroupRequestProtocol)
    reason: str | None = string(since=8, nullable_since=8, default=None)


class JoinGroupResponseMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=5, nullable_since=5, default=None)
    metadata: bytes = bytes_()


class JoinGroupResponse(Message, api_key=11, versions=(0, 9), flexible_since=6):
    throttle_time_ms: int = int32(since=2, default=0)
    error_code: int = int16()
    generation_id: int = int32(default=-1)
    protocol_type: str | None = string(since=7, nullable_since=7, default=None)
    protocol_name: str | None = string(nullable_since=7)
    leader: str = string()
    skip_assignment: bool = boolean(since=9, default=False)
    member_id: str = string()
    members: list[JoinGroupResponseMember] = array(JoinGroupResponseMember)
