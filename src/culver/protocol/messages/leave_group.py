"""LeaveGroup, versions 0 to 5: members leave a classic group."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, string


class MemberIdentity(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0, default=None)
    reason: str | None = string(since=5, nullable_since=5, default=None)


class LeaveGroupRequest(Message, api_key=13, versions=(0, 5), flexible_since=4):
    # 3: several members at once, static ones by instance id. 5: reason.
    group_id: str = string()
    member_id: str = string(until=2, default="")
    members: list[MemberIdentity] = array(MemberIdentity, since=3, default=())


class MemberResponse(Message):
    member_id: str = string()
    group_instance_id: str | None = string(nullable_since=0)
    error_code: int = int16()


class LeaveGroupResponse(Message, api_key=13, versions=(0, 5), flexible_since=4):
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16()
    members: list[MemberResponse] = array(MemberResponse, since=3, default=())
