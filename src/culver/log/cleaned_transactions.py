"""Transactions as a compaction meets them, from the log's start on: which batches were aborted, which markers matter.

A marker matters while anything of its transaction is in the log, even a batch that is empty by now: without it that
would look like an open transaction. When a pass has met nothing of the transaction before the marker, the marker may
go, but only after `delete.retention.ms`, as tombstones do: a reader that is on its way may have met some of it.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from culver.log.transactions import AbortedTransaction


class CleanedTransactions:
    """One pass. Batches have to be shown to it in their order, markers too."""

    __slots__ = ("_aborted", "_met", "kept")

    def __init__(self, aborted: Iterable[AbortedTransaction]) -> None:
        self._aborted: dict[int, list[AbortedTransaction]] = {}
        for one in sorted(aborted, key=lambda one: one.first_offset):
            self._aborted.setdefault(one.producer_id, []).append(one)
        # Producers of which there was something since their last marker.
        self._met: set[int] = set()
        # Aborted transactions that a reader still has to know of, since the last `take_kept`.
        self.kept: list[AbortedTransaction] = []

    def find(self, producer_id: int, offset: int) -> AbortedTransaction | None:
        """The aborted transaction that a batch, or the marker, of a producer is part of."""
        ranges = self._aborted.get(producer_id)
        if ranges is None:
            return None
        at = bisect_right(ranges, offset, key=lambda one: one.first_offset)
        return ranges[at - 1] if at and offset <= ranges[at - 1].last_offset else None

    def meet(self, producer_id: int) -> None:
        """A batch of the producer that is part of a transaction."""
        self._met.add(producer_id)

    def meet_marker(self, producer_id: int, offset: int) -> bool:
        """Whether something of what it ends was met: then it must stay."""
        if producer_id not in self._met:
            return False
        self._met.remove(producer_id)
        aborted = self.find(producer_id, offset)
        if aborted is not None:
            self.kept.append(aborted)
        return True

    def take_kept(self) -> list[AbortedTransaction]:
        """In the order of their markers."""
        kept, self.kept = self.kept, []
        return kept
