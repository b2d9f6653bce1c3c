"""Producer ids: taken from the metadata store in blocks, so that most cost nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from culver.coordination.store import IdsDone, MetadataStore

BLOCK_SIZE = 1000  # what a crash may waste of 2^63


class ProducerIds:
    """Hands out each number once, across restarts and, with a shared store, across brokers."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self._next = 0
        self._end = 0
        self._waiting: list[IdsDone] = []

    def take(self, later: IdsDone) -> int | None:
        """The next id, or None when a new block must be fetched first; then `later` gets it."""
        if self._next < self._end and not self._waiting:
            self._next += 1
            return self._next - 1
        self._waiting.append(later)
        if len(self._waiting) == 1:
            self._store.allocate_ids("producer", BLOCK_SIZE, self._allocated)
        return None

    def _allocated(self, first: int | None, error: BaseException | None) -> None:
        waiting, self._waiting = self._waiting, []
        if first is not None:
            self._next, self._end = first, first + BLOCK_SIZE
        for later in waiting:
            if first is None:
                later(None, error)
                continue
            taken = self.take(later)
            if taken is not None:
                later(taken, None)
