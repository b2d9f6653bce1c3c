"""Lines that come without asking are kept on disk, in the order in which they came, until a broker has them.

    00000000000000000001.spool   entries: length uint32, CRC-32C uint32; received ms int64, source (length uint16), line

A spool is itself a source: what was appended is read from it like lines from a file.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable
from pathlib import Path
from struct import Struct

from crc32c import crc32c

from culver.ingest.source import Line, State
from culver.logging import get_logger

_log = get_logger("culver.ingest")

_HEAD = Struct(">II")
_FIXED = Struct(">qH")
_SUFFIX = ".spool"
_SEGMENT_BYTES = 16 << 20


class SpoolFull(Exception):
    """There is no room for more until something has been delivered."""


class Spool:
    """A directory of segments, written by receivers and read by the shipper. Safe for threads."""

    name = "spool"

    def __init__(
        self,
        directory: Path,
        *,
        max_bytes: int,
        state: State | None = None,
        segment_bytes: int = _SEGMENT_BYTES,
    ) -> None:
        self._directory = directory
        self._max_bytes = max_bytes
        self._segment_bytes = segment_bytes
        self._lock = threading.Lock()
        directory.mkdir(parents=True, exist_ok=True)
        self._segments = sorted(int(path.stem) for path in directory.glob(f"*{_SUFFIX}"))
        if not self._segments:
            self._segments = [1]
        self._recover_tail()
        self._writer = self._path(self._segments[-1]).open("ab", buffering=0)
        self._written_bytes = self._writer.tell()
        self._total_bytes = sum(self._path(number).stat().st_size for number in self._segments)
        self._unsynced = False
        self.closed_for_writing = False
        self._reading, self._position = self._segments[0], 0
        if state is not None and state["segment"] in self._segments:
            self._reading, self._position = state["segment"], state["position"]

    def _path(self, number: int) -> Path:
        return self._directory / f"{number:020d}{_SUFFIX}"

    def _recover_tail(self) -> None:
        """A process that died may have left the last entry unfinished."""
        path = self._path(self._segments[-1])
        if not path.exists():
            return
        data = path.read_bytes()
        good = 0
        for _, end in _entries(data, 0):
            good = end
        if good < len(data):
            _log.warning("cut off an entry that was not finished", file=str(path), bytes=len(data) - good)
            with path.open("r+b") as file:
                file.truncate(good)

    # -- writing ----------------------------------------------------------------------------------------

    def append(self, lines: Iterable[tuple[str, bytes, int]]) -> None:
        """Keep (source, line, received ms). SpoolFull: none of them was kept."""
        data = bytearray()
        for source, text, received_ms in lines:
            name = source.encode()
            body = _FIXED.pack(received_ms, len(name)) + name + text
            data += _HEAD.pack(len(body), crc32c(body)) + body
        if not data:
            return
        with self._lock:
            if self._total_bytes + len(data) > self._max_bytes:
                raise SpoolFull(
                    f"{self._directory} holds {self._total_bytes} bytes that no broker has taken yet"
                )
            if self._written_bytes and self._written_bytes + len(data) > self._segment_bytes:
                self._roll()
            self._writer.write(data)
            self._written_bytes += len(data)
            self._total_bytes += len(data)
            self._unsynced = True

    def _roll(self) -> None:
        os.fdatasync(self._writer.fileno())
        self._writer.close()
        self._segments.append(self._segments[-1] + 1)
        self._writer = self._path(self._segments[-1]).open("ab", buffering=0)
        self._written_bytes = 0

    def sync(self) -> None:
        """Make what was appended survive a power cut."""
        with self._lock:
            if self._unsynced and not self._writer.closed:
                self._unsynced = False
                os.fdatasync(self._writer.fileno())

    # -- reading ----------------------------------------------------------------------------------------

    def read(self, limit: int) -> list[Line]:
        lines: list[Line] = []
        with self._lock:
            while len(lines) < limit:
                is_last = self._reading == self._segments[-1]
                with self._path(self._reading).open("rb") as file:
                    file.seek(self._position)
                    data = file.read(1 << 20)
                    while data and not any(True for _ in _entries(data, 0)):
                        more = file.read(1 << 20)  # an entry larger than what was read
                        if not more:
                            break
                        data += more
                took = 0
                for (source, text, received_ms), end in _entries(data, 0):
                    took = end
                    state = {"segment": self._reading, "position": self._position + end}
                    lines.append(Line(source, text, received_ms, state))
                    if len(lines) >= limit:
                        break
                self._position += took
                if took:
                    continue
                if data and not is_last:
                    _log.error("skipped the rest of a damaged segment", file=str(self._path(self._reading)))
                if is_last:
                    break
                self._reading = self._segments[self._segments.index(self._reading) + 1]
                self._position = 0
        return lines

    def acknowledge(self, state: State) -> None:
        """Remove the segments of which everything has arrived."""
        with self._lock:
            while self._segments[0] < state["segment"]:
                path = self._path(self._segments.pop(0))
                self._total_bytes -= path.stat().st_size
                path.unlink()

    @property
    def exhausted(self) -> bool:
        with self._lock:
            return self.closed_for_writing and (
                self._reading == self._segments[-1] and self._position >= self._written_bytes
            )

    @property
    def waiting_bytes(self) -> int:
        """On disk, delivered or not, until their segment goes."""
        return self._total_bytes

    def close(self) -> None:
        self.sync()
        self._writer.close()


def _entries(data: bytes, start: int) -> Iterable[tuple[tuple[str, bytes, int], int]]:
    """The whole entries in `data`, each with where it ends; stops at the first that is damaged or cut off."""
    position = start
    while position + _HEAD.size <= len(data):
        size, checksum = _HEAD.unpack_from(data, position)
        begin = position + _HEAD.size
        body = data[begin : begin + size]
        if len(body) < size or size < _FIXED.size or crc32c(body) != checksum:
            return
        received_ms, name_size = _FIXED.unpack_from(body)
        name_end = _FIXED.size + name_size
        position = begin + size
        yield (body[_FIXED.size : name_end].decode(errors="replace"), body[name_end:], received_ms), position
