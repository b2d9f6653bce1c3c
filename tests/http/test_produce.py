"""Producing over HTTP: every media type, what comes back, and what a Kafka consumer then reads."""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import zlib
from collections.abc import Callable
from typing import Any

import aiohttp
import pytest
import zstandard
from http_client import call, consumed, post, post_json

from culver.testing import Broker, Cluster, Gateway

JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
V2 = "application/vnd.kafka.v2+json"


def values(broker: Broker, topic: str, count: int, partition: int = 0) -> list[bytes | None]:
    return [message.value() for message in consumed(broker.bootstrap_servers, topic, count, partition)]


class TestRestProxy:
    def test_json_records_are_stored_as_they_were_written(
        self, http_broker: Broker, url: str, topic: str
    ) -> None:
        records = [
            {"key": "one", "value": {"price": 1.10, "name": "ÄÖ"}},
            {"key": {"id": 7}, "value": [1, 2]},
            {"value": None, "key": "one"},
            {"value": "text", "timestamp": 1_700_000_000_000, "headers": [{"name": "trace", "value": "abc"}]},
        ]
        reply = post_json(url, f"/topics/{topic}", {"records": records}, JSON_V2)
        assert (reply.status, reply.headers["Content-Type"]) == (200, V2)
        assert reply.json == {
            "offsets": [
                {"partition": 0, "offset": offset, "error_code": None, "error": None} for offset in range(4)
            ],
            "key_schema_id": None,
            "value_schema_id": None,
        }
        found = consumed(http_broker.bootstrap_servers, topic, 4)
        assert json.loads(found[0].value()) == {"price": 1.10, "name": "ÄÖ"}
        assert [message.key() for message in found] == [b'"one"', b'{"id": 7}', b'"one"', None]
        assert found[2].value() is None
        assert (found[3].timestamp()[1], found[3].headers()) == (1_700_000_000_000, [("trace", b"abc")])

    def test_binary_records_are_base64(self, http_broker: Broker, url: str, topic: str) -> None:
        key, value = bytes(range(256)), b"\x00\xff" * 100
        record = {"key": base64.b64encode(key).decode(), "value": base64.b64encode(value).decode()}
        assert post_json(url, f"/topics/{topic}", {"records": [record]}, BINARY_V2).status == 200
        (message,) = consumed(http_broker.bootstrap_servers, topic, 1)
        assert (message.key(), message.value()) == (key, value)

    def test_records_go_to_the_partition_that_is_asked_for(
        self, url: str, new_topic: Callable[..., str]
    ) -> None:
        topic = new_topic(3)
        in_records = post_json(
            url, f"/topics/{topic}", {"records": [{"value": 1, "partition": n} for n in (2, 0, 2)]}, JSON_V2
        )
        assert [each["partition"] for each in in_records.json["offsets"]] == [2, 0, 2]
        in_path = post_json(url, f"/topics/{topic}/partitions/1", {"records": [{"value": 1}]}, JSON_V2)
        assert in_path.json["offsets"][0]["partition"] == 1
        in_query = post_json(url, f"/topics/{topic}?partition=2", 1)
        assert in_query.json["offsets"][0] == {
            "partition": 2,
            "offset": 2,
            "error_code": None,
            "error": None,
        }

    def test_a_key_finds_the_partition_that_java_clients_choose(
        self, url: str, new_topic: Callable[..., str]
    ) -> None:
        # Kafka's own test vectors of murmur2: "21" hashes to -973932308, "foobar" to -790332482.
        topic = new_topic(7)
        for key, hashed in (("21", -973932308), ("foobar", -790332482)):
            reply = post_json(url, f"/topics/{topic}?key={key}", 1)
            assert reply.json["offsets"][0]["partition"] == (hashed & 0x7FFFFFFF) % 7

    def test_a_record_that_is_too_large_fails_alone(
        self, http_broker: Broker, url: str, new_topic: Callable[..., str]
    ) -> None:
        topic = new_topic(max_message_bytes=1000)
        records = [{"value": "small"}, {"value": "x" * 2000}, {"value": "small too"}]
        reply = post_json(url, f"/topics/{topic}", {"records": records}, JSON_V2)
        assert reply.status == 200
        assert [each["error_code"] for each in reply.json["offsets"]] == [None, 50002, None]
        assert "MESSAGE_TOO_LARGE" in reply.json["offsets"][1]["error"]
        assert values(http_broker, topic, 2) == [b'"small"', b'"small too"']

    @pytest.mark.parametrize(
        ("body", "message"),
        [
            (b"{", "truncated"),
            (b"[]", "Expected `object`"),
            (b"{}", "missing required field `records`"),
            (b'{"records":[]}', "no records"),
            (b'{"records":[{"key":1}]}', "missing required field `value`"),
            (b'{"records":[{"value":1,"partition":-1}]}', ">= 0"),
            (b'{"records":[{"value":1,"partition":"a"}]}', "Expected `int | null`"),
            (b'{"records":[{"value":"\xff"}]}', "utf-8"),
        ],
    )
    def test_a_body_that_cannot_be_read_is_refused(
        self, url: str, topic: str, body: bytes, message: str
    ) -> None:
        reply = post(url, f"/topics/{topic}", body, JSON_V2)
        assert reply.status == 422
        assert reply.json["error_code"] in (42201, 42202)
        assert message in reply.json["message"]


