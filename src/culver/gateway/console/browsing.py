"""Walks through the records of a topic, forwards or backwards, its partitions merged by time, within a limit of work.

A walk goes on where an earlier one has stopped: `Positions` say where each partition stands, and are small enough to
be part of an address. A filter may find little in much: then the walk stops when it has looked at enough, says how
far it came, and can be gone on with.
"""

from __future__ import annotations

import asyncio
import heapq
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from culver.errors import KafkaError
from culver.gateway.reading.record import Record
from culver.wire_client import Unreachable

FORWARD, BACKWARD = "forward", "backward"
PARTITIONS_MAX = 256
# What one request may look at, and how long.
SCANNED_RECORDS_MAX = 50_000
SCANNED_BYTES_MAX = 64 * 1024 * 1024
SCAN_SECONDS_MAX = 5.0
# What is held of all partitions together while they are merged.
_HELD_BYTES_MAX = 32 * 1024 * 1024
_HELD_BYTES_MIN = 64 * 1024
# What one read may bring. A broker gives whole batches, and what is not taken of them is read and unpacked again: who
# goes through a topic takes much at a time, who wants a page little.
_SCAN_READ_RECORDS, _SCAN_READ_BYTES = 10_000, 4 * 1024 * 1024
_PAGE_READ_RECORDS_MIN, _PAGE_READ_BYTES_MIN = 10, 128 * 1024
_BYTES_PER_RECORD = 1024
_RECORDS_AT_A_TIME = 500
_READS_AT_ONCE = 16
_RECORD_OVERHEAD_BYTES = 64
_WINDOW_MAX = 1 << 40
_CURSOR = re.compile(r"([bf])((?:\.\d{1,10}:\d{1,19})*)")


class RangeReader(Protocol):
    """What a walk needs of `Readers`: records from an offset on, none only if there are none."""

    async def read_range(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        committed: bool = ...,
    ) -> list[Record]: ...


@dataclass(frozen=True, slots=True)
class Bounds:
    """Where a partition begins and ends."""

    earliest: int
    latest: int


@dataclass(frozen=True, slots=True)
class Positions:
    """Where a walk stands: by partition the offset to be looked at next or, going backward, the one after it."""

    direction: str
    offsets: Mapping[int, int]

    def __str__(self) -> str:
        places = "".join(f".{partition}:{offset}" for partition, offset in sorted(self.offsets.items()))
        return self.direction[0] + places

    @classmethod
    def parse(cls, text: str) -> Positions:
        """What `str` made of positions. Raises ValueError."""
        found = _CURSOR.fullmatch(text)
        if found is None:
            raise ValueError("the cursor is none that an earlier answer has given")
        places = (place.split(":") for place in found[2].split(".")[1:])
        offsets = {int(partition): int(offset) for partition, offset in places}
        return cls(BACKWARD if found[1] == "b" else FORWARD, offsets)


@dataclass(slots=True)
class Work:
    """What has been looked at, and whether that is enough."""

    deadline_s: float
    records_max: int = SCANNED_RECORDS_MAX
    bytes_max: int = SCANNED_BYTES_MAX
    records: int = 0
    bytes: int = 0

    @classmethod
    def begin(cls) -> Work:
        return cls(asyncio.get_running_loop().time() + SCAN_SECONDS_MAX)

    @property
    def is_used_up(self) -> bool:
        return (
            self.records >= self.records_max
            or self.bytes >= self.bytes_max
            or asyncio.get_running_loop().time() >= self.deadline_s
        )

    def count(self, records: Iterable[Record]) -> None:
        for record in records:
            self.records += 1
            self.bytes += record.size_bytes + _RECORD_OVERHEAD_BYTES


@dataclass(frozen=True, slots=True)
class Found:
    """The records of one page, where it ends, and why there: at the limit, the end, or because of the work."""

    records: list[Record]
    positions: Positions
    stopped: str
    work: Work
    errors: dict[int, Exception]


@dataclass(slots=True)
class _Walk:
    """One partition. `heads` are the records that were found and wait for their turn, in the order of the walk."""

    partition: int
    bounds: Bounds
    position: int
    window: int
    heads: deque[Record] = field(default_factory=deque)
    error: Exception | None = None

    def is_done(self, direction: str) -> bool:
        if self.heads:
            return False
        if self.error is not None:
            return True
        if direction == FORWARD:
            return self.position >= self.bounds.latest
        return self.position <= self.bounds.earliest

    def standing(self, direction: str) -> int:
        """Where to go on: with what waits for its turn, if something does."""
        if not self.heads:
            return self.position
        return self.heads[0].offset + (direction == BACKWARD)


