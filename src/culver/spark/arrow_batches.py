"""Decode fetched record batches into Arrow: columns of many records at once, no Python object per record.

The batches of a fetch answer are gathered until they have rows enough; then each field of all their records is read
as one column. Where records begin is found by walking (`record_starts`), the numbers are read with numpy
(`varint_columns`), keys and values are copied by Arrow (`binary_columns`). What comes out shares no memory with what
went in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import pyarrow as pa

from culver.errors import ErrorCode, KafkaError
from culver.protocol.compression import Buffer, Codec, decompress
from culver.protocol.records import BATCH_OVERHEAD_BYTES, BatchHeader
from culver.spark.binary_columns import binary_column, header_column
from culver.spark.record_starts import Positions, invalid, record_starts
from culver.spark.schema import arrow_schema
from culver.spark.varint_columns import Numbers, read_varints, read_varlongs
from culver.spark.wire_batches import Aborted, visible_batches

# Spark is fastest with about 10,000 rows in an Arrow batch, as long as they stay within a few megabytes.
ROWS_ENOUGH = 8192
ROWS_MAX = 16384
BYTES_ENOUGH = 4 << 20
# Positions within a payload are 32-bit numbers in Arrow.
DECOMPRESSED_BYTES_MAX = 1 << 30

# Timestamps are milliseconds on the wire and microseconds in Spark; the ends of time are cut off.
_TIMESTAMP_MS_MAX = (2**63 - 1) // 1000


def decode(
    raw: Buffer,
    *,
    topic: str,
    partition: int,
    start_offset: int = 0,
    end_offset: int = 2**63 - 1,
    include_headers: bool = False,
    aborted: Iterable[Aborted] = (),
) -> Iterator[pa.RecordBatch]:
    """The records of `raw` with start_offset <= offset < end_offset, in order, about 10,000 rows at a time.

    `raw` is a fetch answer's records; a batch at its end that is not whole is left out. Control records never come
    out, nor do those of the `aborted` transactions. Raises KafkaError when a batch is damaged; those before it have
    come out by then.
    """
    view = memoryview(raw).cast("B")
    place = _Place(topic, partition, start_offset, end_offset, include_headers)
    gathered: _Gathered | None = None
    for position, header in visible_batches(view, start_offset, end_offset, aborted):
        packed = header.compression != Codec.NONE
        if gathered is not None and gathered.packed != packed:
            yield from gathered.record_batches(place)
            gathered = None
        if gathered is None:
            gathered = _Gathered(view, packed)
        try:
            gathered.add(position, header)
        except KafkaError as error:
            raise _located(error, place, header) from None
        if gathered.rows >= ROWS_ENOUGH or gathered.size_bytes >= BYTES_ENOUGH:
            yield from gathered.record_batches(place)
            gathered = None
    if gathered is not None:
        yield from gathered.record_batches(place)


def _located(error: KafkaError, place: _Place, header: BatchHeader) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE,
        f"the batch of {place.topic}-{place.partition} at offset {header.base_offset} cannot be read: {error}",
    )


class _Place:
    """Where the records are from, and which of them are wanted."""

    def __init__(
        self, topic: str, partition: int, start_offset: int, end_offset: int, include_headers: bool
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.start_offset = start_offset
        self.end_offset = end_offset
        self.include_headers = include_headers


class _Gathered:
    """Batches that are turned into rows together: all in the fetch answer, or all decompressed."""

    def __init__(self, raw: memoryview, packed: bool) -> None:
        self.packed = packed
        self.rows = 0
        self.size_bytes = 0
        self._raw = raw
        self._raw_column = np.frombuffer(raw, dtype=np.uint8)
        self._payloads: list[Buffer] = []
        self._starts: list[Any] = []
        self._headers: list[BatchHeader] = []

    def add(self, position: int, header: BatchHeader) -> None:
        begin, end = position + BATCH_OVERHEAD_BYTES, position + header.size_bytes
        if not self.packed:
            starts = record_starts(self._raw, self._raw_column, begin, end, header.record_count)
            self.size_bytes += end - begin
        else:
            payload = memoryview(decompress(header.compression, self._raw[begin:end], DECOMPRESSED_BYTES_MAX))
            column = np.frombuffer(payload, dtype=np.uint8)
            starts = record_starts(payload, column, 0, len(payload), header.record_count)
            if self._payloads:
                starts = np.asarray(starts, dtype=np.int64) + self.size_bytes
            self._payloads.append(payload)
            self.size_bytes += len(payload)
        self._starts.append(starts)
        self._headers.append(header)
        self.rows += header.record_count

    def record_batches(self, place: _Place) -> Iterator[pa.RecordBatch]:
        payload: Buffer = self._raw
        if self.packed:
            payload = self._payloads[0] if len(self._payloads) == 1 else b"".join(self._payloads)
        starts = np.concatenate(self._starts, dtype=np.int64)
        counts = [header.record_count for header in self._headers]
        of_batch = np.repeat(np.arange(len(counts)), counts)
        # Batches of the same size, rather than a last one with the few rows that are left over.
        steps = -(-self.rows // ROWS_MAX)
        for step in range(steps):
            rows = slice(step * self.rows // steps, (step + 1) * self.rows // steps)
            batch = _record_batch(payload, starts[rows], self._headers, of_batch[rows], place)
            if batch is not None:
                yield batch


def _record_batch(
    payload: Buffer, starts: Positions, headers: list[BatchHeader], of_batch: Numbers, place: _Place
) -> pa.RecordBatch | None:
    column = np.frombuffer(payload, dtype=np.uint8)
    # Hot, all of it: about a dozen passes over columns of 10,000 numbers.
    lengths, positions = read_varints(column, starts)
    ends = positions + lengths
    timestamp_deltas, positions = read_varlongs(column, positions + 1)
    offset_deltas, positions = read_varints(column, positions)
    key_lengths, key_begins = read_varints(column, positions)
    value_lengths, value_begins = read_varints(column, key_begins + np.maximum(key_lengths, 0))
    header_counts = value_begins + np.maximum(value_lengths, 0)
    # All lengths in front of it count upwards, so a lie in any of them shows in where the last field is.
    if (header_counts >= ends).any():
        raise invalid(f"a record of {place.topic}-{place.partition} claims a key or value beyond its own end")

    base_offsets = np.array([header.base_offset for header in headers], dtype=np.int64)[of_batch]
    last_deltas = np.array([header.last_offset_delta for header in headers], dtype=np.int64)[of_batch]
    offsets = base_offsets + offset_deltas
    if (
        (offset_deltas < 0).any()
        or (offset_deltas > last_deltas).any()
        or (offsets[1:] <= offsets[:-1]).any()
    ):
        raise invalid(f"the offsets of a batch of {place.topic}-{place.partition} do not rise")

    first, last = np.searchsorted(offsets, (place.start_offset, place.end_offset))
    if first >= last:
        return None
    wanted = slice(int(first), int(last))
    buffer = pa.py_buffer(payload)
    timestamps, timestamp_types = _timestamps(headers, of_batch[wanted], timestamp_deltas[wanted])
    rows = int(last - first)
    arrays = [
        binary_column(buffer, key_begins[wanted], key_lengths[wanted]),
        binary_column(buffer, value_begins[wanted], value_lengths[wanted]),
        pa.repeat(pa.scalar(place.topic, pa.string()), rows),
        pa.repeat(pa.scalar(place.partition, pa.int32()), rows),
        pa.array(offsets[wanted]),
        timestamps,
        timestamp_types,
    ]
    if place.include_headers:
        arrays.append(header_column(buffer, column, header_counts[wanted], ends[wanted]))
    return pa.RecordBatch.from_arrays(arrays, schema=arrow_schema(place.include_headers))


def _timestamps(headers: list[BatchHeader], of_batch: Numbers, deltas: Numbers) -> tuple[pa.Array, pa.Array]:
    """Timestamps, and their types: 0 when the producer set them, 1 when the broker did on append."""
    base = np.array([header.base_timestamp for header in headers], dtype=np.int64)[of_batch]
    timestamps_ms = base + deltas
    types = np.array([header.timestamp_type for header in headers], dtype=np.int32)
    if types.any():
        append_times = np.array([header.max_timestamp for header in headers], dtype=np.int64)[of_batch]
        timestamps_ms = np.where(types[of_batch], append_times, timestamps_ms)
    timestamps_us = np.clip(timestamps_ms, -_TIMESTAMP_MS_MAX, _TIMESTAMP_MS_MAX) * 1000
    return pa.array(timestamps_us).view(pa.timestamp("us", tz="UTC")), pa.array(types[of_batch])