class TestPlainBodies:
    def test_json_is_one_record_whatever_it_is(self, http_broker: Broker, url: str, topic: str) -> None:
        bodies = [b'{"a": 1}', b"[1, 2]", b'"text"', b" 7 \n", b"null"]
        for body in bodies:
            reply = post(url, f"/topics/{topic}", body, "application/json; charset=utf-8")
            assert (reply.status, reply.headers["Content-Type"]) == (200, "application/json")
        assert values(http_broker, topic, 5) == [b'{"a": 1}', b"[1, 2]", b'"text"', b"7", None]

    def test_json_with_records_is_an_array_of_them(self, http_broker: Broker, url: str, topic: str) -> None:
        reply = post(url, f"/topics/{topic}?records", b'[{"a":1}, 2, "three"]', "application/json")
        assert [each["offset"] for each in reply.json["offsets"]] == [0, 1, 2]
        assert values(http_broker, topic, 3) == [b'{"a":1}', b"2", b'"three"']
        assert post(url, f"/topics/{topic}?records", b"7", "application/json").status == 422

    def test_each_line_of_newline_delimited_json_is_a_record(
        self, http_broker: Broker, url: str, topic: str
    ) -> None:
        body = b'{"a":1}\n{"b":2}\n"last"'
        assert post(url, f"/topics/{topic}", body, "application/x-ndjson").status == 200
        assert values(http_broker, topic, 3) == [b'{"a":1}', b'{"b":2}', b'"last"']
        refused = post(url, f"/topics/{topic}", b'{"a":1}\nno json\n', "application/x-ndjson")
        assert (refused.status, refused.json["error_code"]) == (422, 42201)

    def test_each_line_of_text_is_a_record(self, http_broker: Broker, url: str, topic: str) -> None:
        body = "first\r\n\nüber\n".encode()
        reply = post(url, f"/topics/{topic}?key=k", body, "text/plain")
        assert len(reply.json["offsets"]) == 3
        found = consumed(http_broker.bootstrap_servers, topic, 3)
        assert [(message.key(), message.value()) for message in found] == [
            (b"k", b"first"),
            (b"k", b""),
            (b"k", "über".encode()),
        ]

    def test_bytes_are_one_record(self, http_broker: Broker, url: str, topic: str) -> None:
        value = bytes(range(256)) * 3000
        assert post(url, f"/topics/{topic}", value, "application/octet-stream").status == 200
        assert post(url, f"/topics/{topic}", b"", "application/octet-stream").status == 200
        assert values(http_broker, topic, 2) == [value, b""]

    def test_the_status_tells_of_a_record_that_failed(self, url: str, new_topic: Callable[..., str]) -> None:
        topic = new_topic(max_message_bytes=1000)
        reply = post(url, f"/topics/{topic}", b"small\n" + b"x" * 2000, "text/plain")
        assert (reply.status, reply.json["error_code"]) == (413, 41301)
        assert [each["error_code"] for each in reply.json["offsets"]] == [None, 41301]

    def test_too_many_records_for_one_request(self, url: str, topic: str) -> None:
        reply = post(url, f"/topics/{topic}", b"\n" * 100_001, "text/plain")
        assert (reply.status, reply.json["error_code"]) == (413, 413)
        assert "more than 100000 records" in reply.json["message"]


