"""Long polling: a fetch waits for data and answers as soon as there is enough, no earlier and no later."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from real_clients import CLIENTS, Sent

import kafka

WAIT_MS = 8000
PRODUCER = CLIENTS["confluent-kafka"]


def poll_once(consumer: kafka.KafkaConsumer, until_s: float) -> tuple[list[bytes], float]:
    """The first records that come, and how long they took."""
    begun = time.monotonic()
    while time.monotonic() < begun + until_s:
        found = consumer.poll(timeout_ms=WAIT_MS)
        if found:
            values = [record.value for records in found.values() for record in records]
            return values, time.monotonic() - begun
    raise AssertionError(f"no record in {until_s:g} s")


def waiting_consumer(bootstrap: str, topic: str, partitions: int = 1, **settings: int) -> kafka.KafkaConsumer:
    """A consumer at the end of every partition, with its position known to it."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap, fetch_max_wait_ms=WAIT_MS, auto_offset_reset="earliest", **settings
    )
    places = [kafka.TopicPartition(topic, partition) for partition in range(partitions)]
    consumer.assign(places)
    consumer.seek_to_end(*places)
    for place in places:
        consumer.position(place)
    return consumer


def test_a_waiting_fetch_answers_once_a_record_comes(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(5)
    consumer = waiting_consumer(bootstrap, topic, partitions=5)
    try:
        assert consumer.poll(timeout_ms=300) == {}, "the fetch is out and waits"
        for partition in (0, 4, 2):
            sender = threading.Timer(
                0.3, PRODUCER.produce, (bootstrap, topic, [Sent(value=b"now", partition=partition)])
            )
            sender.start()
            values, took_s = poll_once(consumer, 20)
            sender.join()
            assert values == [b"now"]
            assert took_s < 3, f"the fetch was left waiting: {took_s:.1f} s of at most {WAIT_MS / 1000:g}"
    finally:
        consumer.close()


def test_a_fetch_waits_for_its_minimum_of_bytes(bootstrap: str, topic: str) -> None:
    consumer = waiting_consumer(bootstrap, topic, fetch_min_bytes=20_000)
    try:
        assert consumer.poll(timeout_ms=300) == {}
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"small")])
        assert consumer.poll(timeout_ms=500) == {}, "one small record is not enough"
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"x" * 30_000)])
        values, took_s = poll_once(consumer, 20)
        assert values == [b"small", b"x" * 30_000]
        assert took_s < 3
    finally:
        consumer.close()


def test_a_fetch_that_waits_in_vain_answers_empty_when_its_time_is_up(bootstrap: str, topic: str) -> None:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, fetch_max_wait_ms=400, fetch_min_bytes=1000)
    try:
        place = kafka.TopicPartition(topic, 0)
        consumer.assign([place])
        consumer.seek_to_beginning(place)
        consumer.position(place)
        begun = time.monotonic()
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"less than the minimum")])
        values, _ = poll_once(consumer, 10)
        assert values == [b"less than the minimum"], "what there is comes when the time is up"
        assert time.monotonic() - begun < 5
    finally:
        consumer.close()


def test_a_waiting_consumer_does_not_hold_up_others(bootstrap: str, new_topic: Callable[..., str]) -> None:
    quiet, busy = new_topic(), new_topic()
    consumer = waiting_consumer(bootstrap, quiet)
    try:
        assert consumer.poll(timeout_ms=200) == {}
        begun = time.monotonic()
        for n in range(5):
            PRODUCER.produce(bootstrap, busy, [Sent(value=b"%d" % n)])
        assert len(PRODUCER.consume(bootstrap, busy, 5)) == 5
        assert time.monotonic() - begun < WAIT_MS / 1000
    finally:
        consumer.close()
