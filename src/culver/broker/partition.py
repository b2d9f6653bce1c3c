"""A partition of which this broker holds a replica: its log, its part in the cluster, the requests that wait for it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, Protocol, TypeAlias

from culver.errors import ErrorCode

if TYPE_CHECKING:
    from culver.core.coordinator_effects import Marker
    from culver.core.leader_state import LeaderState
    from culver.filesystem import Buffer
    from culver.log.partition_log import AppendResult, PartitionLog
    from culver.scheduler import Timer


# How much may wait in the page cache before it is sent on its way to the disk. It bounds the time that a stop
# takes, and keeps the kernel from writing back gigabytes at once while clients wait.
WRITE_BACK_BYTES = 64 << 20
MARKER_BYTES = 78  # a batch with nothing but the end of a transaction

Acknowledged: TypeAlias = Callable[[ErrorCode], object]


class Waiter(Protocol):
    """Something parked until a partition has more to read."""

    def partition_changed(self) -> None: ...


class Intake(NamedTuple):
    """What producers sent, and what was fetched from leaders."""

    messages: int
    produced_bytes: int
    replicated_bytes: int

    def plus(self, other: Intake) -> Intake:
        return Intake(*map(sum, zip(self, other, strict=True)))


NO_INTAKE = Intake(0, 0, 0)


class PendingCommit:
    """Someone who waits until all below an offset is committed, or has waited long enough."""

    __slots__ = ("_done", "end_offset", "timer")

    def __init__(self, end_offset: int, done: Acknowledged) -> None:
        self.end_offset = end_offset
        self.timer: Timer | None = None
        self._done: Acknowledged | None = done

    @property
    def settled(self) -> bool:
        return self._done is None

    def settle(self) -> Acknowledged | None:
        """Whom to tell, the first time that this is asked."""
        done, self._done = self._done, None
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        return done


class Partition:
    """One replica. It leads while `state` is there; otherwise it follows `leader`, if there is one."""

    __slots__ = (
        "appended_bytes",
        "flush_served",
        "flush_took_ms",
        "flushed_at_ms",
        "index",
        "internal_bytes",
        "internal_records",
        "leader",
        "leader_epoch",
        "led_from_offset",
        "led_records",
        "log",
        "pending_commits",
        "replica_waiters",
        "replicated",
        "replicated_bytes",
        "state",
        "topic",
        "topic_id",
        "waiters",
        "write_back_at_bytes",
    )

    def __init__(self, topic: str, index: int, topic_id: bytes, log: PartitionLog) -> None:
        self.topic = topic
        self.index = index
        self.topic_id = topic_id
        self.log = log
        self.leader = -1
        self.leader_epoch = -1
        self.state: LeaderState | None = None
        self.replicated = False  # whether it has other replicas
        self.appended_bytes = 0  # since this process started: how a long poll knows that enough has come
        # What of it no producer sent: fetched from a leader, or written by this broker itself.
        self.replicated_bytes = 0
        self.internal_bytes = 0
        # How many records were appended while it led, by the offsets: nothing has to be counted record by record.
        self.led_from_offset = 0
        self.led_records = 0  # in earlier leaderships
        self.internal_records = 0  # in all of them
        # Consumers' fetches, woken when the high watermark moves, and followers', woken by every append.
        self.waiters: dict[Waiter, None] = {}
        self.replica_waiters: dict[Waiter, None] = {}
        self.pending_commits: deque[PendingCommit] = deque()
        self.write_back_at_bytes = WRITE_BACK_BYTES  # of appended_bytes
        self.flushed_at_ms = 0.0
        self.flush_took_ms = 0.0
        self.flush_served = 0  # acknowledgements that the last flush let go

    def __repr__(self) -> str:
        return f"<{self.topic}-{self.index} leader={self.leader} epoch={self.leader_epoch}>"

    @property
    def leading(self) -> bool:
        return self.state is not None

    @property
    def intake(self) -> Intake:
        """What has come in since this process started."""
        produced_bytes = self.appended_bytes - self.replicated_bytes - self.internal_bytes
        return Intake(self.produced_records, produced_bytes, self.replicated_bytes)

    @property
    def produced_records(self) -> int:
        leading = self.log.end_offset - self.led_from_offset if self.state is not None else 0
        return self.led_records + leading - self.internal_records

    def leadership_begins(self) -> None:
        self.led_from_offset = self.log.end_offset

    def leadership_ends(self) -> None:
        """The last moment at which the end of the log is this leadership's."""
        self.led_records += self.log.end_offset - self.led_from_offset
        self.state = None

    def append(self, records: memoryview, guard: object | None = None) -> AppendResult:
        """Append what a producer sent. Hot: see PartitionLog.append, also for the guard."""
        result = self.log.append(records, self.leader_epoch, guard)
        self.appended_bytes += len(records)
        return result

    def append_internal(self, batch: Buffer) -> AppendResult:
        """Append a batch that a coordinator of this broker made."""
        result = self.log.append_internal(batch, self.leader_epoch)
        self.appended_bytes += len(batch)
        self.internal_bytes += len(batch)
        self.internal_records += result.last_offset - result.base_offset + 1
        return result

    def append_marker(self, marker: Marker) -> AppendResult:
        """Append the end of a transaction."""
        result = self.log.append_marker(
            marker.producer_id,
            marker.producer_epoch,
            marker.committed,
            marker.coordinator_epoch,
            marker.transaction_version,
            self.leader_epoch,
        )
        self.appended_bytes += MARKER_BYTES
        self.internal_bytes += MARKER_BYTES
        self.internal_records += 1
        return result

    def must_wait(self, acks: int) -> bool:
        """Whether an acknowledgement, 1 or -1 (all), has to wait for other replicas or for the disk."""
        return (acks == -1 and self.replicated) or self.must_wait_for_disk(acks)

    def must_wait_for_disk(self, acks: int) -> bool:
        """Whether an acknowledgement may only go out after a flush."""
        config = self.log.config
        return (
            config.flush == "always"
            or (acks == -1 and config.flush == "replicated" and not self.held_by_others)
            or self.log.end_offset - self.log.flushed_offset >= config.flush_messages
        )

    @property
    def held_by_others(self) -> bool:
        """Whether what is committed is also in the log of another in-sync replica."""
        return self.state is not None and len(self.state.isr) > 1

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
        latest = self.log.latest_epoch
        if 0 <= latest < epoch < self.leader_epoch:
            # Nobody wrote in it here, nor in any later one but the current: it ended where the log ended then.
            return latest, self.log.end_offset
        found = self.log.epoch_end_offset(epoch)
        if found[0] < 0 and epoch != -1 and epoch < self.leader_epoch:
            # It ended before all that the log has left.
            return epoch, self.log.start_offset
        return found


