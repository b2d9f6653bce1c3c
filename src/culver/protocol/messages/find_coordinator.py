"""FindCoordinator, versions 0 to 6: names the broker that coordinates a group or transaction."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int8, int16, int32, string


class FindCoordinatorRequest(Message, api_key=10, versions=(0, 6), flexible_since=3):
    # 1: key types 0 group, 1 transaction. 4: several keys at once. 6: key type 2 share.
    key: str = string(until=3, default="")
    key_type: int = int8(since=1, default=0)
    coordinator_keys: list[str] = array(string(), since=4, default=())


class Coordinator(Message):
    key: str = string()
    node_id: int = int32()
    host: str = string()
    port: int = int32()
    error_code: int = int16()
    error_message: str | None = string(nullable_since=0)


class FindCoordinatorResponse(Message, api_key=10, versions=(0, 6), flexible_since=3):
    throttle_time_ms: int = int32(since=1, default=0)
    error_code: int = int16(until=3, default=0)
    error_message: str | None = string(since=1, until=3, nullable_since=1, default="")
    node_id: int = int32(until=3, default=0)
    host: str = string(until=3, default="")
    port: int = int32(until=3, default=0)
    coordinators: list[Coordinator] = array(Coordinator, since=4, default=())
