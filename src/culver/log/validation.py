"""What a produced batch must satisfy before it may enter the log.

The codes are those of Kafka 4.3: its ProduceRequest allows exactly one batch of format 2 for a partition, its
log checks offsets, size and checksum, its validator the rest. Records are decoded only where a topic's
configuration asks something of each of them (keys for compaction, a bound on old timestamps, another codec).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from culver.config import TopicConfig
from culver.errors import ErrorCode, KafkaError
from culver.filesystem import Buffer
from culver.log.batches import CRC_START, HEADER, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, HeaderFields
from culver.log.limits import LogLimits
from culver.protocol.checksum import crc32c
from culver.protocol.compression import CODEC_NAMES, Codec
from culver.protocol.records import (
    APPEND_TIME_BIT,
    TRANSACTIONAL_BIT,
    BatchHeader,
    Record,
    batch_with_records,
    decode_records,
    iterate_headers,
    parse_header,
    set_append_time,
)

NO_TIMESTAMP = -1
_UNBOUNDED = (1 << 63) - 1
_unpack = HEADER.unpack_from
# A codec and perhaps the mark of a transaction. Anything else is looked at more closely.
_PLAIN_ATTRIBUTES = frozenset(
    codec | transactional for codec in range(Codec.ZSTD + 1) for transactional in (0, TRANSACTIONAL_BIT)
)
_MAGIC_POSITION = 16


class RecordsRefused(KafkaError):
    """A refusal that names the records at fault: (index in the batch, why)."""

    def __init__(self, code: ErrorCode, message: str, record_errors: Sequence[tuple[int, str]]) -> None:
        super().__init__(code, message)
        self.record_errors = list(record_errors)


@dataclass(frozen=True, slots=True)
class Rules:
    """A topic's configuration as far as it concerns the check of a batch."""

    max_message_bytes: int
    stamps_append_time: bool
    timestamp_before_max_ms: int
    timestamp_after_max_ms: int
    needs_keys: bool
    # None: as the producer compressed it.
    codec: int | None
    codec_level: int | None
    max_decompressed_bytes: int
    # Nothing is asked that the batch header does not answer.
    header_suffices: bool

    @classmethod
    def of(cls, config: TopicConfig, limits: LogLimits) -> Rules:
        stamps_append_time = config.message_timestamp_type == "LogAppendTime"
        needs_keys = "compact" in config.cleanup_policy
        codec = _target_codec(config.compression_type)
        bounded = config.message_timestamp_before_max_ms < _UNBOUNDED and not stamps_append_time
        return cls(
            max_message_bytes=config.max_message_bytes,
            stamps_append_time=stamps_append_time,
            timestamp_before_max_ms=config.message_timestamp_before_max_ms,
            timestamp_after_max_ms=config.message_timestamp_after_max_ms,
            needs_keys=needs_keys,
            codec=codec,
            codec_level=_level(config, codec),
            max_decompressed_bytes=limits.max_decompressed_bytes,
            header_suffices=not (stamps_append_time or needs_keys or bounded or codec is not None),
        )


def _target_codec(compression_type: str) -> int | None:
    if compression_type == "producer":
        return None
    if compression_type == "uncompressed":
        return Codec.NONE
    return int(CODEC_NAMES[compression_type])


def _level(config: TopicConfig, codec: int | None) -> int | None:
    if codec == Codec.GZIP and config.compression_gzip_level >= 0:
        return config.compression_gzip_level
    if codec == Codec.LZ4:
        return config.compression_lz4_level
    return config.compression_zstd_level if codec == Codec.ZSTD else None


# The batch to write (the one given, unless it had to be made anew) and its header's fields.
Accepted = tuple[Buffer, HeaderFields]


def validate(records: Buffer, rules: Rules, now_ms: int) -> Accepted:
    """Hot. The batch as it may be appended, or KafkaError. `records` is changed only to stamp append time."""
    size = len(records)
    if size >= HEADER_BYTES and rules.header_suffices:
        fields: HeaderFields = _unpack(records)
        (
            base_offset,
            length,
            _,
            magic,
            crc,
            attributes,
            last_delta,
            _,
            max_ms,
            producer,
            _,
            sequence,
            count,
        ) = fields
        if (
            length == size - 12
            and base_offset == 0
            and magic == 2
            and size <= rules.max_message_bytes
            and attributes in _PLAIN_ATTRIBUTES
            and count > 0
            and last_delta == count - 1
            and (producer < 0 or sequence >= 0)
            and max_ms - now_ms <= rules.timestamp_after_max_ms
            and crc32c(records[21:]) == crc
        ):
            return records, fields
    return _examine(records, rules, now_ms)


