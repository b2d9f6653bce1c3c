"""Shippers are served as they expect: the answers of their protocols, durable records, clear refusals."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from typing import Any

import cramjam
import pyarrow as pa
import pytest
import shipper_bodies as bodies
from http_call import call, error_code
from http_client import Reply
from topic_contents import Held, all_records

from culver.pipelines.parsing.lines import parse_lines
from culver.testing import Broker

PROTOBUF = "application/x-protobuf"
NDJSON = "application/x-ndjson"
BODY_MAX_BYTES = 64 * 1024


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {
        "config": {"culver.http.body.max.bytes": BODY_MAX_BYTES, "auto.create.topics.enable": False},
        "topics": {"logs": 2},
    }


@pytest.fixture
def read(http_broker: Broker) -> Callable[[str], list[Held]]:
    """Reads all records of a topic."""
    return lambda topic: all_records(http_broker.bootstrap_servers, topic)


def snappy(body: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(body))


def push_values(*lines: str) -> dict[str, Any]:
    values = [[str(bodies.TIME_NS), line] for line in lines]
    return {"streams": [{"stream": {"app": "checkout", "host": "web-1", "level": "warn"}, "values": values}]}


# --- what came in is there, and the logs pipeline understands it ---


def test_the_logs_pipeline_understands_what_comes_in_each_way(
    url: str, topic: str, read: Callable[[str], list[Held]]
) -> None:
    otlp = bodies.export_request(bodies.log_record("card refused"))
    line = '{"ts":"2026-11-15T16:00:00.123Z","level":"warn","service":"checkout","host":"web-1","msg":"card refused"}'
    elastic = (
        f'{{"create":{{}}}}\n{bodies.FILEBEAT_DOCUMENT}\n{{"index":{{}}}}\n{bodies.FLUENT_BIT_DOCUMENT}\n'
    )
    answers = [
        call("POST", f"{url}/v1/logs?topic={topic}", otlp, PROTOBUF),
        call(
            "POST",
            f"{url}/v1/logs?topic={topic}",
            bodies.otlp_json(bodies.otlp_json_record("card refused")),
        ),
        call("POST", f"{url}/loki/api/v1/push", push_values("card refused"), X_Culver_Topic=topic),
        call("POST", f"{url}/elastic/{topic}/_bulk", elastic, NDJSON),
        call("POST", f"{url}/ingest/{topic}?key=web-1", line, "text/plain"),
    ]
    assert [answer.status for answer in answers] == [200, 200, 204, 200, 200]
    records = read(topic)
    events = parse_lines(pa.array([record.value for record in records], pa.binary())).to_pylist()
    assert len(events) == 6
    for event in events:
        assert event["format"] == "json"
        assert event["ts"].isoformat(timespec="milliseconds") == "2026-11-15T16:00:00.123+00:00"
        columns = ("level", "service", "host", "message")
        assert tuple(event[name] for name in columns) == ("WARN", "checkout", "web-1", "card refused")
    assert json.loads(events[0]["fields"])["trace_id"] == bodies.TRACE_ID
    assert all(record.key for record in records[:5])


def test_a_source_keeps_its_order(
    url: str, new_topic: Callable[..., str], read: Callable[[str], list[Held]]
) -> None:
    topic = new_topic(partitions=4)
    for start in range(0, 100, 50):
        push = push_values(*(f"line {number:02}" for number in range(start, start + 50)))
        assert call("POST", f"{url}/loki/api/v1/push?topic={topic}", push).status == 204
    records = read(topic)
    assert len({record.partition for record in records}) == 1
    messages = [json.loads(record.value or b"")["message"] for record in records]
    assert messages == [f"line {number:02}" for number in range(100)]


def test_without_a_topic_the_configured_one_is_used(url: str, read: Callable[[str], list[Held]]) -> None:
    assert call("POST", f"{url}/loki/api/v1/push", push_values("to logs")).status == 204
    assert any(b"to logs" in (record.value or b"") for record in read("logs"))


# --- OTLP ---


def test_otlp_is_answered_in_the_encoding_in_which_it_was_asked(url: str, topic: str) -> None:
    body = gzip.compress(bodies.export_request(bodies.log_record("one"), bodies.log_record("two")))
    answer = call("POST", f"{url}/v1/logs?topic={topic}", body, PROTOBUF, Content_Encoding="gzip")
    assert (answer.status, answer.headers["content-type"], answer.body) == (200, PROTOBUF, b"")
    answer = call("POST", f"{url}/v1/logs?topic={topic}", {"resourceLogs": []})
    assert (answer.status, answer.headers["content-type"], answer.json) == (200, "application/json", {})


def test_otlp_says_how_many_records_were_refused(
    url: str, topic: str, read: Callable[[str], list[Held]]
) -> None:
    good = bodies.otlp_json_record("good")
    body = bodies.otlp_json(good, {"timeUnixNano": "never"}, good)
    answer = call("POST", f"{url}/v1/logs?topic={topic}", body)
    assert answer.status == 200
    partial = answer.json["partialSuccess"]
    assert partial["rejectedLogRecords"] == "1"
    assert "1 of 3 entries were refused" in partial["errorMessage"]
    assert len(read(topic)) == 2
    body = bodies.export_request(bodies.log_record("good"), b"\xff")
    answer = call("POST", f"{url}/v1/logs?topic={topic}", body, PROTOBUF)
    # partial_success { rejected_log_records: 1, error_message: ... }
    assert answer.body[0] == 0x0A
    assert b"\x08\x01\x12" in answer.body[:8]


def test_otlp_refuses_a_record_that_the_topic_does_not_take(
    url: str, new_topic: Callable[..., str], read: Callable[[str], list[Held]]
) -> None:
    topic = new_topic(max_message_bytes=2000)
    body = bodies.export_request(bodies.log_record("small"), bodies.log_record("x" * 5000))
    answer = call("POST", f"{url}/v1/logs?topic={topic}", body, PROTOBUF)
    assert answer.status == 200
    assert b"MESSAGE_TOO_LARGE" in answer.body
    assert [json.loads(record.value or b"")["message"] for record in read(topic)] == ["small"]


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"\xff\xff", PROTOBUF, 400),
        (b"{", "application/json", 400),
        (b"x", "text/plain", 415),
        (b" " * (BODY_MAX_BYTES + 1), "application/json", 413),
    ],
)
def test_otlp_errors_are_statuses(url: str, topic: str, body: bytes, content_type: str, status: int) -> None:
    answer = call("POST", f"{url}/v1/logs?topic={topic}", body, content_type)
    assert answer.status == status
    if content_type == PROTOBUF:
        assert answer.body.startswith(b"\x12")  # Status.message
    else:
        assert answer.json["message"]


def test_a_topic_that_is_not_there_makes_shippers_keep_what_they_have(url: str) -> None:
    answer = call("POST", f"{url}/v1/logs?topic=missing", bodies.otlp_json(bodies.otlp_json_record("x")))
    assert answer.status == 503
    assert int(answer.headers["retry-after"]) > 0
    assert call("POST", f"{url}/loki/api/v1/push?topic=missing", push_values("x")).status == 503
    (item,) = call("POST", f"{url}/missing/_bulk", '{"index":{}}\n{}\n', NDJSON).json["items"]
    assert item["index"]["status"] == 503


@pytest.mark.parametrize("path", ["/v1/logs", "/loki/api/v1/push", "/_bulk"])
def test_a_name_that_no_topic_can_have_is_refused(url: str, path: str) -> None:
    answer = call("POST", f"{url}{path}?topic=no%20topic", {})
    assert answer.status == 422
    assert b"no topic" in answer.body


# --- Loki ---


@pytest.mark.parametrize("headers", [{}, {"Content_Encoding": "snappy"}])
def test_a_push_in_protobuf_comes_in_snappy(
    url: str, topic: str, read: Callable[[str], list[Held]], headers: dict[str, str]
) -> None:
    body = bodies.push_request(bodies.promtail_labels(), bodies.push_entry("card refused", pod="cards-7"))
    answer = call("POST", f"{url}/loki/api/v1/push?topic={topic}", snappy(body), PROTOBUF, **headers)
    assert (answer.status, answer.body) == (204, b"")
    (record,) = read(topic)
    assert json.loads(record.value or b"")["pod"] == "cards-7"


def test_a_push_takes_the_good_lines_and_tells_of_the_others(
    url: str, topic: str, read: Callable[[str], list[Held]]
) -> None:
    push = push_values("good")
    push["streams"][0]["values"].append(["soon", "bad"])
    answer = call("POST", f"{url}/loki/api/v1/push?topic={topic}", push)
    assert answer.status == 400
    assert b"1 of 2 entries were refused" in answer.body
    assert len(read(topic)) == 1


def test_a_push_that_unpacks_to_too_much_is_refused(url: str, topic: str) -> None:
    body = snappy(bodies.push_request("{}", bodies.push_entry("x" * BODY_MAX_BYTES)))
    assert len(body) < BODY_MAX_BYTES / 10
    assert call("POST", f"{url}/loki/api/v1/push?topic={topic}", body, PROTOBUF).status == 413
    assert call("POST", f"{url}/loki/api/v1/push?topic={topic}", b"not snappy", PROTOBUF).status == 400


# --- Elasticsearch ---


def bulk(url: str, *rows: str) -> Reply:
    return call("POST", url, "".join(f"{row}\n" for row in rows), NDJSON)


def test_a_bulk_has_a_result_for_each_action_in_order(
    url: str, topic: str, read: Callable[[str], list[Held]]
) -> None:
    answer = bulk(
        f"{url}/{topic}/_bulk?filter_path=errors,items",
        '{"create":{"_id":"a1"}}',
        bodies.FILEBEAT_DOCUMENT,
        '{"delete":{"_id":"a1"}}',
        '{"index":{"_index":"no topic"}}',
        "{}",
        '{"index":{}}',
        "nonsense",
        '{"index":{}}',
        bodies.FLUENT_BIT_DOCUMENT,
    )
    assert answer.status == 200
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    assert answer.json["errors"] is True
    results = [(action, about["status"]) for item in answer.json["items"] for action, about in item.items()]
    assert results == [("create", 201), ("delete", 400), ("index", 400), ("index", 400), ("index", 201)]
    assert answer.json["items"][0]["create"]["_id"] == "a1"
    first, second = read(topic)
    assert first.value == bodies.FILEBEAT_DOCUMENT.encode()
    assert first.headers == [("elasticsearch.id", b"a1")]
    assert second.value == bodies.FLUENT_BIT_DOCUMENT.encode()


@pytest.mark.parametrize("method", ["POST", "PUT"])
def test_a_bulk_without_trouble_says_so(url: str, topic: str, method: str) -> None:
    body = f'{{"index":{{"_index":"{topic}"}}}}\n{{}}\n'
    answer = call(method, f"{url}/elastic/_bulk", body, NDJSON).json
    assert answer["errors"] is False
    assert answer["items"][0]["index"]["result"] == "created"


@pytest.mark.parametrize("body", ["", "\n", "nonsense\n", '{"index":{}}\n'])
def test_a_body_that_is_no_bulk_is_refused_as_elasticsearch_does_it(url: str, body: str) -> None:
    answer = call("POST", f"{url}/_bulk", body, NDJSON)
    assert answer.status == 400
    assert answer.json["status"] == 400
    assert answer.json["error"]["type"] == "parse_exception"


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", ""),
        ("GET", "/"),
        ("HEAD", "/"),
        ("GET", "/_license?human=false"),
        ("GET", "/_xpack"),
        ("GET", "/_cluster/health"),
        ("HEAD", "/_cat/health"),
        ("GET", "/_cat/health"),
        ("HEAD", "/_index_template/filebeat-8.19.0"),
        ("PUT", "/_index_template/filebeat-8.19.0"),
        ("GET", "/_ilm/policy/filebeat"),
        ("PUT", "/_ilm/policy/filebeat"),
        ("GET", "/_data_stream/filebeat-8.19.0"),
    ],
)
def test_what_shippers_ask_before_they_send_is_answered(url: str, method: str, path: str) -> None:
    answer = call(method, f"{url}/elastic{path}")
    assert answer.status == 200
    assert answer.headers["x-elastic-product"] == "Elasticsearch"
    if method == "HEAD":
        assert answer.body == b""


def test_shippers_find_a_version_and_an_active_licence(url: str) -> None:
    major = int(call("GET", f"{url}/elastic/").json["version"]["number"].partition(".")[0])
    assert major >= 8
    licence = call("GET", f"{url}/elastic/_license").json["license"]
    assert (licence["status"], licence["type"]) == ("active", "basic")


# --- raw lines ---


def test_each_line_is_a_record_as_it_is(url: str, topic: str, read: Callable[[str], list[Held]]) -> None:
    body = b'{"a":  1}\r\n\nplain \xff text\n'
    answer = call("POST", f"{url}/ingest/{topic}?key=web-1", body, NDJSON)
    assert (answer.status, answer.json) == (200, {"records": 2})
    assert [(record.key, record.value) for record in read(topic)] == [
        (b"web-1", b'{"a":  1}'),
        (b"web-1", b"plain \xff text"),
    ]


def test_a_json_document_is_one_record(url: str, topic: str, read: Callable[[str], list[Held]]) -> None:
    document = b'{\n  "a": 1\n}\n'
    assert call("POST", f"{url}/ingest/{topic}", document, "application/json").json == {"records": 1}
    assert [record.value for record in read(topic)] == [document]
    assert call("POST", f"{url}/ingest/{topic}", b"{}\n{}", "application/json").status == 400


def test_lines_that_are_too_large_are_named_and_the_others_taken(
    url: str, new_topic: Callable[..., str], read: Callable[[str], list[Held]]
) -> None:
    topic = new_topic(max_message_bytes=2000)
    answer = call(
        "POST", f"{url}/ingest/{topic}?key=k", b"small\n" + b"x" * 5000 + b"\nsmall too\n", "text/plain"
    )
    assert (answer.status, answer.json["records"]) == (422, 2)
    assert [refused["line"] for refused in answer.json["refused"]] == [1]
    assert len(read(topic)) == 2


@pytest.mark.parametrize(
    ("path", "content_type", "expected"),
    [
        ("missing", "text/plain", 40401),
        ("no%20topic", "text/plain", 42203),
        ("logs", "multipart/form-data", 415),
    ],
)
def test_lines_that_cannot_be_taken_are_refused(
    url: str, path: str, content_type: str, expected: int
) -> None:
    answer = call("POST", f"{url}/ingest/{path}", b"x", content_type)
    assert error_code(answer) == expected
    assert str(expected).startswith(str(answer.status))
