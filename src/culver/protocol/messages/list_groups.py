"""ListGroups, versions 0 to 5: lists the groups of a broker."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, string


class ListGroupsRequest(Message, api_key=16, versions=(0, 5), flexible_since=3):
    # 4: filter by state. 5: filter by type.
    states_filter: list[str] = array(string(), since=4, default=())
    types_filter: list[str] = array(string(), since=5, default=())


class ListedGroup(Message):
    group_id: str = string()
    protocol_type: str = string()
    group_state: str = string(since=4, default="")
    group_type: str = string(since=5, default="")


class ListGroupsResponse(Message, api_key=16, versions=(0, 5), flexible_since=3):
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16()
    groups: list[ListedGroup] = array(ListedGroup)
