"""Records as receivers see them: what they hold comes through whole, on one line, written once for all."""

from __future__ import annotations

import base64
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.gateway.push.encoding import Encodings, record_json
from culver.gateway.reading.record import Record


def record(value: bytes | None, key: bytes | None = b"k", offset: int = 7) -> Record:
    return Record(
        "orders", 3, offset, 1_700_000_000_000, 0, key, value, (("a", b"1"), ("a", b"\xff"), ("b", None))
    )


def seen(value: bytes | None) -> tuple[object, str]:
    shown = json.loads(record_json(record(value)))
    return shown["value"], shown["value_format"]


def test_a_record_is_shown_with_its_place_its_time_and_its_headers() -> None:
    assert json.loads(record_json(record(b"hello"))) == {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "timestamp": 1_700_000_000_000,
        "key": "k",
        "key_format": "text",
        "value": "hello",
        "value_format": "text",
        "headers": [
            {"name": "a", "value": "1", "format": "text"},
            {"name": "a", "value": "/w==", "format": "base64"},
            {"name": "b", "value": None, "format": "text"},
        ],
    }


def test_a_value_that_is_json_is_shown_as_json_and_keeps_every_digit() -> None:
    assert seen(b'{"a": [1,\n 2]}') == ({"a": [1, 2]}, "json")
    assert b'"value":1.10000000000000000001,' in record_json(record(b"1.10000000000000000001"))
    assert seen(b"null") == (None, "json")
    assert seen(None) == (None, "text")


@pytest.mark.parametrize(
    "value", [b"", b" ", b"nan", b"{", b"[1,]", b"01", b"1 2", b"[" * 100_000, b'"\\ud800"']
)
def test_a_value_that_is_almost_json_is_text(value: bytes) -> None:
    assert seen(value) == (value.decode(), "text")


@given(st.binary(max_size=30))
def test_any_value_and_key_come_through_on_one_line(content: bytes) -> None:
    line = record_json(record(content, key=content))
    assert b"\n" not in line
    assert b"\r" not in line
    shown = json.loads(line)
    for field in ("key", "value"):
        if shown[f"{field}_format"] == "json":
            assert shown[field] == json.loads(content)
        elif shown[f"{field}_format"] == "text":
            assert shown[field].encode() == content
        else:
            assert base64.b64decode(shown[field]) == content
    assert shown["key_format"] != "json"


def test_a_record_is_written_once_for_all_who_get_it_and_another_one_at_its_place_anew() -> None:
    encodings = Encodings()
    first = record(b"first")
    assert encodings.of(first) is encodings.of(first)
    assert b"again" in encodings.of(record(b"again")).fields


def test_what_is_kept_has_a_bound() -> None:
    encodings = Encodings(kept_max_bytes=10_000)
    for offset in range(1000):
        encodings.of(record(b"x" * 100, offset=offset))
    assert sum(kept.size_bytes for kept in encodings._kept.values()) <= 10_000
