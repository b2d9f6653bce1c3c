"""Find events: pass over files by the manifest, ask the indexes newest first, read only the row groups with hits."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import groupby

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from culver.pipelines.log_store import text_index
from culver.pipelines.log_store.entries import FileEntry, State
from culver.pipelines.log_store.errors import DamagedFile
from culver.pipelines.log_store.files import local_path
from culver.pipelines.log_store.filtering import mask_of
from culver.pipelines.log_store.where import FIELDS, Condition, columns_of, may_match
from culver.pipelines.parsing.events import EVENT_SCHEMA

_THREADS_MAX = 8
START_OF_TIME_US, END_OF_TIME_US = -(2**63), 2**63 - 1


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for. Times are microseconds since 1970, since <= ts < until."""

    text: str = ""  # as FTS5 wants it; "" for all lines
    since: int = START_OF_TIME_US
    until: int = END_OF_TIME_US
    where: Condition | None = None
    limit: int = 50


@dataclass(slots=True)
class SearchResult:
    """What was found, newest first, what could not be looked at, and how much was."""

    events: pa.Table
    problems: list[DamagedFile] = field(default_factory=list)
    missing: list[tuple[FileEntry, DamagedFile]] = field(
        default_factory=list
    )  # not there when it was their turn
    files: int = 0
    files_passed_over: int = 0
    files_searched: int = 0
    rows: int = 0


def run(root: str, state: State, search: Search) -> SearchResult:
    """Search one state of the store."""
    candidates = [entry for entry in state.files.values() if _may_hold(entry, search)]
    candidates.sort(key=lambda entry: entry.ts_max, reverse=True)
    newest = _Newest(search.limit)
    result = SearchResult(EVENT_SCHEMA.empty_table(), files=len(state.files), rows=state.rows)
    result.files_passed_over = len(state.files) - len(candidates)
    found: list[pa.Table] = []
    threads = max(1, min(_THREADS_MAX, os.cpu_count() or 1, len(candidates)))
    with ThreadPoolExecutor(threads, thread_name_prefix="culver-search") as pool:
        remaining = iter(candidates)
        running: dict[Future[list[pa.Table]], FileEntry] = {}
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < threads:
                entry = next(remaining, None)
                # They are in order: when this one is too old, so are all after it.
                if entry is None or newest.is_too_old(entry.ts_max):
                    exhausted = True
                    break
                result.files_searched += 1
                running[pool.submit(_search_file, root, entry, search, newest)] = entry
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                entry = running.pop(future)
                try:
                    found += future.result()
                except DamagedFile as problem:
                    result.problems.append(problem)
                except FileNotFoundError:
                    result.missing.append((entry, _missing(root, entry)))
    if found:
        events = pa.concat_tables(found)
        order = pc.sort_indices(events, sort_keys=[("ts", "descending")])
        result.events = events.take(order[: search.limit])
    return result


def _missing(root: str, entry: FileEntry) -> DamagedFile:
    if os.path.exists(path := local_path(root, entry.path)):
        return DamagedFile.index(local_path(root, entry.index), "is missing")
    return DamagedFile.parquet(path, "is missing")


def _may_hold(entry: FileEntry, search: Search) -> bool:
    if entry.ts_max < search.since or entry.ts_min >= search.until:
        return False
    return search.where is None or may_match(search.where, entry.values, entry.ts_min, entry.ts_max)