class PartitionTable:
    """The partitions that this broker holds, by topic name and index."""

    def __init__(self) -> None:
        # What came in for partitions that are held no more, by topic: counters that people watch never go back.
        self.former_intake: dict[str, Intake] = {}
        self._topics: dict[str, dict[int, Partition]] = {}
        self._changed: dict[Partition, None] = {}
        self._appended: dict[Partition, None] = {}

    def get(self, topic: str, index: int) -> Partition | None:
        partitions = self._topics.get(topic)
        return None if partitions is None else partitions.get(index)

    def add(self, partition: Partition) -> None:
        self._topics.setdefault(partition.topic, {})[partition.index] = partition

    def remove(self, partition: Partition) -> None:
        """Forget a partition; whoever waits for it is told to look again."""
        partitions = self._topics[partition.topic]
        del partitions[partition.index]
        former = self.former_intake.get(partition.topic, NO_INTAKE)
        self.former_intake[partition.topic] = former.plus(partition.intake)
        if not partitions:
            del self._topics[partition.topic]
        self.changed(partition)
        self.appended(partition)

    def of_topic(self, topic: str) -> list[Partition]:
        return list(self._topics.get(topic, {}).values())

    def __iter__(self) -> Iterator[Partition]:
        for partitions in self._topics.values():
            yield from partitions.values()

    def __len__(self) -> int:
        return sum(map(len, self._topics.values()))

    def changed(self, partition: Partition) -> None:
        """Note that consumers have more to read; those who wait are woken by `wake`, once for many changes."""
        if partition.waiters:
            self._changed[partition] = None

    def appended(self, partition: Partition) -> None:
        """Note that followers have more to fetch; woken by `wake` as well."""
        if partition.replica_waiters:
            self._appended[partition] = None

    def wake(self) -> None:
        """Let everyone who waits for a changed partition look at it."""
        while self._appended or self._changed:
            appended, self._appended = self._appended, {}
            for partition in appended:  # followers first: others wait for what they do
                for waiter in list(partition.replica_waiters):
                    waiter.partition_changed()
            changed, self._changed = self._changed, {}
            for partition in changed:
                for waiter in list(partition.waiters):
                    waiter.partition_changed()
