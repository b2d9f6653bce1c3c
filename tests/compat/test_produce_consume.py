"""What one client writes another reads: every codec, headers, nulls, timestamps, large records, acks."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import aiokafka
import pytest
from confluent_kafka import KafkaException, Producer
from kafka.errors import MessageSizeTooLargeError
from real_clients import CLIENTS, CODECS, CREATE_TIME, LOG_APPEND_TIME, Client, Sent, missing_codec

import kafka

CLIENT_NAMES = list(CLIENTS)
HOUR_MS = 3_600_000


def need(client: str, codec: str) -> None:
    reason = missing_codec(client, codec)
    if reason:
        pytest.skip(reason)


@pytest.mark.parametrize("consumer", CLIENT_NAMES)
@pytest.mark.parametrize("producer", CLIENT_NAMES)
@pytest.mark.parametrize("codec", CODECS)
def test_what_one_client_writes_another_reads(
    producer: str, consumer: str, codec: str, bootstrap: str, topic: str
) -> None:
    need(producer, codec)
    need(consumer, codec)
    now_ms = int(time.time() * 1000)
    records = [
        Sent(
            value=b"value %d " % number + b"compressible " * (number % 50),
            key=b"key %d" % number,
            headers=(("trace", b"%d" % number), ("empty", b"")),
            timestamp_ms=now_ms + number,
        )
        for number in range(200)
    ]
    offsets = CLIENTS[producer].produce(bootstrap, topic, records, codec)
    assert offsets == list(range(200))
    found = CLIENTS[consumer].consume(bootstrap, topic, 200)
    assert [record.offset for record in found] == list(range(200))
    assert [
        (record.key, record.value, record.headers, record.timestamp_ms, record.timestamp_type)
        for record in found
    ] == [(record.key, record.value, record.headers, record.timestamp_ms, CREATE_TIME) for record in records]


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_null_and_empty_keys_and_values_stay_apart(client: Client, bootstrap: str, topic: str) -> None:
    pairs = [(b"", b""), (None, b""), (b"", None), (b"k", None), (None, b"v")]
    if client.name == "confluent-kafka":
        pairs.append((None, None))  # the others refuse to send it
    client.produce(bootstrap, topic, [Sent(value=value, key=key) for key, value in pairs])
    for reader in CLIENTS.values():
        found = reader.consume(bootstrap, topic, len(pairs))
        assert [(record.key, record.value) for record in found] == pairs


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_headers_keep_their_order_their_doubles_and_their_bytes(
    client: Client, bootstrap: str, topic: str
) -> None:
    headers = (("b", b"1"), ("a", b"\x00\xff"), ("b", b"2"), ("ünï", "✓".encode()))
    client.produce(bootstrap, topic, [Sent(value=b"v", headers=headers)])
    for reader in CLIENTS.values():
        assert reader.consume(bootstrap, topic, 1)[0].headers == headers


@pytest.mark.parametrize("codec", ["none", "zstd"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_on_a_log_append_time_topic_the_broker_tells_the_time(
    client: Client, codec: str, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    need(client.name, codec)
    topic = new_topic(config={"message.timestamp.type": "LogAppendTime"})
    before_ms = int(time.time() * 1000)
    client.produce(
        bootstrap, topic, [Sent(value=b"v%d" % n, timestamp_ms=before_ms - HOUR_MS) for n in range(5)], codec
    )
    after_ms = int(time.time() * 1000)
    for reader in CLIENTS.values():
        need(reader.name, codec)
        for record in reader.consume(bootstrap, topic, 5):
            assert record.timestamp_type == LOG_APPEND_TIME
            assert before_ms <= record.timestamp_ms <= after_ms


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_create_time_may_go_backwards(client: Client, bootstrap: str, topic: str) -> None:
    now_ms = int(time.time() * 1000)
    times = [now_ms, now_ms - 2 * HOUR_MS, now_ms - HOUR_MS]
    client.produce(bootstrap, topic, [Sent(value=b"v", timestamp_ms=at) for at in times])
    assert [record.timestamp_ms for record in client.consume(bootstrap, topic, 3)] == times


def test_a_time_too_far_ahead_is_refused(bootstrap: str, topic: str) -> None:
    """message.timestamp.after.max.ms is an hour by default."""
    ahead_ms = int(time.time() * 1000) + 2 * HOUR_MS
    with pytest.raises(KafkaException) as refusal:
        CLIENTS["confluent-kafka"].produce(bootstrap, topic, [Sent(value=b"v", timestamp_ms=ahead_ms)])
    assert refusal.value.args[0].name() == "INVALID_TIMESTAMP"


def test_a_record_of_almost_max_message_bytes_is_taken_and_a_larger_one_refused(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """The limit is for the batch as it is stored: 61 bytes of header, then the records."""
    topic = new_topic(config={"max.message.bytes": "100000"})
    client = CLIENTS["confluent-kafka"]
    # Header 61, record's own fields: length 3, attributes 1, deltas 2, null key 1, value length 3, headers 1.
    fits = 100_000 - 61 - 11
    assert client.produce(bootstrap, topic, [Sent(value=b"x" * fits)]) == [0]
    with pytest.raises(KafkaException) as refusal:
        client.produce(bootstrap, topic, [Sent(value=b"x" * (fits + 1))])
    assert refusal.value.args[0].name() == "MSG_SIZE_TOO_LARGE"
    [record] = client.consume(bootstrap, topic, 1)
    assert record.value == b"x" * fits


def test_a_topic_takes_large_records_when_told_to(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Five million bytes in one record, read by clients whose fetch limits are below that."""
    topic = new_topic(config={"max.message.bytes": "6000000"})
    value = bytes(range(256)) * 20_000
    with Producer({"bootstrap.servers": bootstrap, "message.max.bytes": 6_000_000}) as producer:
        producer.produce(topic, value)
        assert producer.flush(20) == 0
    for reader in CLIENTS.values():
        assert reader.consume(bootstrap, topic, 1)[0].value == value, reader.name


