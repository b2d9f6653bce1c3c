"""Count events over time: how many match in each stretch, by level, from indexes and short columns alone."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.log_store.entries import FileEntry, State
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.row_reader import RowReader
from culver.pipelines.log_store.searching import (
    Search,
    matching_rows,
    may_hold,
    short_columns,
    times_and_mask,
)

_LEVEL, _BUCKET = "level", "bucket"


@dataclass(slots=True)
class Counts:
    """By the number of a stretch since `from_us` and by level. Not complete: files were left out, the oldest first."""

    from_us: int
    bucket_us: int
    buckets: dict[int, dict[str, int]] = field(default_factory=dict)
    complete: bool = True

    @property
    def matched(self) -> int:
        return sum(count for levels in self.buckets.values() for count in levels.values())


def bounds_us(state: State, search: Search) -> tuple[int, int] | None:
    """The times that rows which are wanted can have, from the manifest: first and last; None if there are none."""
    files = [entry for entry in state.files.values() if may_hold(entry, search)]
    if not files:
        return None
    first = max(search.since, min(entry.ts_min for entry in files))
    return first, min(search.until - 1, max(entry.ts_max for entry in files))


def count_over_time(
    root: str,
    state: State,
    search: Search,
    *,
    from_us: int,
    bucket_us: int,
    is_enough: Callable[[], bool] = lambda: False,
) -> Counts:
    """Count all that match in one state of the store, newest files first, until `is_enough` says so."""
    counts = Counts(from_us, bucket_us)
    files = [entry for entry in state.files.values() if may_hold(entry, search)]
    for entry in sorted(files, key=lambda entry: entry.ts_max, reverse=True):
        if is_enough():
            counts.complete = False
            break
        try:
            _count_file(root, entry, search, counts, is_enough)
        except (DamagedFile, FileNotFoundError):  # a search names them; others are counted all the same
            counts.complete = False
    return counts


def _count_file(
    root: str, entry: FileEntry, search: Search, counts: Counts, is_enough: Callable[[], bool]
) -> None:
    columns = sorted({*short_columns(search), _LEVEL})
    with RowReader(root, entry) as reader:
        groups = reader.groups_between(search.since, search.until)
        for group, rows in matching_rows(root, entry, search, groups):
            if is_enough():
                counts.complete = False
                return
            events = reader.read(group, columns)
            _add(events if rows is None else events.take(pa.array(rows, pa.int64())), search, counts)


def _add(events: pa.Table, search: Search, counts: Counts) -> None:
    times, mask = times_and_mask(events, search)
    levels = events[_LEVEL].filter(mask)
    elapsed = pc.subtract(times.filter(mask), pa.scalar(counts.from_us, pa.int64()))
    numbers = pc.divide(elapsed, pa.scalar(counts.bucket_us, pa.int64()))
    table = pa.table({_BUCKET: numbers, _LEVEL: levels})
    for row in table.group_by([_BUCKET, _LEVEL]).aggregate([([], "count_all")]).to_pylist():
        bucket = counts.buckets.setdefault(row[_BUCKET], {})
        level = row[_LEVEL] or ""
        bucket[level] = bucket.get(level, 0) + row["count_all"]
