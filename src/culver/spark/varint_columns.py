"""Read one varint of each of many records at once: a column of numbers, and where each of them ends.

Positions may lie outside the buffer when a record lies about its lengths: what is read then is the buffer's last
byte, and the caller finds out by comparing with the record's end.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from culver.spark.record_starts import Bytes, Positions, invalid

Numbers = npt.NDArray[np.int64]

_VARINT_BYTES_MAX = 5
_VARLONG_BYTES_MAX = 10


def read_varints(column: Bytes, positions: Positions) -> tuple[Numbers, Positions]:
    """(numbers of at most 32 bits, positions after them)."""
    return _read(column, positions, _VARINT_BYTES_MAX)


def read_varlongs(column: Bytes, positions: Positions) -> tuple[Numbers, Positions]:
    """(numbers of at most 64 bits, positions after them)."""
    return _read(column, positions, _VARLONG_BYTES_MAX)


def _read(column: Bytes, positions: Positions, bytes_max: int) -> tuple[Numbers, Positions]:
    # Hot: one and two bytes are dealt with for all records alike, which is faster than picking some out.
    byte = column.take(positions, mode="clip")
    after = positions + 1
    more = byte >= 0x80
    if not more.any():
        small = byte.astype(np.int64)
        return (small >> 1) ^ -(small & 1), after
    second = column.take(after, mode="clip")
    zigzag = (byte & 0x7F).astype(np.uint64)
    zigzag |= ((second & 0x7F) * more).astype(np.uint64) << np.uint64(7)
    after += more
    rest = np.flatnonzero(more & (second >= 0x80))
    shift = 14
    while rest.size:
        if shift >= 7 * bytes_max:
            raise invalid(f"a varint takes more than {bytes_max} bytes")
        byte = column.take(after[rest], mode="clip")
        zigzag[rest] |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
        after[rest] += 1
        rest = rest[byte >= 0x80]
        shift += 7
    # Unsigned until here: the highest bit of a zigzag is a bit of the number, not its sign.
    return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64), after
