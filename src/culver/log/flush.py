"""A flush: what makes appended batches survive a power cut, done on a thread of its own."""

from __future__ import annotations

from culver.filesystem import File, FileSystem
from culver.log.segment import Segment
from culver.logging import get_logger

_log = get_logger("culver.log")


class FlushTask:
    """Made by the log on the broker's thread, run on any thread, handed back to the log.

    It holds all it needs; while it runs the log may append to the active segment, and does not close or change
    the other files.
    """

    __slots__ = ("_fs", "directories", "files", "rolled", "segments", "side_files", "up_to_offset")

    def __init__(self, fs: FileSystem, up_to_offset: int) -> None:
        self._fs = fs
        self.up_to_offset = up_to_offset
        self.segments: list[Segment] = []
        self.files: list[File] = []
        # Directories with new names in them.
        self.directories: list[str] = []
        # Segments that were closed since: their indexes are final now and go to disk.
        self.rolled: list[Segment] = []
        # (path, content): snapshots and the leader-epoch file.
        self.side_files: list[tuple[str, bytes]] = []

    def run(self) -> None:
        """Raises OSError when the disk refuses: the log has failed then."""
        for file in self.files:
            file.sync()
        for directory in self.directories:
            self._fs.sync_directory(directory)
        if self.rolled or self.side_files:
            self._write_side_files()

    def _write_side_files(self) -> None:
        # All of these can be made again from the batches, so a failure here costs time, not data.
        try:
            for segment in self.rolled:
                segment.save_indexes(self._fs)
            for path, content in self.side_files:
                self._fs.write_atomic(path, content, sync=False)
        except OSError as error:
            _log.warning("could not write index or snapshot files", error=str(error))
