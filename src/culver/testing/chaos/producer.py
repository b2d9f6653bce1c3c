"""Producers of a chaos run: Kafka's own client library, every record's fate written down."""

from __future__ import annotations

import random
import time
from collections import Counter

from confluent_kafka import KafkaError, KafkaException, Message, Producer

from culver.testing.chaos.worker import Worker, Workplace
from culver.testing.history import ACKS_ALL, Outcome, Partition, Send

_PAUSE_SECONDS = 0.02
# Of one partition: beyond that nothing more is sent, so that a long standstill does not pile up memory.
_UNANSWERED_MAX = 200
# Most records are short, a few are not.
_PADDING_BYTES = (*(0,) * 60, *range(0, 400, 10), 20_000)

# How a record may end without being acknowledged, besides the broker's errors that say: later, or elsewhere.
_EXPECTED = frozenset(
    {
        KafkaError._MSG_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._PURGE_QUEUE,
        KafkaError._PURGE_INFLIGHT,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_ENOUGH_REPLICAS,
        KafkaError.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    }
)


class ChaosProducer(Worker):
    """Sends numbered records to all partitions in turn, on a thread of its own, until told to stop."""

    def __init__(
        self,
        name: str,
        place: Workplace,
        *,
        acks: int = ACKS_ALL,
        records_per_second: int = 200,
        timeout_ms: int = 0,
        compression: str = "none",
    ) -> None:
        super().__init__(name, place)
        self._acks = acks
        self._idempotent = acks == ACKS_ALL
        self._per_turn = max(1, round(records_per_second * _PAUSE_SECONDS))
        self._numbers: Counter[Partition] = Counter()
        self._unanswered: Counter[Partition] = Counter()
        self._begun: set[Partition] = set()
        self.acknowledged: Counter[Partition] = Counter()
        self._give_up_at_s = float("inf")
        self._random = random.Random(name)
        self._settings = place.settings(name) | {
            "acks": acks,
            "enable.idempotence": self._idempotent,
            "linger.ms": 2,
            "compression.type": compression,
            # A leader that was frozen is given up after this time, and what it did not answer is sent to the next.
            "request.timeout.ms": 5_000,
            "socket.timeout.ms": 6_000,
            # 0 is for ever.
            "message.timeout.ms": timeout_ms,
            "retry.backoff.ms": 50,
        }

    @property
    def unanswered(self) -> dict[Partition, int]:
        return {partition: count for partition, count in self._unanswered.items() if count}

    def join(self, timeout_s: float) -> bool:
        """Whether everything was answered in time. What was not is given up."""
        self._give_up_at_s = time.monotonic() + timeout_s
        self._thread.join()
        return not self.unanswered

    def _run(self) -> None:
        producer = Producer(self._settings)
        partitions = self._place.partitions
        turn = 0
        while not self._stopping.wait(_PAUSE_SECONDS):
            for _ in range(self._per_turn):
                turn += 1
                self._send(producer, partitions[turn % len(partitions)])
            producer.poll(0)
        while self.unanswered and time.monotonic() < self._give_up_at_s:
            producer.flush(0.2)
        if self.unanswered:
            producer.purge()
            producer.flush(5)

    def _send(self, producer: Producer, partition: Partition) -> None:
        # A broker takes any first sequence of a producer that it does not know, as Kafka does. So the first record
        # must be there before others are sent, or it might be overtaken.
        most = _UNANSWERED_MAX if partition in self._begun else 1
        if self._unanswered[partition] >= most:
            return
        number = self._numbers[partition]
        topic, index = partition
        value = f"{self.name}/{topic}-{index}/{number}".encode()
        value += b"." * self._random.choice(_PADDING_BYTES)
        send = Send(self.name, partition, value, number, self._acks, self._idempotent, self._now_ms())
        try:
            producer.produce(topic, value, partition=index, on_delivery=lambda *told: self._told(send, *told))
        except BufferError:
            return
        except KafkaException as error:
            self.complain(f"cannot go on: {error}")
            self._stopping.set()
            return
        self._numbers[partition] += 1
        self._unanswered[partition] += 1
        self._history.sends.append(send)

    def _told(self, send: Send, error: KafkaError | None, message: Message) -> None:
        self._unanswered[send.partition] -= 1
        if error is None:
            send.completed_ms = self._now_ms()
            send.outcome = Outcome.OK
            offset = message.offset()
            # A duplicate that the broker knew of already is acknowledged without one.
            send.offset = offset if offset is not None and offset >= 0 else None
            self.acknowledged[send.partition] += 1
            self._begun.add(send.partition)
            return
        # Whatever the reason, it may have been written by an attempt before.
        self.errors[error.name()] += 1
        if error.code() not in _EXPECTED:
            self.complain(f"told {error.name()} for {send.value!r}: {error.str()}")
