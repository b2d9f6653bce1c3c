"""Runs of records that have been fetched, kept for a while for whoever reads there next, within a bound."""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from collections import deque
from itertools import accumulate
from operator import attrgetter

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record

# A partition, and whether only committed records are seen: the two views of it are kept apart.
Key = tuple[TopicPartition, bool]

# What a record and a chunk take beyond the bytes they carry, roughly.
_RECORD_OVERHEAD_BYTES = 250
_CHUNK_OVERHEAD_BYTES = 500

_offset_of = attrgetter("offset")
_start_of = attrgetter("start")


class Chunk:
    """All visible records from offset `start` up to `next_offset`, which may be none."""

    __slots__ = ("_ends", "next_offset", "records", "size_bytes", "start")

    def __init__(self, start: int, next_offset: int, records: list[Record]) -> None:
        self.start = start
        self.next_offset = next_offset
        self.records = records
        self._ends = list(accumulate(record.size_bytes for record in records))
        carried_bytes = self._ends[-1] if self._ends else 0
        self.size_bytes = carried_bytes + len(records) * _RECORD_OVERHEAD_BYTES + _CHUNK_OVERHEAD_BYTES

    def take(
        self, position: int, records_max: int, bytes_max: int, *, at_least_one: bool
    ) -> tuple[list[Record], int]:
        """(records from `position` on within the limits, the position after them)."""
        records, ends = self.records, self._ends
        first = bisect_left(records, position, key=_offset_of) if position > self.start else 0
        before_bytes = ends[first - 1] if first else 0
        after = min(bisect_right(ends, before_bytes + bytes_max, lo=first), first + records_max, len(records))
        if at_least_one and after == first < len(records):
            after += 1
        if after == len(records):
            return records[first:], self.next_offset
        return records[first:after], records[after - 1].offset + 1 if after > first else position


class RecentChunks:
    """The chunks of all partitions. What came first goes first when there is no more room."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._size_bytes = 0
        self._chunks: dict[Key, list[Chunk]] = {}
        self._arrived: deque[tuple[Key, Chunk]] = deque()

    @property
    def size_bytes(self) -> int:
        return self._size_bytes

    def find(self, key: Key, position: int) -> Chunk | None:
        """A chunk that knows what is at `position`."""
        chunks = self._chunks.get(key)
        if not chunks:
            return None
        at = len(chunks) - 1
        if chunks[at].start > position:
            at = bisect_right(chunks, position, key=_start_of) - 1
        # Chunks may overlap when someone has caught up. Then one that begins later may hide a longer one, and
        # what is there is read once more: that costs a fetch, and nothing else.
        return chunks[at] if at >= 0 and chunks[at].next_offset > position else None

    def add(self, key: Key, chunk: Chunk) -> None:
        if chunk.size_bytes > self._max_bytes:
            return
        insort(self._chunks.setdefault(key, []), chunk, key=_start_of)
        self._arrived.append((key, chunk))
        self._size_bytes += chunk.size_bytes
        while self._size_bytes > self._max_bytes:
            self._remove(*self._arrived.popleft())

    def drop(self, key: Key) -> None:
        """Nobody reads there any more, or what is there is not what it was."""
        chunks = self._chunks.pop(key, None)
        if chunks:
            self._size_bytes -= sum(chunk.size_bytes for chunk in chunks)
            self._arrived = deque(entry for entry in self._arrived if entry[0] != key)

    def _remove(self, key: Key, chunk: Chunk) -> None:
        chunks = self._chunks[key]
        at = bisect_left(chunks, chunk.start, key=_start_of)
        while chunks[at] is not chunk:
            at += 1
        del chunks[at]
        self._size_bytes -= chunk.size_bytes
        if not chunks:
            del self._chunks[key]
