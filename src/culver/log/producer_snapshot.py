"""Producer state as bytes: the `.snapshot` file, in Kafka's format (version 1).

Kafka stores only the last batch of a producer. Culver writes one entry for each remembered batch, oldest
first; whoever reads the file as Kafka does is left with the last one.
"""

from __future__ import annotations

import struct

from culver.log.producer_state import MAX_SEQUENCE, Producer, ProducerStates, StoredBatch
from culver.log.transactions import NO_OFFSET
from culver.protocol.checksum import crc32c

_VERSION = 1
_PREFIX = struct.Struct(">hIi")
_CRC_END = 6
# producer id, epoch, last sequence, last offset, offset delta, timestamp, coordinator epoch, first offset of
# the open transaction
_ENTRY = struct.Struct(">qhiqiqiq")


class SnapshotDamaged(Exception):
    """The bytes are not a snapshot that was wholly written."""


def encode_snapshot(states: ProducerStates) -> bytes:
    open_now = states.transactions.open
    entries = [
        entry
        for producer in states.producers.values()
        for entry in _entries(producer, open_now.get(producer.producer_id, NO_OFFSET))
    ]
    body = b"".join(entries)
    count = len(entries).to_bytes(4, "big")
    return _PREFIX.pack(_VERSION, crc32c(body, crc32c(count)), len(entries)) + body


def _entries(producer: Producer, transaction_first_offset: int) -> list[bytes]:
    batches = producer.batches
    if not batches:
        # Nobody looks at the offset delta of a batch that there is not: it says whether the next sequence is 0.
        first_offset = -1 if producer.sequence_known else 0
        batches = [StoredBatch(-1, -1, first_offset, -1, producer.last_timestamp_ms)]
    return [
        _ENTRY.pack(
            producer.producer_id,
            producer.epoch,
            batch.last_sequence,
            batch.last_offset,
            batch.last_offset - batch.first_offset,
            batch.timestamp_ms,
            producer.coordinator_epoch,
            transaction_first_offset,
        )
        for batch in batches
    ]


def decode_snapshot(data: bytes, limit: int, seen_ms: int, offset: int) -> ProducerStates:
    """The state that was written, just before `offset`; its producers count as last seen at `seen_ms`."""
    if len(data) < _PREFIX.size:
        raise SnapshotDamaged(f"only {len(data)} bytes")
    version, crc, count = _PREFIX.unpack_from(data)
    if version != _VERSION:
        raise SnapshotDamaged(f"version {version}")
    if crc != crc32c(memoryview(data)[_CRC_END:]):
        raise SnapshotDamaged("CRC does not match")
    if len(data) != _PREFIX.size + count * _ENTRY.size:
        raise SnapshotDamaged(f"{len(data)} bytes for {count} entries")
    states = ProducerStates(limit)
    transactions: dict[int, int] = {}
    for fields in _ENTRY.iter_unpack(memoryview(data)[_PREFIX.size :]):
        producer_id, epoch, last_sequence, last_offset, delta, timestamp_ms, coordinator_epoch, first = fields
        producer = states.producers.get(producer_id)
        if producer is None or producer.epoch != epoch:
            producer = states.producers[producer_id] = Producer(producer_id, epoch)
        producer.coordinator_epoch = coordinator_epoch
        producer.sequence_known = last_offset < 0 and delta == 0
        if first >= 0:
            transactions[producer_id] = first
            producer.transaction_started_ms = seen_ms
        producer.last_timestamp_ms = timestamp_ms
        producer.last_seen_ms = seen_ms
        if last_offset >= 0:
            first_sequence = (last_sequence - delta) & MAX_SEQUENCE
            producer.batches.append(
                StoredBatch(first_sequence, last_sequence, last_offset - delta, last_offset, timestamp_ms)
            )
    states.transactions.sort(transactions)
    if transactions or any(producer.coordinator_epoch >= 0 for producer in states.producers.values()):
        states.transactions.forgotten_offset = states.transactions.loaded_offset = offset - 1
    return states
