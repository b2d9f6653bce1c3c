"""Flushes: what makes appended batches survive a power cut, done on a thread of its own.

A power cut may take the end of a segment that was closed and not flushed, and leave what is in the next one. Without
more that looks like damage to what had been flushed. So a mark, the file `X.unflushed`, is made before the next
segment is, and removed by the flush that covers the closed one.
"""

from __future__ import annotations

import contextlib
import errno
from threading import Lock

from culver.filesystem import File, FileSystem
from culver.log import names
from culver.log.leader_epochs import LeaderEpochs
from culver.log.segment import Segment
from culver.logging import get_logger

_log = get_logger("culver.log")

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class FlushTask:
    """Made by the log on the broker's thread, run on any thread, handed back to the log.

    It holds all it needs; while it runs the log may append to the active segment, and does not close or
    change the other files.
    """

    __slots__ = (
        "_cut_loose",
        "_fs",
        "_writing",
        "active",
        "active_bytes",
        "directories",
        "files",
        "new_file",
        "rolled",
        "segments",
        "side_files",
        "snapshots",
        "syncs_active",
        "up_to_offset",
    )

    def __init__(self, fs: FileSystem, active: Segment, up_to_offset: int) -> None:
        self._fs = fs
        self.up_to_offset = up_to_offset
        # Where the last of it is.
        self.active = active
        self.active_bytes = active.size_bytes
        # Otherwise there was nothing in it to sync, and what comes now is another flush's matter.
        self.syncs_active = active.unsynced
        self.segments: list[Segment] = []
        self.files: list[File] = []
        # (path, content) of a file that is written once and for all; None when it has been.
        self.new_file: tuple[str, bytes] | None = None
        # Directories with new names in them.
        self.directories: list[str] = []
        # Segments that were closed since: their indexes are final now and go to disk.
        self.rolled: list[Segment] = []
        # (offset, content) of producer snapshots, and where they and the leader-epoch file go.
        self.snapshots: list[tuple[int, bytes]] = []
        self.side_files: list[tuple[str, bytes]] = []
        self._writing = Lock()
        self._cut_loose = False

    def run(self) -> None:
        """Raises OSError when the disk refuses: the log has failed then."""
        for file in self.files:
            file.sync()
        if self.new_file is not None:
            self._write_new_file(*self.new_file)
        if self.rolled:
            with self._writing:
                if not self._cut_loose:
                    for segment in self.rolled:
                        unmark_unflushed(self._fs, segment)
        for directory in self.directories:
            self._fs.sync_directory(directory)
        if self.rolled or self.side_files:
            with self._writing:
                if not self._cut_loose:
                    self._write_side_files()

    def _write_new_file(self, path: str, content: bytes) -> None:
        try:
            file = self._fs.open(path, create=True)
            try:
                file.pwrite(content, 0)
                file.sync()
            finally:
                file.close()
        except OSError as error:
            if error.errno not in DISK_FULL:
                raise
            return  # the records are in, and this can wait
        self.new_file = None

    def cut_loose(self) -> None:
        """The log is being cut back: nothing of what is known here may be written down from now on."""
        with self._writing:
            self._cut_loose = True

    def _write_side_files(self) -> None:
        # All of these can be made again from the batches, so a failure here costs time, not data.
        try:
            for segment in self.rolled:
                segment.save_indexes(self._fs)
                segment.save_aborted(self._fs)
            for path, content in self.side_files:
                self._fs.write_atomic(path, content, sync=False)
        except OSError as error:
            _log.warning("could not write index or snapshot files", error=str(error))


def mark_unflushed(fs: FileSystem, segment: Segment) -> None:
    """Say that the segment, which is being closed, may lose its end; before there is a next one."""
    fs.open(_mark_path(segment), create=True).close()


def unmark_unflushed(fs: FileSystem, segment: Segment) -> None:
    with contextlib.suppress(FileNotFoundError):
        fs.remove(_mark_path(segment))


def _mark_path(segment: Segment) -> str:
    return segment.path.removesuffix(names.LOG) + names.UNFLUSHED


class Unflushed:
    """What the next flush of a log has to do beside syncing the active segment."""

    __slots__ = ("closed_segments", "directories", "new_file", "snapshots")

    def __init__(self, closed_segments: list[Segment]) -> None:
        self.closed_segments = closed_segments
        self.directories: list[str] = []
        self.new_file: tuple[str, bytes] | None = None
        # (offset, content) of producer snapshots that are not on disk yet.
        self.snapshots: list[tuple[int, bytes]] = []

    def note_new_names(self, directory: str) -> None:
        if directory not in self.directories:
            self.directories.append(directory)

    def add_snapshot(self, offset: int, content: bytes) -> None:
        self.snapshots = [one for one in self.snapshots if one[0] != offset]
        self.snapshots.append((offset, content))

    def take(
        self, fs: FileSystem, directory: str, active: Segment, end_offset: int, epochs: LeaderEpochs
    ) -> FlushTask | None:
        """All of it as a task, or None when there is nothing to do."""
        if not (
            active.unsynced
            or self.closed_segments
            or self.directories
            or self.new_file
            or self.snapshots
            or epochs.dirty
        ):
            return None
        task = FlushTask(fs, active, end_offset)
        task.rolled = self.closed_segments
        task.segments = [*self.closed_segments, active] if active.unsynced else list(self.closed_segments)
        for segment in task.segments:
            task.files.append(segment.open_file())
            segment.pins += 1
            segment.unsynced = False  # an append during the flush sets it again
        if self.closed_segments:
            self.note_new_names(directory)  # their marks go
        task.directories = self.directories
        task.new_file = self.new_file
        task.snapshots = self.snapshots
        for offset, content in self.snapshots:
            task.side_files.append((f"{directory}/{names.segment_name(offset, names.SNAPSHOT)}", content))
        if epochs.dirty:
            task.side_files.append((f"{directory}/{names.LEADER_EPOCHS}", epochs.encode()))
            epochs.dirty = False
        self.closed_segments = []
        self.directories = []
        self.new_file = None
        self.snapshots = []
        return task

    def give_back(self, task: FlushTask) -> None:
        """What a flush that nobody will finish had taken: it is not known how far it got."""
        self.closed_segments = [one for one in task.rolled if not one.retired] + self.closed_segments
        self.snapshots = task.snapshots + self.snapshots
        self.directories = list(dict.fromkeys([*task.directories, *self.directories]))
        self.new_file = self.new_file or task.new_file
        for segment in task.segments:
            segment.unsynced = True
