"""What the log accepts, what it refuses and with which code; a refusal leaves it untouched."""

from __future__ import annotations

import struct
from typing import Any

import pytest
from crc32c import crc32c
from log_batches import LOG_PATH, NOW_MS, LogFixture, batch, record, records_of, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log.transactions import UNVERIFIED_OK
from culver.log.validation import RecordsRefused
from culver.protocol.compression import Codec
from culver.protocol.records import Record, encode_batch, parse_header

HOUR_MS = 3_600_000


def with_fields(source: memoryview, *, fix_crc: bool = True, **changes: tuple[str, int, int]) -> memoryview:
    """The batch with header fields overwritten: name=(struct format, position, value)."""
    changed = bytearray(source)
    for form, position, value in changes.values():
        struct.pack_into(form, changed, position, value)
    if fix_crc:
        struct.pack_into(">I", changed, 17, crc32c(memoryview(changed)[21:]))
    return memoryview(changed)


def refusal(fixture: LogFixture, records: Any) -> KafkaError:
    """The error for these bytes, having checked that nothing changed."""
    before = (fixture.log.end_offset, fixture.log.size_bytes, len(fixture.log.producers()), fixture.values())
    with pytest.raises(KafkaError) as caught:
        fixture.log.append(records, 0)
    after = (fixture.log.end_offset, fixture.log.size_bytes, len(fixture.log.producers()), fixture.values())
    assert after == before
    assert fixture.faulty.size(LOG_PATH) == fixture.log.size_bytes
    return caught.value


def test_offsets_are_given_one_after_another() -> None:
    fixture = LogFixture()
    first = fixture.log.append(batch(b"a", b"b"), 3)
    second = fixture.log.append(batch(b"c"), 3)
    assert (first.base_offset, first.last_offset, first.duplicate) == (0, 1, False)
    assert (second.base_offset, second.last_offset) == (2, 2)
    assert first.log_append_time_ms == -1
    assert fixture.log.end_offset == fixture.log.high_watermark == 3
    assert [(r.offset, r.value) for r in records_of(fixture.log)] == [(0, b"a"), (1, b"b"), (2, b"c")]


def test_offset_and_leader_epoch_are_put_into_the_given_buffer() -> None:
    fixture = LogFixture()
    fixture.append()
    records = batch(b"a")
    fixture.log.append(records, 7)
    header = parse_header(records)
    assert (header.base_offset, header.partition_leader_epoch) == (1, 7)
    assert bytes(fixture.fs.read(LOG_PATH)).endswith(bytes(records))


def test_a_read_only_buffer_is_copied() -> None:
    fixture = LogFixture()
    fixture.append()
    assert fixture.log.append(memoryview(bytes(batch(b"a"))), 0).base_offset == 1
    assert fixture.values() == [b"value", b"a"]