def test_a_compressed_batch_counts_with_its_compressed_size(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(config={"max.message.bytes": "10000"})
    big = Sent(value=b"a" * 200_000)
    with pytest.raises(MessageSizeTooLargeError):
        CLIENTS["kafka-python"].produce(bootstrap, topic, [big], "none")
    assert CLIENTS["kafka-python"].produce(bootstrap, topic, [big], "gzip") == [0]
    assert CLIENTS["aiokafka"].consume(bootstrap, topic, 1)[0].value == big.value


@pytest.mark.parametrize("acks", ["0", "1", "all"])
@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_every_level_of_acknowledgement(client: Client, acks: str, bootstrap: str, topic: str) -> None:
    offsets = client.produce(bootstrap, topic, [Sent(value=b"%d" % n) for n in range(50)], acks=acks)
    if acks != "0":
        assert offsets == list(range(50))
    found = client.consume(bootstrap, topic, 50)
    assert [record.value for record in found] == [b"%d" % n for n in range(50)]


@pytest.mark.parametrize("client", CLIENTS.values(), ids=CLIENT_NAMES)
def test_partitions_are_logs_of_their_own(
    client: Client, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(7)
    records = [Sent(value=b"%d" % number, partition=number % 7) for number in range(140)]
    client.produce(bootstrap, topic, records)
    for reader in CLIENTS.values():
        found = reader.consume(bootstrap, topic, 140, partitions=range(7))
        for partition in range(7):
            mine = [record for record in found if record.partition == partition]
            assert [record.offset for record in mine] == list(range(20))
            assert [record.value for record in mine] == [b"%d" % n for n in range(partition, 140, 7)]


def test_the_same_key_goes_to_the_same_partition_from_every_client(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    """All count the same partitions and use the same hash, murmur2 (confluent-kafka when told to)."""
    topic = new_topic(5)
    keys = [b"key %d" % number for number in range(50)]
    with Producer({"bootstrap.servers": bootstrap, "partitioner": "murmur2_random"}) as producer:
        for key in keys:
            producer.produce(topic, b"confluent-kafka", key)
        assert producer.flush(20) == 0
    sender = kafka.KafkaProducer(bootstrap_servers=bootstrap)
    try:
        for key in keys:
            sender.send(topic, b"kafka-python", key)
        sender.flush(timeout=20)
    finally:
        sender.close()

    async def with_aiokafka() -> None:
        async with aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap) as producer:
            for future in [await producer.send(topic, b"aiokafka", key) for key in keys]:
                await future

    asyncio.run(with_aiokafka())
    places: dict[bytes | None, set[int]] = {}
    for record in CLIENTS["confluent-kafka"].consume(bootstrap, topic, 150, partitions=range(5)):
        places.setdefault(record.key, set()).add(record.partition)
    assert all(len(partitions) == 1 for partitions in places.values())
    assert set().union(*places.values()) == set(range(5))
