"""Record batches in format v2: headers read and changed in place, records decoded and encoded.

A batch on the wire and on disk:

    position  0  base offset             int64    set by the broker on append
              8  batch length            int32    bytes after this field
             12  partition leader epoch  int32    set by the broker on append
             16  magic                   int8     2
             17  crc                     uint32   CRC-32C of everything from position 21 on
             21  attributes              int16    codec (bits 0-2), append time (3), transactional (4),
                                                  control (5), base timestamp is a delete horizon (6)
             23  last offset delta       int32
             27  base timestamp          int64
             35  max timestamp           int64
             43  producer id             int64
             51  producer epoch          int16
             53  base sequence           int32
             57  record count            int32
             61  records                          compressed as one block

Base offset and leader epoch stand outside the CRC, which is why a broker can assign them without reading
the records.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from culver.errors import ErrorCode, KafkaError
from culver.protocol.checksum import crc32c
from culver.protocol.compression import Buffer, Codec, compress, decompress
from culver.protocol.record_codec import Record, decode_payload, encode_payload

__all__ = [
    "BATCH_OVERHEAD_BYTES",
    "CREATE_TIME",
    "LOG_APPEND_TIME",
    "BatchHeader",
    "Record",
    "batch_with_records",
    "decode_records",
    "encode_batch",
    "iterate_headers",
    "parse_header",
    "set_append_time",
    "set_base_offset_and_epoch",
    "verify_crc",
]

MAGIC = 2
LOG_OVERHEAD_BYTES = 12  # base offset and length: what a batch's own length does not count
BATCH_OVERHEAD_BYTES = 61  # a batch without records
CRC_START = 21  # the checksum covers what follows it
_MAGIC_POSITION = 16
_SMALLEST_OLD_LENGTH = 14  # the shortest length that any format, the two old ones included, can have

CREATE_TIME = 0
LOG_APPEND_TIME = 1

CODEC_MASK = 0x07
APPEND_TIME_BIT = 0x08
TRANSACTIONAL_BIT = 0x10
CONTROL_BIT = 0x20
DELETE_HORIZON_BIT = 0x40

NO_TIMESTAMP = -1
NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NO_SEQUENCE = -1

_HEADER = struct.Struct(">qiibIhiqqqhii")
_LENGTH = struct.Struct(">i")
_OFFSET = struct.Struct(">q")
_EPOCH = struct.Struct(">i")
_CRC = struct.Struct(">I")
_ATTRIBUTES = struct.Struct(">h")
_AFTER_CRC = struct.Struct(">hiqqqhii")


class BatchHeader(msgspec.Struct, frozen=True, gc=False):
    """The 61 bytes in front of a batch's records, as they are: nothing is checked yet."""

    base_offset: int
    batch_length: int
    partition_leader_epoch: int
    magic: int
    crc: int
    attributes: int
    last_offset_delta: int
    base_timestamp: int
    max_timestamp: int
    producer_id: int
    producer_epoch: int
    base_sequence: int
    record_count: int

    @property
    def size_bytes(self) -> int:
        """The whole batch, header included."""
        return self.batch_length + 12

    @property
    def last_offset(self) -> int:
        return self.base_offset + self.last_offset_delta

    @property
    def last_sequence(self) -> int:
        """The sequence number of the last record: they wrap to 0 after 2^31 - 1."""
        return (self.base_sequence + self.last_offset_delta) & 0x7FFFFFFF if self.base_sequence >= 0 else -1

    @property
    def compression(self) -> int:
        """The codec's id; 5 to 7 are none of `Codec`."""
        return self.attributes & CODEC_MASK

    @property
    def timestamp_type(self) -> int:
        """CREATE_TIME or LOG_APPEND_TIME."""
        return LOG_APPEND_TIME if self.attributes & APPEND_TIME_BIT else CREATE_TIME

    @property
    def is_transactional(self) -> bool:
        return self.attributes & TRANSACTIONAL_BIT != 0

    @property
    def is_control(self) -> bool:
        return self.attributes & CONTROL_BIT != 0

    @property
    def delete_horizon_ms(self) -> int | None:
        """When compaction may drop the batch's tombstones and markers, once it has set that."""
        return self.base_timestamp if self.attributes & DELETE_HORIZON_BIT else None


_unpack_header = _HEADER.unpack_from


