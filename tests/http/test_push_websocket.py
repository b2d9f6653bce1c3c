"""WebSockets on a real gateway: credits, acknowledgements in any order, refusals, groups, what ends a connection."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import Consumer
from push_clients import committed, numbered, sse, websocket
from wire_produce import connected, produce, run, until

from culver.gateway.cluster.cluster import Cluster
from culver.testing import Broker


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"group.consumer.heartbeat.interval.ms": 100}}


async def until_committed(cluster: Cluster, group: str, offsets: dict[int, int]) -> None:
    async def holds() -> bool:
        return await committed(cluster, group) == offsets

    await until(holds)


def test_acknowledgements_in_any_order_commit_what_is_done_without_a_gap(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 6))
            async with websocket(url, topic, group=topic, start="earliest") as socket:
                records = await socket.records(6)
                assert records[0].id == f"{topic}:0:0"
                assert records[0].data["value"] == 0
                await socket.send("ack", ids=[records[2].id, records[0].id])
                await until_committed(cluster, topic, {0: 1})
                await socket.send("ack", ids=[records[1].id])
                await until_committed(cluster, topic, {0: 3})
                await socket.send("ack", upto=records[4].id)
                await until_committed(cluster, topic, {0: 5})
            async with websocket(url, topic, group=topic) as socket:
                assert await socket.values(1) == [5], "only what was not acknowledged comes again"
                assert await socket.is_quiet()

    run(test)


def test_every_record_takes_a_credit_and_an_acknowledgement_gives_it_back(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 20))
            async with websocket(url, topic, group=topic, start="earliest", credits=0) as socket:
                await socket.expect("assigned")
                assert await socket.is_quiet()
                await socket.send("credit", n=2)
                first, second = await socket.records(2)
                assert await socket.is_quiet()
                await socket.send("ack", ids=[second.id, second.id])
                assert await socket.values(1) == [2]
                assert await socket.is_quiet()
                await socket.send("credit", n=3)
                assert await socket.values(3) == [3, 4, 5]
                await socket.send("ack", ids=[first.id])
                assert await socket.values(1) == [6]
                assert await socket.is_quiet()

    run(test)


def test_without_a_group_nothing_is_stored_and_credits_come_from_grants(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 5))
            start = {topic: {"0": 1}}
            async with websocket(url, topic, start=start, credits=1) as socket:
                assert await socket.values(1) == [1]
                assert await socket.is_quiet()
                await socket.send("credit", n=100)
                assert await socket.values(3) == [2, 3, 4]

    run(test)


def test_a_refused_record_comes_again_before_new_ones_and_says_so(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 10))
            async with websocket(url, topic, group=topic, start="earliest", credits=2) as socket:
                first, second = await socket.records(2)
                await socket.send("nack", ids=[first.id], delay_ms=0)
                (again,) = await socket.records(1)
                assert (again.id, again.data["attempt"]) == (first.id, 2)
                assert "attempt" not in first.data
                await socket.send("ack", ids=[second.id])
                assert await socket.values(1) == [2]
                await until_committed(cluster, topic, {0: 0})  # where it began: it still waits for the first
                await socket.send("nack", ids=[first.id], delay_ms=100)
                await socket.send("ack", ids=[first.id])
                await until_committed(cluster, topic, {0: 2})

    run(test)


def test_a_receiver_can_pause_and_go_elsewhere(http_broker: Broker, url: str, topic: str) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster, websocket(url, topic) as socket:
            await socket.expect("assigned")
            await socket.send("pause")
            await socket.send("seek", topic="nosuch", partition=0, offset=0)
            assert (await socket.expect("error")).data["error_code"] == 40401, "and the connection goes on"
            await produce(cluster, topic, numbered(0, 4))
            assert await socket.is_quiet()
            await socket.send("resume")
            assert await socket.values(4) == [0, 1, 2, 3]
            await socket.send("seek", topic=topic, partition=0, offset=2)
            assert await socket.values(2) == [2, 3]
            await socket.send("seek", topic=topic, partition=0, offset="earliest")
            assert await socket.values(4) == [0, 1, 2, 3]

    run(test)


def test_records_come_in_batches_when_asked_for(http_broker: Broker, url: str, topic: str) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 100))
            async with websocket(url, topic, start="earliest", batch=True) as socket:
                batch = await socket.expect("records")
                assert [record["value"] for record in batch.data["records"]] == list(range(100))
                assert batch.data["records"][7]["id"] == f"{topic}:0:7"

    run(test)


@pytest.mark.parametrize(
    ("message", "close_code"),
    [
        ("nonsense", 1008),
        ("[]", 1008),
        ('{"type":"dance"}', 1008),
        ('{"type":"credit","n":-1}', 1008),
        ('{"type":"credit","n":1e300}', 1008),
        ('{"type":"ack","ids":["nonsense"]}', 1008),
        ('{"type":"ack","ids":"a:0:1"}', 1008),
        ('{"type":"ack","id":"a:0:1"}', 1008),
        ('{"type":"nack","ids":[],"delay_ms":1e12}', 1008),
        ('{"type":"seek","topic":"a","partition":0,"offset":-5}', 1008),
        ('{"type":"subscribe","topics":["a"]}', 1008),
        ("[" * 100_000, 1008),
        (b"\x00\x01", 1003),
    ],
)
def test_a_message_that_makes_no_sense_is_told_and_closes_the_connection(
    url: str, topic: str, message: str | bytes, close_code: int
) -> None:
    async def test() -> None:
        async with websocket(url, topic) as socket:
            await socket.expect("assigned")
            if isinstance(message, str):
                await socket.websocket.send_str(message)
            else:
                await socket.websocket.send_bytes(message)
            assert (await socket.expect("error")).data["message"]
            assert await socket.closed() == close_code

    run(test)


@pytest.mark.parametrize(
    "first",
    [
        {"type": "credit", "n": 1},
        {"type": "subscribe"},
        {"type": "subscribe", "topics": []},
        {"type": "subscribe", "topics": ["nosuch"]},
        {"type": "subscribe", "topics": ["a b"]},
        {"type": "subscribe", "topics": ["nosuch"], "from": {"nosuch": {"x": 1}}},
        {"type": "subscribe", "topics": ["nosuch"], "from": "someday"},
        {"type": "subscribe", "topics": ["nosuch"], "credits": 10**9},
        {"type": "subscribe", "topics": ["nosuch"], "group": ""},
    ],
)
def test_a_first_message_that_is_no_subscription_is_refused(url: str, first: dict[str, Any]) -> None:
    async def test() -> None:
        async with websocket(url) as socket:
            await socket.websocket.send_json(first)
            assert (await socket.expect("error")).data["error_code"] >= 400
            assert await socket.closed() == 1008

    run(test)


def test_subscribers_of_a_group_share_its_partitions_and_take_over_from_each_other(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(4)

    async def test() -> None:
        async with (
            connected(http_broker.bootstrap_servers) as cluster,
            websocket(url, topic, group=topic, start="earliest") as first,
        ):
            assert await first.partitions(4) == {0, 1, 2, 3}
            async with sse(url, topic, group=topic, start="earliest") as second:
                mine, others = await asyncio.gather(first.partitions(2), second.partitions(2))
                assert mine | others == {0, 1, 2, 3}
                for partition in range(4):
                    await produce(cluster, topic, numbered(10 * partition, 2), partition)
                assert {record.data["partition"] for record in await first.records(4)} == mine
                assert {record.data["partition"] for record in await second.records(4)} == others
            # It left without a word about its records: they come to the other one.
            again = await first.records(4)
            assert {record.data["partition"] for record in again} == others

    run(test)


def test_a_consumer_of_kafka_shares_a_group_with_a_subscriber(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(2)

    async def test() -> None:
        async with (
            connected(http_broker.bootstrap_servers) as cluster,
            websocket(url, topic, group=topic, start="earliest") as socket,
        ):
            await socket.partitions(2)
            settings = {
                "bootstrap.servers": http_broker.bootstrap_servers,
                "group.id": topic,
                "group.protocol": "consumer",
                "auto.offset.reset": "earliest",
            }
            consumer = Consumer(settings)
            try:
                consumer.subscribe([topic])
                polling = asyncio.create_task(asyncio.to_thread(_first_value, consumer))
                (mine,) = await socket.partitions(1)
                await produce(cluster, topic, [b"other"], 1 - mine)
                await produce(cluster, topic, [b"mine"], mine)
                assert await socket.values(1) == ["mine"]
                assert await polling == b"other"
            finally:
                await asyncio.to_thread(consumer.close)

    run(test)


def _first_value(consumer: Consumer) -> bytes:
    for _ in range(200):
        message = consumer.poll(0.1)
        if message is not None and message.error() is None:
            return message.value()
    raise AssertionError("nothing came")


def test_the_lag_of_a_subscriber_is_seen_like_that_of_any_group(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 10))
            async with websocket(url, topic, group=topic, start="earliest") as socket:
                records = await socket.records(10)
                await socket.send("ack", upto=records[3].id)
                await until_committed(cluster, topic, {0: 4})
                shown = await asyncio.to_thread(_describe, http_broker, topic)
                assert '"lag": 6' in shown
                assert "culver-push-" in shown

    run(test)


def _describe(broker: Broker, group: str) -> str:
    command = [sys.executable, "-m", "culver", "group", "describe", group, "-o", "json"]
    command += ["--bootstrap", broker.bootstrap_servers]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    return json.dumps(json.loads(result.stdout))
