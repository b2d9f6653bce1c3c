"""Finding offsets by time: the first record at or after a moment, and the record with the largest timestamp.

These read and decode one batch and may wait for the disk.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from culver.errors import KafkaError
from culver.log.batches import StoredBatchView
from culver.log.segment import NO_TIMESTAMP, Segment, SegmentList
from culver.protocol.records import Record, decode_records


class TimestampedOffset(NamedTuple):
    """A record found by its time."""

    offset: int
    timestamp_ms: int
    leader_epoch: int


def offset_for_timestamp(
    segments: SegmentList, timestamp_ms: int, start_offset: int, max_decompressed_bytes: int
) -> TimestampedOffset | None:
    """The first record from `start_offset` on whose timestamp is at or after `timestamp_ms`."""
    for segment in segments.items:
        if segment.size_bytes == 0 or segment.largest_timestamp_ms() < timestamp_ms:
            continue
        _, time_index = segment.indexes()
        near = segment.base_offset + time_index.offset_before(timestamp_ms)
        for batch in _batches_from(segment, max(near, start_offset)):
            header = batch.header
            if header[8] < timestamp_ms or header[0] + header[6] < start_offset:
                continue
            for record in _records(batch, max_decompressed_bytes):
                if record.timestamp >= timestamp_ms and record.offset >= start_offset:
                    return TimestampedOffset(record.offset, record.timestamp, header[2])
    return None


def max_timestamp_offset(segments: SegmentList, max_decompressed_bytes: int) -> TimestampedOffset | None:
    """The first record among those with the largest timestamp; None when no record has one."""
    best = max(segments.items, key=lambda segment: segment.largest_timestamp_ms())
    largest = best.largest_timestamp_ms()
    if largest == NO_TIMESTAMP:
        return None
    for batch in _batches_from(best, best.max_timestamp_offset):
        if batch.header[8] == largest:
            for record in _records(batch, max_decompressed_bytes):
                if record.timestamp == largest:
                    return TimestampedOffset(record.offset, largest, batch.header[2])
    return None


def _batches_from(segment: Segment, offset: int) -> Iterator[StoredBatchView]:
    yield from segment.walk(segment.position_of(offset, True))


def _records(batch: StoredBatchView, max_decompressed_bytes: int) -> list[Record]:
    try:
        return decode_records(batch.data, max_decompressed_bytes)
    except KafkaError:
        # A client may have stored what nobody can decode. Its header still has an offset and a time.
        return [Record(batch.header[0], batch.header[8], None, None, ())]
