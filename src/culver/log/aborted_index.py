"""The transactions whose abort is marked in one segment: what readers of committed records have to skip.

The file, `X.txnindex`, is Kafka's: 34 bytes for each transaction, in the order of the markers. Like other indexes it
can be made again from the batches. Unlike them it must never be believed when it lacks something, for nobody would
find that out. So the active segment has none, and that of a closed one is synced.
"""

from __future__ import annotations

import struct
from bisect import bisect_left
from collections.abc import Iterable
from itertools import pairwise

from culver.log.indexes import IndexDamaged
from culver.log.transactions import AbortedTransaction

# version, producer id, first offset, last offset, last stable offset
_ENTRY = struct.Struct(">hqqqq")
ENTRY_BYTES = _ENTRY.size
_LAST_OFFSET = struct.Struct(">q")
_LAST_OFFSET_POSITION = 18
_VERSION = 0


class AbortedIndex:
    """Aborted transactions by the offsets of their markers, which ascend. Kept as the bytes of its file."""

    __slots__ = ("_data",)

    def __init__(self, data: bytes = b"") -> None:
        self._data = bytearray(data)

    @classmethod
    def of(cls, entries: Iterable[AbortedTransaction]) -> AbortedIndex:
        """In the order of their markers."""
        return cls(b"".join([_ENTRY.pack(_VERSION, *entry) for entry in entries]))

    def __len__(self) -> int:
        return len(self._data) // ENTRY_BYTES

    def append(self, aborted: AbortedTransaction) -> None:
        self._data += _ENTRY.pack(_VERSION, *aborted)

    def entries(self) -> list[AbortedTransaction]:
        return [AbortedTransaction(*fields[1:]) for fields in _ENTRY.iter_unpack(self._data)]

    def collect(self, from_offset: int, up_to_offset: int, found: list[AbortedTransaction]) -> bool:
        """Add those that reach into [from, up to). Whether none that is marked further on can do so."""
        at = self._from(from_offset) * ENTRY_BYTES
        for _, producer_id, first, last, stable in _ENTRY.iter_unpack(memoryview(self._data)[at:]):
            if first < up_to_offset:
                found.append(AbortedTransaction(producer_id, first, last, stable))
            if stable >= up_to_offset:
                return True
        return False

    def _from(self, offset: int) -> int:
        """The first whose marker is at or above an offset."""
        return bisect_left(range(len(self)), offset, key=self._last_offset)

    def _last_offset(self, number: int) -> int:
        last_offset: int
        (last_offset,) = _LAST_OFFSET.unpack_from(self._data, number * ENTRY_BYTES + _LAST_OFFSET_POSITION)
        return last_offset

    def truncate(self, end_offset: int) -> None:
        """Forget markers at or above an offset."""
        del self._data[self._from(end_offset) * ENTRY_BYTES :]

    def to_bytes(self) -> bytes:
        return bytes(self._data)

    @classmethod
    def from_bytes(cls, data: bytes, base_offset: int) -> AbortedIndex:
        """Of the segment that begins at `base_offset`."""
        if len(data) % ENTRY_BYTES:
            raise IndexDamaged(f"{len(data)} bytes is not a whole number of entries")
        for version, _, first, last, _ in _ENTRY.iter_unpack(data):
            if version != _VERSION:
                raise IndexDamaged(f"has an entry with version {version}")
            if not 0 <= first < last or last < base_offset:
                raise IndexDamaged(f"has an entry for offsets {first} to {last}")
        index = cls(data)
        if any(before >= after for before, after in pairwise(map(index._last_offset, range(len(index))))):
            raise IndexDamaged("offsets do not ascend")
        return index
