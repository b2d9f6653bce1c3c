"""Heartbeat, versions 0 to 4: a member of a classic group shows that it lives."""

from __future__ import annotations

from culver.protocol.schema import Message, int16, int32, string


class HeartbeatRequest(Message, api_key=12, versions=(0, 4), flexible_since=4):
    # 3: static members.
    group_id: str = string()
    generation_id: int = int32()
    member_id: str = string()
    group_instance_id: str | None = string(since=3, nullable_since=3, default=None)


class HeartbeatResponse(Message, api_key=12, versions=(0, 4), flexible_since=4):
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16()
