"""The console's API over topics: what there is, what is in them, and changes."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import aiohttp
import pytest
from confluent_kafka import Producer
from console_calls import DEADLINE_S, get, wait_for
from http_call import call, error_code
from http_client import Reply

from culver.gateway.console.live import LiveResponse
from culver.testing import Broker


def produce(broker: Broker, topic: str, count: int, *, partitions: int = 1, first: int = 0) -> None:
    """JSON values that say their number, a second apart, in turns to the partitions."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(first, first + count):
        producer.produce(
            topic,
            key=f"key-{number}",
            value=json.dumps({"number": number, "even": number % 2 == 0}),
            partition=number % partitions,
            timestamp=1_700_000_000_000 + number * 1000,
            headers={"trace": f"t-{number}"},
        )
    assert producer.flush(DEADLINE_S) == 0


def numbers(page: Any) -> list[int]:
    return [record["value"]["json"]["number"] for record in page["records"]]


# --- the cluster ---


def test_the_cluster_at_a_glance(url: str, topic: str) -> None:
    found = wait_for(lambda: get(url, "/api/cluster"), lambda found: found["counts"]["topics"] >= 1)
    assert found["is_culver"] is True
    assert found["counts"]["brokers"] == 1
    assert found["counts"]["partitions"] >= 1
    assert (found["counts"]["under_replicated"], found["counts"]["offline"]) == (0, 0)
    (broker,) = get(url, "/api/brokers")["items"]
    assert broker["is_controller"] is True
    assert broker["id"] == found["controller_id"]
    assert broker["error"] is None
    assert broker["log_dirs"][0]["usable_bytes"] > 0


# --- topics ---


def test_topics_are_made_listed_changed_and_deleted(url: str) -> None:
    made = call(
        "POST", url + "/api/topics", {"name": "shop", "partitions": 2, "config": {"retention.ms": 5000}}
    )
    assert (made.status, made.json["partitions"]) == (201, 2)
    again = call("POST", url + "/api/topics", {"name": "shop"})
    assert (again.status, error_code(again)) == (409, 40901)
    (item,) = get(url, "/api/topics?q=SHOP")["items"]
    assert (item["name"], item["partitions"], item["replicas"], item["messages"]) == ("shop", 2, 1, 0)

    found = get(url, "/api/topics/shop")
    assert [each["partition"] for each in found["partitions"]] == [0, 1]
    assert found["partitions"][0]["isr"] == found["partitions"][0]["replicas"]
    settings = {each["name"]: each for each in found["config"]}
    assert (settings["retention.ms"]["value"], settings["retention.ms"]["source"]) == ("5000", "topic")
    assert settings["cleanup.policy"]["is_default"] is True

    changes = {"set": {"cleanup.policy": "compact"}, "reset": ["retention.ms"]}
    changed = call("PATCH", url + "/api/topics/shop/config", changes)
    settings = {each["name"]: each for each in changed.json["config"]}
    assert settings["cleanup.policy"]["value"] == "compact"
    assert settings["retention.ms"]["is_default"] is True

    assert call("POST", url + "/api/topics/shop/partitions", {"count": 3}).json["partitions"] == 3
    wait_for(lambda: get(url, "/api/topics/shop"), lambda found: found["partitions_count"] == 3)
    assert call("POST", url + "/api/topics/shop/partitions", {"count": 3}).status == 422

    assert call("DELETE", url + "/api/topics/shop").json == {"name": "shop", "deleted": True}
    assert error_code(call("GET", url + "/api/topics/shop")) == 40401
    assert error_code(call("DELETE", url + "/api/topics/shop")) == 40401