class TestWishes:
    @pytest.mark.parametrize("acks", ["all", "1", "0"])
    def test_acknowledgement_as_asked(self, http_broker: Broker, url: str, topic: str, acks: str) -> None:
        reply = post_json(url, f"/topics/{topic}?acks={acks}", "record")
        assert reply.status == 200
        # Without acknowledgement nobody knows the offset.
        assert reply.json["offsets"][0]["offset"] == (None if acks == "0" else 0)
        assert values(http_broker, topic, 1) == [b'"record"']

    @pytest.mark.parametrize(
        ("path", "status", "error_code"),
        [
            ("/topics/{topic}?acks=2", 422, 42203),
            ("/topics/{topic}?partition=x", 422, 42203),
            ("/topics/{topic}?partition=5", 404, 40402),
            ("/topics/{topic}/partitions/5", 404, 40402),
            ("/topics/{topic}/partitions/99999999999", 404, 40402),
            ("/topics/{topic}/partitions/0?partition=0", 422, 42203),
            ("/topics/{topic}?records=perhaps", 422, 42203),
            ("/topics/no%20name", 422, 42203),
            ("/topics/..", 422, 42203),
        ],
    )
    def test_what_cannot_be_done_is_told(
        self, url: str, topic: str, path: str, status: int, error_code: int
    ) -> None:
        reply = post_json(url, path.format(topic=topic), 1)
        assert (reply.status, reply.json["error_code"]) == (status, error_code)
        assert reply.json["message"]

    @pytest.mark.parametrize(
        "media_type", ["application/x-www-form-urlencoded", "application/vnd.kafka.avro.v2+json", "", "x"]
    )
    def test_other_media_types_are_not_taken(self, url: str, topic: str, media_type: str) -> None:
        reply = post(url, f"/topics/{topic}", b"a=b", media_type)
        assert (reply.status, reply.json["error_code"]) == (415, 415)
        assert "application/x-ndjson" in reply.json["message"]

    def test_other_methods_are_not_taken(self, url: str, topic: str) -> None:
        reply = call(url, "PATCH", f"/topics/{topic}", b"")
        assert reply.status == 405
        assert "POST" in reply.headers["Allow"]

    def test_a_topic_is_created_where_the_cluster_does_that(self, http_broker: Broker, url: str) -> None:
        assert post_json(url, "/topics/made-by-the-first-record", 1).status == 200
        assert values(http_broker, "made-by-the-first-record", 1) == [b"1"]


class TestEncodings:
    @pytest.mark.parametrize(
        ("name", "compress"),
        [
            ("gzip", gzip.compress),
            ("deflate", zlib.compress),
            ("deflate", lambda data: zlib.compress(data, wbits=-15)),
            ("zstd", zstandard.compress),
        ],
        ids=["gzip", "deflate", "deflate without header", "zstd"],
    )
    def test_compressed_bodies(
        self, http_broker: Broker, url: str, topic: str, name: str, compress: Callable[[bytes], bytes]
    ) -> None:
        body = compress(b"line\n" * 1000)
        assert post(url, f"/topics/{topic}", body, "text/plain", Content_Encoding=name).status == 200
        assert values(http_broker, topic, 1000) == [b"line"] * 1000
        damaged = post(url, f"/topics/{topic}", body[:-5], "text/plain", Content_Encoding=name)
        assert damaged.status == 422

    @pytest.mark.parametrize(("name", "compress"), [("gzip", gzip.compress), ("zstd", zstandard.compress)])
    def test_a_bomb_is_not_unpacked(
        self, url: str, topic: str, name: str, compress: Callable[[bytes], bytes]
    ) -> None:
        bomb = compress(b"x" * 20_000_000)
        reply = post(url, f"/topics/{topic}", bomb, "text/plain", Content_Encoding=name)
        assert (reply.status, reply.json["error_code"]) == (413, 413)

    def test_an_encoding_that_is_not_served(self, url: str, topic: str) -> None:
        reply = post(url, f"/topics/{topic}", b"x", "text/plain", Content_Encoding="br")
        assert (reply.status, reply.json["error_code"]) == (415, 41501)