@pytest.mark.parametrize(
    ("records", "code"),
    [
        pytest.param(b"", ErrorCode.INVALID_RECORD, id="nothing"),
        pytest.param(bytes(10), ErrorCode.INVALID_RECORD, id="too short for any header"),
        pytest.param(bytes(61), ErrorCode.CORRUPT_MESSAGE, id="zeros"),
        pytest.param(batch()[:-1], ErrorCode.INVALID_RECORD, id="cut short"),
        pytest.param(batch()[:40], ErrorCode.INVALID_RECORD, id="cut in the header"),
        pytest.param(
            with_fields(batch(), length=(">i", 8, 1 << 30)), ErrorCode.INVALID_RECORD, id="length too large"
        ),
        pytest.param(
            with_fields(batch(), length=(">i", 8, 48)), ErrorCode.CORRUPT_MESSAGE, id="length too small"
        ),
        pytest.param(
            with_fields(batch(), length=(">i", 8, -5)), ErrorCode.CORRUPT_MESSAGE, id="length negative"
        ),
        pytest.param(with_fields(batch(), magic=(">b", 16, 0)), ErrorCode.INVALID_RECORD, id="magic 0"),
        pytest.param(with_fields(batch(), magic=(">b", 16, 1)), ErrorCode.INVALID_RECORD, id="magic 1"),
        pytest.param(with_fields(batch(), magic=(">b", 16, 3)), ErrorCode.CORRUPT_MESSAGE, id="magic 3"),
        pytest.param(
            with_fields(batch(), offset=(">q", 0, 5)), ErrorCode.INVALID_RECORD, id="base offset not 0"
        ),
        pytest.param(
            with_fields(batch(), fix_crc=False, crc=(">I", 17, 1)), ErrorCode.CORRUPT_MESSAGE, id="wrong crc"
        ),
        pytest.param(
            with_fields(batch(b"a", b"b"), delta=(">i", 23, 5)),
            ErrorCode.INVALID_RECORD,
            id="delta too large",
        ),
        pytest.param(
            with_fields(batch(), delta=(">i", 23, -1)), ErrorCode.INVALID_RECORD, id="delta negative"
        ),
        pytest.param(with_fields(batch(), count=(">i", 57, 0)), ErrorCode.INVALID_RECORD, id="no records"),
        pytest.param(
            with_fields(batch(), count=(">i", 57, -1)), ErrorCode.INVALID_RECORD, id="count negative"
        ),
        pytest.param(batch(is_control=True), ErrorCode.INVALID_RECORD, id="control batch"),
        pytest.param(
            batch(producer_id=4, producer_epoch=0, base_sequence=-1),
            ErrorCode.INVALID_RECORD,
            id="producer id without a sequence",
        ),
        pytest.param(
            with_fields(batch(), attributes=(">h", 21, 7)),
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            id="unknown codec",
        ),
        pytest.param(memoryview(bytearray(bytes(batch()) * 2)), ErrorCode.INVALID_RECORD, id="two batches"),
        pytest.param(
            batch(timestamp=NOW_MS + HOUR_MS + 1), ErrorCode.INVALID_TIMESTAMP, id="too far in the future"
        ),
    ],
)
def test_what_is_refused(records: memoryview, code: ErrorCode) -> None:
    fixture = LogFixture()
    fixture.append(b"kept")
    assert refusal(fixture, records).code == code


def test_an_incomplete_second_batch_is_overlooked_as_in_kafka() -> None:
    fixture = LogFixture()
    whole = bytes(batch(b"a"))
    fixture.log.append(memoryview(bytearray(whole + whole[:-1])), 0)
    assert fixture.values() == [b"a"]
    assert fixture.log.size_bytes == len(whole)


def test_max_message_bytes_bounds_the_batch() -> None:
    size = len(batch(b"x" * 100))
    fixture = LogFixture(max_message_bytes=size)
    fixture.append(b"x" * 100)
    assert refusal(fixture, batch(b"x" * 101)).code == ErrorCode.MESSAGE_TOO_LARGE


def test_a_batch_larger_than_a_segment_is_refused() -> None:
    fixture = LogFixture(segment_bytes=200)
    assert refusal(fixture, batch(b"x" * 300)).code == ErrorCode.RECORD_LIST_TOO_LARGE


def test_a_record_an_hour_ahead_is_still_taken() -> None:
    fixture = LogFixture()
    fixture.append(timestamp=NOW_MS + HOUR_MS)
    fixture.append(timestamp=-1)
    assert fixture.log.end_offset == 2


def test_old_timestamps_are_refused_record_by_record_where_the_topic_bounds_them() -> None:
    fixture = LogFixture(message_timestamp_before_max_ms=1000)
    records = [record(offset=0), record(timestamp=NOW_MS - 1001, offset=1), record(timestamp=-1, offset=2)]
    error = refusal(fixture, memoryview(encode_batch(records)))
    assert error.code == ErrorCode.INVALID_TIMESTAMP
    assert isinstance(error, RecordsRefused)
    assert [index for index, _ in error.record_errors] == [1]
    fixture.append(timestamp=NOW_MS - 1000)


