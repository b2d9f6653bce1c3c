"""Arrow batches hold exactly what Culver's own record decoder reads from the same bytes."""

from __future__ import annotations

import random
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from culver.errors import KafkaError
from culver.protocol.checksum import crc32c
from culver.protocol.compression import Codec
from culver.protocol.control_records import EndMarker, encode_end_marker
from culver.protocol.records import (
    CREATE_TIME,
    LOG_APPEND_TIME,
    Record,
    batch_with_records,
    decode_records,
    encode_batch,
    iterate_headers,
    parse_header,
    set_base_offset_and_epoch,
)
from culver.spark import arrow_batches
from culver.spark.arrow_batches import decode
from culver.spark.schema import arrow_schema, spark_schema
from culver.spark.wire_batches import Aborted, offset_after

TIMESTAMP_MS = 1_700_000_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Row = tuple[Any, ...]


def rows_of(raw: bytes | bytearray, **options: Any) -> list[Row]:
    rows: list[Row] = []
    include_headers = options.setdefault("include_headers", True)
    for batch in decode(raw, topic="t", partition=3, **options):
        batch.validate(full=True)
        assert batch.schema == arrow_schema(include_headers)
        rows += zip(*(column.to_pylist() for column in batch.columns), strict=True)
    return rows


def expected(raw: bytes | bytearray, first: int = 0, end: int = 2**63) -> list[Row]:
    """The rows of all records that are not control records, by the decoder of one record at a time."""
    rows = []
    for position, header in iterate_headers(raw):
        if header.is_control:
            continue
        rows += [
            row(record, header.timestamp_type)
            for record in decode_records(raw, 1 << 30, position)
            if first <= record.offset < end
        ]
    return rows


def row(record: Record, timestamp_type: int = CREATE_TIME) -> Row:
    headers = [
        {"key": key.encode("utf-8", "surrogateescape").decode("utf-8", "replace"), "value": value}
        for key, value in record.headers
    ]
    return (
        record.key,
        record.value,
        "t",
        3,
        record.offset,
        EPOCH + timedelta(milliseconds=record.timestamp),
        timestamp_type,
        headers or None,
    )


def random_bytes(source: random.Random, longest: int) -> bytes:
    return source.randbytes(min(longest, int(source.paretovariate(0.6)) - 1))


def random_record(source: random.Random, offset: int, timestamp: int) -> Record:
    headers = []
    if source.random() < 0.3:
        for _ in range(source.choice((1, 1, 2, 5, 70))):
            key = source.choice(("", "k", "trace-id", "ключ", "\udcff\udc80", "x" * 200))
            headers.append((key, None if source.random() < 0.3 else random_bytes(source, 300)))
    return Record(
        offset,
        timestamp,
        None if source.random() < 0.3 else random_bytes(source, 9000),
        None if source.random() < 0.2 else random_bytes(source, 40000),
        tuple(headers),
    )


def random_log(seed: int) -> bytearray:
    source = random.Random(seed)
    raw = bytearray()
    offset = source.choice((0, 5, 2**40))
    for _ in range(source.randint(1, 12)):
        count = source.choice((1, 2, 30, 200))
        records = []
        base_offset = offset
        for _ in range(count):
            when = TIMESTAMP_MS + source.choice((0, 1, -5, 100, 70_000, 10**12))
            records.append(random_record(source, offset, when))
            offset += 1
        batch = encode_batch(
            records,
            base_offset=base_offset,
            compression=source.choice(list(Codec)),
            timestamp_type=source.choice((CREATE_TIME, CREATE_TIME, LOG_APPEND_TIME)),
        )
        if source.random() < 0.3:  # what compaction leaves, with a delete horizon or without
            kept = [record for record in records if source.random() < 0.5]
            horizon = source.choice((None, TIMESTAMP_MS + 86_400_000))
            batch = batch_with_records(parse_header(batch), kept, delete_horizon_ms=horizon)
        raw += batch
        if source.random() < 0.2:
            raw += marker_at(offset, producer_id=7, committed=True)
            offset += 1
        offset += source.choice((0, 0, 3))
    return raw


