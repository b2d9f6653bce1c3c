"""Three Kafka clients that people use, each reduced to: send these records, read that many back."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import aiokafka
import confluent_kafka

import kafka
from kafka import codec as kafka_python_codec

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
DEADLINE_SECONDS = 20.0
CREATE_TIME, LOG_APPEND_TIME = 0, 1


@dataclass(frozen=True)
class Sent:
    """A record as a test hands it to a client."""

    value: bytes | None
    key: bytes | None = None
    headers: tuple[tuple[str, bytes], ...] = ()
    timestamp_ms: int | None = None
    partition: int = 0


@dataclass(frozen=True)
class Received:
    """A record as a client hands it to a test."""

    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int
    timestamp_type: int


class Client(Protocol):
    """One client library."""

    name: str
    assignors: tuple[str, ...]

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none", acks: str = "all"
    ) -> list[int]:
        """Send all the records, as few batches as it likes, and return their offsets (-1: not told)."""

    def consume(
        self, bootstrap: str, topic: str, count: int, partitions: Sequence[int] = (0,)
    ) -> list[Received]:
        """Read `count` records from the beginning of the partitions, in order of partition and offset."""


class Confluent:
    """confluent-kafka: librdkafka underneath."""

    name = "confluent-kafka"
    assignors: tuple[str, ...] = ("range", "roundrobin", "cooperative-sticky")

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none", acks: str = "all"
    ) -> list[int]:
        offsets: dict[int, int] = {}
        errors: list[confluent_kafka.KafkaError] = []

        def reporter(place: int) -> Callable[[Any, Any], None]:
            def report(error: Any, message: Any) -> None:
                if error is not None:
                    errors.append(error)
                else:
                    offsets[place] = message.offset()

            return report

        settings: dict[str, Any] = {
            "bootstrap.servers": bootstrap,
            "acks": acks,
            "compression.type": codec,
            "linger.ms": 20,
        }
        with confluent_kafka.Producer(settings) as producer:
            for place, record in enumerate(records):
                producer.produce(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    headers=list(record.headers),
                    timestamp=record.timestamp_ms or 0,
                    on_delivery=reporter(place),
                )
            unsent = producer.flush(DEADLINE_SECONDS)
        assert unsent == 0, f"{unsent} records not delivered in time"
        if errors:
            raise confluent_kafka.KafkaException(errors[0])
        return [-1 if offsets[place] is None else offsets[place] for place in range(len(records))]

    def consume(
        self, bootstrap: str, topic: str, count: int, partitions: Sequence[int] = (0,)
    ) -> list[Received]:
        found: list[Received] = []
        consumer = confluent_kafka.Consumer(
            {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
        )
        try:
            consumer.assign(
                [
                    confluent_kafka.TopicPartition(topic, p, confluent_kafka.OFFSET_BEGINNING)
                    for p in partitions
                ]
            )
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                found += map(received_from_confluent, consumer.consume(count - len(found), timeout=0.5))
        finally:
            consumer.close()
        return _complete(found, count)


def received_from_confluent(message: confluent_kafka.Message) -> Received:
    """A message of confluent-kafka as ours; an error in its place is raised."""
    error = message.error()
    if error is not None:
        raise confluent_kafka.KafkaException(error)
    kind, timestamp_ms = message.timestamp()
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    headers: Any = message.headers() or []
    key: Any = message.key()
    value: Any = message.value()
    return Received(
        partition,
        offset,
        key,
        value,
        tuple(headers),
        timestamp_ms,
        LOG_APPEND_TIME if kind == confluent_kafka.TIMESTAMP_LOG_APPEND_TIME else CREATE_TIME,
    )


class KafkaPython:
    """kafka-python: pure Python, blocking."""

    name = "kafka-python"
    assignors: tuple[str, ...] = ("range", "roundrobin", "sticky", "cooperative-sticky")

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none", acks: str = "all"
    ) -> list[int]:
        producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks if acks == "all" else int(acks),
            enable_idempotence=acks == "all",
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        try:
            futures = [
                producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    headers=list(record.headers),
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                )
                for record in records
            ]
            producer.flush(timeout=DEADLINE_SECONDS)
            return [future.get(timeout=DEADLINE_SECONDS).offset for future in futures]
        finally:
            producer.close(timeout=DEADLINE_SECONDS)

    def consume(
        self, bootstrap: str, topic: str, count: int, partitions: Sequence[int] = (0,)
    ) -> list[Received]:
        found: list[Received] = []
        consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        try:
            assigned = [kafka.TopicPartition(topic, partition) for partition in partitions]
            consumer.assign(assigned)
            consumer.seek_to_beginning(*assigned)
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                for records in consumer.poll(timeout_ms=500).values():
                    found += [_received(record) for record in records]
        finally:
            consumer.close()
        return _complete(found, count)


class Aiokafka:
    """aiokafka: asyncio, with codecs of its own."""

    name = "aiokafka"
    assignors: tuple[str, ...] = ("range", "roundrobin", "sticky")

    def produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str = "none", acks: str = "all"
    ) -> list[int]:
        return asyncio.run(self._produce(bootstrap, topic, records, codec, acks))

    async def _produce(
        self, bootstrap: str, topic: str, records: Sequence[Sent], codec: str, acks: str
    ) -> list[int]:
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            acks=acks if acks == "all" else int(acks),
            compression_type=None if codec == "none" else codec,
            linger_ms=20,
        )
        await producer.start()
        try:
            futures = [
                await producer.send(
                    topic,
                    value=record.value,
                    key=record.key,
                    partition=record.partition,
                    timestamp_ms=record.timestamp_ms,
                    headers=list(record.headers),
                )
                for record in records
            ]
            answers = await asyncio.wait_for(asyncio.gather(*futures), DEADLINE_SECONDS)
        finally:
            await producer.stop()
        return [-1 if answer is None else answer.offset for answer in answers]

    def consume(
        self, bootstrap: str, topic: str, count: int, partitions: Sequence[int] = (0,)
    ) -> list[Received]:
        return asyncio.run(self._consume(bootstrap, topic, count, partitions))

    async def _consume(
        self, bootstrap: str, topic: str, count: int, partitions: Sequence[int]
    ) -> list[Received]:
        found: list[Received] = []
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, enable_auto_commit=False)
        await consumer.start()
        try:
            assigned = [aiokafka.TopicPartition(topic, partition) for partition in partitions]
            consumer.assign(assigned)
            await consumer.seek_to_beginning(*assigned)
            deadline = time.monotonic() + DEADLINE_SECONDS
            while len(found) < count and time.monotonic() < deadline:
                batches: Mapping[Any, Sequence[Any]] = await consumer.getmany(timeout_ms=500)
                for records in batches.values():
                    found += [_received(record) for record in records]
        finally:
            await consumer.stop()
        return _complete(found, count)


def _received(record: Any) -> Received:
    """A record of kafka-python or aiokafka, which look alike."""
    return Received(
        record.partition,
        record.offset,
        record.key,
        record.value,
        tuple(record.headers),
        record.timestamp,
        record.timestamp_type,
    )


def _complete(found: list[Received], count: int) -> list[Received]:
    assert len(found) >= count, f"only {len(found)} of {count} records came in time"
    return sorted(found, key=lambda record: (record.partition, record.offset))


_ALL: tuple[Client, ...] = (Confluent(), KafkaPython(), Aiokafka())
CLIENTS = {client.name: client for client in _ALL}


def missing_codec(client: str, codec: str) -> str | None:
    """Why this client cannot do this codec here, or None when it can."""
    if client != "kafka-python" or getattr(kafka_python_codec, f"has_{codec}", lambda: True)():
        return None
    package = {"snappy": "python-snappy", "lz4": "lz4", "zstd": "zstandard"}[codec]
    return f"kafka-python needs the package {package} for {codec}"
