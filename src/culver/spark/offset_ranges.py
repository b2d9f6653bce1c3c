"""Stretches of partitions, and how they are cut into as many tasks as a job wants."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from pyspark.sql.datasource import InputPartition


@dataclass(frozen=True)
class OffsetRange(InputPartition):
    """The offsets start <= offset < end of one partition: what one task reads."""

    topic: str
    partition: int
    start: int
    end: int

    @property
    def size(self) -> int:
        return self.end - self.start

    def __str__(self) -> str:
        return f"{self.topic}-{self.partition} [{self.start}, {self.end})"


def cut(
    ranges: Sequence[OffsetRange], *, at_least: int = 0, records_max: int | None = None
) -> list[OffsetRange]:
    """The ranges that hold anything, in pieces: about `at_least` of them, none of more than `records_max` offsets.

    Larger ranges are cut into more pieces; when there are ranges enough already, they stay whole.
    """
    filled = [each for each in ranges if each.size > 0]
    total = sum(each.size for each in filled)
    cuts: list[OffsetRange] = []
    for each in filled:
        pieces = 1
        if len(filled) < at_least:
            # Rounded up, so that there are never fewer than asked for where there are offsets enough.
            pieces = -(-each.size * at_least // total)
        if records_max is not None:
            pieces = max(pieces, -(-each.size // records_max))
        cuts += _pieces(each, min(pieces, each.size))
    return cuts


def _pieces(whole: OffsetRange, count: int) -> list[OffsetRange]:
    bounds = [whole.start + whole.size * index // count for index in range(count + 1)]
    return [OffsetRange(whole.topic, whole.partition, start, end) for start, end in pairwise(bounds)]
