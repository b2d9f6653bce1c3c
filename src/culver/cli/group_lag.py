"""How far a group is behind: in records, and in the age of the oldest record it has not read."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

from confluent_kafka import ConsumerGroupTopicPartitions, KafkaError, TopicPartition

from culver.cli.admin_types import ConsumerGroupDescription
from culver.cli.clients import Cluster, Partition, as_topic_partitions
from culver.cli.record_format import timestamp_ms

_POLL_SECONDS = 0.2


@dataclass(frozen=True, slots=True)
class PartitionLag:
    """One partition as its group sees it. `committed` is None where nothing was committed yet."""

    topic: str
    partition: int
    committed: int | None
    start: int
    end: int
    oldest_unread_ms: int | None
    now_ms: int
    client: str | None
    host: str | None

    @property
    def lag(self) -> int | None:
        """Records from the commit to the end, without those that retention took before they were read."""
        return None if self.committed is None else max(0, self.end - max(self.committed, self.start))

    @property
    def lag_seconds(self) -> float | None:
        if self.lag == 0:
            return 0.0
        if self.oldest_unread_ms is None:
            return None
        return max(0, self.now_ms - self.oldest_unread_ms) / 1000

    def as_json(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "partition": self.partition,
            "committed": self.committed,
            "start": self.start,
            "end": self.end,
            "lag": self.lag,
            "lag_seconds": self.lag_seconds,
            "client": self.client,
            "host": self.host,
        }


def group_lag(cluster: Cluster, description: ConsumerGroupDescription) -> list[PartitionLag]:
    """Every partition that the group has committed or is assigned, in order."""
    committed = committed_offsets(cluster, description.group_id)
    owners = {
        (assigned.topic, assigned.partition): member
        for member in description.members
        for assigned in member.assignment.topic_partitions
    }
    partitions = sorted((committed.keys() | owners.keys()) & cluster.existing_partitions())
    starts, ends = cluster.start_offsets(partitions), cluster.end_offsets(partitions)
    unread = {
        each: max(committed[each], starts[each])
        for each in partitions
        if each in committed and max(committed[each], starts[each]) < ends[each]
    }
    timestamps = _timestamps(cluster, unread)
    now_ms = time.time_ns() // 1_000_000
    return [
        PartitionLag(
            topic=each[0],
            partition=each[1],
            committed=committed.get(each),
            start=starts[each],
            end=ends[each],
            oldest_unread_ms=timestamps.get(each),
            now_ms=now_ms,
            client=owners[each].client_id if each in owners else None,
            host=owners[each].host if each in owners else None,
        )
        for each in partitions
    ]


def committed_offsets(cluster: Cluster, name: str) -> dict[Partition, int]:
    """What the group has committed."""
    (future,) = cluster.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(name)]).values()
    answer = cluster.result(future, f"offsets of group {name}")
    return {(each.topic, each.partition): each.offset for each in answer.topic_partitions if each.offset >= 0}


def _timestamps(cluster: Cluster, offsets: dict[Partition, int]) -> dict[Partition, int]:
    """The timestamp of the first record at or after each offset; a partition without one is left out.

    The protocol has no question for it, so the record is fetched: one batch from each partition that lags.
    """
    if not offsets:
        return {}
    found: dict[Partition, int] = {}
    waiting = set(offsets)
    # One byte asked for means one batch from each: the broker never sends less than a whole batch.
    consumer = cluster.consumer(
        fetch_message_max_bytes=1,
        queued_min_messages=1,
        enable_partition_eof=True,
        auto_offset_reset="earliest",
    )
    try:
        consumer.assign(as_topic_partitions(offsets))
        deadline = time.monotonic() + cluster.timeout_s
        while waiting and time.monotonic() < deadline:
            record = consumer.poll(_POLL_SECONDS)
            if record is None:
                continue
            partition = (record.topic() or "", record.partition() or 0)
            error = record.error()
            if error is not None and error.code() != KafkaError._PARTITION_EOF:
                cluster.fail(error, f"reading topic {partition[0]} partition {partition[1]}")
            if partition in waiting:
                waiting.discard(partition)
                consumer.pause([TopicPartition(*partition)])
                if error is None and timestamp_ms(record) >= 0:
                    found[partition] = timestamp_ms(record)
    finally:
        consumer.close()
    return found
