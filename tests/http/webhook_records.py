"""Records of made-up partitions, for tests of what webhooks do with them."""

from __future__ import annotations

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record


def record(
    place: TopicPartition,
    offset: int,
    key: bytes | None = None,
    value: bytes | None = b"v",
    timestamp_ms: int = 0,
) -> Record:
    """One record with what matters to the test."""
    return Record(place.topic, place.partition, offset, timestamp_ms, 0, key, value)
