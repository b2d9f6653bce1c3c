"""Finds log lines in the store that `culver pipeline logs` writes, and counts them over time.

What searches a store needs pyarrow, which the gateway otherwise does without: it is loaded with the first search, in
a thread of its own, and searches run in threads as well.
"""

from __future__ import annotations

import asyncio
import time
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import msgspec

from culver.gateway.admission import Busy
from culver.gateway.console.parameters import refused
from culver.gateway.errors import HttpError, Problem

if TYPE_CHECKING:
    from culver.pipelines.log_store.searching import SearchResult
    from culver.pipelines.log_store.store import LogStore

SEARCH_SECONDS_MAX = 10.0
# Counting stops then, and says that it is not complete.
COUNTING_SECONDS_MAX = 5.0
# What an answer shows of all its lines together, of the message, the raw line and the fields each.
_ANSWER_CHARACTERS = 8 * 1024 * 1024
_THREADS = 2
_WAITING_MAX = 8
# Widths of buckets that people can read off an axis.
_SECOND_MS = 1000
_WIDTHS_MS = [1, 2, 5, 10, 20, 50, 100, 200, 500] + [
    _SECOND_MS * seconds
    for seconds in (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200)
]
_DAY_MS = 86_400_000


class Line(msgspec.Struct, frozen=True):
    """A log line that was found."""

    ts: str
    level: str | None
    service: str | None
    host: str | None
    message: str | None
    format: str | None
    fields: Any
    raw: str | None
    topic: str | None
    partition: int | None
    offset: int | None


class SearchProblem(msgspec.Struct, frozen=True):
    """A file that could not be searched, and what to do about it."""

    message: str
    remedy: str


class Bucket(msgspec.Struct, frozen=True):
    """How many lines fall into a stretch of time, together and by level."""

    at_ms: int
    count: int
    levels: dict[str, int]


class Histogram(msgspec.Struct, frozen=True):
    """Lines over time, oldest first, without stretches that have none. Complete: all that match were counted."""

    bucket_ms: int
    from_ms: int
    until_ms: int
    matched: int
    complete: bool
    buckets: list[Bucket]


class SearchAnswer(msgspec.Struct, frozen=True):
    """The newest lines that match, newest first."""

    lines: list[Line]
    more: bool
    took_ms: int
    rows: int
    files: int
    files_searched: int
    problems: list[SearchProblem]
    histogram: Histogram | None


class Wanted(msgspec.Struct, frozen=True):
    """What is looked for. Times are microseconds since 1970; None for no bound."""

    text: str
    since_us: int | None
    until_us: int | None
    where: str
    limit: int
    buckets: int


class LogSearch:
    """Searches one store, a few at a time."""

    def __init__(self, path: str | None) -> None:
        self._path = path
        self._threads: ThreadPoolExecutor | None = None
        self._under_way = 0
        self._store: LogStore | None = None

    async def close(self) -> None:
        if self._threads is not None:
            self._threads.shutdown(wait=False, cancel_futures=True)

    async def find(self, wanted: Wanted) -> SearchAnswer:
        """What matches. HttpError when there is nothing to search, or it takes too long."""
        if self._path is None:
            raise HttpError(
                Problem.NO_LOG_STORE,
                "no log store is configured: fill one with `culver pipeline logs TOPICS --store DIR`, and start the "
                "gateway with culver.http.log.store=DIR",
            )
        if self._under_way >= _WAITING_MAX:
            raise Busy(f"{_WAITING_MAX} searches are under way: try again in a moment")
        if self._threads is None:
            self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="culver-log-search")
        # Counted until its thread is done with it, which may be after nobody waits any more.
        self._under_way += 1
        deadline_s = time.monotonic() + SEARCH_SECONDS_MAX
        searching = asyncio.get_running_loop().run_in_executor(
            self._threads, self._search, wanted, deadline_s
        )
        searching.add_done_callback(self._ended)
        try:
            async with asyncio.timeout(SEARCH_SECONDS_MAX):
                return await asyncio.shield(searching)
        except TimeoutError:
            raise _too_long() from None

    def _ended(self, searching: asyncio.Future[SearchAnswer]) -> None:
        self._under_way -= 1
        if not searching.cancelled():
            searching.exception()  # it has been told to whoever still waited

    # --- in a thread ---

    def _search(self, wanted: Wanted, deadline_s: float) -> SearchAnswer:
        begun_s = time.monotonic()
        assert self._path is not None
        try:
            from culver.pipelines.log_store.errors import (
                LogStoreError,
                QueryError,
                SearchTooLong,
                StoreNotFound,
            )
            from culver.pipelines.log_store.store import LogStore
        except ModuleNotFoundError as missing:
            raise HttpError(
                Problem.SEARCH_NOT_INSTALLED,
                f"searching needs {missing.name}, which is not installed here: pip install 'culver[spark]'",
            ) from None
        try:
            if self._store is None:
                self._store = LogStore(self._path, create=False)
            found = self._store.find(
                wanted.text,
                wanted.since_us,
                wanted.until_us,
                wanted.where,
                wanted.limit,
                # Nobody waits any more then: the thread is for others.
                is_enough=lambda: time.monotonic() > deadline_s,
            )
            counting_until_s = min(begun_s + COUNTING_SECONDS_MAX, deadline_s)
            histogram = _histogram(self._store, wanted, counting_until_s) if wanted.buckets else None
        except SearchTooLong:
            raise _too_long() from None
        except QueryError as error:
            raise refused(str(error)) from None
        except StoreNotFound as error:
            raise HttpError(Problem.NO_LOG_STORE, str(error)) from None
        except LogStoreError as error:
            raise HttpError(Problem.INTERNAL, str(error)) from None
        return _answer(found, histogram, wanted.limit, round((time.monotonic() - begun_s) * 1000))


