"""Reading batches from segments without ever waiting for the disk on the broker's thread."""

from __future__ import annotations

from typing import NamedTuple

from culver.filesystem import File, FileRange, FileSystem
from culver.log.batches import HEADER_BYTES, LENGTH_OVERHEAD_BYTES, STEP, STEP_BYTES
from culver.log.segment import NotCached, Segment, SegmentList

# Smaller reads are cheaper copied. It is more than what a connection joins into one write.
_RANGE_BYTES_MIN = 128 << 10


class ReadResult(NamedTuple):
    """Batches as they are in the file. The last one may be cut off; the first never is."""

    buffers: list[bytes | bytearray | FileRange]
    size: int
    # Whether this is all there is to read now; otherwise a limit or the segment's end cut it off, or `rest` did.
    at_end: bool
    # What would have belonged to it, but is not in memory.
    rest: ColdRead | None = None
    # All that was read whole lies below this offset. A read that was cut off may end a little earlier.
    below_offset: int = 0


class ColdRead:
    """The bytes are not in memory. `load()` on another thread brings them there; then read again."""

    __slots__ = ("_fs", "path", "position", "size_bytes")

    def __init__(self, fs: FileSystem, path: str, position: int, size_bytes: int) -> None:
        self._fs = fs
        self.path = path
        self.position = position
        self.size_bytes = size_bytes

    def load(self) -> None:
        """Raises OSError when the disk cannot read them. A segment deleted meanwhile is no error."""
        # A descriptor of its own: the log may close the segment's at any moment.
        try:
            file = self._fs.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.load(self.size_bytes, self.position)
        finally:
            file.close()


EMPTY_READ = ReadResult([], 0, True)


def read_batches(
    fs: FileSystem,
    segments: SegmentList,
    end_offset: int,
    offset: int,
    max_bytes: int,
    up_to_offset: int,
    at_least_one: bool,
    wait: bool,
    ranges: bool,
) -> ReadResult | ColdRead:
    """Hot. See PartitionLog.read, which has checked that offset < up_to_offset <= end_offset."""
    segment = segments.items[-1]
    segment_end = end_offset
    try:
        if offset >= segment.base_offset:
            position = segment.position_of(offset, wait)
        else:
            segment, segment_end, position = _find_in_closed(segments, end_offset, offset, up_to_offset, wait)
        if up_to_offset >= segment_end:
            limit = segment.size_bytes
        else:
            limit = segment.position_of(up_to_offset, wait)
        size = limit - position
        if size <= 0:
            return EMPTY_READ
        if size > max_bytes:
            size = max_bytes if max_bytes > HEADER_BYTES else HEADER_BYTES
        file = segment.file or segment.open_file()
        if ranges and size >= _RANGE_BYTES_MIN:
            found = _range(file, position, size)
            if found is not None:
                if position + size < limit:
                    return ReadResult(
                        [found], size, False, None, _bound(segment, segment_end, position + size)
                    )
                at_end = up_to_offset <= segment_end
                if at_end:
                    segment.remember(up_to_offset, limit)
                return ReadResult([found], size, at_end, None, min(up_to_offset, segment_end))
        data = file.pread(size, position) if wait else file.pread_cached(size, position)
        if data is None:
            return ColdRead(fs, segment.path, position, size)
        got = len(data)
        if got == size and position + size == limit:
            # The next fetch begins where this one ends.
            below_offset = up_to_offset if up_to_offset < segment_end else segment_end
            segment.remember(below_offset, limit)
            return ReadResult([data], size, up_to_offset <= segment_end, None, below_offset)
        if got < STEP_BYTES:
            return ColdRead(fs, segment.path, position, size)
        first_size: int = STEP.unpack_from(data)[1] + LENGTH_OVERHEAD_BYTES
        if first_size > got or got > max_bytes:
            if first_size <= size <= max_bytes:
                return ColdRead(fs, segment.path, position, size)  # only a part of it was cached
            if not at_least_one:
                return EMPTY_READ
            size = first_size
            data = file.pread(size, position) if wait else file.pread_cached(size, position)
            if data is None or len(data) < size:
                return ColdRead(fs, segment.path, position, size)
        segment.remember_end(data, position)
        got = len(data)
        rest = None if got == size else ColdRead(fs, segment.path, position, size)
        return ReadResult([data], got, False, rest, _bound(segment, segment_end, position + got))
    except NotCached as cold:
        return ColdRead(fs, cold.path, cold.position, cold.size_bytes)


def _range(file: File, position: int, size: int) -> FileRange | None:
    """The bytes as a range, if the first batch fits in it and all seems to be in memory."""
    head = file.pread_cached(STEP_BYTES, position)
    if head is None or len(head) < STEP_BYTES:
        return None
    if STEP.unpack_from(head)[1] + LENGTH_OVERHEAD_BYTES > size:
        return None
    return file.range_cached(size, position)


def _bound(segment: Segment, segment_end: int, position: int) -> int:
    """An offset that nothing before a position in the segment's file has reached, as near as the index knows."""
    index = segment.offset_index
    if index is None:
        return segment_end
    entry = index.before_position(position - 1)
    return segment.base_offset + index.offsets[entry] + 1 if entry < len(index) else segment_end


def _find_in_closed(
    segments: SegmentList, end_offset: int, offset: int, up_to_offset: int, wait: bool
) -> tuple[Segment, int, int]:
    """(segment, its end offset, position) of the first batch at or after `offset`.

    Compaction may have left nothing of a segment's later offsets: then it is in one of the next.
    """
    at = segments.index_of(offset)
    while True:
        segment = segments.items[at]
        segment_end = segments.end_offset_of(at, end_offset)
        position = segment.position_of(offset, wait)
        if position < segment.size_bytes or segment_end >= up_to_offset or segment is segments.active:
            return segment, segment_end, position
        at += 1
