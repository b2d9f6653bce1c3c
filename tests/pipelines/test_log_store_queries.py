"""Text queries and conditions: what they mean, what is refused and how it is said."""

from __future__ import annotations

import contextlib

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from store_events import START_US, event, events

from culver.pipelines.log_store.errors import QueryError
from culver.pipelines.log_store.filtering import mask_of
from culver.pipelines.log_store.text_query import compile_text
from culver.pipelines.log_store.times import moment_us
from culver.pipelines.log_store.where import may_match, parse_where

ROWS = [
    event(
        START_US,
        "a",
        level="ERROR",
        service="api",
        host="db-1",
        offset=5,
        fields='{"status":503,"user":{"id":7}}',
    ),
    event(START_US + 1, "it's", level="WARN", service="web", offset=6, fields='{"status":"200","path":"/x"}'),
    event(START_US + 2, "c", level=None, service="api", host="web-1", offset=7),
    event(START_US + 3, "d", level="INFO", service=None, host="db-2", offset=8, fields="[1]"),
]


@pytest.mark.parametrize(
    ("query", "compiled"),
    [
        ("", ""),
        ("timeout", '"timeout"'),
        ("timeout payment", '("timeout" AND "payment")'),
        ("timeout AND payment", '("timeout" AND "payment")'),
        ("a OR b c", '("a" OR ("b" AND "c"))'),
        ("a NOT b", '("a" NOT "b")'),
        ("a AND NOT b", '("a" NOT "b")'),
        ("NOT b a", '("a" NOT "b")'),
        ("a NOT (b OR c)", '("a" NOT ("b" OR "c"))'),
        ("deploy*", '"deploy"*'),
        ('"connection reset"', '"connection reset"'),
        ('"connection res"*', '"connection res"*'),
        ("10.0.0.7", '"10.0.0.7"'),
        ("and or not", '("and" AND "or" AND "not")'),
        ("-- a", '"a"'),
        ("(a OR b) c", '(("a" OR "b") AND "c")'),
    ],
)
def test_a_text_query_is_understood(query: str, compiled: str) -> None:
    assert compile_text(query) == compiled


@pytest.mark.parametrize(
    "query", ["NOT a", "a AND", "(a", "a)", 'a "b', "OR a", "a OR NOT b", "---", "()", "(" * 99 + "a"]
)
def test_a_text_query_without_meaning_is_refused(query: str) -> None:
    with pytest.raises(QueryError, match="for instance"):
        compile_text(query)


@pytest.mark.parametrize(
    ("where", "found"),
    [
        ("level = 'ERROR'", [0]),
        ("level='error' and service = 'api'", [0]),
        ("level = 'warning' OR level IS NULL", [1, 2]),
        ("level != 'ERROR'", [1, 3]),
        ("NOT level = 'ERROR'", [1, 3]),
        ("level IS NOT NULL AND NOT (service = 'api')", [1]),
        ("service IN ('api', 'web')", [0, 1, 2]),
        ("service NOT IN ('web')", [0, 2]),
        ("host LIKE 'db-%'", [0, 3]),
        ("host NOT LIKE 'db-_'", [2]),
        ("offset >= 6 AND offset < 8", [1, 2]),
        ("offset BETWEEN 6 AND 7", [1, 2]),
        ("message = 'it''s'", [1]),
        ("fields.status >= 500", [0]),
        ("fields.status = 200", [1]),
        ("fields.status = '503'", [0]),
        ("fields.user.id = 7", [0]),
        ("\"fields.path\" LIKE '/%'", [1]),
        ("fields.nothing IS NULL", [0, 1, 2, 3]),
        ("ts > '2026-11-15T08:00:00.000001Z'", [2, 3]),
        ("ts <= '2026-11-15 09:00:00.000002+01:00'", [0, 1, 2]),
        ("((level = 'ERROR'))", [0]),
    ],
)
def test_a_condition_is_understood(where: str, found: list[int]) -> None:
    condition = parse_where(where)
    assert condition is not None
    mask = mask_of(condition, events(ROWS)).to_pylist()
    assert [row for row, kept in enumerate(mask) if kept] == found
    for row in found:  # a file is never passed over for its listed values when it holds such a row
        values = {name: [ROWS[row].get(name)] for name in ("level", "service", "host")}
        assert may_match(condition, values, ROWS[row]["ts"], ROWS[row]["ts"])


@pytest.mark.parametrize(
    ("where", "may"),
    [
        ("level = 'ERROR'", False),
        ("level = 'INFO'", True),
        ("level = 'INFO' AND service = 'web'", False),
        ("level = 'ERROR' OR service = 'api'", True),
        ("NOT level = 'INFO'", True),
        ("service IN ('web', 'db')", False),
        ("service IS NULL", False),
        ("host = 'anything'", True),
        ("ts < '2026-11-15T08:00Z'", False),
        ("ts >= '2026-11-15T10:00Z'", False),
        ("ts >= '2026-11-15T08:30Z'", True),
    ],
)
def test_a_file_is_passed_over_by_what_the_manifest_lists(where: str, may: bool) -> None:
    condition = parse_where(where)
    assert condition is not None
    listed: dict[str, list[str | None]] = {"level": ["INFO", None], "service": ["api"]}
    assert may_match(condition, listed, START_US, START_US + 3_600_000_000) is may


@pytest.mark.parametrize(
    "where",
    [
        "level",
        "level =",
        "level = ERROR",
        "colour = 'red'",
        "level = 'ERROR",
        "level = 'ERROR') OR 1",
        "__import__('os')",
        "offset = 'x'",
        "offset LIKE '1%'",
        "ts = 'noon'",
        "level IN ()",
        "level NOT = 'x'",
        "NOT " * 99 + "level = 'x'",
        "level = 'a'; drop",
    ],
)
def test_a_condition_without_meaning_is_refused(where: str) -> None:
    with pytest.raises(QueryError, match="for instance"):
        parse_where(where)


@given(st.text(alphabet="abAND ORNOT()\"'*=<>,.5levts fields-", max_size=40))
@settings(max_examples=200, deadline=None)
def test_whatever_is_typed_is_either_understood_or_refused(text: str) -> None:
    for understand in (compile_text, parse_where):
        with contextlib.suppress(QueryError):
            understand(text)


def test_a_condition_on_nothing_gives_nothing() -> None:
    condition = parse_where("level = 'ERROR' AND fields.a = 1")
    assert condition is not None
    assert len(mask_of(condition, events([]))) == 0
    assert parse_where("  ") is None


def test_times_are_taken_in_many_forms() -> None:
    assert moment_us("2026-11-15T08:00Z", 0) == START_US
    assert moment_us("2026-11-15 09:00+01:00", 0) == START_US
    assert moment_us(START_US, 0) == START_US
    assert moment_us(None, 5) == 5
    assert moment_us("1h", 0) < moment_us("now", 0) - 3_599_000_000
    assert moment_us(pa.scalar(START_US, pa.timestamp("us", "UTC")).as_py(), 0) == START_US
    with pytest.raises(QueryError, match="ISO 8601"):
        moment_us("noon", 0)