def test_append_time_is_stamped_with_a_new_checksum() -> None:
    fixture = LogFixture(message_timestamp_type="LogAppendTime")
    result = fixture.log.append(batch(b"a", b"b", timestamp=NOW_MS + 99 * HOUR_MS), 0)
    assert result.log_append_time_ms == NOW_MS
    assert [r.timestamp for r in records_of(fixture.log)] == [NOW_MS, NOW_MS]
    assert fixture.reopen().end_offset == 2  # recovery has checked the checksum
    claimed = batch(timestamp_type=1)
    assert refusal(fixture, claimed).code == ErrorCode.INVALID_TIMESTAMP


def test_a_false_claim_of_append_time_becomes_create_time() -> None:
    fixture = LogFixture()
    fixture.log.append(batch(b"a", timestamp_type=1), 0)
    assert parse_header(fixture.fs.read(LOG_PATH)).timestamp_type == 0
    assert fixture.reopen().end_offset == 1


def test_a_compacted_topic_needs_keys() -> None:
    fixture = LogFixture(cleanup_policy=frozenset({"compact"}))
    mixed = [record(key=b"k", offset=0), record(offset=1), record(offset=2)]
    error = refusal(fixture, memoryview(encode_batch(mixed)))
    assert error.code == ErrorCode.INVALID_RECORD
    assert isinstance(error, RecordsRefused)
    assert [index for index, _ in error.record_errors] == [1, 2]
    fixture.append(key=b"k")
    assert fixture.log.end_offset == 1


@pytest.mark.parametrize(
    ("setting", "stored"),
    [
        ("producer", Codec.LZ4),
        ("uncompressed", Codec.NONE),
        ("gzip", Codec.GZIP),
        ("zstd", Codec.ZSTD),
        ("lz4", Codec.LZ4),
    ],
)
def test_the_topic_decides_how_batches_are_compressed(setting: str, stored: Codec) -> None:
    fixture = LogFixture(compression_type=setting)
    source = batch(b"x" * 500, b"y", compression=Codec.LZ4, producer_id=9, producer_epoch=2, base_sequence=0)
    fixture.log.append(source, 4)
    header = parse_header(fixture.fs.read(LOG_PATH))
    assert header.compression == stored
    assert (header.producer_id, header.producer_epoch, header.base_sequence) == (9, 2, 0)
    assert header.partition_leader_epoch == 4
    assert fixture.values() == [b"x" * 500, b"y"]
    assert fixture.reopen().end_offset == 2


def test_the_topic_decides_how_hard_the_broker_compresses() -> None:
    sizes = []
    for level in (1, 9):
        fixture = LogFixture(compression_type="gzip", compression_gzip_level=level)
        fixture.append(b" ".join(b"%d" % (number * number) for number in range(3000)))
        sizes.append(fixture.log.size_bytes)
    assert sizes[0] > sizes[1]


def test_a_transactional_batch_is_stored_as_it_is() -> None:
    fixture = LogFixture()
    fixture.log.append(sequenced(5, 0, is_transactional=True), 0, UNVERIFIED_OK)
    fixture.append(b"plain")
    assert parse_header(fixture.fs.read(LOG_PATH)).is_transactional
    assert fixture.close_and_reopen().end_offset == 2


def test_the_brokers_own_batches_may_be_control_batches_and_need_no_keys() -> None:
    fixture = LogFixture(cleanup_policy=frozenset({"compact"}))
    control = encode_batch(
        [Record(0, NOW_MS, b"\0\0\0\1", b"", ())], is_control=True, producer_id=3, producer_epoch=1
    )
    assert fixture.log.append_internal(control, 0).base_offset == 0
    assert fixture.log.append_internal(bytes(encode_batch([record()])), 0).base_offset == 1
    assert [producer.epoch for producer in fixture.log.producers()] == [1]


def test_new_settings_count_from_the_next_append_on() -> None:
    fixture = LogFixture()
    fixture.append(b"x" * 100)
    fixture.log.update_config(fixture.config.replace(max_message_bytes=100))
    assert refusal(fixture, batch(b"x" * 100)).code == ErrorCode.MESSAGE_TOO_LARGE
