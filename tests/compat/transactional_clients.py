"""Transactional producers of three client libraries, alike enough to be tested by the same tests."""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from itertools import islice
from types import TracebackType
from typing import Any, TypeVar

import aiokafka
import confluent_kafka
from aiokafka import errors as aiokafka_errors
from confluent_kafka.cimpl import TopicPartition

import kafka
from kafka import errors as kafka_python_errors

T = TypeVar("T")

DEADLINE_SECONDS = 20.0


class TransactionalProducer(ABC):
    """One producer with a transactional id, which it has made its own. All calls wait until they are done."""

    # What it raises when another has taken the id, and when a transaction cannot be committed for any reason.
    error: type[Exception]

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, value: bytes, partition: int = 0) -> None: ...

    @abstractmethod
    def flush(self) -> None: ...

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    @abstractmethod
    def close(self) -> None: ...

    @abstractmethod
    def fenced_by(self, error: Exception) -> bool:
        """Whether this error says that another producer has taken the id."""

    def __enter__(self) -> TransactionalProducer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()


class ConfluentProducer(TransactionalProducer):
    error = confluent_kafka.KafkaException

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 20_000) -> None:
        self.producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": timeout_ms,
                "linger.ms": 0,
            }
        )
        self.producer.init_transactions(DEADLINE_SECONDS)

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self.producer.produce(topic, value, partition=partition)
        self.producer.poll(0)

    def flush(self) -> None:
        assert self.producer.flush(DEADLINE_SECONDS) == 0

    def commit(self) -> None:
        self.producer.commit_transaction(DEADLINE_SECONDS)

    def abort(self) -> None:
        self.producer.abort_transaction(DEADLINE_SECONDS)

    def close(self) -> None:
        self.producer.purge()
        with contextlib.suppress(confluent_kafka.KafkaException):  # a fenced one only complains
            self.producer.close()

    def fenced_by(self, error: Exception) -> bool:
        code = error.args[0].code()
        return error.args[0].fatal() and code in (
            confluent_kafka.KafkaError._FENCED,
            confluent_kafka.KafkaError.INVALID_PRODUCER_EPOCH,
        )


class KafkaPythonProducer(TransactionalProducer):
    error = kafka_python_errors.KafkaError

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 20_000) -> None:
        self.producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=20,
            max_block_ms=DEADLINE_SECONDS * 1000,
        )
        self.producer.init_transactions()

    def begin(self) -> None:
        self.producer.begin_transaction()

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self.producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self.producer.flush(timeout=DEADLINE_SECONDS)

    def commit(self) -> None:
        self.producer.commit_transaction()

    def abort(self) -> None:
        self.producer.abort_transaction()

    def close(self) -> None:
        self.producer.close(timeout=0)

    def fenced_by(self, error: Exception) -> bool:
        return isinstance(
            error, kafka_python_errors.ProducerFencedError | kafka_python_errors.InvalidProducerEpochError
        )


class AiokafkaProducer(TransactionalProducer):
    error = aiokafka_errors.KafkaError

    def __init__(self, bootstrap: str, transactional_id: str, timeout_ms: int = 20_000) -> None:
        self._runner = asyncio.Runner()
        self.run(self._start(bootstrap, transactional_id, timeout_ms))

    async def _start(self, bootstrap: str, transactional_id: str, timeout_ms: int) -> None:
        self.producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=timeout_ms,
            retry_backoff_ms=20,
        )
        await self.producer.start()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(asyncio.wait_for(work, DEADLINE_SECONDS))

    def begin(self) -> None:
        self.run(self.producer.begin_transaction())

    def send(self, topic: str, value: bytes, partition: int = 0) -> None:
        self.run(self.producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self.run(self.producer.flush())

    def commit(self) -> None:
        self.run(self.producer.commit_transaction())

    def abort(self) -> None:
        self.run(self.producer.abort_transaction())

    def close(self) -> None:
        self.run(self.producer.stop())
        self._runner.close()

    def fenced_by(self, error: Exception) -> bool:
        return isinstance(error, aiokafka_errors.ProducerFenced | aiokafka_errors.InvalidProducerEpoch)


PRODUCERS: dict[str, Callable[..., TransactionalProducer]] = {
    "confluent-kafka": ConfluentProducer,
    "kafka-python": KafkaPythonProducer,
    "aiokafka": AiokafkaProducer,
}


# -- readers of what is committed ---------------------------------------------------------------------------


def read_with_confluent(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """So many records from the beginning of partition 0, without those of aborted transactions."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "unused", "isolation.level": "read_committed"}
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        found: list[Any] = consumer.consume(count, timeout=DEADLINE_SECONDS)
        return [message.value() for message in found]
    finally:
        consumer.close()


def read_with_kafka_python(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The same."""
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap,
        isolation_level="read_committed",
        consumer_timeout_ms=int(DEADLINE_SECONDS * 1000),
    )
    try:
        consumer.assign([kafka.TopicPartition(topic, 0)])
        consumer.seek_to_beginning()
        return [record.value for record in islice(consumer, count)]
    finally:
        consumer.close()


def read_with_aiokafka(bootstrap: str, topic: str, count: int) -> list[bytes]:
    """The same."""

    async def read() -> list[bytes]:
        async with aiokafka.AIOKafkaConsumer(
            bootstrap_servers=bootstrap, isolation_level="read_committed"
        ) as consumer:
            consumer.assign([aiokafka.TopicPartition(topic, 0)])
            await consumer.seek_to_beginning()
            return [(await consumer.getone()).value for _ in range(count)]

    return asyncio.run(asyncio.wait_for(read(), DEADLINE_SECONDS))


COMMITTED_READERS: dict[str, Callable[[str, str, int], list[bytes]]] = {
    "confluent-kafka": read_with_confluent,
    "kafka-python": read_with_kafka_python,
    "aiokafka": read_with_aiokafka,
}
