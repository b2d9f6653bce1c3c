"""The records inside a batch: a run of varints, keys, values and headers, to and from `Record`.

One record:

    length            varint    bytes after this field
    attributes        int8      unused
    timestamp delta   varlong   to the batch's base timestamp
    offset delta      varint    to the batch's base offset
    key length        varint    negative: null
    key
    value length      varint    negative: null
    value
    header count      varint
    headers           key length, key (never null), value length, value

Varints are zigzag: 0, -1, 1, -2 ... become 0, 1, 2, 3 ..., seven bits a byte, low bits first.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import attrgetter

import msgspec

from culver.errors import ErrorCode, KafkaError

_INT64_MIN = -(2**63)
_INT64_MAX = 2**63 - 1
_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10

# The smallest record: length, attributes, two deltas, two lengths, header count.
RECORD_BYTES_MIN = 7

Headers = tuple[tuple[str, bytes | None], ...]


class Record(msgspec.Struct, frozen=True, gc=False):
    """A message with its place in the partition. Timestamps are milliseconds since 1970.

    Header keys are text; bytes in them that are no UTF-8 survive a decode and encode unchanged
    (`surrogateescape`).
    """

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Headers = ()


_timestamp_of = attrgetter("timestamp")


def decode_payload(
    payload: bytes,
    *,
    record_count: int,
    base_offset: int,
    last_offset_delta: int,
    base_timestamp: int,
    append_timestamp: int | None,
) -> list[Record]:
    """The records of a decompressed payload, which must be exactly `record_count` of them.

    Offset deltas must rise and stay within `last_offset_delta`; gaps are what compaction leaves. With
    `append_timestamp` every record has that time. Raises KafkaError(INVALID_RECORD).
    """
    size = len(payload)
    if not 0 <= record_count <= size // RECORD_BYTES_MIN:
        raise _invalid(f"{record_count} records cannot be in {size} bytes")
    records: list[Record] = []
    append = records.append
    position = 0
    previous_delta = -1
    # Hot: varints of one and two bytes are written out, as a call would cost more than all the rest of a
    # record. `zigzag` is a varint before its sign is undone: odd means negative. Reads may run past a record
    # that lies about its length, never past the payload, and are caught at the record's end.
    try:
        for _ in range(record_count):
            zigzag = payload[position]
            position += 1
            if zigzag > 0x7F:
                if (high := payload[position]) < 0x80:
                    zigzag += (high << 7) - 0x80
                    position += 1
                else:
                    zigzag, position = _read_zigzag(payload, position - 1, _VARINT_BYTES_MAX)
            end = position + (zigzag >> 1)
            if zigzag & 1 or end > size:
                raise _lie("record", zigzag, size - position)
            position += 1  # attributes: no bit of them is in use

            zigzag = payload[position]
            position += 1
            if zigzag > 0x7F:
                if (high := payload[position]) < 0x80:
                    zigzag += (high << 7) - 0x80
                    position += 1
                else:
                    zigzag, position = _read_zigzag(payload, position - 1, _VARLONG_BYTES_MAX)
            timestamp = base_timestamp + (zigzag >> 1) if not zigzag & 1 else base_timestamp + ~(zigzag >> 1)

            zigzag = payload[position]
            position += 1
            if zigzag > 0x7F:
                if (high := payload[position]) < 0x80:
                    zigzag += (high << 7) - 0x80
                    position += 1
                else:
                    zigzag, position = _read_zigzag(payload, position - 1, _VARINT_BYTES_MAX)
            delta = zigzag >> 1
            if zigzag & 1 or not previous_delta < delta <= last_offset_delta:
                raise _invalid(
                    f"offset delta {_signed(zigzag)} after {previous_delta} in a batch that ends at "
                    f"{last_offset_delta}"
                )
            previous_delta = delta

            zigzag = payload[position]
            position += 1
            if zigzag > 0x7F:
                if (high := payload[position]) < 0x80:
                    zigzag += (high << 7) - 0x80
                    position += 1
                else:
                    zigzag, position = _read_zigzag(payload, position - 1, _VARINT_BYTES_MAX)
            if zigzag & 1:
                key = None
            else:
                start = position
                position += zigzag >> 1
                if position > end:
                    raise _lie("key", zigzag, end - start)
                key = payload[start:position]

            zigzag = payload[position]
            position += 1
            if zigzag > 0x7F:
                if (high := payload[position]) < 0x80:
                    zigzag += (high << 7) - 0x80
                    position += 1
                else:
                    zigzag, position = _read_zigzag(payload, position - 1, _VARINT_BYTES_MAX)
            if zigzag & 1:
                value = None
            else:
                start = position
                position += zigzag >> 1
                if position > end:
                    raise _lie("value", zigzag, end - start)
                value = payload[start:position]

            if payload[position]:
                headers, position = _read_headers(payload, position, end)
            else:
                headers = ()
                position += 1
            if position != end:
                raise _invalid(f"a record's fields end {end - position} bytes before its claimed end")
            if append_timestamp is not None:
                timestamp = append_timestamp
            append(Record(base_offset + delta, timestamp, key, value, headers))
    except IndexError:
        raise _invalid("the batch ends inside a record") from None
    if position != size:
        raise _invalid(f"{size - position} bytes are left over after the last record of a batch")
    if append_timestamp is None and records:
        for timestamp in (min(map(_timestamp_of, records)), max(map(_timestamp_of, records))):
            if not _INT64_MIN <= timestamp <= _INT64_MAX:
                raise _invalid("a record's timestamp does not fit into 64 bits")
    return records


def encode_payload(records: Iterable[Record], base_offset: int, base_timestamp: int) -> bytearray:
    """The records one after the other, not compressed."""
    payload = bytearray()
    previous_offset = base_offset - 1
    for record in records:
        offset = record.offset
        if offset <= previous_offset:
            raise ValueError(f"offset {offset} does not come after {previous_offset}")
        previous_offset = offset
        key = record.key
        value = record.value
        parts = [
            b"\x00",
            varint(record.timestamp - base_timestamp),
            varint(offset - base_offset),
            b"\x01" if key is None else varint(len(key)) + key,
            b"\x01" if value is None else varint(len(value)) + value,
        ]
        if record.headers:
            parts.append(_headers_bytes(record.headers))
        else:
            parts.append(b"\x00")
        body = b"".join(parts)
        payload += varint(len(body))
        payload += body
    return payload


_ONE_BYTE = tuple(bytes((value,)) for value in range(0x80))


def varint(value: int) -> bytes:
    """A signed number of at most 64 bits as a zigzag varint."""
    zigzag = (value << 1) ^ (value >> 63)
    if zigzag < 0x80:
        return _ONE_BYTE[zigzag]
    if zigzag < 0x4000:
        return bytes((zigzag & 0x7F | 0x80, zigzag >> 7))
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


def _read_zigzag(payload: bytes, position: int, bytes_max: int) -> tuple[int, int]:
    """(varint before its sign is undone, position after it). IndexError past the end of the payload."""
    zigzag = 0
    for index in range(bytes_max):
        byte = payload[position + index]
        zigzag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            return zigzag, position + index + 1
    raise _invalid(f"a varint takes more than {bytes_max} bytes")


def _signed(zigzag: int) -> int:
    return (zigzag >> 1) ^ -(zigzag & 1)


def _read_varint(payload: bytes, position: int) -> tuple[int, int]:
    zigzag, position = _read_zigzag(payload, position, _VARINT_BYTES_MAX)
    return _signed(zigzag), position


def _read_headers(payload: bytes, position: int, end: int) -> tuple[Headers, int]:
    count, position = _read_varint(payload, position)
    # A header takes two bytes or more, so a count that lies is caught before anything is made.
    if not 0 <= count <= (end - position) // 2:
        raise _invalid(f"{count} headers cannot be in the {end - position} bytes that remain")
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        length, position = _read_varint(payload, position)
        if not 0 <= length <= end - position:
            raise _invalid(f"a header's key claims {length} bytes where {end - position} remain")
        key = payload[position : position + length].decode("utf-8", "surrogateescape")
        position += length
        length, position = _read_varint(payload, position)
        if length < 0:
            headers.append((key, None))
            continue
        if length > end - position:
            raise _invalid(f"a header's value claims {length} bytes where {end - position} remain")
        headers.append((key, payload[position : position + length]))
        position += length
    return tuple(headers), position


def _headers_bytes(headers: Headers) -> bytes:
    parts = [varint(len(headers))]
    for key, value in headers:
        encoded = key.encode("utf-8", "surrogateescape")
        parts.append(varint(len(encoded)))
        parts.append(encoded)
        if value is None:
            parts.append(b"\x01")
        else:
            parts.append(varint(len(value)))
            parts.append(value)
    return b"".join(parts)


def _lie(what: str, zigzag: int, remaining: int) -> KafkaError:
    return _invalid(f"a {what} claims {_signed(zigzag)} bytes where {remaining} remain")


def _invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)
