"""Find events: pass over files by the manifest, ask the indexes newest first, read only the row groups with hits."""

from __future__ import annotations

import heapq
import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from culver.pipelines.log_store import text_index
from culver.pipelines.log_store.entries import FileEntry, State
from culver.pipelines.log_store.errors import DamagedFile, SearchTooLong
from culver.pipelines.log_store.files import local_path
from culver.pipelines.log_store.filtering import mask_of
from culver.pipelines.log_store.row_reader import RowReader
from culver.pipelines.log_store.where import FIELDS, Condition, columns_of, may_match
from culver.pipelines.parsing.events import EVENT_SCHEMA

_THREADS_MAX = 8
_LEFT_OPEN_MAX = 64
_ALL_GROUPS = -1
_Found = TypeVar("_Found")
START_OF_TIME_US, END_OF_TIME_US = -(2**63), 2**63 - 1


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Search:
    """What is looked for. Times are microseconds since 1970, since <= ts < until."""

    text: str = ""  # as FTS5 wants it; "" for all lines
    since: int = START_OF_TIME_US
    until: int = END_OF_TIME_US
    where: Condition | None = None
    limit: int = 50
    # Asked before each row group that is read: whether it has taken long enough.
    is_enough: Callable[[], bool] = _never

    def go_on(self) -> None:
        """Raises SearchTooLong when it has taken long enough."""
        if self.is_enough():
            raise SearchTooLong("the search takes too long", "search a shorter time, or for fewer words")


@dataclass(slots=True)
class SearchResult:
    """What was found, newest first, what could not be looked at, and how much was."""

    events: pa.Table
    problems: list[DamagedFile] = field(default_factory=list)
    missing: list[tuple[FileEntry, DamagedFile]] = field(default_factory=list)  # gone when it was their turn
    files: int = 0
    files_passed_over: int = 0
    files_searched: int = 0
    rows: int = 0


def run(root: str, state: State, search: Search) -> SearchResult:
    """Search one state of the store."""
    damaged: dict[_Group, DamagedFile] = {}
    while True:
        attempt = _Attempt(root, state, search, damaged)
        result = attempt.run()
        # Rows that could not be read have kept others out of the newest: look again, without them.
        if not attempt.newly_damaged:
            result.problems = list({problem.path: problem for problem in damaged.values()}.values())
            return result
        damaged |= attempt.newly_damaged


class _Hit(NamedTuple):
    """A row that matches, in the order of results: by time, then by place."""

    ts: int
    path: str
    group: int
    row: int


class _Group(NamedTuple):
    """A row group, or all of a file when its index or its footer cannot be read."""

    path: str
    group: int