def marker_at(offset: int, *, producer_id: int, committed: bool) -> bytearray:
    marker = encode_end_marker(
        EndMarker(committed, 0), producer_id=producer_id, producer_epoch=0, timestamp_ms=TIMESTAMP_MS
    )
    set_base_offset_and_epoch(marker, 0, offset, 0)
    return marker


def values(first: int, count: int, **batch: Any) -> bytearray:
    records = [Record(offset, TIMESTAMP_MS, None, b"v%d" % offset) for offset in range(first, first + count)]
    return encode_batch(records, base_offset=first, **batch)


def offsets_of(rows: Sequence[Row]) -> list[int]:
    return [row[4] for row in rows]


def test_the_schema_is_the_one_that_spark_makes_of_it() -> None:
    for include_headers in (False, True):
        assert to_arrow_schema(spark_schema(include_headers), timezone="UTC") == arrow_schema(include_headers)


@pytest.mark.parametrize("seed", range(15))
def test_random_logs_are_read_as_record_by_record(seed: int) -> None:
    raw = random_log(seed)
    whole = expected(raw)
    assert rows_of(raw) == whole
    assert rows_of(raw, include_headers=False) == [row[:-1] for row in whole]
    source = random.Random(seed)
    lowest, highest = whole[0][4] - 3, whole[-1][4] + 3
    for _ in range(5):
        first, end = sorted(source.randint(lowest, highest) for _ in range(2))
        assert rows_of(raw, start_offset=first, end_offset=end) == expected(raw, first, end)


