"""Webhooks of a real gateway to a receiver that fails, hangs, lies, dies and comes back."""

from __future__ import annotations

import asyncio
import json
import random
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pytest
from aiohttp import web
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient
from http_call import call
from topic_contents import all_records
from webhook_api import created, status, wait_for_lag, write
from webhook_receiver import Received, Receiver, until
from wire_produce import connected, produce, run

from culver.testing import Broker


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"culver.http.webhook.allow.private": "127.0.0.0/8"}}


@pytest.fixture
def bootstrap(http_broker: Broker) -> str:
    return http_broker.bootstrap_servers


def counted(keys: int, each: int) -> list[tuple[str, str]]:
    """Records of several keys, mixed; the values of each key count up from 0."""
    return [(f"k{key}", json.dumps([key, number])) for number in range(each) for key in range(keys)]


def by_key(receiver: Receiver) -> dict[str, list[int]]:
    """The numbers that were taken of each key, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for received in receiver.taken:
        for record in received.records:
            found[record["key"]].append(record["value"][1])
    return found


def test_every_key_arrives_in_order_whatever_fails(
    url: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    chance = random.Random(7)
    topic = new_topic(partitions=3)

    async def behave(received: Received, request: web.Request) -> int:
        chosen = chance.random()
        if chosen < 0.2:
            # Half of these it has taken all the same.
            assert request.transport is not None
            request.transport.abort()
        return 200 if chosen < 0.1 or chosen > 0.4 else 503

    with Receiver(behave=behave) as receiver:
        created(url, "ordered", [topic], receiver.url)
        write(bootstrap, topic, counted(keys=6, each=25))
        until(lambda: len(receiver.values) >= 150, "all records")
        wait_for_lag(url, "ordered")
        # What it had taken when it dropped the connection came again, before what follows, with the same identity.
        for numbers in by_key(receiver).values():
            assert list(dict.fromkeys(numbers)) == list(range(25))
            assert sorted(numbers) == numbers
        identities = defaultdict(set)
        for received in receiver.calls:
            identities[received.records[0]["partition"], received.records[0]["offset"]].add(received.id)
        assert len(identities) == 150
        assert all(len(each) == 1 for each in identities.values())
        assert status(url, "ordered")["calls_failed"] == len(receiver.calls) - 150
    assert call("DELETE", f"{url}/api/webhooks/ordered").status == 204


def test_no_more_calls_at_once_than_allowed_and_never_two_of_a_key(
    url: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    busy: set[str | None] = set()

    async def behave(received: Received, request: web.Request) -> int:
        key = received.keys[0]
        assert key not in busy
        busy.add(key)
        await asyncio.sleep(0.02)
        busy.remove(key)
        return 200

    with Receiver(behave=behave) as receiver:
        write(bootstrap, topic, counted(keys=8, each=5))
        created(url, "limited", [topic], receiver.url, concurrency=3)
        until(lambda: len(receiver.taken) >= 40, "all records")
        assert receiver.at_once_max == 3
        assert len(receiver.calls) == 40
        wait_for_lag(url, "limited")


def test_records_without_a_key_keep_the_order_of_their_partition(
    url: str, bootstrap: str, topic: str
) -> None:
    with Receiver() as receiver:
        write(bootstrap, topic, [(None, str(number)) for number in range(30)])
        created(url, "keyless", [topic], receiver.url)
        until(lambda: len(receiver.taken) >= 30, "all records")
        assert receiver.values == list(range(30))
        assert receiver.at_once_max == 1


def test_a_record_that_is_never_taken_becomes_a_dead_letter_and_its_key_goes_on(
    url: str, bootstrap: str, topic: str
) -> None:
    async def behave(received: Received, request: web.Request) -> web.Response:
        if received.values == [[0, 1]]:
            return web.Response(status=422, text="I do not like it")
        return web.Response()

    with Receiver(behave=behave) as receiver:
        write(bootstrap, topic, counted(keys=2, each=4))
        created(url, "poison", [topic], receiver.url, retry={"tries": 3, "first_ms": 1, "max_ms": 5})
        wait_for_lag(url, "poison")
        assert by_key(receiver) == {"k0": [0, 2, 3], "k1": [0, 1, 2, 3]}
        assert sum(received.values == [[0, 1]] for received in receiver.calls) == 3
    (letter,) = all_records(bootstrap, "webhook-poison-dlq")
    assert (letter.key, letter.value) == (b"k0", b"[0, 1]")
    said = {name.removeprefix("culver.webhook."): value.decode() for name, value in letter.headers}
    assert said | {"failed-at": "", "timestamp": ""} == {
        "name": "poison",
        "topic": topic,
        "partition": "0",
        "offset": "2",
        "timestamp": "",
        "tries": "3",
        "status": "422",
        "error": "status 422: I do not like it",
        "failed-at": "",
    }
    told = status(url, "poison")
    assert (told["dead_letters"], told["records_delivered"]) == (1, 7)
    assert told["last_error"] == "status 422: I do not like it"


def test_a_batch_that_fails_is_taken_apart_so_that_only_what_is_bad_is_a_dead_letter(
    url: str, bootstrap: str, topic: str
) -> None:
    async def behave(received: Received, request: web.Request) -> int:
        return 500 if [1, 3] in received.values else 200

    with Receiver(behave=behave) as receiver:
        write(bootstrap, topic, counted(keys=3, each=10))
        retry = {"tries": 2, "first_ms": 1, "max_ms": 2}
        created(url, "batches", [topic], receiver.url, batch=7, retry=retry)
        wait_for_lag(url, "batches")
        assert by_key(receiver) == {
            "k0": list(range(10)),
            "k1": [number for number in range(10) if number != 3],
            "k2": list(range(10)),
        }
        assert max(len(received.records) for received in receiver.calls) == 7
    assert [letter.value for letter in all_records(bootstrap, "webhook-batches-dlq")] == [b"[1, 3]"]


def test_a_receiver_that_was_dead_gets_everything_when_it_is_back(
    url: str, bootstrap: str, topic: str
) -> None:
    with Receiver() as receiver:
        port = receiver.port
    created(url, "back", [topic], receiver.url)
    write(bootstrap, topic, counted(keys=5, each=10))
    until(lambda: status(url, "back")["receiver_down"], "the receiver counts as down")
    told = status(url, "back")
    assert told["lag"] == 50
    assert told["tries"] >= 1
    assert told["next_retry_at_ms"] is not None
    assert "ClientConnectorError" in told["last_error"]
    with Receiver(port=port) as receiver:
        until(lambda: len(receiver.values) >= 50, "all records")
        wait_for_lag(url, "back")
        assert by_key(receiver) == {f"k{key}": list(range(10)) for key in range(5)}
        told = status(url, "back")
        assert not told["receiver_down"]
        assert told["dead_letters"] == 0


def test_a_receiver_that_hangs_delays_no_other_webhook(
    url: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)

    async def hang(received: Received, request: web.Request) -> int:
        await asyncio.Event().wait()
        return 200

    with Receiver(behave=hang) as dead, Receiver() as living:
        for number in range(3):
            created(url, f"dead-{number}", [topic], dead.url, concurrency=50, timeout_ms=60_000)
        created(url, "living", [topic], living.url)
        write(bootstrap, topic, counted(keys=10, each=10))
        until(lambda: len(living.taken) >= 100, "all records at the one that lives", timeout_s=10)
        assert dead.taken == []
        assert status(url, "dead-0")["lag"] == 100
        assert status(url, "dead-0")["in_flight"] > 0
        for number in range(3):
            assert call("DELETE", f"{url}/api/webhooks/dead-{number}").status == 204


def test_pausing_stops_and_resuming_goes_on_where_it_stopped(url: str, bootstrap: str, topic: str) -> None:
    with Receiver() as receiver:
        created(url, "paused", [topic], receiver.url)
        write(bootstrap, topic, counted(keys=1, each=3))
        wait_for_lag(url, "paused")
        assert call("POST", f"{url}/api/webhooks/paused/pause").json["paused"] is True
        write(bootstrap, topic, [("k0", "[0, 3]"), ("k0", "[0, 4]")])
        wait_for_lag(url, "paused", 2)
        until(lambda: status(url, "paused")["running"] is False, "it stops")
        assert len(receiver.calls) == 3
        assert call("POST", f"{url}/api/webhooks/paused/resume").json["paused"] is False
        wait_for_lag(url, "paused")
        assert by_key(receiver) == {"k0": [0, 1, 2, 3, 4]}


def test_a_receiver_that_is_gone_pauses_its_webhook_and_keeps_the_records(
    url: str, bootstrap: str, topic: str
) -> None:
    answers = [410]

    async def behave(received: Received, request: web.Request) -> int:
        return answers[0]

    with Receiver(behave=behave) as receiver:
        created(url, "gone", [topic], receiver.url, retry={"tries": 1})
        write(bootstrap, topic, counted(keys=1, each=2))

        def webhook() -> dict[str, Any]:
            return call("GET", f"{url}/api/webhooks/gone").json["webhook"]

        until(lambda: webhook()["paused"], "it is paused")
        assert webhook()["paused_because"] == "the receiver is gone: status 410: as told"
        assert len(receiver.calls) == 1
        answers[0] = 200
        resumed = call("POST", f"{url}/api/webhooks/gone/resume").json
        assert resumed["paused_because"] is None
        wait_for_lag(url, "gone")
        assert by_key(receiver) == {"k0": [0, 1]}


def test_a_receiver_that_asks_for_a_pause_is_left_alone(url: str, bootstrap: str, topic: str) -> None:
    moments: list[float] = []

    async def behave(received: Received, request: web.Request) -> web.Response:
        moments.append(asyncio.get_running_loop().time())
        if len(moments) == 1:
            return web.Response(status=429, headers={"retry-after": "1"})
        return web.Response()

    with Receiver(behave=behave) as receiver:
        retry = {"tries": 5, "first_ms": 1, "max_ms": 5000}
        write(bootstrap, topic, counted(keys=3, each=1))
        created(url, "busy", [topic], receiver.url, concurrency=1, retry=retry)
        wait_for_lag(url, "busy")
        assert len(receiver.taken) == 3
        assert moments[1] - moments[0] > 0.95


def test_latest_is_the_moment_when_the_webhook_was_created(url: str, bootstrap: str, topic: str) -> None:
    with Receiver() as receiver:
        write(bootstrap, topic, counted(keys=1, each=3))
        # Paused, so nobody reads the topic before the next records are in it.
        created(url, "latest", [topic], receiver.url, paused=True, **{"from": "latest"})
        assert status(url, "latest")["lag"] == 0
        write(bootstrap, topic, [("k0", "[0, 3]"), ("k0", "[0, 4]")])
        assert status(url, "latest")["lag"] == 2
        call("POST", f"{url}/api/webhooks/latest/resume")
        wait_for_lag(url, "latest")
        assert by_key(receiver) == {"k0": [3, 4]}


def test_a_header_whose_name_is_no_text_harms_nobody(url: str, bootstrap: str, topic: str) -> None:
    async def write_it() -> None:
        async with connected(bootstrap) as cluster:
            await produce(cluster, topic, [b"1"], headers=(("\udcff", b"x"),))

    async def behave(received: Received, request: web.Request) -> int:
        return 500

    with Receiver(behave=behave) as receiver:
        created(url, "bytes", [topic], receiver.url, retry={"tries": 1, "first_ms": 1, "max_ms": 1})
        run(write_it)
        wait_for_lag(url, "bytes")
        (call_,) = receiver.calls
        assert call_.records[0]["headers"][0]["name"] == "\ufffd"
    (letter,) = all_records(bootstrap, "webhook-bytes-dlq")
    assert ("\ufffd", b"x") in letter.headers


def test_marks_of_transactions_are_not_a_lag_of_the_webhook(url: str, bootstrap: str, topic: str) -> None:
    with Receiver() as receiver:
        created(url, "marks", [topic], receiver.url)
        producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
        producer.init_transactions(10)
        for value, finish in (("1", producer.commit_transaction), ("2", producer.abort_transaction)):
            producer.begin_transaction()
            producer.produce(topic, value)
            producer.flush(10)
            finish(10)
        until(lambda: receiver.values == [1], "what was committed")
        wait_for_lag(url, "marks")
        assert receiver.values == [1]


def test_the_raw_format_and_headers_of_ones_own(url: str, bootstrap: str, topic: str) -> None:
    with Receiver() as receiver:
        write(bootstrap, topic, [("key", "just text")])
        headers = {"Authorization": "Bearer 123", "X-Tenant": "a"}
        created(url, "raw", [topic], receiver.url, format="raw", headers=headers)
        (received,) = until(lambda: receiver.taken, "the record")
    assert received.body == b"just text"
    assert received.headers["culver-topic"] == topic
    assert received.headers["authorization"] == "Bearer 123"
    assert received.headers["x-tenant"] == "a"
    assert received.headers["content-type"] == "application/octet-stream"


def test_a_topic_that_is_made_again_is_sent_from_its_beginning(
    url: str, http_broker: Broker, bootstrap: str
) -> None:
    http_broker.create_topic("reborn", 1)
    with Receiver() as receiver:
        write(bootstrap, "reborn", counted(keys=1, each=5))
        created(url, "reborn", ["reborn"], receiver.url, **{"from": "latest"})
        write(bootstrap, "reborn", [("k0", "[0, 5]")])
        until(lambda: len(receiver.taken) == 1, "the new record")
        wait_for_lag(url, "reborn")
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.delete_topics(["reborn"])["reborn"].result(20)
        http_broker.create_topic("reborn", 1)
        write(bootstrap, "reborn", [("new", "[0, 0]"), ("new", "[0, 1]")])
        until(lambda: by_key(receiver).get("new") == [0, 1], "the records of the new topic")
