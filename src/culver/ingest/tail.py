"""Follows one file through rotations, and goes on after a restart where it had stopped."""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from culver.ingest.source import Line, State
from culver.ingest.splitting import LineSplitter
from culver.logging import get_logger

_log = get_logger("culver.ingest")

_READ_BYTES = 1 << 18
# By its first bytes a file is known again when its inode has been given to another.
_FINGERPRINT_BYTES = 512
_COMPRESSED = (".gz", ".bz2", ".xz", ".zst", ".lz4")


class Tail:
    """One file by its path, whichever file that is at the time.

    Renamed by a rotation, it is read to its end before the one that took its place; the file is held open, so that it
    may even be deleted meanwhile. Cut to nothing (copytruncate), it is read from its beginning.
    """

    def __init__(
        self,
        path: Path,
        line_max_bytes: int,
        now_ms: Callable[[], int],
        state: State | None = None,
        *,
        from_end: bool = False,
    ) -> None:
        self.path = path
        self._now_ms = now_ms
        self._splitter = LineSplitter(line_max_bytes)
        self._line_max_bytes = line_max_bytes
        self._file: BinaryIO | None = None
        self._inode = 0
        self._offset = 0  # behind the last whole line that was handed out
        self._fingerprint: tuple[int, int] = (0, 0)
        # Files that took this path's place while nobody looked, oldest first, before the one that has it now.
        self._behind: list[Path] = []
        self._ready: list[Line] = []
        if state is not None:
            self._resume(state)
        elif from_end and path.exists():
            self._open(path, path.stat().st_size)

    @property
    def name(self) -> str:
        return str(self.path)

    # -- reading ----------------------------------------------------------------------------------------

    def read(self, limit: int) -> list[Line]:
        while len(self._ready) < limit and self._read_more():
            pass
        lines, self._ready = self._ready[:limit], self._ready[limit:]
        return lines

    def _read_more(self) -> bool:
        """Read on, or go on to the next file; False when there is nothing new."""
        if self._file is None:
            return self._open_next()
        data = self._file.read(_READ_BYTES)
        if data:
            self._add(self._splitter.feed(data))
            return True
        if self._truncated():
            _log.warning("a file was cut: reading it from its beginning", file=self.name)
            self._add(self._splitter.finish())
            self._begin(self._file, 0)
            return True
        if self._replaced():
            self._add(self._splitter.finish())
            self._file.close()
            self._file = None
            return True
        return False

    def _add(self, lines: list[tuple[bytes, int]]) -> None:
        received_ms = self._now_ms()
        for text, size in lines:
            self._offset += size
            self._ready.append(Line(self.name, text, received_ms, self._state()))

    def _state(self) -> State:
        assert self._file is not None
        self._note_fingerprint()
        return {
            "inode": self._inode,
            "offset": self._offset,
            "head_bytes": self._fingerprint[0],
            "head_crc": self._fingerprint[1],
        }

    def acknowledge(self, state: State) -> None:
        """Nothing to do: the file stays where it is."""

    @property
    def exhausted(self) -> bool:
        return not self._ready

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    # -- which file -------------------------------------------------------------------------------------

    def _open_next(self) -> bool:
        path = self._behind.pop(0) if self._behind else self.path
        try:
            self._open(path, 0)
        except FileNotFoundError:
            return bool(self._behind)
        return True

    def _open(self, path: Path, offset: int) -> None:
        self._begin(path.open("rb", buffering=0), offset)

    def _begin(self, file: BinaryIO, offset: int) -> None:
        file.seek(offset)
        self._file = file
        self._inode = os.fstat(file.fileno()).st_ino
        self._offset = offset
        self._splitter = LineSplitter(self._line_max_bytes)
        self._fingerprint = _fingerprint(file)

    def _note_fingerprint(self) -> None:
        """A file that was short when it was opened has more to be known by now."""
        assert self._file is not None
        if self._fingerprint[0] < _FINGERPRINT_BYTES and self._fingerprint[0] < self._offset:
            self._fingerprint = _fingerprint(self._file)

    def _truncated(self) -> bool:
        assert self._file is not None
        return os.fstat(self._file.fileno()).st_size < self._offset + self._splitter.rest_bytes

    def _replaced(self) -> bool:
        """Whether the path leads to another file by now, or files are waiting behind this one."""
        assert self._file is not None
        if self._behind:
            return True
        try:
            there = self.path.stat()
        except FileNotFoundError:
            return False  # moved away: its writer may go on until it makes a new one
        here = os.fstat(self._file.fileno())
        return (there.st_dev, there.st_ino) != (here.st_dev, here.st_ino)

    def _resume(self, state: State) -> None:
        """Find the file that was being read, under whatever name it has now."""
        candidates = sorted(
            (path for path in _siblings(self.path) if path.is_file()),
            key=lambda path: path.stat().st_mtime_ns,
        )
        for position, path in enumerate(candidates):
            with path.open("rb") as file:
                is_it = (
                    os.fstat(file.fileno()).st_ino == state["inode"]
                    and os.fstat(file.fileno()).st_size >= state["offset"]
                    and _fingerprint(file, state["head_bytes"])[1] == state["head_crc"]
                )
            if is_it:
                self._open(path, state["offset"])
                if path != self.path:
                    self._behind = [later for later in candidates[position + 1 :] if later != self.path]
                return
        if candidates:
            _log.warning("the file that was being read is gone: reading what is there", file=self.name)
        self._behind = [path for path in candidates if path != self.path and self._is_newer(path, state)]

    def _is_newer(self, path: Path, state: State) -> bool:
        return path.stat().st_mtime * 1000 > float(state.get("saved_ms", 0))


def _siblings(path: Path) -> list[Path]:
    """The file and what rotations may have made of it: names that go on behind its own."""
    if not path.parent.is_dir():
        return []
    return [
        other
        for other in path.parent.iterdir()
        if (other == path or other.name.startswith((path.name + ".", path.name + "-")))
        and not other.name.endswith(_COMPRESSED)
    ]


def _fingerprint(file: BinaryIO, size: int = _FINGERPRINT_BYTES) -> tuple[int, int]:
    head = os.pread(file.fileno(), size, 0)
    return len(head), zlib.crc32(head)
