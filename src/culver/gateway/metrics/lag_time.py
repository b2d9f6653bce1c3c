"""For how long records have been waiting: lag in seconds, told from where partitions ended at earlier looks.

Each time the metrics are gathered the end of every partition that a group reads is noted. The record at an offset came
when the end went past it, between two looks; in between, records are taken to have come evenly. That costs nothing
beyond the offsets that are asked for anyway, and says how long a record has been *there*, whatever time its producer
wrote on it. It is as exact as the looks are close together.

What came before the first look is found by reading one record and believing its timestamp: a few of these at each look,
remembered until the group has moved on.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable

from culver.gateway.cluster.view import TopicPartition

# Looks that are remembered of a partition: when there are more, every other one of the older half is dropped, so that
# they reach back further the less exact they are.
_LOOKS_MAX = 120


class _Ends:
    """Where one partition ended, look by look. Between looks at which it did not grow only the first and last count."""

    __slots__ = ("at_ms", "ends")

    def __init__(self) -> None:
        self.at_ms: list[int] = []
        self.ends: list[int] = []

    def add(self, at_ms: int, end: int) -> None:
        if self.ends and end < self.ends[-1]:
            # Records that were there are not any more: the topic was made anew, or an unclean leader has less.
            self.at_ms.clear()
            self.ends.clear()
        if len(self.ends) >= 2 and self.ends[-2] == self.ends[-1] == end:
            self.at_ms[-1] = at_ms
            return
        self.at_ms.append(at_ms)
        self.ends.append(end)
        if len(self.ends) > _LOOKS_MAX:
            half = _LOOKS_MAX // 2
            self.at_ms[:half] = self.at_ms[:half:2]
            self.ends[:half] = self.ends[:half:2]

    def came_at_ms(self, offset: int) -> float | None:
        """When the record at an offset came; None if it was there at the first look, or is not there yet."""
        after = bisect_right(self.ends, offset)  # the first look at which it was there
        if after == 0 or after == len(self.ends):
            return None
        from_ms, to_ms = self.at_ms[after - 1], self.at_ms[after]
        from_end, to_end = self.ends[after - 1], self.ends[after]
        return from_ms + (to_ms - from_ms) * (offset + 1 - from_end) / (to_end - from_end)


class LagTimes:
    """What is known of all partitions that groups read."""

    def __init__(self) -> None:
        self._ends: dict[TopicPartition, _Ends] = {}
        # Timestamps of records that were read because they are older than the first look.
        self._read_ms: dict[tuple[TopicPartition, int], float] = {}

    def look(self, at_ms: int, ends: Iterable[tuple[TopicPartition, int]]) -> None:
        """These are all partitions that count, and where they end now. The others are forgotten."""
        known, self._ends = self._ends, {}
        for place, end in ends:
            found = self._ends[place] = known.get(place) or _Ends()
            found.add(at_ms, end)

    def came_at_ms(self, place: TopicPartition, offset: int) -> float | None:
        """When the record came; None if only reading it would tell."""
        known = self._ends.get(place)
        came_at_ms = None if known is None else known.came_at_ms(offset)
        return self._read_ms.get((place, offset)) if came_at_ms is None else came_at_ms

    def has_been_read(self, place: TopicPartition, offset: int, timestamp_ms: float) -> None:
        self._read_ms[place, offset] = timestamp_ms

    def forget_reads_but(self, wanted: Iterable[tuple[TopicPartition, int]]) -> None:
        """Groups have moved on from the other offsets."""
        kept = {key: self._read_ms[key] for key in wanted if key in self._read_ms}
        self._read_ms = kept
