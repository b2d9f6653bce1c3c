"""The sparse indexes of a segment: where an offset is in the file, and which offset a time is near.

Both are compact arrays in memory and Kafka's own format on disk (big-endian, relative to the segment's base
offset), so that Kafka's dump tool reads them. They hold no truth: anything doubtful about a file is
`IndexDamaged`, and the segment is scanned to build the index again.
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_right
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

    def position_before(self, relative_offset: int) -> int:
        """A batch boundary at or before the batch that holds the offset."""
        entry = bisect_right(self.offsets, relative_offset)
        return self.positions[entry - 1] if entry else 0

    def boundary_before(self, position: int) -> int:
        """The last indexed batch boundary at or before a file position."""
        entry = bisect_right(self.positions, position)
        return self.positions[entry - 1] if entry else 0

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
        if flat:
            if not all(map(lt, index.offsets, index.offsets[1:])) or index.offsets[0] < 0:
                raise IndexDamaged("offsets do not ascend")
            if not all(map(lt, index.positions, index.positions[1:])) or index.positions[0] < 0:
                raise IndexDamaged("positions do not ascend")
            if index.positions[-1] >= segment_bytes:
                raise IndexDamaged(f"points at {index.positions[-1]} in a file of {segment_bytes} bytes")
        return index


class TimeIndex:
    """(largest timestamp up to here, last offset of the batch that brought it), ascending in both."""

    __slots__ = ("offsets", "timestamps")

    def __init__(self) -> None:
        self.timestamps = array("q")
        self.offsets = array("i")

    def __len__(self) -> int:
        return len(self.timestamps)

    def append(self, timestamp: int, relative_offset: int) -> None:
        """Add an entry, unless it says nothing new."""
        if self.timestamps and (timestamp <= self.timestamps[-1] or relative_offset <= self.offsets[-1]):
            return
        self.timestamps.append(timestamp)
        self.offsets.append(relative_offset)

    def offset_before(self, timestamp: int) -> int:
        """A relative offset at or before the first record with a timestamp above this one."""
        entry = bisect_right(self.timestamps, timestamp)
        return self.offsets[entry - 1] if entry else 0

    def truncate(self, relative_offset: int) -> None:
        """Forget entries at or above a relative offset."""
        keep = bisect_right(self.offsets, relative_offset - 1)
        del self.offsets[keep:]
        del self.timestamps[keep:]

    def to_bytes(self) -> bytes:
        return b"".join(map(_TIME_ENTRY.pack, self.timestamps, self.offsets))

    @classmethod
    def from_bytes(cls, data: bytes) -> TimeIndex:
        if len(data) % TIME_ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes is not a whole number of entries")
        index = cls()
        for timestamp, offset in _TIME_ENTRY.iter_unpack(data):
            index.timestamps.append(timestamp)
            index.offsets.append(offset)
        if not all(map(lt, index.timestamps, index.timestamps[1:])):
            raise IndexDamaged("timestamps do not ascend")
        if not all(map(lt, index.offsets, index.offsets[1:])):
            raise IndexDamaged("offsets do not ascend")
        return index