def test_a_topic_may_be_tried_out(url: str) -> None:
    tried = call("POST", url + "/api/topics", {"name": "perhaps", "dry_run": True})
    assert (tried.status, tried.json["dry_run"]) == (200, True)
    assert get(url, "/api/topics?q=perhaps")["items"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/api/topics", {"name": "a/b"}, 422),
        ("POST", "/api/topics", {"name": "few", "partitions": -3}, 422),
        ("POST", "/api/topics", {"name": "many", "replicas": 9}, 422),
        ("POST", "/api/topics", {"name": "odd", "config": {"no.such.setting": "1"}}, 422),
        ("POST", "/api/topics", {}, 422),
        ("POST", "/api/topics", {"name": "x", "surprise": 1}, 422),
        ("GET", "/api/topics?limit=0", None, 422),
        ("GET", "/api/topics?limit=501", None, 422),
        ("GET", "/api/topics?offset=-1", None, 422),
        ("GET", "/api/topics?sort=colour", None, 422),
        ("GET", "/api/topics?internal=perhaps", None, 422),
        ("GET", "/api/topics/none/records", None, 404),
        ("PATCH", "/api/topics/none/config", {"set": {"retention.ms": 1}}, 404),
    ],
)
def test_what_cannot_be_done_is_refused_with_a_reason(
    url: str, method: str, path: str, body: dict[str, Any] | None, status: int
) -> None:
    answer = call(method, url + path, body)
    assert answer.status == status, answer.body
    assert answer.json["message"]


