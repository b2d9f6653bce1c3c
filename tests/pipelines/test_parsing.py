"""Lines of every format become events; whatever a line holds, it is kept and nothing is raised."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from culver.pipelines.parsing.events import EVENT_SCHEMA, level_name
from culver.pipelines.parsing.lines import FORMATS, parse_lines

RECORDED = datetime(2026, 11, 15, 16, 30, tzinfo=UTC)
RECORDED_US = int(RECORDED.timestamp()) * 1_000_000


def parsed(line: str | bytes | None, **options: Any) -> dict[str, Any]:
    [event] = parse_lines([line], pa.array([RECORDED_US], pa.timestamp("us", "UTC")), **options).to_pylist()
    fields = event.pop("fields")
    return {**event, "fields": json.loads(fields) if fields else {}}


def at(text: str) -> datetime:
    return datetime.fromisoformat(text).astimezone(UTC)


# name: (line, what is expected of it)
LINES: dict[str, tuple[str, dict[str, Any]]] = {
    "json": (
        '{"ts":"2026-11-15T16:00:00.123Z","level":"warning","service":"api","host":"h1","msg":"slow","ms":7}',
        {
            "format": "json",
            "ts": at("2026-11-15T16:00:00.123Z"),
            "level": "WARN",
            "service": "api",
            "host": "h1",
            "message": "slow",
            "fields": {"ms": 7},
        },
    ),
    "json of pino": (
        '{"level":50,"time":1794758400123,"pid":7,"hostname":"h2","name":"web","msg":"no"}',
        {
            "ts": datetime.fromtimestamp(1794758400.123, UTC),
            "level": "ERROR",
            "service": "web",
            "host": "h2",
            "fields": {"pid": 7},
        },
    ),
    "json of docker": (
        '{"log":"it runs\\n","stream":"stdout","time":"2026-11-15T16:00:00.123456789Z"}',
        {"ts": at("2026-11-15T16:00:00.123456Z"), "message": "it runs", "fields": {"stream": "stdout"}},
    ),
    "json of gelf": (
        '{"version":"1.1","host":"h3","short_message":"down","timestamp":1794758400.5,"level":3}',
        {"ts": datetime.fromtimestamp(1794758400.5, UTC), "level": "ERROR", "message": "down", "host": "h3"},
    ),
    "json of elastic": (
        '{"@timestamp":"2026-11-15T16:00:00+01:00","log":{"level":"error"},"service":{"name":"pay"},"message":"m"}',
        {"ts": at("2026-11-15T15:00:00Z"), "level": "ERROR", "service": "pay", "message": "m"},
    ),
    "json without a message": (
        '{"a":1,"b":[2]}',
        {"message": '{"a":1,"b":[2]}', "fields": {"a": 1, "b": [2]}},
    ),
    "json that is none": ('{"a":', {"format": "unparsed", "message": '{"a":', "ts": RECORDED}),
    "logfmt": (
        r'ts=2026-11-15T16:00:00Z level=error service=db msg="lost \"it\"" took=3ms retried',
        {
            "format": "logfmt",
            "ts": at("2026-11-15T16:00:00Z"),
            "level": "ERROR",
            "service": "db",
            "message": 'lost "it"',
            "fields": {"took": "3ms", "retried": True},
        },
    ),
    "text that begins like logfmt": ("x=5 is the answer to it", {"format": "plain"}),
    "syslog 5424": (
        '<165>1 2026-11-15T16:00:00.003Z host.example app 811 ID47 [ex@32473 iut="3" note="a\\"b"] \ufeffAn event',
        {
            "format": "syslog5424",
            "ts": at("2026-11-15T16:00:00.003Z"),
            "level": "INFO",
            "service": "app",
            "host": "host.example",
            "message": "An event",
            "fields": {
                "facility": "local4",
                "severity": "notice",
                "pid": "811",
                "msgid": "ID47",
                "ex@32473": {"iut": "3", "note": 'a"b'},
            },
        },
    ),
    "syslog 5424 with nothing": (
        "<34>1 - - - - - -",
        {
            "format": "syslog5424",
            "level": "FATAL",
            "service": None,
            "host": None,
            "message": "",
            "ts": RECORDED,
        },
    ),
    "syslog 3164": (
        "<34>Nov 15 16:14:15 mymachine su[77]: failed for lonvick",
        {
            "format": "syslog3164",
            "ts": at("2026-11-15T16:14:15Z"),
            "level": "FATAL",
            "service": "su",
            "host": "mymachine",
            "message": "failed for lonvick",
            "fields": {"facility": "auth", "severity": "crit", "pid": "77"},
        },
    ),
    "syslog of last year": ("<13>Dec 24 18:00:00 h a: x", {"ts": at("2025-12-24T18:00:00Z")}),
    "syslog from a file": (
        "Nov  5 06:00:00 h cron[1]: ran",
        {"format": "syslog3164", "ts": at("2026-11-05T06:00:00Z"), "level": None, "service": "cron"},
    ),
    "syslog with an ISO time": (
        "<13>2026-11-15T16:00:00+02:00 h app: x",
        {"format": "syslog3164", "ts": at("2026-11-15T14:00:00Z"), "service": "app", "message": "x"},
    ),
    "a priority alone": (
        "<13>anything at all",
        {"format": "syslog3164", "message": "anything at all", "level": "INFO"},
    ),
    "a priority that is none": ("<999>anything", {"format": "plain", "message": "<999>anything"}),
    "common access log": (
        '127.0.0.1 - frank [15/Nov/2026:09:00:00 -0700] "GET /a b.gif HTTP/1.0" 200 2326',
        {
            "format": "access",
            "ts": at("2026-11-15T16:00:00Z"),
            "level": "INFO",
            "message": "GET /a b.gif HTTP/1.0 200",
            "fields": {
                "client": "127.0.0.1",
                "status": 200,
                "method": "GET",
                "path": "/a b.gif",
                "protocol": "HTTP/1.0",
                "bytes": 2326,
                "user": "frank",
            },
        },
    ),
    "combined access log": (
        '::1 - - [15/Nov/2026:16:00:00 +0000] "POST /x HTTP/2" 503 - "http://r/" "curl \\"8\\""',
        {"format": "access", "level": "ERROR"},
    ),
    "access log of a port scan": (
        '10.1.1.1 - - [15/Nov/2026:16:00:00 +0000] "\\x16\\x03" 400 0',
        {"format": "access", "level": "WARN"},
    ),
    "plain with time and level": (
        "2026-11-15 16:00:00,123 [main] ERROR com.example.Foo - it failed",
        {
            "format": "plain",
            "ts": at("2026-11-15T16:00:00.123Z"),
            "level": "ERROR",
            "message": "[main] ERROR com.example.Foo - it failed",
        },
    ),
    "plain of Go": (
        "2026/11/15 16:00:00 listening",
        {"ts": at("2026-11-15T16:00:00Z"), "message": "listening"},
    ),
    "plain with a level in brackets": ("[warn] low", {"level": "WARN", "message": "[warn] low"}),
    "plain with a leading level": ("error: no such file", {"level": "ERROR"}),
    "plain that talks of errors": ("no error was found", {"level": None, "format": "plain"}),
    "an impossible date": ("2026-02-30T10:00:00Z x", {"ts": RECORDED}),
    "a clock that runs ahead": ('{"ts":"2031-01-01T00:00:00Z","msg":"m"}', {"ts": RECORDED}),
    "a clock that was never set": ('{"ts":0,"msg":"m"}', {"ts": RECORDED}),
    "several lines": (
        "Traceback\n  File x\nValueError: y\n",
        {"format": "plain", "message": "Traceback\n  File x\nValueError: y"},
    ),
    "nothing": ("", {"format": "plain", "message": "", "ts": RECORDED}),
}


@pytest.mark.parametrize("name", LINES)
def test_a_line_is_understood(name: str) -> None:
    line, expected = LINES[name]
    event = parsed(line)
    assert {column: event[column] for column in expected} == expected
    assert event["raw"] == line.rstrip("\n")


def test_all_kinds_together_stay_in_order() -> None:
    lines = [line for line, _ in LINES.values()]
    table = parse_lines(lines * 3)
    assert table.schema == EVENT_SCHEMA
    assert table["raw"].to_pylist() == [line.rstrip("\n") for line in lines] * 3


def test_bytes_that_are_no_text_are_kept_readable() -> None:
    assert parsed(b"caf\xc3\xa9 \xff\xfe")["message"] == "café \\xff\\xfe"
    assert parsed(None)["message"] == ""


def test_a_format_that_was_asked_for_is_the_only_one_tried() -> None:
    assert parsed("level=info msg=x", format="json")["format"] == "unparsed"
    assert parsed('{"msg":"x"}', format="plain")["format"] == "plain"
    assert parsed("<13>Nov 15 16:00:00 h a: x", format="syslog")["format"] == "syslog3164"
    with pytest.raises(ValueError, match="there are auto, json"):
        parsed("x", format="xml")


def test_origin_and_default_service_are_taken_over() -> None:
    origin = pa.table({"topic": ["t"], "partition": [3], "offset": [42]})
    event = parsed("hello", origin=origin, default_service="shop")
    assert (event["topic"], event["partition"], event["offset"], event["service"]) == ("t", 3, 42, "shop")
    assert parsed('{"service":"api","msg":"x"}', default_service="shop")["service"] == "api"


def test_levels_have_one_name() -> None:
    spelled = ["warning", " Err ", "CRIT", "notice", 30, "30", "odd", "", None, True, {}, 7]
    assert [level_name(level) for level in spelled] == [
        *("WARN", "ERROR", "FATAL", "INFO", "INFO", "INFO", "ODD"),
        *(None, None, None, None, None),
    ]


PIECES = st.sampled_from(
    [
        *(
            '{"',
            '":',
            '"}',
            "{}",
            '"',
            "\\",
            "\\u",
            "\\ud800",
            "[",
            "]",
            "1e999",
            "9" * 400,
            "=",
            " ",
            "\n",
            "\0",
            "<34>",
        ),
        *(
            "<34>1 ",
            "ts=",
            "level=",
            "msg=",
            "2026-11-15T16:00:00Z",
            "0000-00-00T99:99:99Z",
            "Nov 15 16:00:00 ",
            "- ",
        ),
        *(
            '[15/Nov/2026:16:00:00 +9999] "',
            "é",
            "\U0001f600",
            "a",
            "ERROR",
            "Feb 30 00:00:00 h a: ",
            '{"a":' * 2000,
        ),
        *(line for line, _ in LINES.values()),
    ]
)
ANY_LINE = st.one_of(
    st.none(), st.binary(max_size=60), st.text(max_size=60), st.lists(PIECES, max_size=8).map("".join)
)


@given(st.lists(ANY_LINE, max_size=6), st.sampled_from(FORMATS), st.integers(-(2**63), 2**63 - 1))
@settings(max_examples=100, deadline=None)
def test_no_line_is_dropped_and_none_raises(lines: list[Any], format_name: str, recorded: int) -> None:
    timestamps = pa.array([recorded] * len(lines), pa.timestamp("us", "UTC"))
    table = parse_lines(lines, timestamps, format=format_name)
    assert table.num_rows == len(lines)
    assert table.schema == EVENT_SCHEMA
    for name in ("ts", "message", "format", "raw"):
        assert table[name].null_count == 0
    for line, raw in zip(lines, table["raw"].to_pylist(), strict=True):
        if isinstance(line, str):
            assert raw == line.encode("utf-8", "backslashreplace").decode().rstrip("\r\n")
        elif line is not None:
            assert raw == line.decode("utf-8", "backslashreplace").rstrip("\r\n")
