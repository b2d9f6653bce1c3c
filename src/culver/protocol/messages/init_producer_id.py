"""InitProducerId, versions 0 to 5: gives an idempotent or transactional producer its id and epoch."""

from __future__ import annotations

from culver.protocol.schema import Message, int16, int32, int64, string


class InitProducerIdRequest(Message, api_key=22, versions=(0, 5), flexible_since=2):
    # 3: a producer may bring the id and epoch it had.
    transactional_id: str | None = string(nullable_since=0)
    transaction_timeout_ms: int = int32()
    producer_id: int = int64(since=3, default=-1)
    producer_epoch: int = int16(since=3, default=-1)


class InitProducerIdResponse(Message, api_key=22, versions=(0, 5), flexible_since=2):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    producer_id: int = int64(default=-1)
    producer_epoch: int = int16()
