"""AddOffsetsToTxn, versions 0 to 4: makes a group's offsets part of a producer's transaction."""

from __future__ import annotations

from culver.protocol.schema import Message, int16, int32, int64, string


class AddOffsetsToTxnRequest(Message, api_key=25, versions=(0, 4), flexible_since=3):
    # 2: PRODUCER_FENCED. 4: TRANSACTION_ABORTABLE.
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    group_id: str = string()


class AddOffsetsToTxnResponse(Message, api_key=25, versions=(0, 4), flexible_since=3):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