def _examine(records: Buffer, rules: Rules, now_ms: int) -> Accepted:
    """Whatever is not plain: name what is wrong, or do the work that the topic's configuration asks."""
    header = _only_batch(records)
    size = header.size_bytes
    batch: Buffer = memoryview(records)[:size]
    if header.base_offset != 0:
        raise _invalid(f"the batch's base offset is {header.base_offset}; producers send 0")
    if size > rules.max_message_bytes:
        raise _too_large(size, rules.max_message_bytes)
    if crc32c(batch[CRC_START:]) != header.crc:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, "the batch does not match its checksum")
    if header.compression > Codec.ZSTD:
        raise KafkaError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec with id {header.compression}"
        )
    if header.last_offset_delta < 0:
        raise _invalid(f"the batch's last offset delta is {header.last_offset_delta}")
    if header.record_count <= 0:
        raise _invalid(f"the batch claims {header.record_count} records")
    if header.record_count != header.last_offset_delta + 1:
        raise _invalid(
            f"the batch claims {header.record_count} records, and offsets for {header.last_offset_delta + 1}"
        )
    if header.is_control:
        raise _invalid("clients may not write control batches")
    if header.producer_id >= 0 and header.base_sequence < 0:
        raise _invalid(f"the batch has a producer id and the sequence number {header.base_sequence}")
    if header.attributes & APPEND_TIME_BIT:
        if rules.stamps_append_time or header.max_timestamp == NO_TIMESTAMP:
            why = "the batch claims append time, which only the broker sets"
            raise RecordsRefused(ErrorCode.INVALID_TIMESTAMP, why, [(0, why)])
        # Kafka takes the claim for what the topic has instead: the time of creation.
        batch = _without_append_time(batch)
        header = parse_header(batch)
    recompress = rules.codec is not None and rules.codec != header.compression
    if rules.needs_keys or recompress or rules.timestamp_before_max_ms < _UNBOUNDED:
        decoded = decode_records(batch, rules.max_decompressed_bytes)
        _check_records(decoded, rules, now_ms)
        if recompress:
            batch = batch_with_records(
                header, decoded, compression=rules.codec, compression_level=rules.codec_level
            )
            if len(batch) > rules.max_message_bytes:
                raise _too_large(len(batch), rules.max_message_bytes)
    elif not rules.stamps_append_time and header.max_timestamp - now_ms > rules.timestamp_after_max_ms:
        why = _out_of_range(header.max_timestamp, rules, now_ms)
        raise RecordsRefused(ErrorCode.INVALID_TIMESTAMP, why, [(header.last_offset_delta, why)])
    if rules.stamps_append_time:
        if isinstance(batch, bytes) or (isinstance(batch, memoryview) and batch.readonly):
            batch = bytearray(batch)
        set_append_time(batch, 0, now_ms)
    return batch, HEADER.unpack_from(batch)


def _without_append_time(batch: Buffer) -> bytearray:
    copy = bytearray(batch)
    copy[CRC_START + 1] &= ~APPEND_TIME_BIT
    copy[CRC_START - 4 : CRC_START] = crc32c(memoryview(copy)[CRC_START:]).to_bytes(4, "big")
    return copy


def _only_batch(records: Buffer) -> BatchHeader:
    """The header of the one batch that a produce request may hold for a partition.

    Like Kafka, an incomplete batch behind the first one is overlooked; a second whole one is refused.
    """
    headers = iterate_headers(records)
    first = next(headers, None)
    if first is None:
        raise _invalid("there is no record batch")
    header = first[1]
    rest = memoryview(records)[header.size_bytes :]
    if len(rest) > _MAGIC_POSITION:
        length = int.from_bytes(rest[8:12], "big", signed=True)
        if length <= len(rest) - LENGTH_OVERHEAD_BYTES:
            next(headers)  # raises when it is no batch at all
            raise _invalid("there is more than one record batch for the partition")
    return header


def _check_records(records: list[Record], rules: Rules, now_ms: int) -> None:
    timestamp_errors = []
    key_errors = []
    for index, record in enumerate(records):
        if rules.needs_keys and record.key is None:
            key_errors.append((index, "a compacted topic takes no record without a key"))
        elif not rules.stamps_append_time and record.timestamp != NO_TIMESTAMP:
            age_ms = now_ms - record.timestamp
            if age_ms > rules.timestamp_before_max_ms or -age_ms > rules.timestamp_after_max_ms:
                timestamp_errors.append((index, _out_of_range(record.timestamp, rules, now_ms)))
    errors = sorted(key_errors + timestamp_errors)
    if timestamp_errors:
        raise RecordsRefused(
            ErrorCode.INVALID_TIMESTAMP, "one or more records have a timestamp out of range", errors
        )
    if key_errors:
        raise RecordsRefused(ErrorCode.INVALID_RECORD, "one or more records have no key", errors)


def _out_of_range(timestamp_ms: int, rules: Rules, now_ms: int) -> str:
    return (
        f"timestamp {timestamp_ms} is not within "
        f"[{now_ms - rules.timestamp_before_max_ms}, {now_ms + rules.timestamp_after_max_ms}]"
    )


def _too_large(size: int, limit: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE, f"the batch has {size} bytes, max.message.bytes allows {limit}"
    )


def _invalid(message: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, message)