def parse_header(buffer: Buffer, position: int = 0) -> BatchHeader:
    """The header of the batch at `position`. Hot: one unpack, no checks but that the bytes are there."""
    try:
        return BatchHeader(*_unpack_header(buffer, position))
    except struct.error:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"no whole batch header ({BATCH_OVERHEAD_BYTES} bytes) at position {position} of {len(buffer)}",
        ) from None


def iterate_headers(buffer: Buffer) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch in the buffer, which must hold whole v2 batches and nothing else.

    Good batches come out before a bad one raises. The codes are those that Kafka answers with: INVALID_RECORD
    for an incomplete batch and for the formats before v2, CORRUPT_MESSAGE for a length or magic that no batch
    can have.
    """
    position = 0
    end = len(buffer)
    while position < end:
        remaining = end - position
        if remaining <= _MAGIC_POSITION:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"{remaining} bytes at position {position} are no whole record batch",
            )
        (length,) = _LENGTH.unpack_from(buffer, position + 8)
        if length < _SMALLEST_OLD_LENGTH:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE, f"the batch at position {position} claims a length of {length}"
            )
        magic = buffer[position + _MAGIC_POSITION]
        if magic != MAGIC:
            if magic > MAGIC:
                raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"there is no record format with magic {magic}")
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"records in the old format {magic} are not accepted; use a client that writes format 2",
            )
        size = length + LOG_OVERHEAD_BYTES
        if size > remaining:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"the batch at position {position} claims {size} bytes where {remaining} remain",
            )
        if size < BATCH_OVERHEAD_BYTES:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at position {position} claims {size} bytes, fewer than its header has",
            )
        yield position, parse_header(buffer, position)
        position += size


def iterate_whole_batches(data: bytes) -> Iterator[tuple[int, BatchHeader]]:
    """Like `iterate_headers`, for what a fetch or a read brings: without the last batch if it was cut off."""
    try:
        yield from iterate_headers(data)
    except KafkaError as error:
        if error.code is not ErrorCode.INVALID_RECORD:
            raise


def verify_crc(buffer: Buffer, header: BatchHeader, position: int = 0) -> bool:
    """Whether the batch at `position` matches the checksum in its header. The batch must be whole."""
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    if end > len(buffer):
        return False
    return crc32c(memoryview(buffer)[position + CRC_START : end]) == header.crc


def set_base_offset_and_epoch(
    buffer: bytearray | memoryview, position: int, base_offset: int, leader_epoch: int
) -> None:
    """Write what the leader assigns into the batch at `position`. The CRC does not cover it."""
    _OFFSET.pack_into(buffer, position, base_offset)
    _EPOCH.pack_into(buffer, position + 12, leader_epoch)


def set_append_time(buffer: bytearray | memoryview, position: int, timestamp_ms: int) -> None:
    """Stamp the batch at `position` with the broker's time, and give it the CRC that goes with it."""
    (length,) = _LENGTH.unpack_from(buffer, position + 8)
    (attributes,) = _ATTRIBUTES.unpack_from(buffer, position + 21)
    _ATTRIBUTES.pack_into(buffer, position + 21, attributes | APPEND_TIME_BIT)
    _OFFSET.pack_into(buffer, position + 35, timestamp_ms)
    end = position + length + LOG_OVERHEAD_BYTES
    with memoryview(buffer)[position + CRC_START : end] as covered:
        _CRC.pack_into(buffer, position + 17, crc32c(covered))


def decode_records(batch: Buffer, max_decompressed_bytes: int, position: int = 0) -> list[Record]:
    """The records of the batch at `position`, every length and count checked; the CRC is not.

    Raises KafkaError: CORRUPT_MESSAGE, INVALID_RECORD, MESSAGE_TOO_LARGE (more than `max_decompressed_bytes`)
    or UNSUPPORTED_COMPRESSION_TYPE.
    """
    header = parse_header(batch, position)
    if header.magic != MAGIC:
        raise KafkaError(ErrorCode.INVALID_RECORD, f"a batch with magic {header.magic} is not in format 2")
    end = position + header.batch_length + LOG_OVERHEAD_BYTES
    if not position + BATCH_OVERHEAD_BYTES <= end <= len(batch):
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"a batch claims {header.size_bytes} bytes where {len(batch) - position} remain",
        )
    payload = memoryview(batch)[position + BATCH_OVERHEAD_BYTES : end]
    if not payload and not header.record_count:
        return []
    return decode_payload(
        bytes(decompress(header.attributes & CODEC_MASK, payload, max_decompressed_bytes)),
        record_count=header.record_count,
        base_offset=header.base_offset,
        last_offset_delta=header.last_offset_delta,
        base_timestamp=header.base_timestamp,
        append_timestamp=header.max_timestamp if header.attributes & APPEND_TIME_BIT else None,
    )