class _Newest:
    """The times of the newest rows found so far by all threads: what is older than all of them is not wanted."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._lock = threading.Lock()
        self._times: list[int] = []

    def add(self, times: list[int]) -> None:
        with self._lock:
            for time in times:
                if len(self._times) < self._limit:
                    heapq.heappush(self._times, time)
                else:
                    heapq.heappushpop(self._times, time)

    def is_too_old(self, time: int) -> bool:
        with self._lock:
            return len(self._times) >= self._limit and self._times[0] >= time


def _search_file(root: str, entry: FileEntry, search: Search, newest: _Newest) -> list[pa.Table]:
    """The rows of one file that are wanted, as far as they may be among the newest."""
    found: list[pa.Table] = []
    count = 0
    with _Reader(root, entry) as reader:
        groups = reader.groups_between(search.since, search.until)
        for group, rows in _hits(root, entry, search, groups):
            if newest.is_too_old(reader.ts_max(group)):
                break
            events = reader.read(group, rows, search)
            if not events.num_rows:
                continue
            events = events.slice(max(0, events.num_rows - search.limit))
            found.append(events)
            newest.add(events["ts"].cast(pa.int64()).to_pylist())
            count += events.num_rows
            if count >= search.limit:
                break
    return found


def _hits(
    root: str, entry: FileEntry, search: Search, groups: range
) -> Iterator[tuple[int, list[int] | None]]:
    """Row groups with hits, the newest first, with the rows of each in ascending order; None for all its rows."""
    if not search.text:
        yield from ((group, None) for group in reversed(groups))
        return
    if not groups:
        return
    size = entry.row_group_rows
    batches = text_index.matches(
        local_path(root, entry.index),
        search.text,
        size=entry.index_bytes,
        rows=entry.rows,
        first_row=groups.start * size,
        end_row=min(groups.stop * size, entry.rows),
    )
    rows = (row for batch in batches for row in batch)
    for group, hits in groupby(rows, key=lambda row: row // size):
        yield group, [row - group * size for row in reversed(list(hits))]


class _Reader:
    """Reads rows of one Parquet file; opens it when the first is wanted. Errors name the file and the remedy."""

    def __init__(self, root: str, entry: FileEntry) -> None:
        self._path = local_path(root, entry.path)
        self._entry = entry
        self._file: pq.ParquetFile | None = None

    def __enter__(self) -> _Reader:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def groups_between(self, since: int, until: int) -> range:
        """The row groups that may hold rows of this time; they are in order of time."""
        count = -(-self._entry.rows // self._entry.row_group_rows)
        if since <= self._entry.ts_min and self._entry.ts_max < until:
            return range(count)
        first = next((group for group in range(count) if self.ts_max(group) >= since), count)
        end = next((group for group in range(first, count) if self._ts(group, "min") >= until), count)
        return range(first, end)

    def ts_max(self, group: int) -> int:
        return self._ts(group, "max")

    def _ts(self, group: int, bound: str) -> int:
        statistics = self._open().metadata.row_group(group).column(0).statistics
        if statistics is None or not statistics.has_min_max:
            return self._entry.ts_min if bound == "min" else self._entry.ts_max
        return int(statistics.min_raw if bound == "min" else statistics.max_raw)

    def read(self, group: int, rows: list[int] | None, search: Search) -> pa.Table:
        """The rows of one group, those that the condition and the times let through."""
        file = self._open()
        try:
            if search.where is not None:
                # First only what the condition looks at: where nothing matches, the long columns stay unread.
                needed = {"fields" if name.startswith(FIELDS) else name for name in columns_of(search.where)}
                looked_at = file.read_row_group(group, columns=sorted(needed | {"ts"}), use_threads=False)
                kept = _kept(looked_at, rows, search)
                if not len(kept):
                    return EVENT_SCHEMA.empty_table()
                return file.read_row_group(group, use_threads=False).take(kept)
            # One group is too small to share out; the files are.
            events = file.read_row_group(group, use_threads=False)
            return events.take(_kept(events, rows, search))
        except (OSError, pa.ArrowException) as error:
            raise DamagedFile.parquet(
                self._path, f"is damaged in row group {group} ({_first_line(error)})"
            ) from error

    def _open(self) -> pq.ParquetFile:
        if self._file is None:
            try:
                size = os.path.getsize(self._path)
                if size != self._entry.bytes:
                    raise DamagedFile.parquet(
                        self._path, f"has {size} bytes where the manifest says {self._entry.bytes}"
                    )
                self._file = pq.ParquetFile(self._path, page_checksum_verification=True)
            except FileNotFoundError:
                raise
            except (OSError, pa.ArrowException) as error:
                raise DamagedFile.parquet(self._path, f"cannot be read ({_first_line(error)})") from error
        return self._file


def _kept(events: pa.Table, rows: list[int] | None, search: Search) -> pa.Array:
    """The numbers of the rows, of these or of all, that the times and the condition let through."""
    numbers = pa.array(rows if rows is not None else range(events.num_rows), pa.int64())
    if rows is not None:
        events = events.take(numbers)
    times = events["ts"].cast(pa.int64())
    mask = pc.and_(pc.greater_equal(times, search.since), pc.less(times, search.until))
    if search.where is not None:
        mask = pc.and_kleene(mask, mask_of(search.where, events))
    return numbers.filter(mask.combine_chunks() if isinstance(mask, pa.ChunkedArray) else mask)


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