def test_a_topic_knows_its_size_and_its_rate(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    produce(http_broker, topic, 10, partitions=2)
    # A list is up to a second old.
    found = wait_for(lambda: get(url, f"/api/topics?q={topic}"), lambda found: found["total"] == 1)
    (item,) = found["items"]
    assert item["messages"] == 10
    assert item["bytes"] > 100
    produce(http_broker, topic, 50, partitions=2, first=10)

    def rate() -> Any:
        return get(url, f"/api/topics?q={topic}")["items"][0]["messages_per_s"]

    assert wait_for(rate, lambda found: found is not None) > 0
    by_size = get(url, "/api/topics?sort=-messages&internal=true&limit=5")["items"]
    counts = [each["messages"] for each in by_size]
    assert counts == sorted(counts, reverse=True)


# --- looking at records ---


def test_the_newest_records_come_first_and_pages_go_back_to_the_beginning(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    produce(http_broker, topic, 25, partitions=3)
    path = f"/api/topics/{topic}/records?limit=10"
    first = get(url, path)
    assert (first["direction"], first["stopped"], first["complete"]) == ("backward", "limit", False)
    second = get(url, f"{path}&cursor={first['cursor']}")
    third = get(url, f"{path}&cursor={second['cursor']}")
    assert numbers(first) + numbers(second) + numbers(third) == list(range(24, -1, -1))
    assert (third["stopped"], third["complete"], third["cursor"]) == ("end", True, None)
    newest = first["records"][0]
    assert newest["key"] == {"encoding": "text", "text": "key-24", "bytes": 6}
    assert newest["headers"] == [{"name": "trace", "value": {"encoding": "text", "text": "t-24", "bytes": 4}}]
    assert newest["timestamp_ms"] == 1_700_000_024_000
    assert first["partitions"][0] == {"partition": 0, "earliest": 0, "latest": 9, "position": 5}


def test_records_from_the_beginning_from_an_offset_and_from_a_time(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    produce(http_broker, topic, 20, partitions=2)
    path = f"/api/topics/{topic}/records"
    assert numbers(get(url, f"{path}?from=earliest&limit=4")) == [0, 1, 2, 3]
    assert numbers(get(url, f"{path}?from=offset:8&partition=1")) == [17, 19]
    assert numbers(get(url, f"{path}?from=offset:2&direction=backward")) == [3, 2, 1, 0]
    assert numbers(get(url, f"{path}?from=time:1700000015000")) == [15, 16, 17, 18, 19]
    assert numbers(get(url, f"{path}?from=time:2023-11-14T22:13:35Z")) == [15, 16, 17, 18, 19]
    assert numbers(get(url, f"{path}?from=time:1h")) == []
    at_the_end = get(url, f"{path}?from=earliest")
    assert (at_the_end["complete"], at_the_end["stopped"]) == (True, "end")
    produce(http_broker, topic, 2, partitions=2, first=20)
    assert numbers(get(url, f"{path}?cursor={at_the_end['cursor']}")) == [20, 21]


def test_a_filter_says_how_much_it_has_looked_at(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    produce(http_broker, topic, 40, partitions=2)
    found = get(url, f"/api/topics/{topic}/records?filter=.number%3E%3D30+.even%3Dtrue")
    assert numbers(found) == [38, 36, 34, 32, 30]
    assert found["scanned"] == 40
    assert found["complete"] is True
    by_header = get(url, f"/api/topics/{topic}/records?filter=header.trace:t-7")
    assert numbers(by_header) == [7]


@pytest.mark.parametrize(
    "query",
    [
        "from=nowhere",
        "from=offset:x",
        "from=time:soon",
        "partition=9",
        "partition=x",
        "cursor=zzz",
        "limit=5000",
        "direction=up",
        "isolation=some",
        "filter=%22open",
    ],
)
def test_a_look_that_cannot_be_understood(url: str, topic: str, query: str) -> None:
    answer = call("GET", f"{url}/api/topics/{topic}/records?{query}")
    assert answer.status in (404, 422), answer.body
    assert answer.json["message"]


def test_one_record_has_an_address_and_its_bytes_too(url: str, http_broker: Broker, topic: str) -> None:
    large = b"\x00" * 100_000
    producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers})
    producer.produce(topic, value=large)
    producer.produce(topic, key=b"k", value=None)
    assert producer.flush(DEADLINE_S) == 0
    path = f"/api/topics/{topic}/records"
    in_list = get(url, path + "?from=earliest")["records"][0]["value"]
    assert (in_list["encoding"], in_list["truncated"], in_list["bytes"]) == ("base64", True, 100_000)
    whole = get(url, path + "/0/0")["record"]["value"]
    assert base64.b64decode(whole["base64"]) == large
    raw = call("GET", url + path + "/0/0/value")
    assert raw.body == large
    assert raw.headers["content-disposition"] == f'attachment; filename="{topic}-0-0.value"'
    assert raw.headers["x-content-type-options"] == "nosniff"
    assert get(url, path + "/0/1")["record"]["value"] is None
    assert error_code(call("GET", url + path + "/0/1/value")) == 40406
    assert call("GET", url + path + "/0/1/key").body == b"k"
    assert error_code(call("GET", url + path + "/0/2")) == 40406
    assert error_code(call("GET", url + path + "/1/0")) == 40402
    assert call("GET", url + path + "/0/-1").status == 422


def test_a_record_can_be_written(url: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(2)
    path = f"{url}/api/topics/{topic}/records"

    def send(**record: Any) -> Reply:
        return call("POST", path, record)

    sent = send(
        key="k",
        value={"big": 12345678901234567890, "exact": 1.10},
        value_encoding="json",
        headers=[{"name": "h", "value": "AAE=", "encoding": "base64"}],
        partition=1,
        timestamp_ms=1_700_000_000_000,
    )
    assert (sent.status, sent.json) == (201, {"topic": topic, "partition": 1, "offset": 0})
    found = get(url, f"/api/topics/{topic}/records/1/0")["record"]
    assert found["value"]["text"] == '{"big":12345678901234567890,"exact":1.1}'
    assert found["headers"][0]["value"]["base64"] == "AAE="
    assert found["timestamp_ms"] == 1_700_000_000_000
    assert send(key="k", partition=1).json["offset"] == 1
    assert get(url, f"/api/topics/{topic}/records/1/1")["record"]["value"] is None
    assert send(value={"not": "text"}).status == 422
    assert send(value="???", value_encoding="base64").status == 422
    assert error_code(send(value="x", partition=7)) == 40402
    assert send(value="x", timestamp_ms=-1).status == 422
    assert error_code(call("POST", f"{url}/api/topics/none/records", {"value": "x"})) == 40401


def test_records_before_an_offset_can_be_deleted(url: str, http_broker: Broker, topic: str) -> None:
    produce(http_broker, topic, 10)
    path = f"{url}/api/topics/{topic}/truncate"
    done = call("POST", path, {"partitions": {"0": 4}})
    assert done.json["partitions"] == [{"partition": 0, "earliest": 4, "error": None}]
    assert numbers(get(url, f"/api/topics/{topic}/records?from=earliest&limit=1")) == [4]
    assert call("POST", path, {"partitions": {"0": None}}).json["partitions"][0]["earliest"] == 10
    assert call("POST", path, {"partitions": {"5": 1}}).status == 404
    assert call("POST", path, {"partitions": {"0": -1}}).status == 422


# --- export ---


def test_an_export_has_every_record_up_to_where_it_was_told_to_end(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    produce(http_broker, topic, 1200, partitions=2)
    path = f"{url}/api/topics/{topic}/export"
    answer = call("GET", path)
    lines = [json.loads(line) for line in answer.body.splitlines()]
    assert [line["value"]["number"] for line in lines] == list(range(1200))
    assert answer.headers["content-disposition"] == f'attachment; filename="{topic}.ndjson"'
    assert len(call("GET", path + "?limit=7").body.splitlines()) == 7
    part = call("GET", path + "?from=time:1700000010000&until=time:1700000020000&format=csv")
    rows = list(csv.DictReader(io.StringIO(part.body.decode())))
    assert [row["key"] for row in rows] == [f"key-{number}" for number in range(10, 20)]
    assert rows[0]["timestamp"] == "2023-11-14T22:13:30.000Z"
    assert json.loads(rows[0]["headers"]) == [["trace", "t-10"]]
    filtered = call("GET", path + "?filter=key:key-11")
    assert len(filtered.body.splitlines()) == 111
    assert call("GET", path + "?from=latest").status == 422
    assert call("GET", path + "?format=xlsx").status == 422


def test_a_spreadsheet_runs_nothing_of_an_export(url: str, http_broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers})
    dangerous = ['=cmd|"/c calc"!A1', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1"]
    for text in [*dangerous, "harmless = 1", 'a "quoted", text\nof two lines']:
        producer.produce(topic, key=text, value=text, headers=[("=h", b"=v")])
    producer.produce(topic, value=b"\xff\x00")
    assert producer.flush(DEADLINE_S) == 0
    answer = call("GET", f"{url}/api/topics/{topic}/export?format=csv")
    rows = list(csv.DictReader(io.StringIO(answer.body.decode(), newline="")))
    assert [row["value"] for row in rows[:6]] == ["'" + text for text in dangerous]
    assert [row["key"] for row in rows[:6]] == ["'" + text for text in dangerous]
    assert [row["value"] for row in rows[6:8]] == ["harmless = 1", 'a "quoted", text\nof two lines']
    assert rows[8]["value"] == "base64:/wA="
    assert all(row["headers"].startswith("[") for row in rows[:8])


# --- live ---


@asynccontextmanager
async def tail(url: str, path: str, **headers: str) -> AsyncIterator[Callable[[str], Any]]:
    """An open tail, and a function that gives the data of its next event of a kind."""
    timeout = aiohttp.ClientTimeout(total=None, sock_read=DEADLINE_S)
    async with (
        aiohttp.ClientSession(timeout=timeout) as session,
        session.get(url + path, headers=headers) as answer,
    ):
        assert answer.status == 200
        assert answer.headers["content-type"].startswith("text/event-stream")
        await answer.content.readuntil(b"\n\n")  # the comment that says it is connected

        async def following(kind: str) -> Any:
            while True:
                lines = (await answer.content.readuntil(b"\n\n")).decode().splitlines()
                fields = dict(line.split(": ", 1) for line in lines if line)
                if fields.get("event") == kind:
                    return {"id": fields.get("id"), **json.loads(fields["data"])}

        yield following


def test_a_tail_shows_records_as_they_are_written_and_resumes(
    url: str, http_broker: Broker, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)
    produce(http_broker, topic, 4, partitions=2)

    async def watch() -> None:
        path = f"/api/topics/{topic}/tail"
        async with tail(url, path) as following:
            await asyncio.to_thread(produce, http_broker, topic, 2, partitions=2, first=4)
            seen = [(await following("record"))["value"]["json"]["number"] for _ in range(2)]
            assert seen == [4, 5]
            position = await following("position")
        await asyncio.to_thread(produce, http_broker, topic, 4, partitions=2, first=6)
        headers = {"Last-Event-ID": position["id"]}
        async with tail(url, path + "?filter=.even%3Dtrue", **headers) as following:
            seen = [(await following("record"))["value"]["json"]["number"] for _ in range(2)]
            assert seen == [6, 8]

    asyncio.run(watch())


def test_a_tail_leaves_out_what_comes_too_quickly_and_says_so(
    url: str, http_broker: Broker, topic: str
) -> None:
    async def watch() -> None:
        async with tail(url, f"/api/topics/{topic}/tail") as following:
            await asyncio.to_thread(produce, http_broker, topic, 3000)
            skipped = await following("skipped")
            assert skipped["count"] > 0
            position = await following("position")
            while position["scanned"] < 3000:
                position = await following("position")
            assert position["latest"] == {"0": 3000}

    asyncio.run(watch())


def test_a_tail_ends_with_a_reason_when_its_topic_is_deleted(url: str, topic: str) -> None:
    async def watch() -> None:
        async with tail(url, f"/api/topics/{topic}/tail") as following:
            deleted = await asyncio.to_thread(call, "DELETE", f"{url}/api/topics/{topic}")
            assert deleted.status == 200
            assert (await following("problem"))["message"]

    asyncio.run(watch())


def test_what_never_ends_has_a_head_that_does(url: str, topic: str) -> None:
    for path in ("tail", "export"):
        answer = call("HEAD", f"{url}/api/topics/{topic}/{path}")
        assert (answer.status, answer.body) == (200, b"")
    assert call("HEAD", f"{url}/api/events/live").headers["content-type"].startswith("text/event-stream")


def test_a_stream_ends_when_the_gateway_is_told_to_end() -> None:
    async def run() -> tuple[list[Any], bool]:
        stopping, closed = asyncio.Event(), False
        sent: list[Any] = []

        async def parts() -> AsyncGenerator[bytes, None]:
            nonlocal closed
            try:
                yield b"first"
                await asyncio.Event().wait()
            finally:
                closed = True

        async def receive() -> Any:
            await asyncio.Event().wait()

        async def send(message: Any) -> None:
            sent.append(message)
            if message.get("body") == b"first":
                stopping.set()

        services: Any = SimpleNamespace(stopping=stopping, console=SimpleNamespace(streams=0))
        answer = LiveResponse(services, parts(), "text/event-stream")
        await asyncio.wait_for(answer({"type": "http", "method": "GET"}, receive, send), DEADLINE_S)
        return sent, closed

    sent, closed = asyncio.run(run())
    assert [message.get("body") for message in sent[1:]] == [b"first", b""]
    assert closed


def test_a_tail_that_begins_far_back_leaves_out_what_is_old(
    url: str, http_broker: Broker, topic: str
) -> None:
    produce(http_broker, topic, 10_500)

    async def watch() -> None:
        async with tail(url, f"/api/topics/{topic}/tail?from=earliest") as following:
            assert (await following("skipped"))["count"] >= 500
            position = await following("position")
            while position["latest"] != {"0": 10_500}:
                position = await following("position")
            assert position["scanned"] == 10_000

    asyncio.run(watch())
