"""The console's search of a log store: lines, how many there are over time, and what it says when it cannot search."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
from http_call import call
from http_client import Reply

from culver.gateway.console import log_search
from culver.gateway.console.log_search import LogSearch, SearchAnswer, Wanted, bucket_width_ms
from culver.gateway.errors import HttpError, Problem
from culver.pipelines.log_store.errors import SearchTooLong
from culver.pipelines.log_store.store import LogStore
from culver.pipelines.parsing.events import EVENT_SCHEMA

START_US = int(datetime(2026, 11, 15, 8, tzinfo=UTC).timestamp()) * 1_000_000
MINUTE_US = 60_000_000


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> LogStore:
    """Three hours with a line each minute, every fifth an error, in two files of which the second is newer."""
    import pyarrow as pa

    rows = [
        {
            "ts": START_US + minute * MINUTE_US,
            "level": "ERROR" if minute % 5 == 0 else "INFO",
            "service": "api" if minute % 2 else "web",
            "message": f"request {minute} timeout" if minute % 5 == 0 else f"request {minute} served",
            "format": "json",
            "fields": f'{{"status": {500 if minute % 5 == 0 else 200}}}',
            "raw": f"line {minute} {'timeout' if minute % 5 == 0 else 'served'}",
            "topic": "logs",
            "partition": 0,
            "offset": minute,
        }
        for minute in range(180)
    ]
    store = LogStore(str(tmp_path_factory.mktemp("logs")))
    for number, part in enumerate((rows[:90], rows[90:])):
        columns = {
            field.name: pa.array([row.get(field.name) for row in part], field.type) for field in EVENT_SCHEMA
        }
        store.write_batch(pa.table(columns), query_id="test", batch_id=number)
    return store


@pytest.fixture(scope="module")
def http_options(store: LogStore) -> dict[str, Any]:
    return {"config": {"culver.http.log.store": store.path}}


def search(url: str, **query: Any) -> Reply:
    return call("GET", f"{url}/api/search?{urlencode(query)}")


def test_lines_are_found_newest_first(url: str) -> None:
    found = search(url, q="timeout", limit=3).json
    assert [line["offset"] for line in found["lines"]] == [175, 170, 165]
    assert found["more"] is True
    assert found["rows"] == 180
    line = found["lines"][0]
    assert (line["level"], line["service"], line["fields"]) == ("ERROR", "api", {"status": 500})
    assert line["ts"] == "2026-11-15T10:55:00.000000Z"


def test_a_search_is_narrowed_by_time_and_condition(url: str) -> None:
    found = search(
        url, since="2026-11-15T09:00:00Z", until="2026-11-15T09:10:00Z", where="fields.status >= 500"
    ).json
    assert [line["offset"] for line in found["lines"]] == [65, 60]
    assert found["more"] is False
    by_ms = search(url, since=START_US // 1000, until=START_US // 1000 + 1).json
    assert [line["offset"] for line in by_ms["lines"]] == [0]
    assert search(url, since="1h").json["lines"] == []


def test_the_plot_counts_every_line_that_matches_not_only_those_shown(url: str) -> None:
    histogram = search(url, limit=1, histogram=6).json["histogram"]
    assert (histogram["matched"], histogram["complete"]) == (180, True)
    assert histogram["bucket_ms"] == 1_800_000
    assert histogram["from_ms"] == START_US // 1000
    assert [bucket["count"] for bucket in histogram["buckets"]] == [30] * 6
    assert histogram["buckets"][0]["levels"] == {"ERROR": 6, "INFO": 24}
    starts = [bucket["at_ms"] for bucket in histogram["buckets"]]
    assert starts == [histogram["from_ms"] + number * 1_800_000 for number in range(6)]

    narrowed = search(url, q="timeout", since="2026-11-15T10:00:00Z", histogram=2).json["histogram"]
    assert narrowed["matched"] == 12
    assert [bucket["levels"] for bucket in narrowed["buckets"]] == [{"ERROR": 6}, {"ERROR": 6}]
    conditional = search(url, where="service = 'api' AND level = 'INFO'", histogram=60).json["histogram"]
    assert conditional["matched"] == 72
    assert search(url, q="nosuchword").json["histogram"]["matched"] == 0
    assert search(url, since="1h").json["histogram"]["buckets"] == []
    assert search(url, histogram=0).json["histogram"] is None


@pytest.mark.parametrize(
    ("span_ms", "buckets", "width_ms"),
    [
        (1, 60, 1),
        (61, 60, 2),
        (60_000, 60, 1000),
        (3_600_001, 60, 120_000),
        (86_400_000 * 100, 10, 864_000_000),
    ],
)
def test_stretches_of_time_have_round_lengths(span_ms: int, buckets: int, width_ms: int) -> None:
    assert bucket_width_ms(span_ms, buckets) == width_ms


@pytest.mark.parametrize(
    "query",
    [
        {"q": '"open'},
        {"q": "a AND"},
        {"where": "level ="},
        {"where": "no_such_column = 1"},
        {"where": f"partition = {2**40}"},
        {"where": f"offset < {'9' * 3000}"},
        {"where": "(" * 100 + "level = 'x'" + ")" * 100},
        {"since": "soon"},
        {"limit": 0},
        {"limit": 100_000},
        {"histogram": 100_000},
        {"q": "x" * 5000},
    ],
)
def test_a_search_that_cannot_be_understood(url: str, query: dict[str, Any]) -> None:
    answer = search(url, **query)
    assert answer.status == 422, answer.body
    assert answer.json["message"]


def test_damaged_files_are_named_and_the_rest_is_found(url: str, store: LogStore) -> None:
    (first, *_) = sorted(store.state().files.values(), key=lambda entry: entry.ts_min)
    path = Path(store.path) / first.path
    whole = path.read_bytes()
    try:
        path.write_bytes(b"\0" * len(whole))
        found = search(url, q="timeout", limit=1000).json
        assert found["problems"][0]["remedy"]
        assert 0 < len(found["lines"]) < 36
        assert found["histogram"]["complete"] is False
    finally:
        path.write_bytes(whole)
    assert search(url, q="timeout", limit=1000).json["problems"] == []


def test_the_console_knows_that_there_is_a_store(url: str) -> None:
    assert call("GET", url + "/api/cluster").json["features"]["log_search"] is True


def test_without_pyarrow_a_search_says_what_to_install(store: LogStore) -> None:
    script = """
