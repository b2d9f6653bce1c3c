"""Record batches v2: read, written, changed in place, and refused when they lie."""

from __future__ import annotations

import struct
from typing import Any

import aiokafka.record.default_records as aiokafka_records
import kafka.record.default_records as kafka_records
import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from culver.errors import ErrorCode, KafkaError
from culver.protocol.compression import Codec, compress
from culver.protocol.record_codec import varint
from culver.protocol.records import (
    BATCH_OVERHEAD_BYTES,
    CREATE_TIME,
    LOG_APPEND_TIME,
    Record,
    batch_with_records,
    decode_records,
    encode_batch,
    iterate_headers,
    parse_header,
    set_append_time,
    set_base_offset_and_epoch,
    verify_crc,
)

MIB = 1 << 20
NOW = 1_700_000_000_000

RECORDS = [
    Record(10, NOW, b"key", b"value"),
    Record(11, NOW + 5, None, b"no key"),
    Record(12, NOW - 70_000, b"tombstone", None),
    Record(13, NOW + 1, b"", b""),
    Record(
        14,
        NOW + 2,
        b"k",
        b"v" * 300,
        (("trace", b"abc"), ("empty", b""), ("null", None), ("trace", b"again")),
    ),
]

record_texts = st.none() | st.binary(max_size=200)
record_headers = st.lists(st.tuples(st.text(max_size=10), st.none() | st.binary(max_size=20)), max_size=3)


@st.composite
def record_lists(draw: st.DrawFn) -> list[Record]:
    deltas = draw(st.lists(st.integers(1, 5), max_size=20))
    records = []
    offset = draw(st.integers(0, 2**62))
    for delta in deltas:
        timestamp = draw(st.integers(-1, 2**60))
        headers = tuple(draw(record_headers))
        records.append(Record(offset, timestamp, draw(record_texts), draw(record_texts), headers))
        offset += delta
    return records


def refused(batch: bytes | bytearray, max_bytes: int = MIB) -> ErrorCode:
    with pytest.raises(KafkaError) as caught:
        decode_records(batch, max_bytes)
    return caught.value.code


def batch_of(
    payload: bytes, *, count: int = 1, last_delta: int = 0, codec: int = 0, **fields: int
) -> bytearray:
    """A batch around any payload, true or not."""
    batch = encode_batch([])
    batch += payload
    struct.pack_into(">i", batch, 8, len(batch) - 12)
    struct.pack_into(">h", batch, 21, codec)
    struct.pack_into(">i", batch, 23, last_delta)
    struct.pack_into(">q", batch, 27, fields.get("base_timestamp", NOW))
    struct.pack_into(">i", batch, 57, count)
    return batch


def record_bytes(
    *,
    length: int | None = None,
    delta: int = 0,
    timestamp: int = 0,
    key: bytes = b"\x01",
    value: bytes = b"\x01",
    headers: bytes = b"\x00",
) -> bytes:
    body = b"\x00" + varint(timestamp) + varint(delta) + key + value + headers
    return varint(len(body) if length is None else length) + body


class TestHeader:
    def test_every_field_is_read_from_its_place(self) -> None:
        batch = encode_batch(
            RECORDS,
            base_offset=10,
            compression=Codec.ZSTD,
            producer_id=77,
            producer_epoch=3,
            base_sequence=2**31 - 2,
            is_transactional=True,
            partition_leader_epoch=9,
        )
        header = parse_header(b"skipped" + batch, 7)
        assert header.base_offset == 10
        assert header.size_bytes == header.batch_length + 12 == len(batch)
        assert header.partition_leader_epoch == 9
        assert header.magic == 2
        assert header.crc == crc32c(bytes(batch[21:]))
        assert header.last_offset_delta == 4
        assert header.last_offset == 14
        assert header.base_timestamp == NOW
        assert header.max_timestamp == NOW + 5
        assert (header.producer_id, header.producer_epoch) == (77, 3)
        assert header.base_sequence == 2**31 - 2
        assert header.last_sequence == 2  # wrapped
        assert header.record_count == 5
        assert header.compression == Codec.ZSTD
        assert header.timestamp_type == CREATE_TIME
        assert header.is_transactional
        assert not header.is_control
        assert header.delete_horizon_ms is None

    def test_the_bits_of_the_attributes_are_told_apart(self) -> None:
        append = parse_header(encode_batch(RECORDS, base_offset=10, timestamp_type=LOG_APPEND_TIME))
        assert (append.attributes, append.timestamp_type) == (0x08, LOG_APPEND_TIME)
        control = parse_header(encode_batch(RECORDS, base_offset=10, is_control=True))
        assert (control.attributes, control.is_control) == (0x20, True)
        horizon = parse_header(encode_batch(RECORDS, base_offset=10, delete_horizon_ms=5))
        assert (horizon.attributes, horizon.delete_horizon_ms) == (0x40, 5)

    def test_a_batch_without_sequence_has_no_last_sequence(self) -> None:
        assert parse_header(encode_batch(RECORDS, base_offset=10)).last_sequence == -1

    def test_too_few_bytes_are_corrupt(self) -> None:
        with pytest.raises(KafkaError) as caught:
            parse_header(bytes(BATCH_OVERHEAD_BYTES - 1))
        assert caught.value.code == ErrorCode.CORRUPT_MESSAGE