class _Attempt:
    """One pass: which rows match is found out from indexes and short columns; then the newest are read in full."""

    def __init__(
        self, root: str, state: State, search: Search, damaged: Mapping[_Group, DamagedFile]
    ) -> None:
        self._root = root
        self._files = state.files
        self._search = search
        self._damaged = damaged
        self._newest = _Newest(search.limit)
        self._result = SearchResult(EVENT_SCHEMA.empty_table(), files=len(state.files), rows=state.rows)
        # Of files with hits: to read a footer again would take as long as the rows.
        self._left_open: dict[str, RowReader] = {}
        self.newly_damaged: dict[_Group, DamagedFile] = {}

    def run(self) -> SearchResult:
        candidates = [entry for entry in self._files.values() if may_hold(entry, self._search)]
        self._result.files_passed_over = len(self._files) - len(candidates)
        candidates = [entry for entry in candidates if _Group(entry.path, _ALL_GROUPS) not in self._damaged]
        candidates.sort(key=lambda entry: entry.ts_max, reverse=True)
        threads = max(1, min(_THREADS_MAX, os.cpu_count() or 1, len(candidates)))
        try:
            with ThreadPoolExecutor(threads, thread_name_prefix="culver-search") as pool:
                hits = self._find(pool, threads, candidates)
                tables = self._fetch(pool, heapq.nlargest(self._search.limit, hits))
        finally:
            for reader in self._left_open.values():
                reader.close()
        if tables:
            events = pa.concat_tables(tables)
            self._result.events = events.take(pc.sort_indices(events, sort_keys=[("ts", "descending")]))
        return self._result

    def _find(self, pool: ThreadPoolExecutor, threads: int, candidates: list[FileEntry]) -> list[_Hit]:
        """The rows that match in files that may hold some of the newest, the newest files first."""
        hits: list[_Hit] = []
        remaining = iter(candidates)
        running: dict[Future[list[_Hit]], FileEntry] = {}
        exhausted = False
        while running or not exhausted:
            while not exhausted and len(running) < threads:
                entry = next(remaining, None)
                # They are in order: when this one is too old, so are all after it.
                if entry is None or self._newest.is_too_old(entry.ts_max):
                    exhausted = True
                    break
                self._result.files_searched += 1
                running[pool.submit(self._hits_of, entry)] = entry
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                entry = running.pop(future)
                hits += self._outcome(future, entry)
        return hits

    def _fetch(self, pool: ThreadPoolExecutor, hits: list[_Hit]) -> list[pa.Table]:
        """These rows in full."""
        by_file: dict[str, list[_Hit]] = {}
        for hit in hits:
            by_file.setdefault(hit.path, []).append(hit)
        futures = [
            (pool.submit(self._rows_of, self._files[path], sorted(wanted)), self._files[path])
            for path, wanted in by_file.items()
        ]
        return [table for future, entry in futures for table in self._outcome(future, entry)]

    def _outcome(self, future: Future[list[_Found]], entry: FileEntry) -> list[_Found]:
        try:
            return future.result()
        except DamagedFile as problem:
            self.newly_damaged[_Group(entry.path, _ALL_GROUPS)] = problem
        except FileNotFoundError:
            self._result.missing.append((entry, _missing(self._root, entry)))
        return []

    def _hits_of(self, entry: FileEntry) -> list[_Hit]:
        """The rows of one file that match, the last ones first, as far as they may be among the newest."""
        with ExitStack() as at_the_end:
            reader = at_the_end.enter_context(RowReader(self._root, entry))
            found = self._hits_in(reader, entry)
            if found and len(self._left_open) < _LEFT_OPEN_MAX:
                at_the_end.pop_all()
                self._left_open[entry.path] = reader
        return found

    def _hits_in(self, reader: RowReader, entry: FileEntry) -> list[_Hit]:
        search, newest = self._search, self._newest
        found: list[_Hit] = []
        groups = reader.groups_between(search.since, search.until)
        for group, rows in matching_rows(self._root, entry, search, groups):
            search.go_on()
            if newest.is_too_old(reader.ts_max(group)) or len(found) >= search.limit:
                break
            if _Group(entry.path, group) in self._damaged:
                continue
            try:
                hits = _kept(entry.path, group, rows, reader.read(group, short_columns(search)), search)
            except DamagedFile as problem:
                self.newly_damaged[_Group(entry.path, group)] = problem
                continue
            found += hits
            newest.add([hit.ts for hit in hits])
        return found

    def _rows_of(self, entry: FileEntry, hits: list[_Hit]) -> list[pa.Table]:
        """Rows of one file, by row group."""
        tables = []
        with self._left_open.pop(entry.path, None) or RowReader(self._root, entry) as reader:
            for group in sorted({hit.group for hit in hits}):
                self._search.go_on()
                try:
                    events = reader.read(group)
                except DamagedFile as problem:
                    self.newly_damaged[_Group(entry.path, group)] = problem
                    continue
                rows = pa.array([hit.row for hit in hits if hit.group == group], pa.int64())
                tables.append(events.take(rows))
        return tables


def _missing(root: str, entry: FileEntry) -> DamagedFile:
    if os.path.exists(path := local_path(root, entry.path)):
        return DamagedFile.index(local_path(root, entry.index), "is missing")
    return DamagedFile.parquet(path, "is missing")


def may_hold(entry: FileEntry, search: Search) -> bool:
    """Whether the manifest leaves it open that the file has a row that is wanted."""
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


def matching_rows(
    root: str, entry: FileEntry, search: Search, groups: range
) -> Iterator[tuple[int, list[int] | None]]:
    """Row groups whose text matches, the newest first, with their rows in ascending order; None for all rows."""
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


def short_columns(search: Search) -> list[str]:
    """What has to be read to know whether a row is wanted: its time, and what the condition looks at."""
    looked_at = columns_of(search.where) if search.where is not None else set()
    return sorted({"fields" if name.startswith(FIELDS) else name for name in looked_at} | {"ts"})


def _kept(path: str, group: int, rows: list[int] | None, events: pa.Table, search: Search) -> list[_Hit]:
    """Of these rows of a group, or of all, the last ones that the times and the condition let through."""
    numbers = pa.array(rows if rows is not None else range(events.num_rows), pa.int64())
    if rows is not None:
        events = events.take(numbers)
    times, mask = times_and_mask(events, search)
    kept = zip(times.filter(mask).to_pylist(), numbers.filter(mask).to_pylist(), strict=True)
    return [_Hit(time, path, group, row) for time, row in kept][-search.limit :]


def times_and_mask(events: pa.Table, search: Search) -> tuple[pa.Int64Array, pa.BooleanArray]:
    """The times of rows, and which of the rows the search's times and condition let through."""
    times = events["ts"].cast(pa.int64()).combine_chunks()
    # As scalars of Arrow: given plain numbers it looks for pandas, which is not there, each time anew.
    since, until = pa.scalar(search.since, pa.int64()), pa.scalar(search.until, pa.int64())
    mask = pc.and_(pc.greater_equal(times, since), pc.less(times, until))
    if search.where is not None:
        mask = pc.and_kleene(mask, mask_of(search.where, events))
    if isinstance(mask, pa.ChunkedArray):
        mask = mask.combine_chunks()
    return times, mask
