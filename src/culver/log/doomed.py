"""Segments that are deleted but not yet removed: renamed at once, unlinked a while later on another thread.

Unlinking a large file takes long, and whoever began to read it should be able to finish.
"""

from __future__ import annotations

import contextlib

from culver.filesystem import FileSystem
from culver.log import names
from culver.log.segment import Segment


class DoomedFiles:
    """Files of one log that wait for their end."""

    __slots__ = ("_fs", "_waiting")

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._waiting: list[tuple[int, str]] = []

    def add(self, segment: Segment, due_ms: int) -> None:
        """Rename the segment's files; they may be removed from `due_ms` on."""
        stem = segment.path.removesuffix(names.LOG)
        self._fs.rename(segment.path, segment.path + names.DELETED)
        self._waiting.append((due_ms, segment.path + names.DELETED))
        for suffix in (*names.INDEXES, names.PROGRESS, names.UNFLUSHED):
            # Not there when the segment was never flushed, or too small to need an index.
            with contextlib.suppress(FileNotFoundError):
                self._fs.remove(stem + suffix)

    def take(self, now_ms: int) -> list[str]:
        """Paths that are due. They are the caller's from now on."""
        if not self._waiting:
            return []
        due = [path for due_ms, path in self._waiting if due_ms <= now_ms]
        self._waiting = [(due_ms, path) for due_ms, path in self._waiting if due_ms > now_ms]
        return due
