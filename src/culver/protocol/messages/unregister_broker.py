"""UnregisterBroker, version 0: strikes a broker that is gone for good off the cluster's list."""

from __future__ import annotations

from culver.protocol.schema import Message, int16, int32, string


class UnregisterBrokerRequest(Message, api_key=64, versions=(0, 0), flexible_since=0):
    broker_id: int = int32()


class UnregisterBrokerResponse(Message, api_key=64, versions=(0, 0), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16(default=0)
    error_message: str | None = string(nullable_since=0)
