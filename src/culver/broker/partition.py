"""A partition that this broker serves: its log, and the requests that wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from culver.errors import ErrorCode

if TYPE_CHECKING:
    from culver.filesystem import Buffer
    from culver.log.partition_log import AppendResult, PartitionLog


# How much may wait in the page cache before it is sent on its way to the disk. It bounds the time that a stop
# takes, and keeps the kernel from writing back gigabytes at once while clients wait.
WRITE_BACK_BYTES = 64 << 20


class Waiter(Protocol):
    """Something parked until a partition has more to read."""

    def partition_changed(self) -> None: ...


class Partition:
    """One partition with this broker as its leader."""

    __slots__ = (
        "appended_bytes",
        "flush_served",
        "flush_took_ms",
        "flushed_at_ms",
        "index",
        "leader_epoch",
        "log",
        "topic",
        "waiters",
        "write_back_at_bytes",
    )

    def __init__(self, topic: str, index: int, leader_epoch: int, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.leader_epoch = leader_epoch
        self.log = log
        self.appended_bytes = 0  # since this process started: how a long poll knows that enough has come
        self.waiters: dict[Waiter, None] = {}
        self.write_back_at_bytes = WRITE_BACK_BYTES  # of appended_bytes
        self.flushed_at_ms = 0.0
        self.flush_took_ms = 0.0
        self.flush_served = 0  # acknowledgements that the last flush let go

    def append(self, records: memoryview) -> AppendResult:
        """Append what a producer sent. Hot: see PartitionLog.append."""
        result = self.log.append(records, self.leader_epoch)
        self.appended_bytes += len(records)
        return result

    def must_wait_for_disk(self, acks: int) -> bool:
        """Whether an acknowledgement, 1 or -1 (all), may only go out after a flush."""
        config = self.log.config
        return (
            config.flush == "always"
            or (acks == -1 and config.flush == "replicated")
            or self.log.end_offset - self.log.flushed_offset >= config.flush_messages
        )

    def append_internal(self, batch: Buffer) -> AppendResult:
        """Append a batch that a coordinator of this broker made."""
        result = self.log.append_internal(batch, self.leader_epoch)
        self.appended_bytes += len(batch)
        return result

    def epoch_error(self, claimed_epoch: int) -> ErrorCode:
        """What a client that claims to know the leader epoch must be told, if anything."""
        if claimed_epoch in (-1, self.leader_epoch):  # -1: makes no claim
            return ErrorCode.NONE
        if claimed_epoch < self.leader_epoch:
            return ErrorCode.FENCED_LEADER_EPOCH
        return ErrorCode.UNKNOWN_LEADER_EPOCH

    def epoch_at(self, offset: int) -> int:
        """The leader epoch of an offset; one at the end belongs to the current one, written to or not."""
        return self.leader_epoch if offset >= self.log.end_offset else self.log.epoch_at(offset)

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """Where an epoch ended: (the largest known one up to it, its end), or (-1, -1).

        The current epoch is known even before anything was written in it.
        """
        if epoch == self.leader_epoch:
            return epoch, self.log.end_offset
        found = self.log.epoch_end_offset(epoch)
        if found[0] < 0 and epoch != -1 and epoch < self.leader_epoch:
            # It ended before all that the log has left.
            return epoch, self.log.start_offset
        return found


class PartitionTable:
    """The partitions that this broker serves, by topic name and index."""

    def __init__(self) -> None:
        self._topics: dict[str, dict[int, Partition]] = {}
        self._changed: dict[Partition, None] = {}

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def add(self, partition: Partition) -> None:
        self._topics.setdefault(partition.topic, {})[partition.index] = partition

    def remove_topic(self, topic: str) -> list[Partition]:
        """Forget a topic's partitions; whoever waits for one of them is told to look again."""
        removed = list(self._topics.pop(topic, {}).values())
        for partition in removed:
            self.changed(partition)
        return removed

    def of_topic(self, topic: str) -> list[Partition]:
        return list(self._topics.get(topic, {}).values())

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def changed(self, partition: Partition) -> None:
        """Note that there is more to read; those who wait are woken by `wake`, once for many changes."""
        if partition.waiters:
            self._changed[partition] = None

    def wake(self) -> None:
        """Let everyone who waits for a changed partition look at it."""
        while self._changed:
            changed, self._changed = self._changed, {}
            for partition in changed:
                for waiter in list(partition.waiters):
                    waiter.partition_changed()
