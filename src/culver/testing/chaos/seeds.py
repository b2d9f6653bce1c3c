"""The records that a copying run begins with: written once, by one idempotent producer, before anything goes wrong."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

from confluent_kafka import KafkaError, Message, Producer

from culver.testing.chaos.worker import Workplace
from culver.testing.history import Outcome, Partition, Send

_NAME = "seed"
_PADDING = "." * 80
_FULL_SECONDS = 0.1


def write_seeds(
    place: Workplace, partitions: Sequence[Partition], count: int, timeout_s: float
) -> dict[Partition, int]:
    """So many records over all partitions in turn; returns where each ends. TimeoutError if one is not acknowledged."""
    producer = Producer(place.settings(_NAME) | {"enable.idempotence": True, "linger.ms": 5})
    sends = []
    for at in range(count):
        partition = partitions[at % len(partitions)]
        number = at // len(partitions)
        value = f"{_NAME}/{partition[0]}-{partition[1]}/{number}/{_PADDING}".encode()
        sends.append(Send(_NAME, partition, value, number))
    place.history.sends += sends

    def told(send: Send) -> Callable[[KafkaError | None, Message], None]:
        def delivered(error: KafkaError | None, message: Message) -> None:
            if error is None:
                send.outcome, send.offset, send.completed_ms = Outcome.OK, message.offset(), place.now_ms()

        return delivered

    deadline_s = time.monotonic() + timeout_s
    for send in sends:
        send.invoked_ms = place.now_ms()
        while True:
            try:
                producer.produce(
                    send.partition[0],
                    send.value,
                    partition=send.partition[1],
                    on_delivery=told(send),
                )
                break
            except BufferError:
                producer.poll(_FULL_SECONDS)
        producer.poll(0)
    producer.flush(max(0.1, deadline_s - time.monotonic()))
    missing = sum(send.outcome is not Outcome.OK for send in sends)
    if missing:
        raise TimeoutError(f"{missing} of {count} records were not acknowledged within {timeout_s:.0f} s")
    return {key: sum(1 for send in sends if send.partition == key) for key in partitions}
