"""DeleteGroups, versions 0 to 2: deletes empty groups."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, string


class DeleteGroupsRequest(Message, api_key=42, versions=(0, 2), flexible_since=2):
    groups_names: list[str] = array(string())


class DeletableGroupResult(Message):
    group_id: str = string()
    error_code: int = int16()


class DeleteGroupsResponse(Message, api_key=42, versions=(0, 2), flexible_since=2):
    throttle_time_ms: int = int32(default=0)
    results: list[DeletableGroupResult] = array(DeletableGroupResult)
