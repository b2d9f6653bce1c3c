"""Record batches for scripts: good ones, and each way in which one can be bad."""

from __future__ import annotations

import struct
import time
from collections.abc import Sequence

from crc32c import crc32c

from culver.protocol.compression import Codec
from culver.protocol.records import CRC_START, Record, encode_batch

DAY_MS = 24 * 60 * 60 * 1000
# Midnight before yesterday's: not now, and not so long ago that retention would take the records away.
TIMESTAMP_MS = (int(time.time() * 1000) // DAY_MS - 1) * DAY_MS

_CRC_POSITION = 17
_FIELDS = {
    "base_offset": (0, ">q"),
    "batch_length": (8, ">i"),
    "partition_leader_epoch": (12, ">i"),
    "magic": (16, ">b"),
    "crc": (17, ">I"),
    "attributes": (21, ">h"),
    "last_offset_delta": (23, ">i"),
    "base_timestamp": (27, ">q"),
    "max_timestamp": (35, ">q"),
    "producer_id": (43, ">q"),
    "producer_epoch": (51, ">h"),
    "base_sequence": (53, ">i"),
    "record_count": (57, ">i"),
}


def record(
    offset: int = 0, key: bytes | None = b"k", value: bytes | None = b"v", timestamp: int = TIMESTAMP_MS
) -> Record:
    return Record(offset, timestamp, key, value, ())


def batch(
    count: int = 1,
    *,
    value: bytes | None = b"value",
    key: bytes | None = b"key",
    timestamp: int = TIMESTAMP_MS,
    compression: int = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    """`count` alike records; `producer` is id, epoch and first sequence."""
    return of(
        [record(place, key, value, timestamp + place) for place in range(count)],
        compression=compression,
        producer=producer,
        transactional=transactional,
        control=control,
    )


def of(
    records: Sequence[Record],
    *,
    compression: int = Codec.NONE,
    producer: tuple[int, int, int] = (-1, -1, -1),
    transactional: bool = False,
    control: bool = False,
) -> bytes:
    producer_id, epoch, sequence = producer
    return bytes(
        encode_batch(
            records,
            compression=compression,
            producer_id=producer_id,
            producer_epoch=epoch,
            base_sequence=sequence,
            is_transactional=transactional,
            is_control=control,
        )
    )


def with_field(data: bytes, name: str, value: int, *, fix_crc: bool = True) -> bytes:
    """The batch with one field of its header changed, and unless told otherwise the CRC that then fits."""
    changed = bytearray(data)
    position, code = _FIELDS[name]
    struct.pack_into(code, changed, position, value)
    if fix_crc and name != "crc":
        restore_crc(changed)
    return bytes(changed)


def restore_crc(data: bytearray) -> None:
    struct.pack_into(">I", data, _CRC_POSITION, crc32c(bytes(data[CRC_START:])))


def with_payload(data: bytes, payload: bytes) -> bytes:
    """The batch's header in front of other record bytes; length and CRC fit them."""
    changed = bytearray(data[:61]) + payload
    struct.pack_into(">i", changed, 8, len(changed) - 12)
    restore_crc(changed)
    return bytes(changed)


def old_message(magic: int, value: bytes = b"value") -> bytes:
    """One message in the format of magic 0 or 1."""
    from zlib import crc32

    body = struct.pack(">bb", magic, 0)
    if magic == 1:
        body += struct.pack(">q", TIMESTAMP_MS)
    body += struct.pack(">i", -1) + struct.pack(">i", len(value)) + value
    message = struct.pack(">I", crc32(body)) + body
    return struct.pack(">qi", 0, len(message)) + message
