"""The variable-length pieces of the wire format that generated codecs fall back on.

Generated code reads the common one-byte case of an unsigned varint itself; what is longer comes here.
"""

from __future__ import annotations

from typing import TypeAlias

from culver.errors import MalformedRequest

Buffer: TypeAlias = bytes | bytearray | memoryview

ZERO_UUID = bytes(16)

# Kafka refuses strings that an int16 length could not hold, in the compact encoding as well.
STRING_LENGTH_MAX = 0x7FFF

_UVARINT_BYTES_MAX = 5
_UINT32_MAX = 0xFFFFFFFF


def uvarint(value: int) -> bytes:
    """The unsigned varint encoding of `value`."""
    if value < 0x80:
        return bytes((value,))
    encoded = bytearray()
    while value >= 0x80:
        encoded.append(value & 0x7F | 0x80)
        value >>= 7
    encoded.append(value)
    return bytes(encoded)


def read_uvarint(buffer: Buffer, position: int) -> tuple[int, int]:
    """Reads an unsigned varint of at most 32 bits: (value, position after it).

    Running off the buffer raises IndexError, which decoders turn into MalformedRequest.
    """
    first = buffer[position]
    if first < 0x80:
        return first, position + 1
    return finish_uvarint(buffer, position + 1, first)


def finish_uvarint(buffer: Buffer, position: int, first: int) -> tuple[int, int]:
    """Goes on with a varint whose first byte, already consumed, had its continuation bit set."""
    value = first & 0x7F
    for index in range(1, _UVARINT_BYTES_MAX):
        byte = buffer[position]
        position += 1
        value |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if value > _UINT32_MAX:
                raise MalformedRequest("varint does not fit into 32 bits")
            return value, position
    raise MalformedRequest("varint of more than 5 bytes")


def skip_tagged_fields(buffer: Buffer, position: int, count: int) -> int:
    """Steps over `count` tagged fields, none of which means anything to us: the position after them.

    `count` is the first byte of the number of tags, whose continuation is still unread.
    """
    if count > 0x7F:
        count, position = finish_uvarint(buffer, position, count)
    end = len(buffer)
    # Each tag takes at least a byte for its number and one for its size.
    if count * 2 > end - position:
        raise MalformedRequest(f"{count} tagged fields in {end - position} bytes")
    previous = -1
    for _ in range(count):
        tag, position = read_uvarint(buffer, position)
        if tag <= previous:
            raise MalformedRequest(f"tag {tag} after tag {previous}")
        previous = tag
        size, position = read_uvarint(buffer, position)
        if size > end - position:
            raise MalformedRequest(f"tag {tag} of {size} bytes, {end - position} remain")
        position += size
    return position
