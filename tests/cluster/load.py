"""A load that keeps count: what a producer was promised is compared with what can be read afterwards."""

from __future__ import annotations

import threading
from collections import Counter
from types import TracebackType
from typing import Any, Self

from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition

from culver.testing import Broker, Cluster

DELIVERY_SECONDS = 60.0
_PAUSE_SECONDS = 0.002


class Load:
    """Produces numbered records with acks=all in the background until the block ends, then checks every one."""

    def __init__(self, cluster: Cluster | Broker, topic: str) -> None:
        self._bootstrap = cluster.bootstrap_servers
        self._topic = topic
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="load")
        self._enough = threading.Condition()
        self.acknowledged: list[int] = []
        self.failed: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        self.wait_for(100)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.wait_for(100)  # it still works at the end
        self._stop.set()
        self._thread.join()

    def wait_for(self, count: int) -> None:
        """Until so many more records have been acknowledged."""
        with self._enough:
            goal = len(self.acknowledged) + count
            assert self._enough.wait_for(lambda: len(self.acknowledged) >= goal, DELIVERY_SECONDS), (
                f"only {len(self.acknowledged)} of {goal} records were acknowledged; failed: {self.failed[:3]}"
            )

    def _run(self) -> None:
        producer = Producer(
            {"bootstrap.servers": self._bootstrap, "enable.idempotence": True, "linger.ms": 1, "log_level": 0}
        )
        number = 0
        while not self._stop.wait(_PAUSE_SECONDS):
            for _ in range(5):
                producer.produce(self._topic, str(number).encode(), on_delivery=self._delivered)
                number += 1
            producer.poll(0)
        producer.flush(DELIVERY_SECONDS)

    def _delivered(self, error: KafkaError | None, message: Message) -> None:
        with self._enough:
            if error is None:
                self.acknowledged.append(int(message.value() or b"-1"))
                self._enough.notify_all()
            else:
                self.failed.append(str(error))

    def check(self) -> None:
        """Nothing that was acknowledged is missing, nothing is there twice, and nothing was refused."""
        read = Counter(read_all(self._bootstrap, self._topic))
        assert not self.failed
        assert sorted(set(self.acknowledged) - read.keys()) == []
        assert [number for number, times in read.items() if times > 1] == []


def read_all(bootstrap: str, topic: str) -> list[int]:
    """Every record of the topic."""
    settings: dict[str, Any] = {
        "bootstrap.servers": bootstrap,
        "group.id": "check",
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "earliest",
        "log_level": 0,
    }
    consumer = Consumer(settings)
    found = []
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        consumer.assign([TopicPartition(topic, index, 0) for index in partitions])
        ended: set[int | None] = set()
        while len(ended) < len(partitions):
            message = consumer.poll(DELIVERY_SECONDS)
            assert message is not None, f"partitions {sorted(set(partitions) - ended)} do not end"
            error = message.error()
            if error is None:
                found.append(int(message.value() or b"-1"))
            elif error.code() == KafkaError._PARTITION_EOF:
                ended.add(message.partition())
            elif not error.retriable() and error.code() >= 0:
                raise AssertionError(str(error))
    finally:
        consumer.close()
    return found
