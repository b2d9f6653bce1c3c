"""One webhook, several gateways: shared, changed anywhere, killed in the middle; and what none calls by default."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterator

import pytest
from confluent_kafka import Producer
from http_call import call
from webhook_api import create, created, status, wait_for_lag, write
from webhook_receiver import Received, Receiver, until

from culver.testing import Broker, Gateway

LOOPBACK = {"culver.http.webhook.allow.private": "127.0.0.1, localhost"}


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    # A member that was killed is missed soon.
    timing = {"group.consumer.session.timeout.ms": 3000, "group.consumer.heartbeat.interval.ms": 300}
    with Broker(config=timing) as broker:
        yield broker


@pytest.fixture(scope="module")
def first(broker: Broker) -> Iterator[Gateway]:
    with Gateway(broker.bootstrap_servers, LOOPBACK) as gateway:
        yield gateway


@pytest.fixture(scope="module")
def second(broker: Broker) -> Iterator[Gateway]:
    with Gateway(broker.bootstrap_servers, LOOPBACK) as gateway:
        yield gateway


def numbered(keys: int, start: int, end: int) -> list[tuple[str, str]]:
    return [(f"k{number % keys}", json.dumps(number)) for number in range(start, end)]


def numbers_by_key(receiver: Receiver) -> dict[str, list[int]]:
    found: dict[str, list[int]] = defaultdict(list)
    for received in receiver.taken:
        for record in received.records:
            found[record["key"]].append(record["value"])
    return found


def test_two_gateways_share_a_webhook_and_a_change_at_one_takes_effect_at_both(
    broker: Broker, first: Gateway, second: Gateway
) -> None:
    broker.create_topic("shared", 6)
    with Receiver() as receiver:
        created(first.url, "shared", ["shared"], receiver.url)

        def partitions(gateway: Gateway) -> set[str]:
            found = call("GET", f"{gateway.url}/api/webhooks/shared")
            return set(found.json["status"]["partitions"]) if found.status == 200 else set()

        until(lambda: len(partitions(first)) == len(partitions(second)) == 3, "each has half")
        assert partitions(first) | partitions(second) == {f"shared-{index}" for index in range(6)}
        write(broker.bootstrap_servers, "shared", numbered(20, 0, 200))
        until(lambda: len(receiver.taken) >= 200, "all records")
        assert sorted(receiver.values) == list(range(200))
        assert all(numbers == sorted(numbers) for numbers in numbers_by_key(receiver).values())
        wait_for_lag(second.url, "shared")
        delivered = [status(gateway.url, "shared")["records_delivered"] for gateway in (first, second)]
        assert sum(delivered) == 200
        assert min(delivered) > 0

        call("POST", f"{second.url}/api/webhooks/shared/pause")
        until(lambda: not status(first.url, "shared")["running"], "the other one stops too")
        write(broker.bootstrap_servers, "shared", numbered(20, 200, 210))
        wait_for_lag(first.url, "shared", 10)
        assert len(receiver.calls) == 200
        assert call("DELETE", f"{first.url}/api/webhooks/shared").status == 204
        until(lambda: call("GET", f"{second.url}/api/webhooks/shared").status == 404, "gone at both")


def test_a_gateway_that_is_killed_loses_nothing_and_another_goes_on(
    broker: Broker, first: Gateway, second: Gateway
) -> None:
    broker.create_topic("killed", 4)
    doomed = Gateway(broker.bootstrap_servers, LOOPBACK)
    with Receiver() as receiver:

        async def behave(received: Received, request: object) -> int:
            return 500 if len(receiver.calls) % 3 == 0 else 200

        receiver.behave = behave
        with doomed:
            created(doomed.url, "killed", ["killed"], receiver.url)
            until(lambda: status(doomed.url, "killed")["partitions"], "it has partitions")
            write(broker.bootstrap_servers, "killed", numbered(10, 0, 400))
            until(lambda: len(receiver.taken) > 50, "it is in the middle of it")
            doomed.kill()
            write(broker.bootstrap_servers, "killed", numbered(10, 400, 450))
            until(lambda: set(receiver.values) == set(range(450)), "all records")
        wait_for_lag(first.url, "killed")
        for numbers in numbers_by_key(receiver).values():
            # Some come again, from where the last commit was; in order, and nothing is left out.
            assert list(dict.fromkeys(numbers)) == list(range(numbers[0], 450, 10))
        identities = defaultdict(set)
        for received in receiver.calls:
            identities[received.values[0]].add(received.id)
        assert all(len(each) == 1 for each in identities.values())
    assert call("DELETE", f"{second.url}/api/webhooks/killed").status == 204


def test_a_webhook_goes_on_when_the_broker_comes_back() -> None:
    with Broker() as broker, Receiver() as receiver, Gateway(broker.bootstrap_servers, LOOPBACK) as gateway:
        broker.create_topic("returned", 1)
        created(gateway.url, "returned", ["returned"], receiver.url)
        write(broker.bootstrap_servers, "returned", numbered(1, 0, 5))
        wait_for_lag(gateway.url, "returned")
        broker.restart()
        write(broker.bootstrap_servers, "returned", numbered(1, 5, 10))
        until(lambda: len(receiver.taken) >= 10, "the records after the restart")
        wait_for_lag(gateway.url, "returned")
        assert receiver.values == list(range(10))


def test_what_others_wrote_among_the_webhooks_stops_nothing(broker: Broker, first: Gateway) -> None:
    broker.create_topic("among", 1)
    with Receiver() as receiver:
        created(first.url, "among", ["among"], receiver.url)
        producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "others"})
        producer.init_transactions(10)
        producer.begin_transaction()
        for value in (b'{"more":' + b"[" * 100_000, b'{"name":"\xff"}', b"\xff", b"[]", b'{"name":"evil"}'):
            producer.produce("__culver_webhooks", value, "evil", 0)
        producer.commit_transaction(10)
        # One that has followed all along, and one that begins with it, both up to the mark of the transaction.
        assert create(first.url, "evil", ["among"], receiver.url, paused=True).status == 201
        producer.begin_transaction()
        producer.produce("__culver_webhooks", b"{}", "evil", 0)
        producer.commit_transaction(10)
        with Gateway(broker.bootstrap_servers, LOOPBACK) as late:
            for gateway in (first, late):
                listed = call("GET", f"{gateway.url}/api/webhooks")
                assert listed.status == 200, listed.body
                assert {"among", "evil"} <= {each["webhook"]["name"] for each in listed.json["webhooks"]}
                assert call("POST", f"{gateway.url}/api/webhooks/among/pause").status == 200
                assert call("POST", f"{gateway.url}/api/webhooks/among/resume").status == 200
            write(broker.bootstrap_servers, "among", [("k", "1")])
            until(lambda: receiver.values == [1], "a record")


def test_targets_that_are_not_public_are_refused_by_default() -> None:
    with Broker() as broker, Receiver() as receiver:
        broker.create_topic("private", 1)
        write(broker.bootstrap_servers, "private", numbered(1, 0, 1))
        # A gateway that may call it stores one.
        with Gateway(broker.bootstrap_servers, LOOPBACK) as lenient:
            retry = {"tries": 1, "first_ms": 1, "max_ms": 2}
            created(lenient.url, "stored", ["private"], receiver.url, paused=True, retry=retry)
        with Gateway(broker.bootstrap_servers) as strict:
            for host in ("127.0.0.1", "localhost", "[::1]", "10.0.0.1", "169.254.169.254"):
                refused = create(strict.url, "new", ["private"], receiver.url.replace("127.0.0.1", host))
                assert refused.status == 422, host
                assert "not a public address" in refused.json["message"]
            assert call("GET", f"{strict.url}/api/webhooks/new").status == 404
            # The one that is stored is not called from here, and nothing is buried for a setting of this gateway.
            assert call("POST", f"{strict.url}/api/webhooks/stored/resume").status == 200
            until(lambda: status(strict.url, "stored")["calls_failed"] > 2, "it is refused again and again")
            told = status(strict.url, "stored")
            assert "not a public address" in told["last_error"]
            assert (told["lag"], told["dead_letters"], told["records_delivered"]) == (1, 0, 0)
            tested = call("POST", f"{strict.url}/api/webhooks/stored/test").json
            assert (tested["acknowledged"], tested["status"]) == (False, None)
        assert receiver.calls == []
