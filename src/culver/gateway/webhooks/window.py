"""One partition of a webhook: which records may go out without breaking the order of a key, and what to commit.

Records wait in lanes, one for each key and one for all records without a key. A lane from which records are out is
busy: nothing more leaves it until they are acknowledged. The partition's position, which is what is committed, is the
offset of the first record that is not acknowledged; those acknowledged behind it are remembered by their offsets only.

No I/O, no time: see ordering.py for what drives it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from heapq import heappop, heappush

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record

# What a record costs beside what it carries, roughly: the objects that hold it.
_OVERHEAD_BYTES = 200


def size_bytes(record: Record) -> int:
    """What a record that waits costs in memory, roughly."""
    return _OVERHEAD_BYTES + record.size_bytes


class Window:
    """The records of one partition from its position up to where it has been read."""

    def __init__(self, partition: TopicPartition, position: int) -> None:
        self.partition = partition
        # Bytes of the records that are not acknowledged.
        self.held_bytes = 0
        # About to be another gateway's: nothing more goes out, but what is out still counts.
        self.held = False
        # Another gateway's: what is still out counts for nothing.
        self.revoked = False
        self._read_to = position
        # Offsets from the position on, in order, acknowledged or not; and which of them are.
        self._offsets: deque[int] = deque()
        self._acknowledged: set[int] = set()
        # Records that have not gone out, by lane; never an empty deque.
        self._lanes: dict[bytes | None, deque[Record]] = {}
        self._busy: set[bytes | None] = set()
        # (offset of its first record, lane) of each lane that has records and is not busy. Offsets are unique, so
        # lanes are never compared.
        self._ready: list[tuple[int, bytes | None]] = []
        # Offsets of records that go out by themselves, because a call with others failed.
        self._alone: set[int] = set()

    @property
    def position(self) -> int:
        """The first offset that is not acknowledged: a commit of it loses nothing."""
        return self._offsets[0] if self._offsets else self._read_to

    @property
    def held_records(self) -> int:
        """Records from the position on, also those that are acknowledged already."""
        return len(self._offsets)

    @property
    def ready(self) -> bool:
        """Is there a record that may go out now?"""
        return bool(self._ready) and not self.held

    def add(self, records: Sequence[Record], read_to: int) -> None:
        """Records that were read, in the order of their offsets; the next one has the offset `read_to` or more."""
        for record in records:
            assert record.offset >= self._read_to, "a record was read twice or out of order"
            self._read_to = record.offset + 1
            self._offsets.append(record.offset)
            self.held_bytes += size_bytes(record)
            lane = self._lanes.get(record.key)
            if lane is not None:
                lane.append(record)
                continue
            self._lanes[record.key] = deque([record])
            if record.key not in self._busy:
                heappush(self._ready, (record.offset, record.key))
        self._read_to = max(self._read_to, read_to)

    def take(self, *, records_max: int, bytes_max: int) -> tuple[Record, ...]:
        """Take out the records of one call, in the order of their offsets: the oldest that may go, at least one.

        Their lanes are busy until acknowledge() or put_back(). A lane gives as many as there is room for, so a busy
        key goes out in bunches; the bytes may be exceeded by one record only when it is the only one.
        """
        taken: list[Record] = []
        bytes_left = bytes_max
        while self._ready and len(taken) < records_max:
            offset, key = self._ready[0]
            lane = self._lanes[key]
            alone = offset in self._alone
            if taken and (alone or size_bytes(lane[0]) > bytes_left):
                break
            heappop(self._ready)
            self._busy.add(key)
            while lane and len(taken) < records_max:
                following = lane[0]
                if taken and (following.offset in self._alone or size_bytes(following) > bytes_left):
                    break
                taken.append(lane.popleft())
                bytes_left -= size_bytes(following)
                if alone:
                    break
            if not lane:
                del self._lanes[key]
            if alone:
                break
        assert taken, "asked for records where none may go out"
        taken.sort(key=lambda record: record.offset)
        return tuple(taken)

    def acknowledge(self, records: Sequence[Record]) -> None:
        """The receiver has these, or the dead-letter topic: their lanes are free and the position may move on."""
        for record in records:
            self._acknowledged.add(record.offset)
            self._alone.discard(record.offset)
            self.held_bytes -= size_bytes(record)
        self._free(records)
        while self._offsets and self._offsets[0] in self._acknowledged:
            self._acknowledged.remove(self._offsets.popleft())

    def put_back(self, records: Sequence[Record]) -> None:
        """Records of a call that failed as a whole: each goes out again by itself, before what came after it."""
        for record in reversed(records):
            self._alone.add(record.offset)
            lane = self._lanes.get(record.key)
            if lane is None:
                self._lanes[record.key] = deque([record])
            else:
                lane.appendleft(record)
        self._free(records)

    def _free(self, records: Sequence[Record]) -> None:
        for key in {record.key for record in records}:
            assert key in self._busy, "a lane was freed that nothing was out of"
            self._busy.remove(key)
            if lane := self._lanes.get(key):
                heappush(self._ready, (lane[0].offset, key))
