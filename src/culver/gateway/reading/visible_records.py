"""From what a fetch brought to the records that a reader may see: checked, decompressed, without aborted ones."""

from __future__ import annotations

from collections.abc import Iterable

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record
from culver.protocol.aborted_transactions import HiddenBatches
from culver.protocol.messages.fetch import AbortedTransaction
from culver.protocol.record_codec import Headers
from culver.protocol.records import decode_records, iterate_whole_batches, verify_crc

# What one batch may take when decompressed. A broker's batches are bounded compressed, not decompressed.
BATCH_MAX_BYTES = 64 << 20
# So much is enough for once: a few compressed batches may hold any amount, and nothing else runs meanwhile.
ENOUGH_BYTES = 1 << 20


def visible_records(
    place: TopicPartition, fetched: bytes, offset: int, aborted: Iterable[AbortedTransaction]
) -> tuple[list[Record], int]:
    """(records from `offset` on, the offset to go on at), which is `offset` when there is no whole batch.

    It stops before all batches are decoded when they hold a lot. The first batch may begin before `offset`, and the
    last may be cut off. Control batches are none of the reader's business, nor are those of the `aborted`
    transactions, which the broker names when asked for committed records only. Raises KafkaError for a batch that is
    damaged or too large.
    """
    topic, partition = place
    hidden = HiddenBatches(aborted)
    records: list[Record] = []
    next_offset = offset
    decoded_bytes = 0
    for position, header in iterate_whole_batches(fetched):
        is_hidden = hidden.hides(fetched, position, header)
        if header.last_offset < next_offset:
            continue
        next_offset = header.last_offset + 1
        if is_hidden:
            continue
        if not verify_crc(fetched, header, position):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} of {place} does not match its checksum",
            )
        timestamp_type = header.timestamp_type
        decoded = [
            Record(
                topic,
                partition,
                record.offset,
                record.timestamp,
                timestamp_type,
                record.key,
                record.value,
                _with_text_names(record.headers) if record.headers else (),
            )
            for record in decode_records(fetched, BATCH_MAX_BYTES, position)
            if record.offset >= offset
        ]
        records += decoded
        decoded_bytes += (
            sum(record.size_bytes for record in decoded) if header.compression else header.size_bytes
        )
        if decoded_bytes > ENOUGH_BYTES:
            break
    return records, next_offset


def _with_text_names(headers: Headers) -> Headers:
    """Names that are no UTF-8 have replacement characters: JSON has no room for them, and librdkafka crashes."""
    if all(name.isascii() for name, _ in headers):
        return headers
    return tuple(
        (name.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), value) for name, value in headers
    )
