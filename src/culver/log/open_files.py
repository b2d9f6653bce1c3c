"""The bounded set of open segment files: any segment may be asked for, only some are kept open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.filesystem import File, FileSystem

if TYPE_CHECKING:
    from culver.log.segment import Segment

_CANDIDATES = 16


class OpenFiles:
    """Opens segment files on demand and closes the ones opened longest ago when there are too many.

    A file with unsynced bytes stays open: the kernel reports a failed write-back to descriptors that were
    open when it happened, and that report is what tells the log that it has failed.
    """

    __slots__ = ("_fs", "_limit", "_open")

    def __init__(self, fs: FileSystem, limit: int) -> None:
        self._fs = fs
        self._limit = limit
        self._open: dict[Segment, File] = {}

    def __len__(self) -> int:
        return len(self._open)

    def open(self, segment: Segment, *, create: bool = False) -> File:
        """The segment's file, which the segment keeps until `close` or eviction."""
        file = self._fs.open(segment.path, create=create)
        self._open[segment] = file
        segment.file = file
        if len(self._open) > self._limit:
            self._evict(segment)
        return file

    def close(self, segment: Segment) -> None:
        """Close it now, or when the flush that is using it has ended."""
        if segment.pins:
            segment.close_when_unpinned = True
            return
        file = self._open.pop(segment, None)
        segment.file = None
        segment.close_when_unpinned = False
        if file is not None:
            file.close()

    def _evict(self, newest: Segment) -> None:
        for _ in range(min(_CANDIDATES, len(self._open))):
            segment = next(iter(self._open))
            if segment is newest or segment.pins or segment.unsynced:
                self._open[segment] = self._open.pop(segment)  # to the back of the queue
            else:
                self.close(segment)
                if len(self._open) <= self._limit:
                    return