import asyncio, sys
sys.modules["pyarrow"] = None
from culver.gateway.console.log_search import LogSearch, Wanted
from culver.gateway.errors import HttpError
async def search():
    searching = LogSearch(sys.argv[1])
    try:
        await searching.find(Wanted("x", None, None, "", 10, 10))
    except HttpError as error:
        print(error)
    finally:
        await searching.close()
asyncio.run(search())
"""
    ended = subprocess.run(
        [sys.executable, "-c", script, store.path], capture_output=True, text=True, timeout=30, check=True
    )
    assert ended.stdout.startswith("50102: ")
    assert "pyarrow" in ended.stdout
    assert "pip install 'culver[spark]'" in ended.stdout


def test_without_a_store_a_search_says_how_to_get_one(tmp_path: Path) -> None:
    async def search_in(path: str | None) -> HttpError:
        searching = LogSearch(path)
        try:
            await searching.find(Wanted("x", None, None, "", 10, 10))
        except HttpError as error:
            return error
        finally:
            await searching.close()
        raise AssertionError("there is nothing to search")

    unnamed = asyncio.run(search_in(None))
    assert unnamed.problem is Problem.NO_LOG_STORE
    assert "culver.http.log.store" in unnamed.message
    empty = asyncio.run(search_in(str(tmp_path)))
    assert empty.problem is Problem.NO_LOG_STORE
    assert "culver pipeline logs" in empty.message


def test_a_search_that_takes_too_long_is_given_up_and_others_are_not_held_up_by_it(
    store: LogStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    go_on = threading.Event()
    monkeypatch.setattr(log_search, "SEARCH_SECONDS_MAX", 0.05)

    class Stuck(LogSearch):
        def _search(self, wanted: Wanted, deadline_s: float) -> SearchAnswer:
            go_on.wait(30)
            return super()._search(wanted, deadline_s)

    async def search_often() -> list[Problem]:
        searching = Stuck(store.path)
        wanted = Wanted("x", None, None, "", 10, 10)
        try:
            results = await asyncio.gather(
                *(searching.find(wanted) for _ in range(12)), return_exceptions=True
            )
        finally:
            go_on.set()
            await searching.close()
        return [result.problem for result in results if isinstance(result, HttpError)]

    problems = asyncio.run(search_often())
    assert problems.count(Problem.SEARCH_TIMEOUT) == 8
    assert problems.count(Problem.TOO_MANY_REQUESTS) == 4


def test_a_thread_stops_searching_when_nobody_waits_any_more(store: LogStore) -> None:
    asked = []

    def is_enough() -> bool:
        asked.append(True)
        return len(asked) > 1

    with pytest.raises(SearchTooLong):
        store.find(where="fields.status = 404", is_enough=is_enough)
    assert len(asked) < 10
    late = LogSearch(store.path)
    with pytest.raises(HttpError) as raised:
        late._search(Wanted("", None, None, "fields.status = 404", 10, 10), time.monotonic() - 1)
    assert raised.value.problem is Problem.SEARCH_TIMEOUT


@pytest.mark.parametrize("since", ["999999999w", "0", "0001-01-01", "9999-12-31", "now"])
def test_any_time_can_be_searched(url: str, since: str) -> None:
    assert search(url, since=since, where="host LIKE '%a%b_c%'").status == 200


def test_lines_that_are_very_long_are_cut() -> None:
    row = dict.fromkeys(EVENT_SCHEMA.names) | {
        "ts": datetime(2026, 11, 15, tzinfo=UTC),
        "raw": "x" * 101,
        "message": "short",
        "fields": '{"a": "' + "x" * 101 + '"}',
    }
    line = log_search._line(row, 100)
    assert line.raw == "x" * 100 + "… (1 characters more)"
    assert (line.message, line.fields) == ("short", {})