class TestRoundTrip:
    @pytest.mark.parametrize("codec", list(Codec))
    @given(records=record_lists())
    def test_records_come_back_as_they_went(self, codec: Codec, records: list[Record]) -> None:
        base_offset = records[0].offset if records else 0
        batch = encode_batch(records, base_offset=base_offset, compression=codec)
        assert verify_crc(batch, parse_header(batch))
        assert decode_records(batch, MIB) == records

    def test_a_batch_in_the_middle_of_a_buffer_needs_no_copy(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        buffer = memoryview(b"before" + batch + b"after")
        header = parse_header(buffer, 6)
        assert verify_crc(buffer, header, 6)
        assert decode_records(buffer, MIB, 6) == RECORDS

    def test_append_time_counts_for_every_record(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        set_append_time(batch, 0, NOW + 999)
        assert {record.timestamp for record in decode_records(batch, MIB)} == {NOW + 999}

    def test_header_keys_that_are_no_text_survive(self) -> None:
        headers = varint(1) + varint(2) + b"\xff\xfe" + varint(1) + b"x"
        batch = batch_of(record_bytes(headers=headers))
        records = decode_records(batch, MIB)
        assert encode_batch(records)[BATCH_OVERHEAD_BYTES:] == batch[BATCH_OVERHEAD_BYTES:]

    def test_offsets_that_do_not_rise_are_a_mistake_of_the_caller(self) -> None:
        with pytest.raises(ValueError, match="does not come after"):
            encode_batch([RECORDS[1], RECORDS[0]], base_offset=10)

    @given(value=st.integers(-(2**63), 2**63 - 1))
    def test_varints_of_any_size(self, value: int) -> None:
        encoded = varint(value)
        assert len(encoded) <= 10
        batch = batch_of(record_bytes(timestamp=value), base_timestamp=0)
        assert decode_records(batch, MIB)[0].timestamp == value


class TestClients:
    """Batches of kafka-python and aiokafka are read, and ours by them."""

    BUILDERS = [kafka_records.DefaultRecordBatchBuilder, aiokafka_records.DefaultRecordBatchBuilder]
    READERS = [kafka_records.DefaultRecordBatch, aiokafka_records.DefaultRecordBatch]

    @pytest.mark.parametrize("codec", list(Codec))
    @pytest.mark.parametrize("builder_class", BUILDERS)
    def test_their_batches_are_read(self, builder_class: Any, codec: Codec) -> None:
        builder = builder_class(
            magic=2,
            compression_type=int(codec),
            is_transactional=0,
            producer_id=123,
            producer_epoch=4,
            base_sequence=5,
            batch_size=999_999,
        )
        many = self._many()
        for record in many:
            builder.append(record.offset, record.timestamp, record.key, record.value, list(record.headers))
        batch = bytes(builder.build())
        header = parse_header(batch)
        assert verify_crc(batch, header)
        assert (header.producer_id, header.producer_epoch, header.base_sequence) == (123, 4, 5)
        assert header.compression == codec
        assert decode_records(batch, MIB) == many

    @pytest.mark.parametrize("codec", list(Codec))
    @pytest.mark.parametrize("reader_class", READERS)
    def test_they_read_ours(self, reader_class: Any, codec: Codec) -> None:
        many = self._many()
        reader = reader_class(bytes(encode_batch(many, compression=codec)))
        assert reader.validate_crc()
        assert [
            Record(r.offset, r.timestamp, r.key, r.value, tuple((k, v) for k, v in r.headers)) for r in reader
        ] == many

    @staticmethod
    def _many() -> list[Record]:
        return [
            Record(
                offset,
                NOW + offset * 3,
                None if offset % 7 == 0 else b"key-%d" % offset,
                None if offset % 11 == 0 else b"value " * (offset % 30),
                (("header", b"%d" % offset), ("none", None)) if offset % 5 == 0 else (),
            )
            for offset in range(500)
        ]


class TestInPlace:
    def test_offset_and_epoch_leave_the_checksum_valid(self) -> None:
        buffer = bytearray(b"before") + encode_batch(RECORDS, base_offset=10) + b"after"
        set_base_offset_and_epoch(memoryview(buffer), 6, 1_000_000, 42)
        header = parse_header(buffer, 6)
        assert (header.base_offset, header.partition_leader_epoch) == (1_000_000, 42)
        assert verify_crc(buffer, header, 6)
        assert [record.offset for record in decode_records(buffer, MIB, 6)] == list(
            range(1_000_000, 1_000_005)
        )
        assert (buffer[:6], buffer[-5:]) == (b"before", b"after")

    def test_append_time_gives_a_new_checksum_and_keeps_the_rest(self) -> None:
        buffer = (
            bytearray(b"before") + encode_batch(RECORDS, base_offset=10, is_transactional=True) + b"after"
        )
        old = parse_header(buffer, 6)
        set_append_time(memoryview(buffer), 6, NOW + 7)
        new = parse_header(buffer, 6)
        assert (new.timestamp_type, new.max_timestamp) == (LOG_APPEND_TIME, NOW + 7)
        assert (new.is_transactional, new.base_timestamp, new.base_offset) == (True, NOW, 10)
        assert new.crc != old.crc
        assert verify_crc(buffer, new, 6)
        assert (buffer[:6], buffer[-5:]) == (b"before", b"after")

    def test_a_flipped_bit_anywhere_after_the_checksum_shows(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        for position in range(21, len(batch)):
            batch[position] ^= 0x10
            assert not verify_crc(batch, parse_header(batch))
            batch[position] ^= 0x10

    def test_a_batch_that_is_not_all_there_does_not_match(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        assert not verify_crc(batch[:-1], parse_header(batch))


class TestCompaction:
    @pytest.mark.parametrize("codec", list(Codec))
    def test_kept_records_keep_their_offsets_and_the_batch_its_shape(self, codec: Codec) -> None:
        batch = encode_batch(
            RECORDS,
            base_offset=10,
            compression=codec,
            producer_id=7,
            producer_epoch=1,
            base_sequence=100,
            partition_leader_epoch=3,
        )
        header = parse_header(batch)
        kept = [RECORDS[2], RECORDS[4]]
        compacted = batch_with_records(header, kept)
        new = parse_header(compacted)
        assert verify_crc(compacted, new)
        assert decode_records(compacted, MIB) == kept
        assert (new.base_offset, new.last_offset_delta, new.record_count) == (10, 4, 2)
        assert (new.producer_id, new.producer_epoch, new.base_sequence, new.last_sequence) == (7, 1, 100, 104)
        assert (new.partition_leader_epoch, new.compression) == (3, codec)
        assert new.base_timestamp == header.base_timestamp
        assert new.max_timestamp == NOW + 2

    def test_keeping_all_changes_nothing(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10, compression=Codec.LZ4, base_sequence=3, producer_id=9)
        assert batch_with_records(parse_header(batch), decode_records(batch, MIB)) == batch

    def test_a_batch_with_no_record_left_still_says_where_its_producer_was(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10, compression=Codec.GZIP, base_sequence=3, producer_id=9)
        empty = batch_with_records(parse_header(batch), [])
        header = parse_header(empty)
        assert verify_crc(empty, header)
        assert (header.size_bytes, header.record_count) == (BATCH_OVERHEAD_BYTES, 0)
        assert (header.last_offset, header.last_sequence, header.max_timestamp) == (14, 7, NOW + 5)
        assert decode_records(empty, MIB) == []

    def test_a_delete_horizon_is_set_once_and_kept(self) -> None:
        header = parse_header(encode_batch(RECORDS, base_offset=10))
        first = batch_with_records(header, RECORDS, delete_horizon_ms=NOW + 5_000)
        assert parse_header(first).delete_horizon_ms == NOW + 5_000
        assert decode_records(first, MIB) == RECORDS
        second = batch_with_records(parse_header(first), RECORDS[1:])
        assert parse_header(second).delete_horizon_ms == NOW + 5_000
        assert decode_records(second, MIB) == RECORDS[1:]

    def test_append_time_stays(self) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        set_append_time(batch, 0, NOW + 99)
        compacted = batch_with_records(parse_header(batch), decode_records(batch, MIB)[:1])
        assert parse_header(compacted).max_timestamp == NOW + 99
        assert decode_records(compacted, MIB)[0].timestamp == NOW + 99


class TestIterate:
    def test_batches_one_after_the_other(self) -> None:
        batches = [
            encode_batch(RECORDS, base_offset=10),
            encode_batch([]),
            encode_batch(RECORDS[:2], base_offset=10),
        ]
        found = list(iterate_headers(b"".join(batches)))
        assert [position for position, _ in found] == [0, len(batches[0]), len(batches[0]) + len(batches[1])]
        assert [header.record_count for _, header in found] == [5, 0, 2]
        assert list(iterate_headers(b"")) == []

    @pytest.mark.parametrize("lie", [-(2**31), -1, 0, 13])
    def test_a_length_that_no_batch_has_is_corrupt(self, lie: int) -> None:
        assert self._code_for(length=lie) == ErrorCode.CORRUPT_MESSAGE

    def test_a_length_shorter_than_the_header_is_corrupt(self) -> None:
        assert self._code_for(length=48) == ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("length", [len(encode_batch(RECORDS, base_offset=10)) - 11, 10_000, 2**31 - 1])
    def test_a_length_beyond_the_buffer_is_an_incomplete_batch(self, length: int) -> None:
        assert self._code_for(length=length) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [0, 1])
    def test_the_old_formats_are_refused_as_invalid(self, magic: int) -> None:
        assert self._code_for(magic=magic) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("magic", [3, 127, 128, 255])
    def test_formats_there_are_not_are_corrupt(self, magic: int) -> None:
        assert self._code_for(magic=magic) == ErrorCode.CORRUPT_MESSAGE

    def test_a_cut_anywhere_yields_the_batches_before_it(self) -> None:
        whole = encode_batch(RECORDS, base_offset=10)
        buffer = whole + whole
        for end in range(1, len(buffer)):
            if end == len(whole):
                continue
            headers = iterate_headers(buffer[:end])
            if end > len(whole):
                assert next(headers)[0] == 0
            with pytest.raises(KafkaError) as caught:
                next(headers)
            assert caught.value.code == ErrorCode.INVALID_RECORD

    @staticmethod
    def _code_for(length: int | None = None, magic: int | None = None) -> ErrorCode:
        batch = encode_batch(RECORDS, base_offset=10)
        if length is not None:
            struct.pack_into(">i", batch, 8, length)
        if magic is not None:
            batch[16] = magic
        with pytest.raises(KafkaError) as caught:
            list(iterate_headers(batch))
        return caught.value.code


class TestLies:
    """Every length, count and delta inside a batch that does not fit is INVALID_RECORD."""

    def test_the_truth_is_accepted(self) -> None:
        assert decode_records(batch_of(record_bytes()), MIB) == [Record(0, NOW, None, None)]

    @pytest.mark.parametrize("count", [-1, 0, 2, 3, 2**31 - 1])
    def test_record_counts(self, count: int) -> None:
        assert refused(batch_of(record_bytes(), count=count, last_delta=5)) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("length", [-1, 0, 5, 7, 1000, 2**31 - 1, 2**34])
    def test_record_lengths(self, length: int) -> None:
        assert refused(batch_of(record_bytes(length=length))) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("length", [1, 4, 1000, 2**31 - 1])
    def test_key_and_value_lengths(self, length: int) -> None:
        assert refused(batch_of(record_bytes(key=varint(length)))) == ErrorCode.INVALID_RECORD
        assert refused(batch_of(record_bytes(value=varint(length)))) == ErrorCode.INVALID_RECORD

    def test_a_key_may_not_reach_into_the_next_record(self) -> None:
        payload = record_bytes(key=varint(8)) + record_bytes(delta=1)
        assert refused(batch_of(payload, count=2, last_delta=1)) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("delta", [-1, 1, 2**31])
    def test_offset_deltas_outside_the_batch(self, delta: int) -> None:
        assert refused(batch_of(record_bytes(delta=delta))) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize("deltas", [(0, 0), (1, 0)])
    def test_offset_deltas_that_do_not_rise(self, deltas: tuple[int, int]) -> None:
        payload = b"".join(record_bytes(delta=delta) for delta in deltas)
        assert refused(batch_of(payload, count=2, last_delta=1)) == ErrorCode.INVALID_RECORD

    def test_gaps_in_the_offsets_are_what_compaction_leaves(self) -> None:
        payload = record_bytes(delta=2) + record_bytes(delta=7)
        records = decode_records(batch_of(payload, count=2, last_delta=9), MIB)
        assert [record.offset for record in records] == [2, 7]

    def test_timestamps_beyond_64_bits(self) -> None:
        batch = batch_of(record_bytes(timestamp=2**62), base_timestamp=2**63 - 1)
        assert refused(batch) == ErrorCode.INVALID_RECORD

    @pytest.mark.parametrize(
        "headers",
        [
            varint(-1),
            varint(1),
            varint(1000),
            varint(2**31 - 1),
            varint(1) + varint(-1) + varint(0),
            varint(1) + varint(5) + b"k" + varint(0),
            varint(1) + varint(1) + b"k" + varint(5),
            varint(2) + varint(0) + varint(0),
        ],
    )
    def test_header_counts_and_lengths(self, headers: bytes) -> None:
        assert refused(batch_of(record_bytes(headers=headers))) == ErrorCode.INVALID_RECORD

    def test_a_varint_that_never_ends(self) -> None:
        assert refused(batch_of(b"\xff" * 20)) == ErrorCode.INVALID_RECORD
        assert refused(batch_of(b"\x14\x00" + b"\xff" * 11)) == ErrorCode.INVALID_RECORD

    def test_bytes_left_over(self) -> None:
        assert refused(batch_of(record_bytes() + b"\x00")) == ErrorCode.INVALID_RECORD

    def test_a_batch_longer_than_its_buffer(self) -> None:
        assert refused(batch_of(record_bytes())[:-1]) == ErrorCode.CORRUPT_MESSAGE

    def test_a_batch_shorter_than_its_header(self) -> None:
        batch = batch_of(record_bytes())
        struct.pack_into(">i", batch, 8, 20)
        assert refused(batch) == ErrorCode.CORRUPT_MESSAGE

    def test_another_format(self) -> None:
        batch = batch_of(record_bytes())
        batch[16] = 1
        assert refused(batch) == ErrorCode.INVALID_RECORD

    def test_a_codec_there_is_not(self) -> None:
        assert refused(batch_of(record_bytes(), codec=6)) == ErrorCode.UNSUPPORTED_COMPRESSION_TYPE

    def test_a_codec_that_does_not_fit_the_payload(self) -> None:
        for codec in (Codec.GZIP, Codec.LZ4, Codec.ZSTD):
            assert refused(batch_of(record_bytes(), codec=codec)) == ErrorCode.CORRUPT_MESSAGE

    @pytest.mark.parametrize("codec", [Codec.GZIP, Codec.SNAPPY, Codec.LZ4, Codec.ZSTD])
    def test_more_than_may_be_decompressed(self, codec: Codec) -> None:
        assert refused(batch_of(compress(codec, bytes(5 * MIB)), codec=codec)) == ErrorCode.MESSAGE_TOO_LARGE

    @given(payload=st.binary(max_size=100), count=st.integers(0, 5))
    def test_any_payload_gives_records_or_invalid_record(self, payload: bytes, count: int) -> None:
        batch = batch_of(payload, count=count, last_delta=10)
        try:
            decoded = len(decode_records(batch, MIB)) == count
        except KafkaError as error:
            decoded = error.code == ErrorCode.INVALID_RECORD
        assert decoded

    @given(position=st.integers(61, 61 + 400), value=st.integers(0, 255))
    def test_any_byte_changed_gives_records_or_invalid_record(self, position: int, value: int) -> None:
        batch = encode_batch(RECORDS, base_offset=10)
        batch[position % len(batch) if position % len(batch) >= 61 else 61] = value
        try:
            decoded = len(decode_records(batch, MIB)) == len(RECORDS)
        except KafkaError as error:
            decoded = error.code == ErrorCode.INVALID_RECORD
        assert decoded
