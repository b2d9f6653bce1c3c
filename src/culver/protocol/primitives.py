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

# Elements in all the arrays of one request together. An element of a few bytes on the wire becomes an object
# of a hundred, so that the largest frame allowed could otherwise take gigabytes to decode. And every element is
# work during which nobody else is served: as many as these take about half a second at worst.
ELEMENTS_MAX = 1 << 16
# Whatever else is decoded, such as answers, comes from someone who was asked for it.
ELEMENTS_MAX_OF_ANSWERS = 1 << 22


def uvarint(value: int) -> bytes:
    """The unsigned varint encoding of `value`."""
    if value < 0x80:
        return bytes((value,))
    if value < 0x4000:
        return bytes((value & 0x7F | 0x80, value >> 7))
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
    """Goes on with a varint whose first byte, already consumed, had its continuation bit set.

    Hot, so without a loop: most batches of records are longer than one byte can say.
    """
    byte = buffer[position]
    value = first & 0x7F | (byte & 0x7F) << 7
    if byte < 0x80:
        return value, position + 1
    byte = buffer[position + 1]
    value |= (byte & 0x7F) << 14
    if byte < 0x80:
        return value, position + 2
    byte = buffer[position + 2]
    value |= (byte & 0x7F) << 21
    if byte < 0x80:
        return value, position + 3
    byte = buffer[position + 3]
    if byte > 0x0F:
        raise MalformedRequest("varint does not fit into 32 bits")
    return value | byte << 28, position + 4


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