def encode_batch(
    records: Sequence[Record],
    *,
    base_offset: int = 0,
    last_offset: int | None = None,
    compression: int = Codec.NONE,
    compression_level: int | None = None,
    timestamp_type: int = CREATE_TIME,
    producer_id: int = NO_PRODUCER_ID,
    producer_epoch: int = NO_PRODUCER_EPOCH,
    base_sequence: int = NO_SEQUENCE,
    is_transactional: bool = False,
    is_control: bool = False,
    partition_leader_epoch: int = -1,
    base_timestamp: int | None = None,
    max_timestamp: int | None = None,
    delete_horizon_ms: int | None = None,
) -> bytearray:
    """One batch with these records, whose offsets must rise from `base_offset` on.

    `last_offset` is the last record's unless given: a compacted batch keeps the one it had. The same goes for
    the timestamps, which come from the records unless given.
    """
    if last_offset is None:
        last_offset = records[-1].offset if records else base_offset
    if base_timestamp is None:
        base_timestamp = records[0].timestamp if records else NO_TIMESTAMP
    if max_timestamp is None:
        max_timestamp = max([record.timestamp for record in records], default=NO_TIMESTAMP)
    codec = int(compression) if records else Codec.NONE  # nothing does not compress
    attributes = (
        int(codec)
        | (APPEND_TIME_BIT if timestamp_type == LOG_APPEND_TIME else 0)
        | (TRANSACTIONAL_BIT if is_transactional else 0)
        | (CONTROL_BIT if is_control else 0)
    )
    if delete_horizon_ms is not None:
        attributes |= DELETE_HORIZON_BIT
        base_timestamp = delete_horizon_ms
    payload: Buffer = encode_payload(records, base_offset, base_timestamp)
    if codec != Codec.NONE:
        payload = compress(codec, payload, compression_level)
    batch = bytearray(BATCH_OVERHEAD_BYTES)
    batch += payload
    _AFTER_CRC.pack_into(
        batch,
        CRC_START,
        attributes,
        last_offset - base_offset,
        base_timestamp,
        max_timestamp,
        producer_id,
        producer_epoch,
        base_sequence,
        len(records),
    )
    _OFFSET.pack_into(batch, 0, base_offset)
    _LENGTH.pack_into(batch, 8, len(batch) - LOG_OVERHEAD_BYTES)
    _EPOCH.pack_into(batch, 12, partition_leader_epoch)
    batch[_MAGIC_POSITION] = MAGIC
    with memoryview(batch)[CRC_START:] as covered:
        _CRC.pack_into(batch, 17, crc32c(covered))
    return batch


def batch_with_records(
    header: BatchHeader,
    kept: Iterable[Record],
    *,
    delete_horizon_ms: int | None = None,
    compression: int | None = None,
    compression_level: int | None = None,
) -> bytearray:
    """The batch again with only the `kept` records, for compaction.

    Offsets stay: base offset and last offset delta are the old ones, so that the log keeps its shape, and the
    producer's id, epoch and sequence too, so that duplicates are still known. With no record left it is an
    empty batch, which keeps a producer's last sequence in the log. `delete_horizon_ms`, when given, or the
    one the batch has, says when its tombstones may go.
    """
    records = list(kept)
    horizon = header.delete_horizon_ms if delete_horizon_ms is None else delete_horizon_ms
    append_time = header.timestamp_type == LOG_APPEND_TIME
    return encode_batch(
        records,
        base_offset=header.base_offset,
        last_offset=header.last_offset,
        compression=header.compression if compression is None else compression,
        compression_level=compression_level,
        timestamp_type=header.timestamp_type,
        producer_id=header.producer_id,
        producer_epoch=header.producer_epoch,
        base_sequence=header.base_sequence,
        is_transactional=header.is_transactional,
        is_control=header.is_control,
        partition_leader_epoch=header.partition_leader_epoch,
        base_timestamp=header.base_timestamp,
        max_timestamp=header.max_timestamp if append_time or not records else None,
        delete_horizon_ms=horizon,
    )
