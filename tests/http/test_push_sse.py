"""Server-sent events from a real gateway: where they begin, how they resume, what is committed, what comes again."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import pytest
from push_clients import acknowledge, committed, numbered, refusal, sse
from wire_produce import connected, produce, run, until

from culver.gateway.cluster.topics import create_partitions, delete_records, delete_topics
from culver.gateway.cluster.view import TopicPartition
from culver.testing import Broker


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"group.consumer.heartbeat.interval.ms": 100}}


def test_a_record_comes_as_an_event_with_its_place_and_all_it_holds(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster, sse(url, topic) as events:
            await events.expect("assigned")
            await produce(cluster, topic, [b'{"total": 12.50}', b"plain", b"\xff"])
            first, second, third = await events.records(3)
            assert first.id == f"{topic}:1"
            assert (first.data["topic"], first.data["partition"], first.data["offset"]) == (topic, 0, 0)
            assert (first.data["key"], first.data["timestamp"]) == ("key", 1000)
            assert (first.data["value"], first.data["value_format"]) == ({"total": 12.5}, "json")
            assert (second.data["value"], second.data["value_format"]) == ("plain", "text")
            assert (third.data["value"], third.data["value_format"]) == ("/w==", "base64")

    run(test)


def test_a_stream_begins_where_it_is_asked_to(http_broker: Broker, url: str, topic: str) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 5))
            for start, first in (
                ("earliest", 0),
                (f"{topic}:3", 3),
                ("@1002", 2),
                ("@99000", 5),
                ("latest", 5),
            ):
                async with sse(url, topic, start=start) as events:
                    assigned = await events.expect("assigned")
                    assert assigned.data["partitions"] == [{"topic": topic, "partition": 0, "offset": first}]
                    if first < 5:
                        assert await events.values(5 - first) == list(range(first, 5))
            async with sse(url, topic) as events:  # what is written once the headers are there is not missed
                await produce(cluster, topic, numbered(5, 1))
                assert await events.values(1) == [5]

    run(test)


def test_a_stream_goes_on_exactly_after_its_last_event(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    orders, logs = new_topic(3), new_topic(1)

    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            seen = []
            last_id = None
            async with sse(url, orders, logs) as events:
                await events.expect("assigned")
                last_id = events.last_id  # cut off before the first record: nothing is missed either
            for round_ in range(4):
                for partition in range(3):
                    await produce(cluster, orders, numbered(100 * round_ + 10 * partition, 3), partition)
                await produce(cluster, logs, numbered(1000 + 100 * round_, 3))
                async with sse(url, orders, logs, last_event_id=last_id) as events:
                    seen += await events.values(5)  # in the middle of what there is
                    last_id = events.last_id
            async with sse(url, orders, logs, last_event_id=last_id) as events:
                seen += await events.values(48 - len(seen))
                assert await events.is_quiet()
            assert len(set(seen)) == len(seen) == 48

    run(test)


def test_a_partition_that_is_added_is_sent_from_its_beginning(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster, sse(url, topic) as events:
            await events.expect("assigned")
            await create_partitions(cluster, topic, 2)
            await until(lambda: _has_partitions(cluster, topic, 2))
            await produce(cluster, topic, [b"new"], partition=1)
            assert await events.values(1) == ["new"]
            assert events.last_id == f"{topic}:0,1"

    run(test)


async def _has_partitions(cluster: Any, topic: str, count: int) -> bool:
    return len((await cluster.view(max_age_ms=0)).topics[topic].partitions) == count


def test_records_that_are_gone_are_told_of_and_stepped_over(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 5))
            await delete_records(cluster, {TopicPartition(topic, 0): 3})
            async with sse(url, topic, start=f"{topic}:1") as events:
                error = await events.expect("error")
                assert error.data["error_code"] == 42203
                assert await events.values(2) == [3, 4]

    run(test)


def test_a_topic_that_is_deleted_ends_the_stream_with_an_error(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster, sse(url, topic) as events:
            await events.expect("assigned")
            await delete_topics(cluster, [topic])
            assert (await events.expect("error")).data["error_code"] == 40401
            await events.end()

    run(test)


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("topic=nosuch", 404),
        ("", 422),
        ("topic=a/b", 422),
        ("topic=a&credits=x", 422),
        ("topic=a&credits=1000000", 422),
        ("topic=a&from=never", 422),
        ("topic=a&from=a:x", 422),
        ("topic=a&last_event_id=a", 422),
        ("topic=a&ack=maybe", 422),
        ("topic=a&group=", 422),
        ("topic=nosuch&group=g", 404),
    ],
)
def test_what_cannot_be_served_is_refused_before_the_stream_begins(url: str, query: str, status: int) -> None:
    found, body = run(lambda: refusal(url, query))
    assert found == status
    assert body["error_code"] // 100 == status
    assert body["message"]


def test_no_more_records_are_out_than_there_are_credits(http_broker: Broker, url: str, topic: str) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 10))
            async with sse(url, topic, group=topic, start="earliest", credits=3) as events:
                subscription = (await events.expect("subscribed")).data["subscription"]
                records = await events.records(3)
                assert await events.is_quiet()
                status, body = await acknowledge(url, subscription, records[1].id)
                assert (status, body) == (200, {"acknowledged": 2})
                assert await committed(cluster, topic) == {0: 2}, "an answer means that it is stored"
                assert [record.data["offset"] for record in await events.records(2)] == [3, 4]
                assert await events.is_quiet()
                assert (await acknowledge(url, subscription, events.last_id))[0] == 200
                assert await committed(cluster, topic) == {0: 5}

    run(test)


def test_what_was_not_acknowledged_comes_again_and_what_was_does_not(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            async with sse(url, topic, group=topic) as events:
                await events.expect("assigned")
                await produce(cluster, topic, numbered(0, 6))
                records = await events.records(6)
            # A group begins at the end: at that end, not at the one there is when it comes again.
            async with sse(url, topic, group=topic) as events:
                assert await events.values(6) == list(range(6))
            # To come again with the id of an event acknowledges all up to it.
            async with sse(url, topic, group=topic, last_event_id=records[3].id) as events:
                assert await events.values(2) == [4, 5]
                await until(lambda: _is_committed(cluster, topic, {0: 4}))
            async with sse(url, topic, group=topic) as events:
                assert await events.values(2) == [4, 5]

    run(test)


async def _is_committed(cluster: Any, group: str, offsets: dict[int, int]) -> bool:
    return await committed(cluster, group) == offsets


def test_with_automatic_acknowledgement_what_was_handed_over_is_committed(
    http_broker: Broker, url: str, topic: str
) -> None:
    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, numbered(0, 500))
            async with sse(url, topic, group=topic, start="earliest", ack="auto") as events:
                assert await events.values(500) == list(range(500))
                await until(lambda: _is_committed(cluster, topic, {0: 500}))

    run(test)


def test_an_acknowledgement_that_makes_no_sense_is_refused(http_broker: Broker, url: str, topic: str) -> None:
    async def test() -> None:
        assert (await acknowledge(url, "nosuch", f"{topic}:1"))[0] == 404
        async with sse(url, topic, group=topic) as events:
            subscription = (await events.expect("subscribed")).data["subscription"]
            assert (await acknowledge(url, subscription, "nonsense"))[0] == 422
            assert (await acknowledge(url, subscription, None))[0] == 422
            status, _ = await acknowledge(url, subscription, "elsewhere:100")
            assert status == 200, "partitions that are not the subscriber's are not touched"

    run(test)


def test_records_of_a_transaction_come_when_it_is_committed_and_markers_do_not_hold_back_a_commit(
    http_broker: Broker, url: str, topic: str
) -> None:
    from confluent_kafka import Producer

    async def test() -> None:
        async with (
            connected(http_broker.bootstrap_servers) as cluster,
            sse(url, topic, group=topic, ack="auto", start="earliest") as events,
        ):
            await events.expect("assigned")
            producer = Producer(
                {"bootstrap.servers": http_broker.bootstrap_servers, "transactional.id": topic}
            )
            await asyncio.to_thread(producer.init_transactions)
            for end in (producer.abort_transaction, producer.commit_transaction):
                producer.begin_transaction()
                producer.produce(topic, end.__name__)
                await asyncio.to_thread(producer.flush)
                await asyncio.to_thread(end)
            assert await events.values(1) == ["commit_transaction"]
            await until(lambda: _is_committed(cluster, topic, {0: 4}))
            del producer

    run(test)


def test_records_larger_than_what_waits_for_a_subscriber_get_through(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3, max_message_bytes=4_000_000)

    async def test() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            for partition in range(3):
                for _ in range(3):
                    await produce(cluster, topic, [b"x" * 2_000_000], partition)
            begun = time.monotonic()
            async with sse(url, topic, start="earliest") as events:
                assert [len(value) for value in await events.values(9)] == [2_000_000] * 9
            assert time.monotonic() - begun < 20

    run(test)
