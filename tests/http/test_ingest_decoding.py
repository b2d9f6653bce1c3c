"""What shippers send is read whole: each entry becomes one event, in order, and a bad one spoils no other."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterable
from typing import Any

import pytest
import shipper_bodies as bodies
from hypothesis import given, settings
from hypothesis import strategies as st

from culver.gateway.errors import HttpError
from culver.gateway.gathering import RECORDS_MAX
from culver.gateway.ingest import elasticsearch, lines, loki, otlp, otlp_shapes
from culver.gateway.ingest.delivery import gathered
from culver.gateway.ingest.events import BadEntry, Entry, Refused, event_value, iso_time
from culver.gateway.ingest.protobuf import Malformed
from culver.gateway.producing import Outgoing


def values(entries: Any) -> list[dict[str, Any]]:
    return [json.loads(entry.value) for entry in entries]


def from_protobuf(*records: bytes, **arguments: Any) -> list[Entry | Refused]:
    return list(otlp.entries(otlp_shapes.read_protobuf(bodies.export_request(*records, **arguments))))


def from_json(*records: Any) -> list[Entry | Refused]:
    return list(otlp.entries(otlp_shapes.read_json(json.dumps(bodies.otlp_json(*records)).encode())))


# --- OTLP ---


def test_a_log_record_has_the_names_that_the_pipeline_knows() -> None:
    (entry,) = from_protobuf(bodies.log_record("card refused"))
    assert entry.key == b"checkout/web-1"
    assert values([entry]) == [
        {
            "message": "card refused",
            "ts": bodies.TIME_ISO,
            "level": "WARN",
            "service": "checkout",
            "host": "web-1",
            "trace_id": bodies.TRACE_ID,
            "span_id": bodies.SPAN_ID,
            "http.status_code": 402,
            "retry": False,
            "otel.scope.name": "checkout.cards",
            "otel.scope.version": "0.9",
            "service.version": "1.4",
        }
    ]


def test_both_encodings_of_otlp_say_the_same() -> None:
    assert from_json(bodies.otlp_json_record("card refused")) == from_protobuf(
        bodies.log_record("card refused")
    )


def test_a_structured_body_gives_its_fields() -> None:
    body = {"message": "card refused", "amount": 12.5, "tags": ["a", 2], "card": {"kind": "gold"}}
    (event,) = values(from_protobuf(bodies.log_record(body)))
    assert event["message"] == "card refused"
    assert (event["amount"], event["tags"], event["card"]) == (12.5, ["a", 2], {"kind": "gold"})


def test_an_attribute_that_is_named_like_a_field_of_the_body_is_kept_beside_it() -> None:
    line = '{"message": "card refused", "http.status_code": 500, "level": "error"}'
    (event,) = values(from_protobuf(bodies.log_record(line)))
    assert event["http.status_code"] == 500
    assert event["attributes.http.status_code"] == 402
    assert event["level"] == "error"


def test_a_bad_record_is_refused_alone() -> None:
    good = bodies.log_record("good")
    entries = from_protobuf(good, b"\xff\xff\xff", good)
    assert [type(entry) for entry in entries] == [Entry, Refused, Entry]
    bad = bodies.otlp_json_record("bad") | {"timeUnixNano": "yesterday"}
    entries = from_json(bodies.otlp_json_record("good"), bad, {"severityNumber": "WARN"})
    assert [type(entry) for entry in entries] == [Entry, Refused, Refused]


def test_text_that_is_not_utf_8_is_kept_readable() -> None:
    (event,) = values(from_protobuf(bodies.log_record(b"caf\xe9")))
    assert event["message"] == "caf\\xe9"


def test_a_value_that_is_nested_without_end_is_refused() -> None:
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    (entry,) = from_protobuf(bodies.log_record(deep))
    assert isinstance(entry, Refused)
    assert "nested" in entry.reason


@pytest.mark.parametrize(
    ("number", "text", "level"),
    [
        (1, "", "TRACE"),
        (9, "Information", "INFO"),
        (24, "", "FATAL"),
        (0, "notice", "notice"),
        (99, "", None),
    ],
)
def test_severities_have_the_names_of_levels(number: int, text: str, level: str | None) -> None:
    (event,) = values(from_protobuf(bodies.log_record("x", severity=number, severity_text=text)))
    assert event.get("level") == level


def test_without_a_time_of_its_own_the_time_of_observation_counts() -> None:
    (event,) = values(from_protobuf(bodies.log_record("x", time_ns=0)))
    assert event["ts"] == iso_time(bodies.TIME_NS + 5)


@pytest.mark.parametrize("body", [b"\xff\xff", bodies.sized(1, b"\x0a\xff")])
def test_bytes_that_are_no_request_are_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        list(otlp_shapes.read_protobuf(body))


@pytest.mark.parametrize("body", [b"", b"[]", b"{", b'{"resourceLogs": {}}', b"[" * 5000])
def test_json_that_is_no_request_is_malformed(body: bytes) -> None:
    with pytest.raises(Malformed):
        list(otlp_shapes.read_json(body))


def test_an_empty_request_holds_nothing() -> None:
    assert list(otlp_shapes.read_protobuf(b"")) == []
    assert list(otlp_shapes.read_json(b"{}")) == []


# --- Loki ---


def from_push(*entries: bytes, labels: str = bodies.promtail_labels()) -> list[Entry | Refused]:
    return list(loki.entries(loki.read_protobuf(bodies.push_request(labels, *entries))))


def test_a_line_of_a_stream_has_its_labels_and_metadata() -> None:
    (entry,) = from_push(bodies.push_entry("card refused", trace_id=bodies.TRACE_ID))
    assert entry.key == b'{app="checkout", filename="/var/log/checkout.log", host="web-1", level="warn"}'
    assert values([entry]) == [
        {
            "message": "card refused",
            "ts": bodies.TIME_ISO,
            "level": "warn",
            "service": "checkout",
            "host": "web-1",
            "trace_id": bodies.TRACE_ID,
            "app": "checkout",
            "filename": "/var/log/checkout.log",
        }
    ]


def test_both_encodings_of_a_push_say_the_same() -> None:
    stream = {"host": "web-1", "app": "checkout", "level": "warn", "filename": "/var/log/checkout.log"}
    value = [str(bodies.TIME_NS), "card refused", {"trace_id": bodies.TRACE_ID}]
    push = json.dumps({"streams": [{"stream": stream, "values": [value]}]}).encode()
    entries = list(loki.entries(loki.read_json(push)))
    assert entries == from_push(bodies.push_entry("card refused", trace_id=bodies.TRACE_ID))


def test_a_line_that_is_a_json_object_gives_its_fields() -> None:
    (event,) = values(
        from_push(bodies.push_entry('{"msg": "card refused", "level": "error", "app": "cards"}'))
    )
    assert (event["msg"], event["level"], event["app"]) == ("card refused", "error", "cards")
    assert event["labels.app"] == "checkout"
    assert "message" not in event


def test_a_line_that_only_begins_like_json_is_text() -> None:
    (event,) = values(from_push(bodies.push_entry("{oops}")))
    assert event["message"] == "{oops}"


@pytest.mark.parametrize(
    ("labels", "found"),
    [
        ("{}", {}),
        ('{a="1"}', {"a": "1"}),
        ('{a="1",b_c="two, {three}",}', {"a": "1", "b_c": "two, {three}"}),
        (r'{path="C:\\logs", quote="\"x\""}', {"path": r"C:\logs", "quote": '"x"'}),
        (r'{odd="\x41"}', {"odd": r"\x41"}),
    ],
)
def test_labels_are_read_as_loki_writes_them(labels: str, found: dict[str, str]) -> None:
    assert loki.parse_labels(labels) == found


@pytest.mark.parametrize("labels", ["", "a=1", "{a}", '{a="1" b="2"}', '{a="1}', "{" * 1000])
def test_labels_that_cannot_be_read_refuse_only_their_stream(labels: str) -> None:
    body = bodies.push_request(labels, bodies.push_entry("lost")) + bodies.push_request(
        '{a="1"}', bodies.push_entry("found")
    )
    refused, entry = loki.entries(loki.read_protobuf(body))
    assert isinstance(refused, Refused)
    assert values([entry])[0]["message"] == "found"


def test_a_value_of_a_push_that_is_none_is_refused_alone() -> None:
    good = [str(bodies.TIME_NS), "good"]
    bad: list[Any] = [
        ["soon", "x"],
        [str(bodies.TIME_NS)],
        [1.5, "x"],
        "x",
        [str(bodies.TIME_NS), 7],
        [*good, {"a": 1}],
    ]
    push = json.dumps({"streams": [{"stream": {"a": "1"}, "values": [good, *bad, good]}]}).encode()
    kinds = [type(entry) for entry in loki.entries(loki.read_json(push))]
    assert kinds == [Entry, *[Refused] * len(bad), Entry]


# --- Elasticsearch ---


def bulk(*rows: str, index: str | None = None, topic: str | None = None) -> list[elasticsearch.Item]:
    body = "".join(f"{row}\n" for row in rows).encode()
    return list(elasticsearch.read_bulk(body, index, topic, "logs"))


def test_documents_are_kept_as_they_are_in_the_topic_of_their_index() -> None:
    first, second = bulk('{"create":{"_index":"shop"}}', bodies.FILEBEAT_DOCUMENT, '{"index":{}}', '{"a": 1}')
    assert first.record == Outgoing(
        "shop", bodies.FILEBEAT_DOCUMENT.encode(), b"checkout/web-1//var/log/checkout.log"
    )
    assert second.record == Outgoing("logs", b'{"a": 1}')


def test_a_document_goes_to_the_index_of_its_action_else_that_of_the_address() -> None:
    items = bulk('{"index":{"_index":"a"}}', "{}", '{"index":{}}', "{}", index="b")
    assert [item.record.topic for item in items if isinstance(item.record, Outgoing)] == ["a", "b"]


def test_a_topic_that_is_asked_for_counts_more_than_any_index() -> None:
    (item,) = bulk('{"index":{"_index":"logstash-2026.11.15","_id":"7"}}', "{}", topic="shop")
    assert item.record == Outgoing("shop", b"{}", None, ((elasticsearch.ID_HEADER, b"7"),))
    assert item.index == "logstash-2026.11.15"


@pytest.mark.parametrize(
    ("rows", "kind"),
    [
        (('{"delete":{"_index":"a","_id":"1"}}',), "illegal_argument_exception"),
        (('{"update":{"_index":"a","_id":"1"}}', '{"doc":{}}'), "illegal_argument_exception"),
        (('{"index":{"_index":"no topic"}}', "{}"), "invalid_index_name_exception"),
        (('{"index":{"_index":"a"}}', "{nonsense"), "document_parsing_exception"),
        (('{"index":{"_index":"a"}}', "[1]"), "document_parsing_exception"),
    ],
)
def test_an_item_that_cannot_be_a_record_fails_alone(rows: tuple[str, ...], kind: str) -> None:
    bad, good = bulk(*rows, '{"index":{"_index":"a"}}', "{}")
    assert isinstance(bad.record, elasticsearch.ItemError)
    assert bad.record.type == kind
    assert isinstance(good.record, Outgoing)


@pytest.mark.parametrize(
    "rows",
    [
        ("nonsense",),
        ("[]",),
        ('{"index":{},"create":{}}', "{}"),
        ('{"upsert":{}}', "{}"),
        ('{"index":7}', "{}"),
        ('{"index":{}}',),
        ('{"index":{}}', "", "{}"),
    ],
)
def test_a_body_in_which_lines_cannot_be_told_apart_is_refused_whole(rows: tuple[str, ...]) -> None:
    with pytest.raises(elasticsearch.BadBulk):
        bulk(*rows)


# --- lines and events ---


@pytest.mark.parametrize(
    ("body", "found"),
    [
        (b"", []),
        (b"\n\r\n", []),
        (b"one", [b"one"]),
        (b"one\ntwo\r\n\n three ", [b"one", b"two", b" three "]),
        (b"\xff\x00\n", [b"\xff\x00"]),
    ],
)
def test_lines_are_cut_at_their_ends_and_nowhere_else(body: bytes, found: list[bytes]) -> None:
    assert [entry.value for entry in lines.entries("text/plain", body, None)] == found


def test_more_entries_than_memory_should_hold_are_refused() -> None:
    entries = lines.entries("text/plain", b"x\n" * (RECORDS_MAX + 1), None)
    with pytest.raises(HttpError) as refusal:
        asyncio.run(gathered(entries))
    assert refusal.value.status == 413


@pytest.mark.parametrize("time_ns", [None, 0, -1, 1 << 64])
def test_a_time_that_is_none_is_left_out(time_ns: int | None) -> None:
    assert json.loads(event_value("x", time_ns=time_ns)) == {"message": "x"}


# --- anything at all ---

VALID = [
    bodies.export_request(bodies.log_record({"a": ["b", 1, {"c": 2.5}]}), bodies.log_record("text")),
    json.dumps(bodies.otlp_json(bodies.otlp_json_record("text"))).encode(),
    bodies.push_request(bodies.promtail_labels(), bodies.push_entry("line", pod="p")),
    json.dumps({"streams": [{"stream": {"a": "1"}, "values": [["1", "line", {"b": "2"}]]}]}).encode(),
    f'{{"index":{{"_id":"1"}}}}\n{bodies.FILEBEAT_DOCUMENT}\n{{"delete":{{}}}}\n'.encode(),
]


@st.composite
def damaged_bodies(draw: st.DrawFn) -> bytes:
    """What shippers send, with some bytes replaced, left out or put in."""
    body = bytearray(draw(st.sampled_from(VALID)))
    for _ in range(draw(st.integers(0, 4))):
        start = draw(st.integers(0, len(body)))
        end = draw(st.integers(start, min(start + 3, len(body))))
        body[start:end] = draw(st.binary(max_size=3))
    return bytes(body)


@given(st.one_of(damaged_bodies(), st.binary(max_size=60)))
@settings(max_examples=300, deadline=None)
def test_whatever_is_sent_is_either_read_or_refused(body: bytes) -> None:
    readers: list[Callable[[bytes], Iterable[object]]] = [
        lambda body: otlp.entries(otlp_shapes.read_protobuf(body)),
        lambda body: otlp.entries(otlp_shapes.read_json(body)),
        lambda body: loki.entries(loki.read_protobuf(body)),
        lambda body: loki.entries(loki.read_json(body)),
        lambda body: elasticsearch.read_bulk(body, None, None, "logs"),
        lambda body: lines.entries("application/json", body, None),
    ]
    for reader in readers:
        try:
            found = list(reader(body))
        except (Malformed, BadEntry, elasticsearch.BadBulk, HttpError):
            continue
        for entry in found:
            if isinstance(entry, Entry) and reader is not readers[-1]:
                assert isinstance(json.loads(entry.value), dict)
