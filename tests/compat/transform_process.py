"""Copies records from one topic to another in transactions, and kills itself at the step that it is told.

A process of its own: it ends with SIGKILL, or with 0 when the group has committed the end of every partition.

Usage: transform_process.py CLIENT BOOTSTRAP SOURCE TARGET NAME SEED DIE_AT_STEP
NAME is its group and its transactional id. DIE_AT_STEP counts records sent, offsets added, transactions about to be
committed (or aborted, which one in five is) and ended ones; 0 means never.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import aiokafka
import confluent_kafka
from confluent_kafka.cimpl import TopicPartition
from kafka.structs import OffsetAndMetadata
from transactional_clients import (
    DEADLINE_SECONDS,
    AiokafkaProducer,
    ConfluentProducer,
    KafkaPythonProducer,
    TransactionalProducer,
)

import kafka

PARTITIONS = (0, 1)
RECORDS_MAX = 10
ABORTED_SHARE = 0.2
SESSION_TIMEOUT_MS = 6000
POLL_SECONDS = 0.1
FETCH_WAIT_MS = (
    50  # a consumer that goes back has to wait for the end of a fetch that it does not want any more
)


class Input(NamedTuple):
    partition: int
    offset: int
    value: bytes


class Client(ABC):
    """A consumer in a group of its own, and a transactional producer. All calls wait until they are done."""

    producer: TransactionalProducer

    def __init__(self, source: str, name: str) -> None:
        self.source = source
        self.name = name

    @abstractmethod
    def poll(self) -> list[Input]: ...

    @abstractmethod
    def add_offsets(self, offsets: dict[int, int]) -> None:
        """Let the transaction commit them for the group."""

    @abstractmethod
    def rewind(self, offsets: dict[int, int]) -> None: ...

    @abstractmethod
    def at_end(self) -> bool:
        """Whether the group has committed the end of every partition."""


class Confluent(Client):
    def __init__(self, bootstrap: str, source: str, name: str) -> None:
        super().__init__(source, name)
        self.producer = self._confluent = ConfluentProducer(bootstrap, name)
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": name,
                "group.instance.id": name,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "auto.offset.reset": "earliest",
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": FETCH_WAIT_MS,
            }
        )
        self._consumer.subscribe([source])

    def poll(self) -> list[Input]:
        found = []
        for message in self._consumer.consume(RECORDS_MAX, timeout=POLL_SECONDS):
            error = message.error()
            if error is None:
                place: Any = message
                found.append(Input(place.partition(), place.offset(), place.value()))
            elif not error.retriable():
                raise confluent_kafka.KafkaException(error)
        return found

    def add_offsets(self, offsets: dict[int, int]) -> None:
        places = [TopicPartition(self.source, partition, offset) for partition, offset in offsets.items()]
        metadata: Any = self._consumer.consumer_group_metadata()
        self._confluent.producer.send_offsets_to_transaction(places, metadata, DEADLINE_SECONDS)

    def rewind(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(TopicPartition(self.source, partition, offset))

    def at_end(self) -> bool:
        places = [TopicPartition(self.source, partition) for partition in PARTITIONS]
        try:
            committed = self._consumer.committed(places, timeout=DEADLINE_SECONDS)
            ends = [self._consumer.get_watermark_offsets(place, timeout=DEADLINE_SECONDS) for place in places]
        except confluent_kafka.KafkaException as error:
            if error.args[0].retriable():
                return False  # a coordinator that begins, or changes
            raise
        return all(place.offset == end for place, (_, end) in zip(committed, ends, strict=True))


class KafkaPython(Client):
    def __init__(self, bootstrap: str, source: str, name: str) -> None:
        super().__init__(source, name)
        self.producer = self._kafka_python = KafkaPythonProducer(bootstrap, name)
        self._consumer = kafka.KafkaConsumer(
            source,
            bootstrap_servers=bootstrap,
            group_id=name,
            group_instance_id=name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=FETCH_WAIT_MS,
            max_poll_records=RECORDS_MAX,
        )

    def poll(self) -> list[Input]:
        # A poll that times out while its join completes loses the assignment (kafka-python 3.0.12): not too short.
        timeout_ms = POLL_SECONDS * 1000 if self._consumer.assignment() else 2000
        return _inputs(self._consumer.poll(timeout_ms=timeout_ms))

    def add_offsets(self, offsets: dict[int, int]) -> None:
        places = {
            kafka.TopicPartition(self.source, partition): OffsetAndMetadata(offset, "", -1)
            for partition, offset in offsets.items()
        }
        self._kafka_python.producer.send_offsets_to_transaction(places, self._consumer.group_metadata())

    def rewind(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(kafka.TopicPartition(self.source, partition), offset)

    def at_end(self) -> bool:
        places = [kafka.TopicPartition(self.source, partition) for partition in PARTITIONS]
        ends = self._consumer.end_offsets(places)
        return all(self._consumer.committed(place) == ends[place] for place in places)


class Aiokafka(Client):
    def __init__(self, bootstrap: str, source: str, name: str) -> None:
        super().__init__(source, name)
        self.producer = self._aiokafka = AiokafkaProducer(bootstrap, name)
        self._aiokafka.run(self._join(bootstrap))

    async def _join(self, bootstrap: str) -> None:
        self._consumer = aiokafka.AIOKafkaConsumer(
            self.source,
            bootstrap_servers=bootstrap,
            group_id=self.name,
            group_instance_id=self.name,
            session_timeout_ms=SESSION_TIMEOUT_MS,
            auto_offset_reset="earliest",
            enable_auto_commit=False,
            isolation_level="read_committed",
            fetch_max_wait_ms=FETCH_WAIT_MS,
        )
        await self._consumer.start()

    def poll(self) -> list[Input]:
        timeout_ms = int(POLL_SECONDS * 1000)
        return _inputs(
            self._aiokafka.run(self._consumer.getmany(timeout_ms=timeout_ms, max_records=RECORDS_MAX))
        )

    def add_offsets(self, offsets: dict[int, int]) -> None:
        places = {
            aiokafka.TopicPartition(self.source, partition): offset for partition, offset in offsets.items()
        }
        self._aiokafka.run(self._aiokafka.producer.send_offsets_to_transaction(places, self.name))

    def rewind(self, offsets: dict[int, int]) -> None:
        for partition, offset in offsets.items():
            self._consumer.seek(aiokafka.TopicPartition(self.source, partition), offset)

    def at_end(self) -> bool:
        return self._aiokafka.run(self._at_end())

    async def _at_end(self) -> bool:
        places = [aiokafka.TopicPartition(self.source, partition) for partition in PARTITIONS]
        ends = await self._consumer.end_offsets(places)
        return all([await self._consumer.committed(place) == ends[place] for place in places])


def _inputs(batches: Mapping[Any, Sequence[Any]]) -> list[Input]:
    return [
        Input(record.partition, record.offset, record.value)
        for records in batches.values()
        for record in records
    ]


CLIENTS: dict[str, type[Client]] = {
    "confluent-kafka": Confluent,
    "kafka-python": KafkaPython,
    "aiokafka": Aiokafka,
}


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class Steps:
    """Counts steps and dies at the one it is told."""

    def __init__(self, die_at: int) -> None:
        self._die_at = die_at
        self._taken = 0

    def step(self, *, alongside: bool = False) -> None:
        """Die now, or `alongside` what is done next: at some moment within it."""
        self._taken += 1
        if self._taken == self._die_at:
            if alongside:
                threading.Thread(target=die).start()
            else:
                die()


def main(client: Client, target: str, seed: int, die_at: int) -> None:
    chance = random.Random(seed)
    steps = Steps(die_at)
    producer = client.producer
    inputs: list[Input] = []
    while len(inputs) == RECORDS_MAX or not client.at_end():
        inputs = client.poll()
        if not inputs:
            continue
        producer.begin()
        for record in inputs:
            producer.send(target, record.value, record.partition)
            steps.step()
        client.add_offsets({record.partition: record.offset + 1 for record in inputs})
        steps.step()
        aborted = chance.random() < ABORTED_SHARE
        steps.step(alongside=True)
        if aborted:
            producer.abort()
            client.rewind({record.partition: record.offset for record in reversed(inputs)})
        else:
            producer.commit()
        steps.step()
        print("aborted" if aborted else "committed", flush=True)


if __name__ == "__main__":
    _, library, bootstrap, source, target, name, seed, die_at = sys.argv
    main(CLIENTS[library](bootstrap, source, name), target, int(seed), int(die_at))
    os._exit(0)  # without goodbyes, which take their time
