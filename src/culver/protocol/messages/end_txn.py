"""EndTxn, versions 0 to 5: commits or aborts a producer's transaction."""

from __future__ import annotations

from culver.protocol.schema import Message, boolean, int16, int32, int64, string


class EndTxnRequest(Message, api_key=26, versions=(0, 5), flexible_since=3):
    # 2: PRODUCER_FENCED. 4: TRANSACTION_ABORTABLE. 5: the epoch is bumped with every transaction.
    transactional_id: str = string()
    producer_id: int = int64()
    producer_epoch: int = int16()
    committed: bool = boolean()


class EndTxnResponse(Message, api_key=26, versions=(0, 5), flexible_since=3):
    # 5: the id and epoch that the producer goes on with.
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    producer_id: int = int64(since=5, default=-1)
    producer_epoch: int = int16(since=5, default=-1)
