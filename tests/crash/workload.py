"""A writer that never stops, and a reader that checks: every acknowledged record there, in order, once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Any, Self

import confluent_kafka
from confluent_kafka import OFFSET_BEGINNING, KafkaError, TopicPartition

DEADLINE_SECONDS = 40.0
OUTSTANDING_MAX = 3000
PAUSE_SECONDS = 0.005


def eventually(what: str, condition: Callable[[], bool], deadline_s: float = DEADLINE_SECONDS) -> None:
    """Wait until the condition holds; fail with `what` at the deadline."""
    deadline = time.monotonic() + deadline_s
    while not condition():
        assert time.monotonic() < deadline, f"not within {deadline_s:g} s: {what}"
        time.sleep(PAUSE_SECONDS)


class Writer:
    """Writes numbers to every partition in turn, in a thread, until the end of its `with` block.

    `acknowledged[partition]` maps a number to the offset that the broker has acknowledged it with.
    """

    def __init__(self, bootstrap: str, topic: str, partitions: int, settings: dict[str, Any]) -> None:
        self._topic = topic
        self._partitions = partitions
        self._settings = {
            "bootstrap.servers": bootstrap,
            "linger.ms": 2,
            "batch.num.messages": 50,
            "reconnect.backoff.ms": 20,
            "reconnect.backoff.max.ms": 100,
            "retry.backoff.ms": 20,
            "retry.backoff.max.ms": 100,
            # Connections that break are what these tests are about.
            "log_level": 0,
            **settings,
        }
        self.acknowledged: list[dict[int, int]] = [{} for _ in range(partitions)]
        self.errors: list[str] = []
        self.sent = 0
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._write, name="writer")

    @property
    def acknowledged_count(self) -> int:
        return sum(map(len, self.acknowledged))

    def wait_for_progress(self, records: int) -> None:
        """Until so many more records have been acknowledged."""
        goal = self.acknowledged_count + records
        eventually(
            f"{records} more records acknowledged",
            lambda: self.acknowledged_count >= goal or bool(self.errors),
        )
        assert not self.errors, self.errors[:3]

    def _write(self) -> None:
        with confluent_kafka.Producer(self._settings) as producer:
            while not self._stopping.is_set():
                if len(producer) > OUTSTANDING_MAX:
                    producer.poll(0.01)
                    continue
                number, partition = divmod(self.sent, self._partitions)
                producer.produce(
                    self._topic,
                    b"%d %s" % (number, b"x" * 100),
                    partition=partition,
                    on_delivery=self._delivered,
                )
                self.sent += 1
                producer.poll(0)
            unsent = producer.flush(DEADLINE_SECONDS)
            if unsent:
                self.errors.append(f"{unsent} records not delivered in time")

    def _delivered(self, error: KafkaError | None, message: confluent_kafka.Message) -> None:
        if error is not None:
            self.errors.append(f"{error.name()}: {error.str()}")
            return
        partition, offset, value = message.partition(), message.offset(), message.value()
        assert partition is not None
        assert offset is not None
        assert value is not None
        self.acknowledged[partition][number_of(value)] = offset

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._stopping.set()
        self._thread.join()


def number_of(value: bytes) -> int:
    return int(value.partition(b" ")[0])


def read_all(bootstrap: str, topic: str, partitions: Sequence[int]) -> dict[int, list[tuple[int, bytes]]]:
    """Every (offset, value) of the partitions, read up to the end that each has now."""
    found: dict[int, list[tuple[int, bytes]]] = {partition: [] for partition in partitions}
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        ends = {place.partition: consumer.get_watermark_offsets(place, timeout=20)[1] for place in places}
        missing = {partition for partition, end in ends.items() if end > 0}
        consumer.assign(places)
        deadline = time.monotonic() + DEADLINE_SECONDS
        while missing:
            assert time.monotonic() < deadline, f"partitions {missing} could not be read to their end"
            for message in consumer.consume(10_000, timeout=0.2):
                error = message.error()
                assert error is None, error
                partition, offset, value = message.partition(), message.offset(), message.value()
                assert partition is not None
                assert offset is not None
                assert isinstance(value, bytes)
                found[partition].append((offset, value))
                if offset >= ends[partition] - 1:
                    missing.discard(partition)
    finally:
        consumer.close()
    return found


def check(writer: Writer, found: dict[int, list[tuple[int, bytes]]], *, once: bool) -> None:
    """Nothing acknowledged is lost or moved; with `once`, everything is there once and in order."""
    assert not writer.errors, writer.errors[:3]
    for partition, acknowledged in enumerate(writer.acknowledged):
        at_offset = {offset: number_of(value) for offset, value in found[partition]}
        assert len(at_offset) == len(found[partition]), "one record an offset"
        assert list(at_offset) == list(range(len(at_offset))), "no hole in the offsets"
        lost = [
            (number, offset) for number, offset in acknowledged.items() if at_offset.get(offset) != number
        ]
        assert not lost, f"partition {partition}: {len(lost)} acknowledged records lost, first {lost[:3]}"
        if once:
            numbers = list(at_offset.values())
            assert numbers == list(range(len(numbers))), f"partition {partition}: in order, once each"
            assert len(numbers) == len(acknowledged)
