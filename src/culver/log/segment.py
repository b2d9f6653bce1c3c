"""One segment: a file of batches, its indexes, and how an offset is found in it."""

from __future__ import annotations

from bisect import bisect_right

from culver.errors import ErrorCode, KafkaError
from culver.filesystem import File, FileSystem
from culver.log import names
from culver.log.aborted_index import AbortedIndex
from culver.log.batches import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    STEP,
    STEP_BYTES,
    BatchWalk,
    Expectation,
)
from culver.log.indexes import IndexDamaged, OffsetIndex, TimeIndex
from culver.log.open_files import OpenFiles
from culver.logging import get_logger

_log = get_logger("culver.log")

NO_TIMESTAMP = -1
NEVER = (1 << 63) - 1
# One read while looking for a batch: an index interval and a bit.
_HOP_BYTES = 5 * 1024
# Offsets whose positions are remembered, so that a consumer's next fetch finds its place at once.
_REMEMBERED_POSITIONS = 32


class NotCached(Exception):
    """The bytes wanted are not in the page cache, and the caller did not want to wait."""

    def __init__(self, path: str, position: int, size_bytes: int) -> None:
        super().__init__(path, position, size_bytes)
        self.path = path
        self.position = position
        self.size_bytes = size_bytes


class Segment:
    """Batches from `base_offset` on. Only the log's last segment grows; closed, its indexes are saved."""

    __slots__ = (
        "_files",
        "_fs",
        "_positions",
        "aborted",
        "base_offset",
        "bytes_since_index_entry",
        "close_when_unpinned",
        "created_ms",
        "directory",
        "file",
        "first_timestamp_ms",
        "max_timestamp_ms",
        "max_timestamp_offset",
        "offset_index",
        "path",
        "pins",
        "retired",
        "size_bytes",
        "time_index",
        "unsynced",
    )

    def __init__(
        self, fs: FileSystem, files: OpenFiles, directory: str, base_offset: int, created_ms: int
    ) -> None:
        self._fs = fs
        self._files = files
        self.directory = directory
        self.base_offset = base_offset
        self.created_ms = created_ms
        self.path = f"{directory}/{names.segment_name(base_offset, names.LOG)}"
        self.file: File | None = None
        self.size_bytes = 0
        self.bytes_since_index_entry = 0
        # None: on disk, not loaded yet.
        self.offset_index: OffsetIndex | None = None
        self.time_index: TimeIndex | None = None
        # None: see aborted_search. Never None in the active segment.
        self.aborted: AbortedIndex | None = None
        # The largest timestamp so far and the last offset of the batch that brought it.
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = base_offset
        # Of the first batch; segment.ms counts from it. NEVER while the segment is empty.
        self.first_timestamp_ms = NEVER
        self.unsynced = False
        # Flushes that are using the file right now.
        self.pins = 0
        self.close_when_unpinned = False
        # Out of the log: its name may belong to another segment by now.
        self.retired = False
        self._positions: dict[int, int] = {}

    def __repr__(self) -> str:
        return f"<Segment {self.path} {self.size_bytes} bytes>"

    # -- growing ---------------------------------------------------------------------------------------------

    def start_empty(self) -> None:
        """Begin with indexes in memory: nothing on disk is to be read."""
        self.offset_index = OffsetIndex()
        self.time_index = TimeIndex()
        self.aborted = AbortedIndex()

    def open_file(self, *, create: bool = False) -> File:
        file = self.file
        return self._files.open(self, create=create) if file is None else file

    def close_file(self) -> None:
        self._files.close(self)

    def unpin(self) -> None:
        self.pins -= 1
        if self.close_when_unpinned:
            self._files.close(self)

    def note_batch(
        self, last_offset: int, position: int, size: int, max_timestamp_ms: int, interval: int
    ) -> None:
        """Account for a batch that is in the file at `position`. The append path does the same inline."""
        if max_timestamp_ms > self.max_timestamp_ms:
            self.max_timestamp_ms = max_timestamp_ms
            self.max_timestamp_offset = last_offset
        if position == 0:
            self.first_timestamp_ms = max_timestamp_ms
        if self.bytes_since_index_entry > interval:
            self.add_index_entry(last_offset, position)
        self.bytes_since_index_entry += size
        self.size_bytes = position + size

    def add_index_entry(self, last_offset: int, position: int) -> None:
        """Make the batch at `position` findable without a scan."""
        offset_index, time_index = self.indexes()
        offset_index.append(last_offset - self.base_offset, position)
        time_index.append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)
        self.bytes_since_index_entry = 0

    def truncate(self, size_bytes: int, end_offset: int) -> None:
        """Drop what is known about bytes beyond `size_bytes`; the file itself is the caller's."""
        offset_index, time_index = self.indexes()
        offset_index.truncate(size_bytes)
        time_index.truncate(end_offset - self.base_offset)
        if self.aborted is not None:
            self.aborted.truncate(end_offset)
        self.size_bytes = size_bytes
        self._positions.clear()
        self.max_timestamp_ms = NO_TIMESTAMP
        self.max_timestamp_offset = self.base_offset
        if size_bytes == 0:
            self.bytes_since_index_entry = 0
            self.first_timestamp_ms = NEVER
            return
        self._take_last_timestamp(time_index)
        position = self._indexed_before(size_bytes)
        for _, header, _ in self.walk(position):
            if header[8] > self.max_timestamp_ms:
                self.max_timestamp_ms = header[8]
                self.max_timestamp_offset = header[0] + header[6]
        self.bytes_since_index_entry = size_bytes - position

    def _indexed_before(self, position: int) -> int:
        """Where the last batch that has an index entry begins, before a position."""
        index, _ = self.indexes()
        entry = index.before_position(position - 1)
        return index.positions[entry - 1] if entry else 0

    def end_offset_at(self, position: int) -> int:
        """What follows the last offset of the batches before a position, which is where a batch begins or ends."""
        end_offset = self.base_offset
        if position:
            expected = Expectation(self.base_offset, check_crc=False)
            start = self._indexed_before(position)
            walk = BatchWalk(self.open_file(), start, position, self.base_offset, expected)
            for _ in walk:
                end_offset = walk.next_offset
        return end_offset

    # -- indexes ---------------------------------------------------------------------------------------------

    def indexes(self) -> tuple[OffsetIndex, TimeIndex]:
        """Both indexes, loaded from disk, or rebuilt from the batches when files are missing or damaged."""
        if self.offset_index is None or self.time_index is None:
            self._load_indexes()
        assert self.offset_index is not None
        assert self.time_index is not None
        return self.offset_index, self.time_index

    def _load_indexes(self) -> None:
        stem = self.path.removesuffix(names.LOG)
        try:
            self.offset_index = OffsetIndex.from_bytes(
                self._fs.read(stem + names.OFFSET_INDEX), self.size_bytes
            )
            self.time_index = TimeIndex.from_bytes(self._fs.read(stem + names.TIME_INDEX))
        except FileNotFoundError:
            self.rebuild_indexes()
        except IndexDamaged as damage:
            self._damaged(str(damage))
        else:
            if self.size_bytes and not len(self.time_index):
                # The files are not synced: a power cut can leave one empty, and an empty time index would
                # hide the segment from every look-up by time and from retention.
                self._damaged("the time index is empty")
            else:
                self._take_last_timestamp(self.time_index)

    def _damaged(self, damage: str) -> None:
        _log.warning("index damaged, rebuilding it", segment=self.path, damage=damage)
        self.rebuild_indexes()

    def _take_last_timestamp(self, time_index: TimeIndex) -> None:
        if len(time_index):
            timestamp, relative_offset = time_index.entry(len(time_index) - 1)
            if timestamp > self.max_timestamp_ms:
                self.max_timestamp_ms = timestamp
                self.max_timestamp_offset = self.base_offset + relative_offset

    def rebuild_indexes(self, interval: int = 4096) -> None:
        """Read every batch header again. CRCs are recovery's matter; a walk stops where batches stop."""
        size_bytes = self.size_bytes
        self.offset_index = OffsetIndex()
        self.time_index = TimeIndex()
        self.bytes_since_index_entry = 0
        walk = self.walk(0)
        for position, header, data in walk:
            self.note_batch(header[0] + header[6], position, len(data), header[8], interval)
        self.size_bytes = size_bytes

    def largest_timestamp_ms(self) -> int:
        """Of all its records; -1 when none has a timestamp."""
        if self.offset_index is None and self.size_bytes and self.max_timestamp_ms == NO_TIMESTAMP:
            self.indexes()
        return self.max_timestamp_ms

    def first_timestamp(self) -> int:
        """Of its first batch; read from the file when the segment was opened without a scan."""
        if self.first_timestamp_ms == NEVER and self.size_bytes:
            for _, header, _ in self.walk(0):
                self.first_timestamp_ms = header[8]
                break
        return self.first_timestamp_ms

    def save_indexes(self, fs: FileSystem) -> None:
        """Write both index files. Not synced: a lost or torn index is rebuilt."""
        if self.offset_index is None or self.time_index is None or self.retired:
            return  # on disk already, or never needed again
        stem = self.path.removesuffix(names.LOG)
        fs.write_atomic(stem + names.OFFSET_INDEX, self.offset_index.to_bytes(), sync=False)
        fs.write_atomic(stem + names.TIME_INDEX, self.time_index.to_bytes(), sync=False)

    def save_aborted(self, fs: FileSystem) -> None:
        """Write the index of aborted transactions, so that it is there as a whole or not at all."""
        if self.aborted is not None and not self.retired:
            path = self.path.removesuffix(names.LOG) + names.ABORTED_INDEX
            fs.write_atomic(path, self.aborted.to_bytes(), sync=len(self.aborted) > 0)

    def finish_time_index(self) -> None:
        """Enter the segment's largest timestamp: retention reads it from there."""
        _, time_index = self.indexes()
        if self.max_timestamp_ms >= 0:
            time_index.append(self.max_timestamp_ms, self.max_timestamp_offset - self.base_offset)

    def walk(self, position: int) -> BatchWalk:
        """Over the batches from `position` on, without computing checksums."""
        return BatchWalk(
            self.open_file(),
            position,
            self.size_bytes,
            self.base_offset,
            Expectation(self.base_offset, check_crc=False),
        )

    # -- finding ---------------------------------------------------------------------------------------------

    def position_of(self, offset: int, wait: bool) -> int:
        """Hot. Where the batch that holds `offset`, or the first one after it, begins; else the size.

        Raises NotCached rather than wait for the disk, unless told to wait.
        """
        position = self._positions.get(offset)
        if position is not None:
            return position
        index = self.offset_index
        if index is None:
            index, _ = self.indexes()
        size = self.size_bytes
        entry = index.before(offset - self.base_offset)
        position = 0
        if entry:
            # The entry is believed because the batch it names is looked at: it must end at the entry's offset.
            position = index.positions[entry - 1]
            if not 0 <= position < size:
                self._damaged(f"points at {position} in a file of {size} bytes")
                return self.position_of(offset, wait)
        file = self.file
        if file is None:
            file = self._files.open(self)
        unpack = STEP.unpack_from
        while position < size:
            want = min(_HOP_BYTES, size - position)
            chunk = file.pread(want, position) if wait else file.pread_cached(want, position)
            if chunk is None:
                raise NotCached(self.path, position, want)
            last = len(chunk) - STEP_BYTES
            at = 0
            while at <= last:
                base_offset, length, last_delta = unpack(chunk, at)
                last_offset = base_offset + last_delta
                if entry:
                    if last_offset - self.base_offset != index.offsets[entry - 1]:
                        self._damaged(f"the batch at {position} ends at offset {last_offset}")
                        return self.position_of(offset, wait)
                    entry = 0
                if last_offset >= offset:
                    return position + at
                if length < HEADER_BYTES - LENGTH_OVERHEAD_BYTES:
                    raise self._unreadable(position + at)
                at += length + LENGTH_OVERHEAD_BYTES
            if at == 0:
                if len(chunk) < want:
                    raise NotCached(self.path, position, want)
                raise self._unreadable(position)
            position += at
        return size

    def _unreadable(self, position: int) -> KafkaError:
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.path} is damaged at byte {position}")

    def remember(self, offset: int, position: int) -> None:
        """Hot. The next read will likely be at `offset`, whose batch begins at `position`."""
        positions = self._positions
        if len(positions) >= _REMEMBERED_POSITIONS:
            del positions[next(iter(positions))]
        positions[offset] = position

    def remember_end(self, data: bytes | bytearray, position: int) -> None:
        """Hot. Remember where the next fetch begins after `data`, which may end in the middle of a batch."""
        size = len(data)
        at = 0
        unpack = STEP.unpack_from
        index = self.offset_index
        if index is not None:
            # Begin at the last indexed batch whose header is inside.
            entry = index.before_position(position + size - STEP_BYTES)
            indexed = index.positions[entry - 1] - position if entry else 0
            if 0 < indexed <= size - STEP_BYTES:
                at = indexed
                base_offset, _, last_delta = unpack(data, at)
                if base_offset + last_delta - self.base_offset != index.offsets[entry - 1]:
                    return
        next_offset = -1
        while at + STEP_BYTES <= size:
            base_offset, length, last_delta = unpack(data, at)
            after = at + length + LENGTH_OVERHEAD_BYTES
            if after > size or length < 0:
                if next_offset < 0:
                    next_offset = base_offset
                break
            at = after
            next_offset = base_offset + last_delta + 1
        if next_offset >= 0:
            self.remember(next_offset, position + at)


class SegmentList:
    """The segments of a log in the order of their base offsets; never empty once a log is open."""

    __slots__ = ("_bases", "items")

    def __init__(self) -> None:
        self.items: list[Segment] = []
        self._bases: list[int] = []

    def __len__(self) -> int:
        return len(self.items)

    @property
    def active(self) -> Segment:
        return self.items[-1]

    def add(self, segment: Segment) -> None:
        """Put a segment in its place; one with the same base offset is replaced."""
        at = bisect_right(self._bases, segment.base_offset)
        if at and self._bases[at - 1] == segment.base_offset:
            self.items[at - 1] = segment
        else:
            self._bases.insert(at, segment.base_offset)
            self.items.insert(at, segment)

    def remove(self, segment: Segment) -> None:
        at = bisect_right(self._bases, segment.base_offset) - 1
        assert self.items[at] is segment
        del self.items[at]
        del self._bases[at]

    def index_of(self, offset: int) -> int:
        """The place of the segment that holds `offset`, or would."""
        return max(bisect_right(self._bases, offset) - 1, 0)

    def end_offset_of(self, at: int, log_end_offset: int) -> int:
        """Where the segment at this place ends."""
        return self._bases[at + 1] if at + 1 < len(self._bases) else log_end_offset
