"""Finding a place in a partition: first and last offsets, offsets by time, seeking, pausing."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._listoffsets import OffsetSpec as UntypedOffsetSpec
from real_clients import CLIENTS, Sent, received_from_confluent

import kafka

PRODUCER = CLIENTS["confluent-kafka"]
# Ten records, ten seconds apart, an hour ago.
COUNT, APART_MS = 10, 10_000
OffsetSpec: Any = UntypedOffsetSpec


@pytest.fixture
def ladder(bootstrap: str, topic: str) -> tuple[str, int]:
    """A topic and the time of its first record; the n-th record is n steps later."""
    start_ms = int(time.time() * 1000) - 3_600_000
    # One request each, so that the records are batches of their own.
    for n in range(COUNT):
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n, timestamp_ms=start_ms + n * APART_MS)])
    return topic, start_ms


QUESTIONS = [
    pytest.param(-5000, 0, id="before the first"),
    pytest.param(0, 0, id="the first itself"),
    pytest.param(3 * APART_MS, 3, id="one in the middle"),
    pytest.param(3 * APART_MS + 1, 4, id="between two"),
    pytest.param(9 * APART_MS, 9, id="the last itself"),
    pytest.param(9 * APART_MS + 1, None, id="after the last"),
]


@pytest.mark.parametrize(("after_start_ms", "offset"), QUESTIONS)
def test_every_client_finds_offsets_by_time(
    after_start_ms: int, offset: int | None, bootstrap: str, ladder: tuple[str, int]
) -> None:
    topic, start_ms = ladder
    at_ms = start_ms + after_start_ms

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        [found] = consumer.offsets_for_times([TopicPartition(topic, 0, at_ms)], timeout=20)
    finally:
        consumer.close()
    assert found.offset == (confluent_kafka.OFFSET_END if offset is None else offset)

    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        place = kafka.TopicPartition(topic, 0)
        answer = reader.offsets_for_times({place: at_ms})[place]
    finally:
        reader.close()
    assert (None if answer is None else answer.offset) == offset
    if answer is not None:
        assert answer.timestamp == start_ms + answer.offset * APART_MS

    async def ask() -> Any:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            place = aiokafka.TopicPartition(topic, 0)
            return (await consumer.offsets_for_times({place: at_ms}))[place]

    answer = asyncio.run(ask())
    assert (None if answer is None else answer.offset) == offset


def test_reading_on_from_a_time(bootstrap: str, ladder: tuple[str, int]) -> None:
    topic, start_ms = ladder
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        places = consumer.offsets_for_times(
            [TopicPartition(topic, 0, start_ms + 7 * APART_MS - 1)], timeout=20
        )
        consumer.assign(places)
        values = [received_from_confluent(message).value for message in consumer.consume(3, timeout=20)]
    finally:
        consumer.close()
    assert values == [b"7", b"8", b"9"]


def test_a_time_inside_a_compressed_batch_gives_the_record_not_the_batch(bootstrap: str, topic: str) -> None:
    start_ms = int(time.time() * 1000) - 3_600_000
    records = [Sent(value=b"%d" % n, timestamp_ms=start_ms + n * APART_MS) for n in range(COUNT)]
    PRODUCER.produce(bootstrap, topic, records, codec="lz4")
    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        place = kafka.TopicPartition(topic, 0)
        answer = reader.offsets_for_times({place: start_ms + 5 * APART_MS})[place]
    finally:
        reader.close()
    assert (answer.offset, answer.timestamp) == (5, start_ms + 5 * APART_MS)


def test_first_and_last_offsets_of_every_client(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(3)
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"v", partition=n % 2) for n in range(9)])
    ends = {0: 5, 1: 4, 2: 0}

    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        for partition, end in ends.items():
            assert consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20) == (0, end)
    finally:
        consumer.close()

    reader = kafka.KafkaConsumer(bootstrap_servers=bootstrap)
    try:
        places = [kafka.TopicPartition(topic, partition) for partition in ends]
        assert reader.beginning_offsets(places) == dict.fromkeys(places, 0)
        assert reader.end_offsets(places) == dict(zip(places, ends.values(), strict=True))
    finally:
        reader.close()

    async def ask() -> tuple[Any, Any]:
        async with aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap) as consumer:
            return await consumer.beginning_offsets(others), await consumer.end_offsets(others)

    others = [aiokafka.TopicPartition(topic, partition) for partition in ends]
    beginnings, found_ends = asyncio.run(ask())
    assert beginnings == dict.fromkeys(others, 0)
    assert found_ends == dict(zip(others, ends.values(), strict=True))


def test_admin_lists_offsets_by_every_rule(bootstrap: str, topic: str, admin: AdminClient) -> None:
    start_ms = int(time.time() * 1000) - 3_600_000
    # The latest time is not that of the last record.
    for n, step in enumerate([0, 5, 9, 3, 7]):
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n, timestamp_ms=start_ms + step * APART_MS)])
    place = TopicPartition(topic, 0)

    def ask(rule: UntypedOffsetSpec) -> tuple[int, int]:
        answer = admin.list_offsets({place: rule})[place].result()
        return answer.offset, answer.timestamp

    assert ask(OffsetSpec.earliest())[0] == 0
    assert ask(OffsetSpec.latest())[0] == 5
    assert ask(OffsetSpec.max_timestamp()) == (2, start_ms + 9 * APART_MS)
    assert ask(OffsetSpec.for_timestamp(start_ms + 4 * APART_MS)) == (1, start_ms + 5 * APART_MS)
    assert ask(OffsetSpec.for_timestamp(start_ms + 6 * APART_MS)) == (2, start_ms + 9 * APART_MS)
    assert ask(OffsetSpec.for_timestamp(start_ms + 10 * APART_MS)) == (-1, -1)


def test_an_empty_partition_has_no_latest_time(topic: str, admin: AdminClient) -> None:
    place = TopicPartition(topic, 0)
    answer = admin.list_offsets({place: OffsetSpec.max_timestamp()})[place].result()
    assert (answer.offset, answer.timestamp) == (-1, -1)


def test_seeking_back_and_forth_and_pausing(bootstrap: str, topic: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(100)])
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})

    def next_value() -> bytes | None:
        message = consumer.poll(20)
        assert message is not None, "no record came"
        return received_from_confluent(message).value

    try:
        consumer.assign([TopicPartition(topic, 0, 50)])
        assert next_value() == b"50"
        consumer.seek(TopicPartition(topic, 0, 3))
        assert next_value() == b"3"
        consumer.seek(TopicPartition(topic, 0, 98))
        assert [next_value(), next_value()] == [b"98", b"99"]
        consumer.pause([TopicPartition(topic, 0)])
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"after the pause")])
        assert consumer.poll(0.3) is None
        consumer.resume([TopicPartition(topic, 0)])
        assert next_value() == b"after the pause"
    finally:
        consumer.close()


def test_an_offset_beyond_the_end_is_out_of_range(bootstrap: str, topic: str) -> None:
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"v")])
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "auto.offset.reset": "error"}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, 1000)])
        message = consumer.poll(20)
        assert message is not None
        error = message.error()
        assert error is not None
        assert error.code() == confluent_kafka.KafkaError._AUTO_OFFSET_RESET
        assert "out of range" in error.str().lower()
    finally:
        consumer.close()
