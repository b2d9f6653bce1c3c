"""All that a topic holds, read by a Kafka client of its own."""

from __future__ import annotations

import time
from typing import NamedTuple

from confluent_kafka import OFFSET_BEGINNING, Consumer, TopicPartition


class Held(NamedTuple):
    partition: int
    offset: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes]]


def all_records(bootstrap_servers: str, topic: str) -> list[Held]:
    """The records of all partitions as they are now, in the order of partitions and offsets."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": "reader", "enable.auto.commit": False}
    )
    try:
        partitions = consumer.list_topics(topic, timeout=10).topics[topic].partitions
        places = [TopicPartition(topic, partition, OFFSET_BEGINNING) for partition in partitions]
        left = sum(
            high - low
            for low, high in (consumer.get_watermark_offsets(place, timeout=10) for place in places)
        )
        consumer.assign(places)
        held: list[Held] = []
        deadline = time.monotonic() + 20
        while len(held) < left:
            assert time.monotonic() < deadline, f"read {len(held)} of {left} records"
            message = consumer.poll(0.2)
            if message is not None and message.error() is None:
                held.append(
                    Held(
                        message.partition(),
                        message.offset(),
                        message.key(),
                        message.value(),
                        list(message.headers() or ()),
                    )
                )
        return sorted(held)
    finally:
        consumer.close()
