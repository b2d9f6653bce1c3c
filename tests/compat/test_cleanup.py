"""What goes away by itself: retention by size and time, and the end state of a compacted topic."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin._config import AlterConfigOpType, ConfigEntry, ConfigResource
from confluent_kafka.admin._resource import ResourceType
from deadlines import eventually
from real_clients import CLIENTS, Sent

PRODUCER = CLIENTS["confluent-kafka"]
HOUR_MS = 3_600_000
# The smallest segment that Kafka allows.
SEGMENT_BYTES = 1_048_576


def first_offset(bootstrap: str, topic: str) -> int:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        first, _ = consumer.get_watermark_offsets(TopicPartition(topic, 0), timeout=20)
    finally:
        consumer.close()
    return first


def test_retention_by_size_moves_the_first_offset(bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic(config={"segment.bytes": str(SEGMENT_BYTES), "retention.bytes": str(2 * SEGMENT_BYTES)})
    for n in range(8):
        # Each request is a batch of almost half a segment: two fit. Of four segments one goes: without a
        # second one there would be less than the limit.
        PRODUCER.produce(bootstrap, topic, [Sent(value=bytes([n]) * 500_000)])
    eventually("the first segment went", lambda: first_offset(bootstrap, topic) == 2)
    found = PRODUCER.consume(bootstrap, topic, 6)
    assert [(record.offset, (record.value or b"")[0]) for record in found] == [(n, n) for n in range(2, 8)]
    assert PRODUCER.produce(bootstrap, topic, [Sent(value=b"next")]) == [8], "offsets go on"


def test_retention_by_time_moves_the_first_offset(
    bootstrap: str, new_topic: Callable[..., str], admin: AdminClient
) -> None:
    topic = new_topic(config={"segment.bytes": str(SEGMENT_BYTES), "retention.ms": "-1"})
    now_ms = int(time.time() * 1000)
    old = [Sent(value=b"o" * 400_000, timestamp_ms=now_ms - 2 * HOUR_MS) for _ in range(3)]
    for record in old:
        PRODUCER.produce(bootstrap, topic, [record])
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"n" * 400_000, timestamp_ms=now_ms)])
    hour = ConfigEntry("retention.ms", str(HOUR_MS), incremental_operation=AlterConfigOpType.SET)
    change = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[hour])
    admin.incremental_alter_configs([change])[change].result()
    eventually("the old segment went", lambda: first_offset(bootstrap, topic) == 2)
    # The third old record shares its segment with the new one, which keeps it.
    found = PRODUCER.consume(bootstrap, topic, 2)
    assert [(record.value or b"")[:1] for record in found] == [b"o", b"n"]


def test_when_all_is_old_the_partition_is_empty_and_its_offsets_go_on(
    bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(config={"retention.ms": str(HOUR_MS)})
    old_ms = int(time.time() * 1000) - 2 * HOUR_MS
    PRODUCER.produce(bootstrap, topic, [Sent(value=b"v", timestamp_ms=old_ms) for _ in range(5)])
    eventually("all went", lambda: first_offset(bootstrap, topic) == 5)
    assert PRODUCER.produce(bootstrap, topic, [Sent(value=b"next")]) == [5]


def test_a_topic_that_keeps_all_keeps_all(bootstrap: str, new_topic: Callable[..., str]) -> None:
    """Its neighbour, with the same records, is cleaned in the same rounds."""
    old_ms = int(time.time() * 1000) - 2 * HOUR_MS
    keeps = new_topic(config={"retention.ms": "-1"})
    cleaned = new_topic(config={"retention.ms": str(HOUR_MS)})
    for topic in (keeps, cleaned):
        PRODUCER.produce(bootstrap, topic, [Sent(value=b"v", timestamp_ms=old_ms)])
    eventually("cleaned", lambda: first_offset(bootstrap, cleaned) == 1)
    assert first_offset(bootstrap, keeps) == 0


def test_a_compacted_topic_ends_with_the_last_value_of_each_key(
    bootstrap: str, new_topic: Callable[..., str], admin: AdminClient
) -> None:
    topic = new_topic(
        config={
            "cleanup.policy": "compact",
            "segment.ms": "100",
            "min.cleanable.dirty.ratio": "0.01",
            "delete.retention.ms": "0",
            "max.compaction.lag.ms": "100",
        }
    )
    for turn in range(5):
        records = [Sent(key=b"k%d" % n, value=b"turn %d" % turn) for n in range(10)]
        PRODUCER.produce(bootstrap, topic, records)
    PRODUCER.produce(bootstrap, topic, [Sent(key=b"k%d" % n, value=None) for n in range(5)])
    rounds = iter(range(1_000_000))

    def compacted() -> bool:
        # A record more rolls the segment: the active one is never compacted.
        [last] = PRODUCER.produce(bootstrap, topic, [Sent(key=b"roll", value=b"%d" % next(rounds))])
        consumer = Consumer(
            {
                "bootstrap.servers": bootstrap,
                "group.id": "unused",
                "enable.partition.eof": False,
            }
        )
        found = {}
        count = 0
        try:
            consumer.assign([TopicPartition(topic, 0, 0)])
            while True:
                message = consumer.poll(20)
                assert message is not None
                assert message.error() is None
                count += 1
                found[message.key()] = message.value()
                if message.offset() == last:
                    break
        finally:
            consumer.close()
        left = {key: value for key, value in found.items() if key != b"roll"}
        # Whatever has been compacted, the last value of a key is never lost.
        for n in range(5, 10):
            assert left[b"k%d" % n] == b"turn 4"
        for n in range(5):
            assert left.get(b"k%d" % n) is None
        return len(left) == 5 and count <= 5 + 3

    eventually("compacted, tombstones gone", compacted)
