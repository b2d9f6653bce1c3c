"""Members of a consumer group, one class for each client, driven by the test's own thread.

A member's turn is `step()`: it polls briefly, which is when clients answer rebalances. `poll_until` gives
turns to several members until a condition holds, so that a rebalance among them can complete.
"""

from __future__ import annotations

import asyncio
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import aiokafka
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AiokafkaRange
from aiokafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor as AiokafkaRoundRobin
from aiokafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor as AiokafkaSticky
from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.coordinator.assignors.roundrobin import RoundRobinPartitionAssignor
from kafka.coordinator.assignors.sticky.sticky_assignor import StickyPartitionAssignor

import kafka

SESSION_TIMEOUT_MS = 6000
HEARTBEAT_MS = 200
DEADLINE_SECONDS = 25.0
STEP_MS = 30

KAFKA_PYTHON_ASSIGNORS = {
    "range": RangePartitionAssignor,
    "roundrobin": RoundRobinPartitionAssignor,
    "sticky": StickyPartitionAssignor,
    "cooperative-sticky": CooperativeStickyAssignor,
}
AIOKAFKA_ASSIGNORS = {"range": AiokafkaRange, "roundrobin": AiokafkaRoundRobin, "sticky": AiokafkaSticky}


class Member(ABC):
    """One consumer in a group, from the earliest offset, committing what it has read when it leaves."""

    def __init__(self) -> None:
        self.values: list[bytes] = []

    @abstractmethod
    def step(self) -> None:
        """Poll briefly: take records, answer rebalances."""

    @abstractmethod
    def partitions(self) -> set[int]:
        """What it owns at the moment."""

    @abstractmethod
    def close(self) -> None:
        """Commit and leave. Safe to call twice."""


class ConfluentMember(Member):
    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], strategy: str = "range", **settings: Any
    ) -> None:
        super().__init__()
        self.consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": group,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": SESSION_TIMEOUT_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "topic.metadata.refresh.interval.ms": 200,
                **{name.replace("_", "."): value for name, value in settings.items()},
            }
        )
        self._open = True
        self.revocations = 0
        self.consumer.subscribe(list(topics), on_revoke=self._revoked, on_lost=self._revoked)

    def _revoked(self, _consumer: Any, _partitions: Any) -> None:
        self.revocations += 1

    def step(self) -> None:
        for message in self.consumer.consume(500, timeout=STEP_MS / 1000):
            error = message.error()
            if error is None:
                value: Any = message.value()
                self.values.append(value)
            elif not error.retriable() and error.code() != confluent_kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise confluent_kafka.KafkaException(error)

    def partitions(self) -> set[int]:
        return {assigned.partition for assigned in self.consumer.assignment()}

    def close(self) -> None:
        if self._open:
            self._open = False
            self.consumer.close()


class ThreadedMember(Member):
    """A member that lives in a thread of its own, since its client waits for the others inside its calls."""

    def __init__(self) -> None:
        super().__init__()
        self._owned: set[int] = set()
        self._progress = threading.Event()
        self._leaving = threading.Event()
        self._thread = ThreadPoolExecutor(1, type(self).__name__)
        self._life: Future[None] = self._thread.submit(self._live)

    @abstractmethod
    def _live(self) -> None:
        """Consume until told to leave."""

    def _note(self, owned: Iterable[Any], batches: Mapping[Any, Sequence[Any]]) -> None:
        for records in batches.values():
            self.values += [record.value for record in records]
        self._owned = {assigned.partition for assigned in owned}
        self._progress.set()

    def step(self) -> None:
        self._progress.wait(STEP_MS / 1000)
        self._progress.clear()
        if self._life.done():
            self._life.result()  # raises what ended it

    def partitions(self) -> set[int]:
        return self._owned

    def close(self) -> None:
        self._leaving.set()
        self._thread.shutdown(wait=True)
        self._owned = set()


class KafkaPythonMember(ThreadedMember):
    # A poll that times out while its join completes loses the assignment (kafka-python 3.0.12): not too short.
    POLL_MS = 400

    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], strategy: str = "range", **settings: Any
    ) -> None:
        self._topics = list(topics)
        self._settings = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": [KAFKA_PYTHON_ASSIGNORS[strategy]],
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "metadata_max_age_ms": 200,
            **settings,
        }
        super().__init__()

    def _live(self) -> None:
        consumer = kafka.KafkaConsumer(**self._settings)
        try:
            consumer.subscribe(self._topics)
            while not self._leaving.is_set():
                batches = consumer.poll(timeout_ms=self.POLL_MS)
                self._note(consumer.assignment(), batches)
        finally:
            consumer.close()


class AiokafkaMember(ThreadedMember):
    def __init__(
        self, bootstrap: str, group: str, topics: Sequence[str], strategy: str = "range", **settings: Any
    ) -> None:
        self._topics = list(topics)
        self._settings = {
            "bootstrap_servers": bootstrap,
            "group_id": group,
            "auto_offset_reset": "earliest",
            "partition_assignment_strategy": [AIOKAFKA_ASSIGNORS[strategy]],
            "session_timeout_ms": SESSION_TIMEOUT_MS,
            "heartbeat_interval_ms": HEARTBEAT_MS,
            "metadata_max_age_ms": 200,
            **settings,
        }
        super().__init__()

    def _live(self) -> None:
        asyncio.run(self._consume())

    async def _consume(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(*self._topics, **self._settings)
        await consumer.start()
        try:
            while not self._leaving.is_set():
                batches = await consumer.getmany(timeout_ms=STEP_MS)
                self._note(consumer.assignment(), batches)
        finally:
            await consumer.stop()


MEMBERS: dict[str, Callable[..., Member]] = {
    "confluent-kafka": ConfluentMember,
    "kafka-python": KafkaPythonMember,
    "aiokafka": AiokafkaMember,
}


@contextmanager
def closing_members() -> Iterator[list[Member]]:
    """A list to put members into; all are closed in the end, whatever happens."""
    members: list[Member] = []
    try:
        yield members
    finally:
        for member in members:
            member.close()


def poll_until(
    what: str,
    members: Sequence[Member],
    condition: Callable[[], bool],
    deadline_s: float = DEADLINE_SECONDS,
) -> None:
    """Give the members turns until the condition holds; at the deadline fail with who owns what."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        owned = [sorted(member.partitions()) for member in members]
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}; owned: {owned}"
        for member in members:
            member.step()


def shared_out(members: Sequence[Member], partitions: int) -> bool:
    """Whether every partition has exactly one owner and no member has two more than another."""
    owned = [member.partitions() for member in members]
    sizes = [len(each) for each in owned]
    return (
        sum(sizes) == partitions
        and set().union(*owned) == set(range(partitions))
        and max(sizes) - min(sizes) <= 1
    )
