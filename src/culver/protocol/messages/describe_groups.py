"""DescribeGroups, versions 0 to 6: shows classic groups and their members."""

from __future__ import annotations

from culver.protocol.schema import Message, array, boolean, bytes_, int16, int32, string


class DescribeGroupsRequest(Message, api_key=15, versions=(0, 6), flexible_since=5):
    # 3: authorised operations. 4: static members. 6: unknown groups are an error, with a text.
    groups: list[str] = array(string())
    include_authorized_operations: bool = boolean(since=3, default=False)


class DescribedGroupMember(Message):
    member_id: str = string()
    group_instance_id: str | None = string(since=4, nullable_since=4, default=None)
    client_id: str = string()
    client_host: str = string()
    member_metadata: bytes = bytes_()
    member_assignment: bytes = bytes_()


class DescribedGroup(Message):
    error_code: int = int16()
    error_message: str | None = string(since=6, nullable_since=6, default=None)
    group_id: str = string()
    group_state: str = string()
    protocol_type: str = string()
    protocol_data: str = string()
    members: list[DescribedGroupMember] = array(DescribedGroupMember)
    authorized_operations: int = int32(since=3, default=-0x80000000)


class DescribeGroupsResponse(Message, api_key=15, versions=(0, 6), flexible_since=5):
    throttle_time_ms: int = int32(since=1, default=0)
    groups: list[DescribedGroup] = array(DescribedGroup)
