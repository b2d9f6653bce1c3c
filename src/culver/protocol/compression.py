"""The five codecs of record batches, with decompression that never outgrows its bound.

What comes off the wire may be a bomb: a few bytes that unpack to gigabytes, or a header that claims a size
it does not have. So no claimed size sizes an allocation here. Output goes into a buffer that starts small
and grows only as real output fills it, up to the caller's bound and not a byte further.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import cramjam

from culver.errors import ErrorCode, KafkaError

Buffer = bytes | bytearray | memoryview


class Codec(IntEnum):
    """The codec ids in the lowest three bits of a batch's attributes."""

    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_NAMES = {codec.name.lower(): codec for codec in Codec}

# Snappy inside Kafka is the "xerial" stream of snappy-java: a magic, two version numbers, then raw snappy
# blocks, each behind its length.
XERIAL_MAGIC = b"\x82SNAPPY\x00"
XERIAL_HEADER = XERIAL_MAGIC + struct.pack(">ii", 1, 1)
XERIAL_BLOCK_BYTES = 32 * 1024

# A three-byte snappy element yields at most 64 bytes: more than this many times its input is a lie.
SNAPPY_RATIO_MAX = 22

# The first try at an output buffer, as a multiple of the input; a buffer that proves too small grows by the
# same factor, so the repeated work stays below a third of the whole.
GROWTH = 4
FIRST_BUFFER_BYTES = 4 * 1024

# What cramjam says when output does not fit. Anything else it says means that the input is damaged.
_BUFFER_FULL = "failed to write whole buffer"

_DECOMPRESS_INTO: dict[int, Callable[[Any, Any], int]] = {
    Codec.GZIP: cramjam.gzip.decompress_into,
    Codec.LZ4: cramjam.lz4.decompress_into,
    Codec.ZSTD: cramjam.zstd.decompress_into,
}

# The levels that Kafka's clients and brokers use when nobody sets one.
DEFAULT_LEVELS: dict[int, int] = {Codec.GZIP: 6, Codec.LZ4: 9, Codec.ZSTD: 3}


def compress(codec: int, data: Buffer, level: int | None = None) -> bytes:
    """`data` in the codec's framing. `level` counts for gzip, lz4 and zstd; None is the default."""
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.SNAPPY:
        return _compress_xerial(data)
    if codec not in DEFAULT_LEVELS:
        raise _unknown_codec(codec)
    if level is None or (codec == Codec.GZIP and level == -1):  # -1 is gzip's own word for its default
        level = DEFAULT_LEVELS[codec]
    if codec == Codec.GZIP:
        return bytes(cramjam.gzip.compress(data, level=level))
    if codec == Codec.LZ4:
        # Kafka's Java code reads frames of independent blocks only, which is not this library's default.
        frame = cramjam.lz4.Compressor(level=level, content_checksum=False, block_linked=False)
        frame.compress(bytes(data))
        return bytes(frame.finish())
    return bytes(cramjam.zstd.compress(data, level=level))


def decompress(codec: int, data: Buffer, max_bytes: int) -> Buffer:
    """What `data` unpacks to; the data itself, not copied, for codec none.

    Raises KafkaError: MESSAGE_TOO_LARGE for more than `max_bytes` of output (a client may split the batch),
    CORRUPT_MESSAGE for damaged input, UNSUPPORTED_COMPRESSION_TYPE for a codec there is not.
    """
    if codec == Codec.NONE:
        if len(data) > max_bytes:
            raise _too_large(max_bytes)
        return data
    if codec == Codec.SNAPPY:
        return _decompress_snappy(data, max_bytes)
    decompress_into = _DECOMPRESS_INTO.get(codec)
    if decompress_into is None:
        raise _unknown_codec(codec)
    capacity = min(max_bytes, max(FIRST_BUFFER_BYTES, len(data) * GROWTH))
    while True:
        output = bytearray(capacity)
        try:
            size = decompress_into(data, output)
        except cramjam.DecompressionError as error:
            if str(error) != _BUFFER_FULL:
                raise _corrupt(codec, str(error)) from None
            if capacity >= max_bytes:
                raise _too_large(max_bytes) from None
            del output  # before the next one is allocated, so that only one is alive
            capacity = min(max_bytes, capacity * GROWTH)
        else:
            del output[size:]
            return output


def _compress_xerial(data: Buffer) -> bytes:
    view = memoryview(data)
    parts = [XERIAL_HEADER]
    for start in range(0, len(view), XERIAL_BLOCK_BYTES):
        block = bytes(cramjam.snappy.compress_raw(view[start : start + XERIAL_BLOCK_BYTES]))
        parts.append(len(block).to_bytes(4, "big"))
        parts.append(block)
    return b"".join(parts)


def _decompress_snappy(data: Buffer, max_bytes: int) -> bytearray:
    """Both kinds of snappy that clients send: the xerial stream, and one bare block."""
    view = memoryview(data)
    blocks = _xerial_blocks(view) if view[:8] == XERIAL_MAGIC else [view]
    sizes = []
    total = 0
    for block in blocks:
        try:
            size: int = cramjam.snappy.decompress_raw_len(block)
        except cramjam.DecompressionError as error:
            raise _corrupt(Codec.SNAPPY, str(error)) from None
        total += size
        if total > max_bytes:
            raise _too_large(max_bytes)
        if size > len(block) * SNAPPY_RATIO_MAX:
            raise _corrupt(Codec.SNAPPY, f"a block of {len(block)} bytes claims to hold {size}")
        sizes.append(size)
    # Every claimed size has passed the ratio above, so this is at most that many times the input.
    output = bytearray(total)
    target = memoryview(output)
    position = 0
    for block, size in zip(blocks, sizes, strict=True):
        try:
            written = cramjam.snappy.decompress_raw_into(block, target[position : position + size])
        except cramjam.DecompressionError as error:
            raise _corrupt(Codec.SNAPPY, str(error)) from None
        if written != size:
            raise _corrupt(Codec.SNAPPY, f"a block that claims {size} bytes holds {written}")
        position += size
    return output


def _xerial_blocks(view: memoryview) -> list[memoryview]:
    blocks = []
    position = 0
    end = len(view)
    while position < end:
        # Streams may be joined: then a header stands where a block's length would.
        if view[position : position + 8] == XERIAL_MAGIC:
            position += len(XERIAL_HEADER)
            if position > end:
                raise _corrupt(Codec.SNAPPY, "the stream ends inside its header")
            continue
        if position + 4 > end:
            raise _corrupt(Codec.SNAPPY, "the stream ends inside a block's length")
        size = int.from_bytes(view[position : position + 4], "big", signed=True)
        position += 4
        if not 0 <= size <= end - position:
            raise _corrupt(Codec.SNAPPY, f"a block claims {size} bytes where {end - position} remain")
        if size:
            blocks.append(view[position : position + size])
        position += size
    return blocks


def _corrupt(codec: int, why: str) -> KafkaError:
    return KafkaError(
        ErrorCode.CORRUPT_MESSAGE, f"records compressed with {Codec(codec).name.lower()}: {why}"
    )


def _too_large(max_bytes: int) -> KafkaError:
    return KafkaError(
        ErrorCode.MESSAGE_TOO_LARGE,
        f"the records of a batch take more than {max_bytes} bytes when decompressed; send smaller batches",
    )


def _unknown_codec(codec: int) -> KafkaError:
    return KafkaError(
        ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"there is no codec {int(codec)}; known are 0 to {max(Codec)}"
    )
