"""Idempotent producers: their records once and in order, whatever happens to the broker in between."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from real_clients import CLIENTS, Sent

import kafka
from culver.testing import Broker

READER = CLIENTS["confluent-kafka"]


def idempotent_settings(bootstrap: str) -> dict[str, Any]:
    return {
        "bootstrap.servers": bootstrap,
        "enable.idempotence": True,
        "linger.ms": 1,
        # Many requests in flight, many batches.
        "batch.num.messages": 10,
        "reconnect.backoff.max.ms": 100,
        "retry.backoff.ms": 20,
    }


def values_by_partition(bootstrap: str, topic: str, count: int, partitions: int) -> list[list[int]]:
    found = READER.consume(bootstrap, topic, count, partitions=range(partitions))
    return [
        [int(record.value or b"") for record in found if record.partition == partition]
        for partition in range(partitions)
    ]


def test_many_batches_in_flight_arrive_once_and_in_order(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(3)
    failures: list[Any] = []
    with confluent_kafka.Producer(idempotent_settings(bootstrap)) as producer:
        for number in range(3000):
            producer.produce(
                topic,
                b"%d" % number,
                partition=number % 3,
                on_delivery=lambda error, _message: failures.append(error) if error else None,
            )
        assert producer.flush(20) == 0
    assert failures == []
    expected = [list(range(partition, 3000, 3)) for partition in range(3)]
    assert values_by_partition(bootstrap, topic, 3000, 3) == expected


def test_aiokafka_with_idempotence(bootstrap: str, topic: str) -> None:
    async def produce() -> list[int]:
        async with aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=True, max_batch_size=200
        ) as producer:
            futures = [await producer.send(topic, b"%d" % n, partition=0) for n in range(300)]
            return [answer.offset for answer in await asyncio.gather(*futures)]

    assert asyncio.run(produce()) == list(range(300))
    assert values_by_partition(bootstrap, topic, 300, 1) == [list(range(300))]


def test_every_producer_gets_an_id_of_its_own(bootstrap: str, topic: str) -> None:
    for _ in range(3):
        with confluent_kafka.Producer(idempotent_settings(bootstrap)) as producer:
            for number in range(25):
                producer.produce(topic, b"%d" % number, partition=0)
            assert producer.flush(20) == 0
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        place = kafka.TopicPartition(topic, 0)
        producers = client.describe_producers([place])[place].active_producers
    finally:
        client.close()
    assert len({each.producer_id for each in producers}) == 3
    assert [each.last_sequence for each in producers] == [24, 24, 24]
    assert all(each.producer_epoch == 0 for each in producers)


@pytest.mark.parametrize("crash", [False, True], ids=["clean restart", "SIGKILL"])
def test_a_producer_goes_on_across_a_restart(crash: bool, own_broker: Broker) -> None:
    """The same producer id and sequence before and after: the broker remembers both from its log."""
    own_broker.create_topic("t", 2)
    bootstrap = own_broker.bootstrap_servers
    failures: list[Any] = []
    with confluent_kafka.Producer(idempotent_settings(bootstrap)) as producer:

        def send(numbers: range) -> None:
            for number in numbers:
                producer.produce(
                    "t",
                    b"%d" % number,
                    partition=number % 2,
                    on_delivery=lambda error, _message: failures.append(error) if error else None,
                )

        send(range(1000))
        assert producer.flush(20) == 0
        if crash:
            own_broker.kill()
        else:
            own_broker.stop()
        send(range(1000, 2000))
        own_broker.start()
        assert producer.flush(30) == 0
    assert failures == []
    expected = [list(range(partition, 2000, 2)) for partition in range(2)]
    assert values_by_partition(bootstrap, "t", 2000, 2) == expected
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        places = [kafka.TopicPartition("t", partition) for partition in range(2)]
        states = client.describe_producers(places)
    finally:
        client.close()
    ids = {each.producer_id for place in places for each in states[place].active_producers}
    assert len(ids) == 1, "the producer kept its id"
    assert all(states[place].active_producers[0].last_sequence == 999 for place in places)


def test_a_restarted_broker_gives_no_producer_id_twice(own_broker: Broker) -> None:
    own_broker.create_topic("t")
    bootstrap = own_broker.bootstrap_servers
    for _ in range(3):
        for _ in range(2):
            CLIENTS["kafka-python"].produce(bootstrap, "t", [Sent(value=b"v")])
        own_broker.kill()
        own_broker.start()
    client = kafka.KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        place = kafka.TopicPartition("t", 0)
        producers = client.describe_producers([place])[place].active_producers
    finally:
        client.close()
    assert len({each.producer_id for each in producers}) == 6
