"""Keys and values of the records in `__transaction_state`: an int16 before each, then one of these.

Before a key the int16 is the record's type, always 0. Before a value it is the value's version.
"""

from __future__ import annotations

from culver.protocol.schema import Message, array, int8, int16, int32, int64, string


class TransactionLogKey(Message, versions=(0, 0)):
    transactional_id: str = string()


class PartitionsSchema(Message):
    topic: str = string()
    partition_ids: list[int] = array(int32())


class TransactionLogValue(Message, versions=(0, 1), flexible_since=1):
    # 1: the ids and epochs before and after this one, and the generation of the protocol that the client speaks.
    producer_id: int = int64()
    previous_producer_id: int = int64(since=1, tag=0, default=-1)
    next_producer_id: int = int64(since=1, tag=1, default=-1)
    producer_epoch: int = int16()
    next_producer_epoch: int = int16(since=1, tag=3, default=-1)
    transaction_timeout_ms: int = int32()
    transaction_status: int = int8()
    transaction_partitions: list[PartitionsSchema] | None = array(PartitionsSchema, nullable_since=0)
    transaction_last_update_timestamp_ms: int = int64()
    transaction_start_timestamp_ms: int = int64()
    client_transaction_version: int = int16(since=1, tag=2, default=0)