def _too_long() -> HttpError:
    return HttpError(
        Problem.SEARCH_TIMEOUT,
        f"the search took longer than {SEARCH_SECONDS_MAX:g} seconds: give it a shorter time (since=1h)",
    )


def _answer(found: SearchResult, histogram: Histogram | None, limit: int, took_ms: int) -> SearchAnswer:
    rows = found.events.to_pylist()
    # The more lines, the less of each: an answer has its bounds as well.
    shown_max = _ANSWER_CHARACTERS // max(1, len(rows))
    return SearchAnswer(
        lines=[_line(row, shown_max) for row in rows],
        more=len(rows) == limit,
        took_ms=took_ms,
        rows=found.rows,
        files=found.files,
        files_searched=found.files_searched,
        problems=[SearchProblem(problem.message, problem.remedy) for problem in found.problems],
        histogram=histogram,
    )


def _line(row: dict[str, Any], shown_max: int) -> Line:
    fields = row["fields"]
    moment: datetime = row["ts"]
    return Line(
        ts=moment.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        # Of a line that is this long, its beginning has to do.
        fields=msgspec.json.decode(fields) if fields and len(fields) <= shown_max else {},
        message=_cut(row["message"], shown_max),
        raw=_cut(row["raw"], shown_max),
        **{
            name: row[name] for name in ("level", "service", "host", "format", "topic", "partition", "offset")
        },
    )


def _cut(text: str | None, shown_max: int) -> str | None:
    if text is None or len(text) <= shown_max:
        return text
    return f"{text[:shown_max]}… ({len(text) - shown_max} characters more)"


def _histogram(store: LogStore, wanted: Wanted, deadline_s: float) -> Histogram:
    """All lines that match, counted over the time in which there are some."""
    from culver.pipelines.log_store.counting import bounds_us, count_over_time
    from culver.pipelines.log_store.store import compiled_search

    search = compiled_search(wanted.text, wanted.since_us, wanted.until_us, wanted.where)
    state = store.state()
    bounds = bounds_us(state, search)
    if bounds is None:
        return Histogram(_SECOND_MS, 0, 0, 0, True, [])
    first_ms, last_ms = bounds[0] // 1000, bounds[1] // 1000
    width_ms = bucket_width_ms(last_ms - first_ms + 1, wanted.buckets)
    from_ms = first_ms - first_ms % width_ms
    counts = count_over_time(
        store.path,
        state,
        search,
        from_us=from_ms * 1000,
        bucket_us=width_ms * 1000,
        is_enough=lambda: time.monotonic() > deadline_s,
    )
    return Histogram(
        bucket_ms=width_ms,
        from_ms=from_ms,
        until_ms=last_ms - last_ms % width_ms + width_ms,
        matched=counts.matched,
        complete=counts.complete,
        buckets=[
            Bucket(from_ms + bucket * width_ms, sum(levels.values()), levels)
            for bucket, levels in sorted(counts.buckets.items())
        ],
    )


def bucket_width_ms(span_ms: int, buckets_max: int) -> int:
    """A round width with which so many buckets, and one more for the rounding, cover the time."""
    least = -(-span_ms // buckets_max)
    found = next((width for width in _WIDTHS_MS if width >= least), None)
    return found if found is not None else -(-least // _DAY_MS) * _DAY_MS