def test_many_clients_at_once_lose_nothing_and_keep_their_order(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)

    async def client(session: aiohttp.ClientSession, number: int) -> list[tuple[int, int]]:
        places = []
        for serial in range(20):
            async with session.post(
                f"{url}/topics/{topic}?key={number}", json={"client": number, "serial": serial}
            ) as reply:
                assert reply.status == 200
                (written,) = (await reply.json())["offsets"]
                places.append((written["partition"], written["offset"]))
        return places

    async def all_clients() -> list[list[tuple[int, int]]]:
        async with aiohttp.ClientSession() as session:
            return await asyncio.gather(*(client(session, number) for number in range(20)))

    answers = asyncio.run(all_clients())
    stored: dict[tuple[int, int], Any] = {}
    for partition in range(2):
        count = sum(place[0] == partition for places in answers for place in places)
        for message in consumed(http_broker.bootstrap_servers, topic, count, partition):
            stored[message.partition(), message.offset()] = json.loads(message.value())
    for number, places in enumerate(answers):
        assert [stored[place]["client"] for place in places] == [number] * 20
        assert [stored[place]["serial"] for place in places] == list(range(20))
        assert places == sorted(places)


def test_a_cluster_that_creates_no_topics_answers_404_at_once() -> None:
    with Broker(http=True, config={"auto.create.topics.enable": False}) as broker:
        reply = post_json(broker.http_url, "/topics/nowhere", 1)
        assert (reply.status, reply.json["error_code"]) == (404, 40401)
        records = {"records": [{"value": 1}]}
        assert post_json(broker.http_url, "/topics/nowhere", records, JSON_V2).json["error_code"] == 40401


def test_what_was_acknowledged_is_there_though_the_leader_was_killed_under_load() -> None:
    async def client(session: aiohttp.ClientSession, number: int, killing: asyncio.Event) -> dict[int, str]:
        places = {}
        for serial in range(40):
            if serial == 20:
                killing.set()
            value = f"{number}-{serial}"
            async with session.post(
                "/topics/orders", data=value, headers={"Content-Type": "text/plain"}
            ) as reply:
                assert reply.status == 200, await reply.text()
                places[(await reply.json())["offsets"][0]["offset"]] = value
        return places

    async def run(cluster: Cluster) -> dict[int, str]:
        killing = asyncio.Event()
        async with aiohttp.ClientSession(cluster.http_url) as session:
            clients = [asyncio.create_task(client(session, number, killing)) for number in range(8)]
            await killing.wait()
            await asyncio.to_thread(cluster.broker(cluster.leader("orders")).kill)
            found = await asyncio.gather(*clients)
        return {offset: value for places in found for offset, value in places.items()}

    with Cluster(3, {"orders": 1}, {"min.insync.replicas": 2}, http=True) as cluster:
        places = asyncio.run(run(cluster))
        # Each once: an idempotent producer sends again what it does not know to be written.
        assert sorted(places) == list(range(8 * 40))
        stored = consumed(cluster.bootstrap_servers, "orders", 8 * 40)
        assert {message.offset(): message.value().decode() for message in stored} == places


def test_without_a_cluster_the_answer_is_503_and_comes_back_with_it() -> None:
    with Broker() as broker, Gateway(broker.bootstrap_servers) as gateway:
        assert post_json(gateway.url, "/topics/orders", 1).status == 200
        broker.stop()
        reply = post_json(gateway.url, "/topics/another", 1)
        assert (reply.status, reply.json["error_code"], reply.headers["Retry-After"]) == (503, 50301, "1")
        broker.start()
        assert post_json(gateway.url, "/topics/another", 1).status == 200
