"""Readers of partitions: those who wait at the end share what one long poll brings, others read for themselves."""

from __future__ import annotations

from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.reading.record import Record


class Cursor:
    """A place in a partition, for one reader. `position` is the offset to be read next, and may be set."""

    def __init__(self, readers: Readers, topic: str, partition: int, offset: int, *, committed: bool) -> None:
        """Made by `Readers.open`."""
        self.topic = topic
        self.partition = partition
        self.position = offset
        self.committed = committed

    async def read(self, *, records_max: int, bytes_max: int) -> list[Record]:
        """The next records, at least one: waits until there is one. `bytes_max` may be exceeded by a first large one.

        Leader changes, restarts and lost connections are waited out. Raises KafkaError: OFFSET_OUT_OF_RANGE,
        UNKNOWN_TOPIC_OR_PARTITION once it is certain, CORRUPT_MESSAGE and the like for records that cannot be read.
        After it was cancelled, or raised, the position is as before and it may be called again.
        """
        raise Unreachable("not connected")

    def close(self) -> None:
        """No more reading. Call it, or what others share is kept for nobody."""


class Readers:
    """All readers of the gateway. `buffer_max_bytes` bounds the recent records that are kept for them together."""

    def __init__(self, cluster: Cluster, *, buffer_max_bytes: int) -> None:
        self._cluster = cluster

    def open(self, topic: str, partition: int, offset: int, *, committed: bool = True) -> Cursor:
        """A cursor at an offset. With `committed`, records of open and aborted transactions are not seen."""
        return Cursor(self, topic, partition, offset, committed=committed)

    async def read_range(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        wait_ms: int = 0,
        committed: bool = False,
    ) -> list[Record]:
        """Records from an offset on, for someone who looks around: fewer or none at the end of the partition.

        Waits for the first for `wait_ms`. Raises KafkaError, or Unreachable when no leader answers in good time.
        """
        raise Unreachable("not connected")

    async def close(self) -> None:
        """End all polls. Cursors must not be read any more."""
