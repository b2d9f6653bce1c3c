"""What the tests of transactions share: readers of both isolation levels, and workers that are killed."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import confluent_kafka
from confluent_kafka.admin import AdminClient, OffsetSpec
from confluent_kafka.cimpl import TopicPartition
from real_clients import CLIENTS, Sent

DEADLINE_SECONDS = 40.0
_PROGRAM = str(Path(__file__).with_name("transform_process.py"))
_END_OF_PARTITION = -191  # librdkafka's own code, which confluent_kafka has no typed name for
# A worker takes about 13 steps for a transaction of ten records.
_STEPS_MAX = 45


def read_to_end(bootstrap: str, topic: str, isolation: str, partitions: int = 2) -> list[bytes]:
    """All that a reader of this isolation level sees, in the order of partitions and offsets."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
            "enable.partition.eof": True,
            "fetch.wait.max.ms": 10,  # the end shows when nothing comes
        }
    )
    found: list[tuple[int, int, bytes]] = []
    at_end: set[int] = set()
    deadline = time.monotonic() + DEADLINE_SECONDS
    try:
        consumer.assign([TopicPartition(topic, p, 0) for p in range(partitions)])
        while len(at_end) < partitions:
            assert time.monotonic() < deadline, f"{topic} was not read to its end in time"
            for message in consumer.consume(1000, timeout=0.05):
                place: Any = message
                error: Any = place.error()
                if error is None:
                    found.append((place.partition(), place.offset(), place.value()))
                elif error.code() == _END_OF_PARTITION:
                    at_end.add(place.partition())
                elif not error.retriable():
                    raise confluent_kafka.KafkaException(error)
    finally:
        consumer.close()
    return [value for _, _, value in sorted(found)]


def end_offsets(admin: AdminClient, topic: str, isolation: str, partitions: int = 2) -> list[int]:
    """Where each partition ends for readers of this isolation level."""
    level = confluent_kafka.IsolationLevel[isolation.upper()]
    asked = {TopicPartition(topic, partition): OffsetSpec.latest() for partition in range(partitions)}
    answers = admin.list_offsets(asked, isolation_level=level, request_timeout=10)
    return [answers[place].result().offset for place in asked]


def fill(bootstrap: str, topic: str, count: int, partitions: int = 2) -> list[bytes]:
    """Put numbered records into a topic; returns their values, sorted."""
    values = [b"%06d" % number for number in range(count)]
    sent = [Sent(value=value, partition=number % partitions) for number, value in enumerate(values)]
    CLIENTS["confluent-kafka"].produce(bootstrap, topic, sent)
    return values


def copy_with_kills(
    client: str,
    bootstrap: str,
    source: str,
    target: str,
    name: str,
    *,
    seed: int,
    kills: int,
    between: Callable[[int], object] = lambda _life: None,
) -> None:
    """Let workers copy `source` to `target`, each killed at some step but the last, which finishes the work."""
    chance = random.Random(seed)
    for life in range(kills + 1):
        die_at = chance.randint(1, _STEPS_MAX) if life < kills else 0
        worker = start_worker(client, bootstrap, source, target, name, seed + life, die_at)
        try:
            between(life)
            said, complaints = worker.communicate(timeout=DEADLINE_SECONDS)
        finally:
            worker.kill()
        wanted = 0 if die_at == 0 else -signal.SIGKILL
        assert worker.returncode == wanted, f"life {life}, die_at {die_at}: {said} {complaints[-4000:]}"


def start_worker(
    client: str, bootstrap: str, source: str, target: str, name: str, seed: int, die_at: int
) -> subprocess.Popen[str]:
    command = [sys.executable, _PROGRAM, client, bootstrap, source, target, name, str(seed), str(die_at)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
