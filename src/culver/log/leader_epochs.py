"""Which leader epoch begins at which offset: how replicas find where their logs part (KIP-101, KIP-279)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable

from culver.filesystem import FileSystem

NO_EPOCH = -1
NO_OFFSET = -1
_VERSION = "0"


class LeaderEpochs:
    """Ascending (epoch, first offset written in it). `dirty` until its file holds the same."""

    __slots__ = ("_epochs", "_starts", "dirty")

    def __init__(self) -> None:
        self._epochs: list[int] = []
        self._starts: list[int] = []
        self.dirty = False

    @property
    def latest(self) -> int:
        return self._epochs[-1] if self._epochs else NO_EPOCH

    def entries(self) -> list[tuple[int, int]]:
        return list(zip(self._epochs, self._starts, strict=True))

    def assign(self, epoch: int, start_offset: int) -> None:
        """Say that a batch at `start_offset` was written in `epoch`.

        Entries that contradict it (a later epoch, or a later start) are of a history that was overwritten.
        """
        if epoch < 0 or self.epoch_at(start_offset) == epoch:
            return
        while self._epochs and (self._epochs[-1] > epoch or self._starts[-1] >= start_offset):
            self._epochs.pop()
            self._starts.pop()
        if self.latest != epoch:
            self._epochs.append(epoch)
            self._starts.append(start_offset)
        self.dirty = True

    def end_offset(self, epoch: int, log_end_offset: int) -> tuple[int, int]:
        """The largest known epoch up to `epoch`, and the offset where it ends; (-1, -1) when not known."""
        if epoch < 0 or not self._epochs or epoch > self._epochs[-1]:
            return NO_EPOCH, NO_OFFSET
        if epoch == self._epochs[-1]:
            return epoch, log_end_offset
        above = bisect_right(self._epochs, epoch)
        if above == 0:
            return epoch, self._starts[0]
        return self._epochs[above - 1], self._starts[above]

    def epoch_at(self, offset: int) -> int:
        """The epoch in which an offset was written."""
        entry = bisect_right(self._starts, offset)
        return self._epochs[entry - 1] if entry else NO_EPOCH

    def latest_before(self, offset: int) -> int:
        """The last epoch that begins before an offset: at the log's end, the last one with a batch in it."""
        entry = bisect_left(self._starts, offset)
        return self._epochs[entry - 1] if entry else NO_EPOCH

    def truncate_from_end(self, end_offset: int) -> None:
        """Forget epochs that begin at or after the log's new end."""
        while self._starts and self._starts[-1] >= end_offset:
            self._starts.pop()
            self._epochs.pop()
            self.dirty = True

    def truncate_from_start(self, start_offset: int) -> None:
        """Forget epochs that end before the log's new start; the one it falls into begins there now."""
        entry = bisect_right(self._starts, start_offset)
        if entry == 0 or (entry == 1 and self._starts[0] == start_offset):
            return
        del self._starts[: entry - 1]
        del self._epochs[: entry - 1]
        self._starts[0] = start_offset
        self.dirty = True

    def clear(self) -> None:
        self.dirty = self.dirty or bool(self._epochs)
        self._epochs.clear()
        self._starts.clear()

    @classmethod
    def of(cls, entries: Iterable[tuple[int, int]]) -> LeaderEpochs:
        """From what `entries` gave."""
        epochs = cls()
        for epoch, start in entries:
            epochs._epochs.append(epoch)
            epochs._starts.append(start)
        return epochs

    def encode(self) -> bytes:
        lines = [_VERSION, str(len(self._epochs))]
        lines += [f"{epoch} {start}" for epoch, start in zip(self._epochs, self._starts, strict=True)]
        return ("\n".join(lines) + "\n").encode()

    @classmethod
    def decode(cls, data: bytes) -> LeaderEpochs:
        """Raises ValueError when the bytes are not such a file."""
        version, count, *rows = data.decode("ascii").split("\n")
        if version != _VERSION:
            raise ValueError(f"leader epoch file of version {version!r}")
        epochs = cls()
        for row in rows[: int(count)]:
            epoch, start = row.split(" ")
            epochs._epochs.append(int(epoch))
            epochs._starts.append(int(start))
        if len(epochs._epochs) != int(count) or sorted(set(epochs._epochs)) != epochs._epochs:
            raise ValueError("leader epoch file is cut short or out of order")
        if sorted(epochs._starts) != epochs._starts:
            raise ValueError("leader epoch file is out of order")
        return epochs

    @classmethod
    def load(cls, fs: FileSystem, path: str) -> LeaderEpochs:
        return cls.decode(fs.read(path))
