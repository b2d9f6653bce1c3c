"""The records in which the state of transactional ids is kept, in Kafka's own format: its tools can read them.

A key is a 16-bit 0 and the transactional id. A value starts with the version of its layout; no value means that the
id is forgotten. The last epoch has no place in it: where it does not follow from the others it is lost.
"""

from __future__ import annotations

from struct import Struct
from typing import NamedTuple

from culver.core.transaction_state import (
    ENDING,
    EPOCH_BUMP_VERSION,
    EXHAUSTED_EPOCH,
    NO_PRODUCER_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import MalformedRequest
from culver.protocol.messages.transaction_state import (
    PartitionsSchema,
    TransactionLogKey,
    TransactionLogValue,
)
from culver.protocol.schema import decoder, encoder

_INT16 = Struct(">h")
_KEY_KIND = 0
# As Kafka 4.3 writes them with transaction.version=2.
_VALUE_VERSION = 1
_ENDED = ENDING | {TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
_NEVER_WRITTEN = frozenset({TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE})


class TransactionChange(NamedTuple):
    """The state of a transactional id is now `metadata`, or the id is forgotten."""

    transactional_id: str
    metadata: TransactionMetadata | None


class TransactionRecord(NamedTuple):
    """A record as it goes to the log, with the change that it stands for."""

    key: bytes
    value: bytes | None
    change: TransactionChange


def transaction_record(transactional_id: str, metadata: TransactionMetadata) -> TransactionRecord:
    """The record of a transactional id's state. Hot: three in every transaction."""
    partitions: list[PartitionsSchema] | None = None
    if metadata.state is not TransactionState.EMPTY:
        by_topic: dict[str, list[int]] = {}
        for topic, partition in sorted(metadata.partitions):
            by_topic.setdefault(topic, []).append(partition)
        partitions = [PartitionsSchema(topic=topic, partition_ids=ids) for topic, ids in by_topic.items()]
    value = TransactionLogValue(
        producer_id=metadata.producer_id,
        previous_producer_id=metadata.previous_producer_id,
        next_producer_id=metadata.next_producer_id,
        producer_epoch=metadata.producer_epoch,
        transaction_timeout_ms=metadata.timeout_ms,
        transaction_status=int(metadata.state),
        transaction_partitions=partitions,
        transaction_last_update_timestamp_ms=metadata.updated_ms,
        transaction_start_timestamp_ms=metadata.started_ms,
        client_transaction_version=metadata.client_version,
    )
    payload = _INT16.pack(_VALUE_VERSION) + b"".join(encoder(TransactionLogValue, _VALUE_VERSION)(value))
    return TransactionRecord(_key(transactional_id), payload, TransactionChange(transactional_id, metadata))


def transaction_tombstone(transactional_id: str) -> TransactionRecord:
    """The record that removes a transactional id."""
    return TransactionRecord(_key(transactional_id), None, TransactionChange(transactional_id, None))


def decode_change(key: bytes, value: bytes | None) -> TransactionChange | None:
    """What a record of the transaction log means, or None for kinds that Culver does not know.

    Raises MalformedRequest for bytes that are no such record.
    """
    if len(key) < 2:
        raise MalformedRequest("a record of the transaction log has no kind")
    if _INT16.unpack_from(key)[0] != _KEY_KIND:
        return None
    transactional_id = decoder(TransactionLogKey, 0)(key, 2)[0].transactional_id
    if value is None:
        return TransactionChange(transactional_id, None)
    if len(value) < 2:
        raise MalformedRequest("a record of the transaction log has no version")
    (version,) = _INT16.unpack_from(value)
    if not 0 <= version <= _VALUE_VERSION:
        raise MalformedRequest(f"a record of the transaction log has the unknown version {version}")
    return TransactionChange(transactional_id, _metadata(decoder(TransactionLogValue, version)(value, 2)[0]))


def _metadata(value: TransactionLogValue) -> TransactionMetadata:
    try:
        state = TransactionState(value.transaction_status)
    except ValueError:
        state = TransactionState.DEAD
    if state in _NEVER_WRITTEN:
        raise MalformedRequest(f"a transaction cannot be in the state {value.transaction_status}")
    metadata = TransactionMetadata(
        producer_id=value.producer_id,
        producer_epoch=value.producer_epoch,
        timeout_ms=value.transaction_timeout_ms,
        state=state,
        updated_ms=value.transaction_last_update_timestamp_ms,
        started_ms=value.transaction_start_timestamp_ms,
        partitions=frozenset(
            (topic.topic, partition)
            for topic in value.transaction_partitions or ()
            for partition in topic.partition_ids
        ),
        previous_producer_id=value.previous_producer_id,
        next_producer_id=value.next_producer_id,
        client_version=value.client_transaction_version,
    )
    return metadata._replace(last_producer_epoch=_last_epoch(metadata))


def _last_epoch(metadata: TransactionMetadata) -> int:
    """The epoch under which the last transaction was open, if ending it has raised the epoch."""
    if metadata.state not in _ENDED or metadata.client_version < EPOCH_BUMP_VERSION:
        return NO_PRODUCER_EPOCH
    if metadata.state not in ENDING and metadata.producer_id != metadata.previous_producer_id:
        return EXHAUSTED_EPOCH
    return metadata.producer_epoch - 1


def _key(transactional_id: str) -> bytes:
    key = TransactionLogKey(transactional_id=transactional_id)
    return _INT16.pack(_KEY_KIND) + b"".join(encoder(TransactionLogKey, 0)(key))
