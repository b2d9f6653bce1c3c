"""How the command line prints records, and reads them back from JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from culver.cli import record_json
from culver.cli.record_format import compile_format, iso_time, unescape
from culver.cli.record_json import Outgoing


def record(**fields: Any) -> Message:
    defaults: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "key": b"k1",
        "value": b"paid",
        "headers": [("trace", b"a1"), ("empty", None)],
        "timestamp": (TIMESTAMP_CREATE_TIME, 1_769_860_800_123),
    }
    return Message(**(defaults | fields))


@pytest.mark.parametrize(
    ("template", "printed"),
    [
        ("%s\\n", b"paid\n"),
        ("%t [%p] %o: %k=%s", b"orders [3] 7: k1=paid"),
        ("%K %S", b"2 4"),
        ("%R%s", b"\0\0\0\x04paid"),
        ("%T|%d", b"1769860800123|2026-01-31T12:00:00.123Z"),
        ("%h", b"trace=a1,empty=NULL"),
        ("100%% \\t\\r\\0\\\\\\x41", b"100% \t\r\0\\A"),
        ("Grüße %s", "Grüße paid".encode()),
        ("", b""),
    ],
)
def test_a_format_prints_what_it_names(template: str, printed: bytes) -> None:
    assert compile_format(template)(record()) == printed


def test_null_prints_as_nothing_and_has_length_minus_one() -> None:
    assert (
        compile_format("[%k][%s] %K %S %T [%d]")(
            record(key=None, value=None, timestamp=(TIMESTAMP_NOT_AVAILABLE, 0))
        )
        == b"[][] -1 -1 -1 []"
    )


@pytest.mark.parametrize("template", ["%q", "%", "\\q", "\\", "\\x4", "\\xzz"])
def test_a_format_that_means_nothing_is_refused(template: str) -> None:
    with pytest.raises(ValueError, match=r"means nothing in a format|hexadecimal"):
        compile_format(template)


def test_a_timestamp_beyond_the_calendar_is_printed_as_a_number() -> None:
    assert iso_time(2**63 - 1) == str(2**63 - 1)


def test_delimiters_know_the_escapes_but_no_fields() -> None:
    assert unescape("\\t%s\\x00") == b"\t%s\0"


def test_json_says_everything_about_a_record() -> None:
    assert json.loads(record_json.encode(record())) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_769_860_800_123,
        "key": "k1",
        "value": "paid",
        "headers": [["trace", "a1"], ["empty", None]],
    }


def test_what_json_prints_can_be_produced_again() -> None:
    original = record(
        key=b"\xff\0", value=b"\x80", headers=[("binary", b"\xfe"), ("text", b"x"), ("none", None)]
    )
    assert record_json.decode(record_json.encode(original)) == Outgoing(
        value=b"\x80",
        key=b"\xff\0",
        headers=(("binary", b"\xfe"), ("text", b"x"), ("none", None)),
        partition=3,
        timestamp_ms=1_769_860_800_123,
    )


def test_null_survives_json() -> None:
    assert record_json.decode(record_json.encode(record(key=None, value=None, headers=None))) == Outgoing(
        value=None, key=None, partition=3, timestamp_ms=1_769_860_800_123
    )


@pytest.mark.parametrize(
    ("line", "value"),
    [
        ('{"value": {"id": 1, "name": "Zoë"}}', '{"id":1,"name":"Zoë"}'.encode()),
        ('{"value": [1, 2]}', b"[1,2]"),
        ('{"value": 7}', b"7"),
        ('{"value": ""}', b""),
        ('{"value": null}', None),
    ],
)
def test_a_value_that_is_no_string_is_sent_as_json(line: str, value: bytes | None) -> None:
    assert record_json.decode(line.encode()).value == value


def test_headers_may_be_an_object() -> None:
    assert record_json.decode(b'{"value": "x", "headers": {"a": "1", "b": null}}').headers == (
        ("a", b"1"),
        ("b", None),
    )


@pytest.mark.parametrize(
    ("line", "complaint"),
    [
        ("nonsense", "Expecting value"),
        ("[1]", "expected an object"),
        ('{"key": "x"}', "no `value`"),
        ('{"value": "x", "partition": "one"}', "`partition` must be a whole number"),
        ('{"value": "x", "partition": true}', "`partition` must be a whole number"),
        ('{"value": "x", "timestamp": -5}', "`timestamp` must be a whole number"),
        ('{"value_base64": "?"}', "value_base64 is not base64"),
        ('{"value_base64": 7}', "value_base64 is not base64"),
        ('{"value": "x", "headers": 5}', "`headers` must be"),
        ('{"value": "x", "headers": [["a"]]}', "is no header"),
        ('{"value": "x", "headers": {"a": 1}}', "is no header"),
    ],
)
def test_a_line_that_is_no_record_is_refused_with_the_reason(line: str, complaint: str) -> None:
    with pytest.raises(ValueError, match=complaint):
        record_json.decode(line.encode())
