"""The console's API against those who mean no good: refused with a reason, and nothing is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Producer
from console_calls import DEADLINE_S, get
from http_call import call

from culver.gateway.console.state import STREAMS_MAX
from culver.testing import Broker

JSON = "application/json"


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/api/topics", b'{"name": "\xff"}'),
        ("POST", "/api/topics", b'{"config": {"\xff": 1}, "name": "a"}'),
        ("POST", "/api/topics", b"[" * 100_000),
        ("POST", "/api/topics", b'{"name": "a", "config": {"retention.ms": "%s"}}' % (b"9" * 40_000)),
        ("PATCH", "/api/topics/TOPIC/config", b'{"set": {"%s": 1}}' % (b"x" * 40_000)),
        ("PATCH", "/api/topics/TOPIC/config", b'{"reset": ["%s"]}' % (b"x" * 40_000)),
        ("POST", "/api/topics/TOPIC/records", b'{"value": "\xff"}'),
        ("POST", "/api/topics/TOPIC/records", b'{"value": "\\ud800 ", "value_encoding": "json"}'),
        ("POST", "/api/topics/TOPIC/records", b'{"value": {"a": 1}}'),
        ("POST", "/api/topics/TOPIC/records", b'{"headers": [{"name": "a\\u0000b"}]}'),
        ("POST", "/api/topics/TOPIC/records", b'{"value": "a", "timestamp_ms": -5}'),
        ("POST", "/api/topics/TOPIC/records", b'{"value": "a", "partition": 7}'),
        ("POST", "/api/groups/GROUP/offsets", b'{"to": "time", "time": 99999999999999999999999}'),
        ("POST", "/api/groups/GROUP/offsets", b'{"to": "time", "time": -99999999999999999999999}'),
        ("POST", "/api/groups/GROUP/offsets", b'{"to": "shift", "shift": 99999999999999999999999}'),
        ("GET", "/api/groups/" + "g" * 16_385, b""),
        ("DELETE", "/api/groups/" + "g" * 16_385, b""),
        ("DELETE", "/api/groups/GROUP/offsets?topic=%FF%00", b""),
        ("POST", "/api/transactions/" + "t" * 16_385 + "/abort", b""),
        ("POST", "/api/transactions/%00%FF/abort", b""),
        ("GET", "/api/topics/TOPIC/records?from=time:999999999999999999", b""),
        ("GET", "/api/topics/TOPIC/records?cursor=f.0:9999999999999999999.4294967295:1", b""),
        ("GET", "/api/topics/TOPIC/records/0/9999999999999999999", b""),
        ("DELETE", "/api/pipelines/%00%FF", b""),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    url: str, http_broker: Broker, topic: str, method: str, path: str, body: bytes
) -> None:
    path = path.replace("TOPIC", topic).replace("GROUP", "nobody")
    answer = call(method, url + path, body or None, JSON if body else None)
    assert 400 <= answer.status < 500, (answer.status, answer.body)
    assert answer.json["message"]


def test_long_names_are_names(url: str) -> None:
    assert call("GET", f"{url}/api/groups/{'g' * 16_384}").status == 404
    assert call("POST", f"{url}/api/transactions/{'t' * 16_384}/abort").status == 404


def test_headers_are_written_as_they_are_given(url: str, topic: str) -> None:
    given = [{"name": "a b", "value": "c\0d"}, {"name": "", "value": ""}, {"name": "é" * 1000}]
    sent = call("POST", f"{url}/api/topics/{topic}/records", {"value": "v", "headers": given})
    assert sent.status == 201, sent.body
    (found,) = get(url, f"/api/topics/{topic}/records")["records"]
    assert [header["name"] for header in found["headers"]] == [header["name"] for header in given]


def test_of_very_many_headers_some_are_shown(url: str, topic: str) -> None:
    given = {"value": "v", "headers": [{"name": "h", "value": "x"}] * 12_000}
    assert call("POST", f"{url}/api/topics/{topic}/records", given).status == 201
    (listed,) = get(url, f"/api/topics/{topic}/records")["records"]
    assert (len(listed["headers"]), listed["headers_more"]) == (100, 11_900)
    whole = get(url, f"/api/topics/{topic}/records/0/0")["record"]
    assert (len(whole["headers"]), whole["headers_more"]) == (10_000, 2_000)


def test_values_that_look_like_json_and_are_not_are_passed_over(
    url: str, http_broker: Broker, topic: str
) -> None:
    values = [b'{"a": "\xff"}', b"[" * 200_000, b'{"a": 1}', b'{"a": "\\ud800"}', b'{"a": 1e999}', b""]
    producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers, "linger.ms": 0})
    for value in values:
        producer.produce(topic, value=value)
    assert producer.flush(DEADLINE_S) == 0
    terms = "%20".join([".a=1", "-.b=2", ".a>0", ".a~1"])
    (found,) = get(url, f"/api/topics/{topic}/records?filter={terms}")["records"]
    assert found["value"]["json"] == {"a": 1}
    assert len(get(url, f"/api/topics/{topic}/records?filter=-.a=1")["records"]) == len(values) - 1
    assert len(get(url, f"/api/topics/{topic}/records")["records"]) == len(values)
    for form, extra in (("ndjson", 0), ("csv", 1)):
        exported = call("GET", f"{url}/api/topics/{topic}/export?format={form}")
        assert exported.body.count(b"\n") == len(values) + extra


def test_readers_who_vanish_make_room_for_others(url: str, topic: str) -> None:
    address = f"{url}/api/topics/{topic}/tail"

    async def open_one(session: aiohttp.ClientSession) -> aiohttp.ClientResponse:
        answer = await session.get(address)
        if answer.status == 200:
            await answer.content.readuntil(b"\n\n")
        return answer

    async def watch() -> tuple[list[int], int]:
        options: dict[str, Any] = {"timeout": aiohttp.ClientTimeout(total=DEADLINE_S)}
        connector = aiohttp.TCPConnector(limit=0)
        async with aiohttp.ClientSession(connector=connector, **options) as session:
            opened = await asyncio.gather(*(open_one(session) for _ in range(STREAMS_MAX + 20)))
            statuses = [answer.status for answer in opened]
            for answer in opened:
                answer.close()
            async with asyncio.timeout(DEADLINE_S):
                while (again := await open_one(session)).status == 429:
                    again.close()
            status = again.status
            again.close()
            return statuses, status

    statuses, after = asyncio.run(watch())
    assert sorted(statuses) == [200] * STREAMS_MAX + [429] * 20
    assert after == 200
