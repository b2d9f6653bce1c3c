"""A simulated machine's disk: in memory, failing as told, and forgetful after a power cut or a failed sync."""

from __future__ import annotations

import errno
import os
import random
from collections.abc import Callable, Sequence

from culver.filesystem import Buffer
from culver.log.checkpoint import CHECKPOINT_FILE
from culver.log.store import CLEAN_FILE
from culver.protocol.records import CRC_START, iterate_headers
from culver.testing.faults import FaultyFileSystem
from culver.testing.simulation.scheduler import SimulatedClock

DATA_DIRECTORY = "/data"
_SEGMENT = ".log"
_SPACE_LEFT_BYTES = 2_000


class SimulatedDisk(FaultyFileSystem):
    """A FaultyFileSystem with a clock, on which a failed sync has consequences.

    After a failed sync the kernel may have dropped what it could not write: the next process to open the file reads
    what was on disk, not what was written.
    """

    def __init__(self, clock: SimulatedClock, generator: random.Random) -> None:
        self._clock = clock
        self._random = generator
        super().__init__()
        # Told when an injected error strikes.
        self.on_error: Callable[[], object] = lambda: None
        # Files whose last sync failed.
        self._unsynced: dict[str, None] = {}

    @property
    def now_ms(self) -> int:
        return self._clock.now_ms()

    @now_ms.setter
    def now_ms(self, value: int) -> None:
        """Time comes from the clock."""

    def _occurs(self, operation: str, path: str) -> None:
        try:
            super()._occurs(operation, path)
        except OSError:
            if operation == "sync":
                self._unsynced[path] = None
            self.on_error()
            raise
        finally:
            self.history.clear()

    def write_atomic(self, path: str, data: Buffer, *, sync: bool = True) -> None:
        directory = path.rpartition("/")[0]
        if not self.exists(directory):
            # A thread may come to write what belongs to a partition that is gone by then.
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        super().write_atomic(path, data, sync=sync)

    @property
    def failing(self) -> bool:
        """Whether it has been told to fail and has yet to do so."""
        return bool(self._faults)

    def process_died(self) -> None:
        """The process is gone, the machine runs on: what was written is there, but for what could not be synced."""
        super().crash()
        for path in self._unsynced:
            node = self._live.get(path)
            if node is not None:
                node.data = self._torn(node, self._random)
        self._unsynced.clear()

    def power_cut(self) -> None:
        self._unsynced.clear()
        super().crash(power_cut=True, seed=self._random.randrange(1 << 30))

    def fill_up(self) -> None:
        """From now on there is next to no space left."""
        used = sum(len(node.data) for node in self._live.values())
        self.space_bytes = used + self._random.randrange(_SPACE_LEFT_BYTES)

    def disk_space(self, path: str) -> tuple[int, int]:
        whole = self.space_bytes if self.space_bytes is not None else 1 << 40
        return whole, max(0, whole - sum(len(node.data) for node in self._live.values()))

    def rot(self, partitions: Sequence[str]) -> str | None:
        """Change a bit in a finished segment of one of these partitions; nobody remembers what had been checked.

        The file in question, or None where there is none. Only bits that a checksum covers are changed: the
        position of a batch is not all that can be told of it.
        """
        segments = [path for path in self._closed_segments() if path.split("/")[-2] in partitions]
        if not segments:
            return None
        path = self._random.choice(segments)
        batches = list(iterate_headers(self.read(path)))
        if not batches:
            return None
        position, header = self._random.choice(batches)
        at = self._random.randrange(position + CRC_START, position + header.size_bytes)
        self.flip_bit(path, at, self._random.randrange(8))
        for name in (CHECKPOINT_FILE, CLEAN_FILE):
            if self.exists(f"{DATA_DIRECTORY}/{name}"):
                self.remove(f"{DATA_DIRECTORY}/{name}")
        return path

    def _closed_segments(self) -> list[str]:
        segments = sorted(path for path in self._live if path.endswith(_SEGMENT))
        newest = {path.rpartition("/")[0]: path for path in segments}
        return [path for path in segments if path not in newest.values()]
