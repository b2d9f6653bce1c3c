"""What a partition's log should say about transactions: computed anew from all its batches, as simply as can be."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Entry:
    """One batch. With `committed` it is a marker."""

    offset: int
    count: int = 1
    producer_id: int = -1
    epoch: int = -1
    sequence: int = -1
    transactional: bool = False
    committed: bool | None = None
    key: bytes = b""

    @property
    def last_offset(self) -> int:
        return self.offset + self.count - 1

    def values(self) -> list[tuple[int, bytes, bytes]]:
        return [(offset, self.key, b"%d" % offset) for offset in range(self.offset, self.offset + self.count)]


@dataclass(frozen=True)
class Ended:
    """A transaction that has ended."""

    producer_id: int
    first_offset: int
    marker_offset: int
    committed: bool


@dataclass
class TransactionModel:
    entries: list[Entry] = field(default_factory=list)
    # Where the log goes on when it has none.
    start_offset: int = 0

    @property
    def end_offset(self) -> int:
        return self.entries[-1].last_offset + 1 if self.entries else self.start_offset

    def truncate(self, end_offset: int) -> None:
        self.entries = [entry for entry in self.entries if entry.last_offset < end_offset]

    def transactions(self) -> tuple[dict[int, int], list[Ended]]:
        """Open ones by producer, ended ones in the order of their markers."""
        begun: dict[int, int] = {}
        ended = []
        for entry in self.entries:
            if entry.committed is not None:
                first = begun.pop(entry.producer_id, None)
                if first is not None:
                    ended.append(Ended(entry.producer_id, first, entry.offset, entry.committed))
            elif entry.transactional:
                begun.setdefault(entry.producer_id, entry.offset)
        return begun, ended

    def last_stable_offset(self, high_watermark: int, *, waiting: bool = True) -> int:
        """With `waiting`, for markers that the high watermark has not passed."""
        begun, ended = self.transactions()
        bounds = [high_watermark, *begun.values()]
        if waiting:
            bounds += [one.first_offset for one in ended if one.marker_offset >= high_watermark]
        return min(bounds)

    def aborted(self, from_offset: int, up_to_offset: int) -> list[tuple[int, int]]:
        _, ended = self.transactions()
        return sorted(
            (
                (one.producer_id, one.first_offset)
                for one in ended
                if not one.committed and one.first_offset < up_to_offset and one.marker_offset >= from_offset
            ),
            key=lambda one: one[1],
        )

    def committed(self, from_offset: int, up_to_offset: int) -> list[tuple[int, bytes, bytes]]:
        """(offset, key, value) of what a reader of committed records gets."""
        aborted = [one for one in self.transactions()[1] if not one.committed]
        found = []
        for entry in self.entries:
            skipped = entry.transactional and any(
                one.producer_id == entry.producer_id and one.first_offset <= entry.offset < one.marker_offset
                for one in aborted
            )
            if entry.committed is None and not skipped:
                found += [value for value in entry.values() if from_offset <= value[0] < up_to_offset]
        return found

    def producer(self, producer_id: int) -> tuple[int, int]:
        """(epoch, next sequence)."""
        epoch, sequence = 0, 0
        for entry in self.entries:
            if entry.producer_id != producer_id:
                continue
            if entry.epoch != epoch:
                epoch, sequence = entry.epoch, 0
            if entry.committed is None:
                sequence = entry.sequence + entry.count
        return epoch, sequence