@pytest.mark.parametrize("length", [0, 1, 49, 50, 51, 100, 8170, 9000])
def test_records_of_one_length(length: int) -> None:
    """Such records are not walked; their varints get longer as offsets and timestamps rise."""
    count = 9_000 if length <= 100 else 400
    records = [Record(i, TIMESTAMP_MS + i // 100, None, b"v" * length) for i in range(count)]
    raw = encode_batch(records)
    assert rows_of(raw) == [row(record) for record in records]


def test_one_long_record_among_equal_ones_and_equal_ones_among_long() -> None:
    lengths = [10] * 500 + [9000] + [10] * 33 + [11] + [10] * 31 + [70_000] * 40 + [10, 11] * 100
    records = [Record(i, TIMESTAMP_MS, b"k", b"v" * length) for i, length in enumerate(lengths)]
    raw = encode_batch(records)
    assert rows_of(raw) == [row(record) for record in records]


def test_many_small_batches_become_few_arrow_batches() -> None:
    raw = b"".join(values(first, 10) for first in range(0, 10_000, 10))
    sizes = [batch.num_rows for batch in decode(raw, topic="t", partition=3)]
    assert sum(sizes) == 10_000
    assert len(sizes) == 2
    assert sizes[0] >= arrow_batches.ROWS_ENOUGH


def test_a_large_batch_is_split_evenly() -> None:
    raw = values(0, 40_000, compression=Codec.ZSTD)
    assert [batch.num_rows for batch in decode(raw, topic="t", partition=3)] == [13_333, 13_333, 13_334]


def test_few_large_records_do_not_wait_for_more() -> None:
    large = b"v" * (arrow_batches.BYTES_ENOUGH // 2)
    raw = b"".join(encode_batch([Record(offset, 0, None, large)], base_offset=offset) for offset in range(4))
    assert [batch.num_rows for batch in decode(raw, topic="t", partition=3)] == [2, 2]


def test_a_batch_that_is_not_whole_is_left_for_the_next_fetch() -> None:
    first, second = values(0, 5), values(5, 5)
    for cut in (1, 40, 61, len(second) - 1):
        raw = first + second[:cut]
        assert offsets_of(rows_of(raw)) == [0, 1, 2, 3, 4]
        assert offset_after(raw) == 5
    assert offset_after(first + second) == 10
    assert offset_after(first[:-1]) is None


def test_what_follows_does_not_share_memory_with_the_answer() -> None:
    raw = values(0, 100)
    before = rows_of(bytes(raw))
    [batch] = decode(raw, topic="t", partition=3, include_headers=True)
    raw[:] = bytes(len(raw))
    assert list(zip(*(column.to_pylist() for column in batch.columns), strict=True)) == before


def test_control_batches_are_left_out() -> None:
    raw = values(0, 3) + marker_at(3, producer_id=1, committed=True) + values(4, 2)
    assert offsets_of(rows_of(raw)) == [0, 1, 2, 4, 5]
    assert offset_after(raw) == 6


def test_aborted_transactions_are_left_out() -> None:
    transaction: dict[str, Any] = {"producer_epoch": 0, "base_sequence": 0, "is_transactional": True}
    raw = (
        values(0, 2, producer_id=1, **transaction)  # aborted at 6
        + values(2, 2, producer_id=2, **transaction)  # committed at 7
        + values(4, 1)
        + values(5, 1, producer_id=1, **transaction)  # of the aborted transaction, too
        + marker_at(6, producer_id=1, committed=False)
        + marker_at(7, producer_id=2, committed=True)
        + values(8, 2, producer_id=1, **transaction)  # the next transaction of the same producer
        + marker_at(10, producer_id=1, committed=True)
        + values(11, 2, producer_id=1, **transaction)  # aborted again
        + marker_at(13, producer_id=1, committed=False)
    )
    aborted = [Aborted(producer_id=1, first_offset=11), Aborted(producer_id=1, first_offset=0)]
    assert offsets_of(rows_of(raw, aborted=aborted)) == [2, 3, 4, 8, 9]
    assert offsets_of(rows_of(raw)) == [0, 1, 2, 3, 4, 5, 8, 9, 11, 12]


def test_timestamps_beyond_what_spark_can_hold_are_cut_off() -> None:
    records = [Record(0, -(2**61), None, b""), Record(1, 0, None, b""), Record(2, 2**61, None, b"")]
    [batch] = decode(encode_batch(records), topic="t", partition=3)
    assert batch.column("timestamp").cast("int64").to_pylist() == [
        -(2**63 // 1000) * 1000,
        0,
        (2**63 // 1000) * 1000,
    ]


def test_damage_is_an_error_and_names_its_place() -> None:
    raw = values(0, 3) + values(3, 3)
    raw[-1] ^= 1
    batches = decode(raw, topic="t", partition=3)
    with pytest.raises(KafkaError, match="offset 3 does not match its checksum"):
        list(batches)


@pytest.mark.parametrize("seed", range(6))
def test_records_that_lie_are_refused_or_read_as_record_by_record(seed: int) -> None:
    """Bytes changed under a checksum that fits: never a crash, never a row that the other decoder has not."""
    source = random.Random(seed)
    for _ in range(30):
        records = [random_record(source, offset, TIMESTAMP_MS) for offset in range(40)]
        raw = encode_batch(records)
        for _ in range(source.randint(1, 3)):
            raw[source.randrange(61, len(raw))] = source.choice((0, 1, 2, 0x7F, 0x80, 0xFF))
        fixed = with_checksum(raw)
        try:
            rows = rows_of(fixed)
        except KafkaError:
            with pytest.raises(KafkaError):
                decode_records(fixed, 1 << 30)
            continue
        try:
            assert rows == expected(fixed)
        except (KafkaError, OverflowError):
            # The other decoder also refuses bytes left over after a record's headers, and times out of bounds.
            assert offsets_of(rows) == list(range(40))


def with_checksum(raw: bytearray) -> bytearray:
    raw[17:21] = crc32c(bytes(raw[21:])).to_bytes(4, "big")
    return raw