class Browsing:
    """One walk over some partitions of a topic."""

    def __init__(
        self,
        reader: RangeReader,
        topic: str,
        bounds: Mapping[int, Bounds],
        positions: Positions,
        *,
        limit: int,
        committed: bool = True,
        wanted: Callable[[Record], bool] | None = None,
        goes_on: bool = False,
    ) -> None:
        """With `goes_on` the walk is meant to go on after the page: `find` is called again."""
        self._reader = reader
        self._topic = topic
        self._direction = positions.direction
        self._limit = limit
        self._committed = committed
        self._wanted = wanted
        count = max(1, len(positions.offsets))
        self._held_bytes = max(_HELD_BYTES_MIN, _HELD_BYTES_MAX // count)
        if wanted is not None or goes_on:
            self._read_records, read_bytes = _SCAN_READ_RECORDS, _SCAN_READ_BYTES
        else:
            # Enough for the page if the partitions have equal shares of it, and some more.
            self._read_records = max(_PAGE_READ_RECORDS_MIN, 2 * limit // count)
            read_bytes = max(_PAGE_READ_BYTES_MIN, self._read_records * _BYTES_PER_RECORD)
        self._read_bytes = min(read_bytes, self._held_bytes)
        self._walks = [
            _Walk(
                partition,
                bounds[partition],
                min(max(offset, bounds[partition].earliest), bounds[partition].latest),
                self._read_records,
            )
            for partition, offset in sorted(positions.offsets.items())
        ]
        # Those of which nothing waits for its turn, and the others by what comes next.
        self._empty = list(self._walks)
        self._next: list[tuple[int, int, _Walk]] = []
        self._turns = asyncio.Semaphore(_READS_AT_ONCE)

    async def find(self, work: Work) -> Found:
        """The next records, up to the limit."""
        found: list[Record] = []
        while len(found) < self._limit:
            # A partition that was not looked at to the end may hold what comes next; when the work is used up, what
            # was found in others is shown all the same.
            if self._empty:
                await self._fill(work)
            if not self._next:
                break
            _, _, walk = heapq.heappop(self._next)
            found.append(walk.heads.popleft())
            self._line_up(walk)
        if all(walk.is_done(self._direction) for walk in self._walks):
            stopped = "end"
        else:
            stopped = "limit" if len(found) == self._limit else "work"
        return Found(
            found,
            Positions(
                self._direction, {walk.partition: walk.standing(self._direction) for walk in self._walks}
            ),
            stopped,
            work,
            {walk.partition: walk.error for walk in self._walks if walk.error is not None},
        )

    def _line_up(self, walk: _Walk) -> None:
        """Put a partition where it belongs: by the time of its next record, or among those that have none."""
        if walk.heads:
            # Within a partition the order is that of offsets, whatever the times say.
            sign = 1 if self._direction == FORWARD else -1
            heapq.heappush(self._next, (sign * walk.heads[0].timestamp_ms, sign * walk.partition, walk))
        else:
            self._empty.append(walk)

    async def _fill(self, work: Work) -> None:
        """See to it that every partition has a record that waits, unless it has none left or the work is used up."""
        while not work.is_used_up:
            empty = [walk for walk in self._empty if not walk.is_done(self._direction)]
            self._empty = []
            if not empty:
                return
            await asyncio.gather(*(self._advance(walk, work) for walk in empty))
            for walk in empty:
                self._line_up(walk)

    async def _advance(self, walk: _Walk, work: Work) -> None:
        async with self._turns:
            if work.is_used_up:
                return
            step = self._forward if self._direction == FORWARD else self._backward
            try:
                records = await step(walk, work)
            except (KafkaError, Unreachable) as error:
                # The other partitions can still be looked at: the answer says what is wrong with this one.
                walk.error = error
                return
            for some in _slices(records):
                walk.heads.extend(record for record in some if self._wanted is None or self._wanted(record))
                await asyncio.sleep(0)

    async def _forward(self, walk: _Walk, work: Work) -> list[Record]:
        records = await self._read(walk, walk.position, work)
        wanted = [record for record in records if record.offset < walk.bounds.latest]
        is_last = not wanted or len(wanted) < len(records)
        walk.position = walk.bounds.latest if is_last else wanted[-1].offset + 1
        return wanted

    async def _backward(self, walk: _Walk, work: Work) -> list[Record]:
        """The records before the position, the last one first; none if there are none within the window."""
        end = walk.position
        start = offset = max(walk.bounds.earliest, end - walk.window)
        records: list[Record] = []
        is_too_wide = False
        while offset < end:
            more = await self._read(walk, offset, work)
            records += [record for record in more if record.offset < end]
            if not more or more[-1].offset >= end - 1:
                break
            offset = more[-1].offset + 1
            if len(records) >= 2 * self._read_records or _size_bytes(records) >= self._held_bytes:
                # Too much for once: begin nearer to where the walk stands, with about what fits. At least half of
                # the window goes each time, so this ends.
                is_too_wide = True
                fits = max(1, min((offset - start) * 3 // 4, (end - start) // 2))
                start = offset = max(offset, end - fits)
                records = []
        width = max(1, end - start)
        # Where much was compacted, few offsets have a record: look further back next time. Where records were
        # large, and are not any more, too.
        is_sparse = 2 * len(records) < width or width < self._read_records
        grows = not is_too_wide and is_sparse and 2 * _size_bytes(records) < self._held_bytes
        walk.window = min(2 * width, _WINDOW_MAX) if grows else width
        walk.position = start
        return records[::-1]

    async def _read(self, walk: _Walk, offset: int, work: Work) -> list[Record]:
        records = await self._reader.read_range(
            self._topic,
            walk.partition,
            offset,
            records_max=min(self._read_records, max(1, work.records_max - work.records)),
            bytes_max=self._read_bytes,
            committed=self._committed,
        )
        for some in _slices(records):
            work.count(some)
            await asyncio.sleep(0)
        return records


def _slices(records: list[Record]) -> Iterator[list[Record]]:
    """A few at a time: between them others of the gateway have their turn."""
    for start in range(0, len(records), _RECORDS_AT_A_TIME):
        yield records[start : start + _RECORDS_AT_A_TIME]


def _size_bytes(records: Iterable[Record]) -> int:
    return sum(record.size_bytes + _RECORD_OVERHEAD_BYTES for record in records)
