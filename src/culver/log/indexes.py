"""The sparse indexes of a segment: where an offset is in the file, and which offset a time is near.

Both are compact in memory and Kafka's own format on disk (big-endian, relative to the segment's base offset),
so that Kafka's dump tool reads them. They hold no truth: anything doubtful about a file is `IndexDamaged`, and
the segment is scanned to build the index again. Loading one looks at its size and last entry only, because the
broker's thread must not go through a quarter of a million entries; `verify` looks at all.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left, bisect_right
from itertools import pairwise
from operator import lt

OFFSET_ENTRY_BYTES = 8
TIME_ENTRY_BYTES = 12
_TIME_ENTRY = struct.Struct(">qi")


class IndexDamaged(Exception):
    """An index file cannot be what was written."""


class OffsetIndex:
    """(last offset of a batch, file position of that batch), ascending.

    An entry names the *last* offset of its batch, as Kafka's does: for any offset from there on, the batch
    wanted is this one or a later one.
    """

    __slots__ = ("offsets", "positions")

    def __init__(self) -> None:
        self.offsets = array("i")
        self.positions = array("i")

    def __len__(self) -> int:
        return len(self.offsets)

    def append(self, relative_offset: int, position: int) -> None:
        self.offsets.append(relative_offset)
        self.positions.append(position)

    def before(self, relative_offset: int) -> int:
        """The number of entries whose offset is not above this one: the last of them is the one to start at."""
        return bisect_right(self.offsets, relative_offset)

    def before_position(self, position: int) -> int:
        """The number of entries whose batch begins at or before a file position."""
        return bisect_right(self.positions, position)

    def truncate(self, size_bytes: int) -> None:
        """Forget entries at or beyond a file size."""
        keep = bisect_right(self.positions, size_bytes - 1)
        del self.offsets[keep:]
        del self.positions[keep:]

    def to_bytes(self) -> bytes:
        flat = array("i", bytes(len(self.offsets) * OFFSET_ENTRY_BYTES))
        flat[0::2] = self.offsets
        flat[1::2] = self.positions
        if sys.byteorder == "little":
            flat.byteswap()
        return flat.tobytes()

    @classmethod
    def from_bytes(cls, data: bytes, segment_bytes: int) -> OffsetIndex:
        if len(data) % OFFSET_ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes is not a whole number of entries")
        flat = array("i")
        flat.frombytes(data)
        if sys.byteorder == "little":
            flat.byteswap()
        index = cls()
        index.offsets = flat[0::2]
        index.positions = flat[1::2]
        if flat and (flat[-2] < 0 or not 0 <= flat[-1] < segment_bytes):
            raise IndexDamaged(
                f"ends with offset {flat[-2]} at {flat[-1]} in a file of {segment_bytes} bytes"
            )
        return index

    def verify(self) -> None:
        """Raise IndexDamaged unless all entries ascend."""
        if self.offsets and (self.offsets[0] < 0 or self.positions[0] < 0):
            raise IndexDamaged("begins below zero")
        if not all(map(lt, self.offsets, self.offsets[1:])):
            raise IndexDamaged("offsets do not ascend")
        if not all(map(lt, self.positions, self.positions[1:])):
            raise IndexDamaged("positions do not ascend")


class TimeIndex:
    """(largest timestamp up to here, last offset of the batch that brought it), ascending in both.

    Kept as the bytes of its file: it grows with every few batches and is searched once in a while.
    """

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    def __len__(self) -> int:
        return len(self._data) // TIME_ENTRY_BYTES

    def entry(self, number: int) -> tuple[int, int]:
        """(timestamp, relative offset)."""
        timestamp, offset = _TIME_ENTRY.unpack_from(self._data, number * TIME_ENTRY_BYTES)
        return timestamp, offset

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry, unless it says nothing new."""
        if self._data:
            last_timestamp, last_offset = _TIME_ENTRY.unpack_from(
                self._data, len(self._data) - TIME_ENTRY_BYTES
            )
            if timestamp <= last_timestamp or relative_offset <= last_offset:
                return
        self._data += _TIME_ENTRY.pack(timestamp, relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """A relative offset at or before the first record with a timestamp above this one."""
        found = bisect_right(range(len(self)), timestamp, key=lambda number: self.entry(number)[0])
        return self.entry(found - 1)[1] if found else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget entries at or above a relative offset."""
        keep = bisect_left(range(len(self)), relative_offset, key=lambda number: self.entry(number)[1])
        del self._data[keep * TIME_ENTRY_BYTES :]

    def to_bytes(self) -> bytes:
        return bytes(self._data)

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        if len(data) % TIME_ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes is not a whole number of entries")
        index = cls(data)
        if data and min(index.entry(len(index) - 1)) < 0:
            raise IndexDamaged(f"ends with {index.entry(len(index) - 1)}")
        return index

    def verify(self) -> None:
        """Raise IndexDamaged unless all entries ascend."""
        entries = list(_TIME_ENTRY.iter_unpack(self._data))
        for earlier, later in pairwise(entries):
            if earlier[0] >= later[0] or earlier[1] >= later[1]:
                raise IndexDamaged(f"{later} does not ascend after {earlier}")
