"""ListTransactions, versions 0 to 2: lists the transactional ids that a broker coordinates."""

from __future__ import annotations

from culver.protocol.schema import Message, array, int16, int32, int64, string


class ListTransactionsRequest(Message, api_key=66, versions=(0, 2), flexible_since=0):
    # 1: filter by how long they have been running. 2: filter by a pattern of the transactional id.
    state_filters: list[str] = array(string())
    producer_id_filters: list[int] = array(int64())
    duration_filter: int = int64(since=1, default=-1)
    transactional_id_pattern: str | None = string(since=2, nullable_since=2, default=None)


class TransactionState(Message):
    transactional_id: str = string()
    producer_id: int = int64()
    transaction_state: str = string()


class ListTransactionsResponse(Message, api_key=66, versions=(0, 2), flexible_since=0):
    throttle_time_ms: int = int32(default=0)
    error_code: int = int16()
    unknown_state_filters: list[str] = array(string())
    transaction_states: list[TransactionState] = array(TransactionState)
