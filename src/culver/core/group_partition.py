"""The groups of one partition of the offsets topic: what its log says, and what is on its way there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from culver.core.consumer_group import ConsumerGroupTable
from culver.core.consumer_group_records import ConsumerGroupChange
from culver.core.coordinator_effects import (
    WRITTEN_ANYHOW,
    Append,
    Effects,
    Finish,
    Gather,
    LogRecord,
    Marker,
    ProducerMark,
)
from culver.core.group import ClassicGroup
from culver.core.group_records import (
    CommittedOffset,
    MetadataChange,
    OffsetChange,
    StateChange,
)
from culver.core.group_transactions import Key, PendingOffsets
from culver.errors import ErrorCode

NO_PRODUCER = -1


class GroupPartition:
    """Groups and committed offsets, as they stand in one partition's log.

    `replay` and `replay_marker` are the only ways in: they run for every record when the partition is loaded, and
    for every record that the coordinator itself wrote once that record is durable. So what a client was told is
    what a restart finds.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.loading = True
        # Another broker leads the partition now: nothing can be written any more.
        self.closed = False
        self.groups: dict[str, ClassicGroup] = {}
        # Groups whose broker assigns. An id is in one of the two.
        self.consumer_groups = ConsumerGroupTable()
        # Group id -> topic -> partition -> offset. No empty dictionaries inside.
        self.offsets: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.pending = PendingOffsets()
        self.in_flight: list[Append] = []
        # What is in the log, though it was not seen in time that it is durable.
        self.in_doubt: list[Append] = []
        # Groups whose saved metadata made no sense: they start without members.
        self.unreadable_groups: list[str] = []

    def replay(self, change: StateChange, producer_id: int = NO_PRODUCER) -> None:
        """Apply one record; with a producer id it is part of a transaction."""
        if not isinstance(change, OffsetChange):
            if isinstance(change, MetadataChange):
                self._replay_metadata(change)
            else:
                self._replay_consumer_group(change)
            return
        if change.committed is None:
            self._drop_offset(change.group_id, change.topic, change.partition)
            self.pending.drop(change.group_id, change.topic, change.partition)
            return
        if producer_id >= 0:
            self.pending.add(producer_id, change)
        else:
            self._keep_offset(change)
            if self.pending:
                self.pending.supersede(change.group_id, change.topic, change.partition)
        if change.group_id not in self.groups and change.group_id not in self.consumer_groups:
            # A consumer that only commits is a group too: empty, and of no protocol type.
            self.groups[change.group_id] = ClassicGroup(change.group_id)

    def replay_marker(self, producer_id: int, committed: bool) -> None:
        """Apply the end of a producer's transaction."""
        for change in self.pending.end(producer_id, committed):
            self._keep_offset(change)

    def append(
        self,
        records: Sequence[LogRecord],
        finish: Finish,
        out: Effects,
        *,
        producer: ProducerMark | None = None,
        marker: Marker | None = None,
    ) -> None:
        """Ask for these records, or this marker, to be written; `finish` hears how it went."""
        if self.closed:
            finish(ErrorCode.NOT_COORDINATOR, 0.0, out)
            return
        append = Append(self.number, records, finish, producer=producer, marker=marker)
        self.in_flight.append(append)
        out.append(append)

    def append_ended(self, append: Append, error: ErrorCode) -> None:
        """An append that was in flight is durable, or is not known to be so, or was not made at all."""
        self.in_flight.remove(append)
        if error is ErrorCode.NONE:
            # This is durable, and so is all before it in the log.
            in_doubt, self.in_doubt = self.in_doubt, []
            for earlier in in_doubt:
                self._apply(earlier)
            self._apply(append)
        elif error in WRITTEN_ANYHOW:
            self.in_doubt.append(append)

    def _apply(self, append: Append) -> None:
        if append.marker is not None:
            self.replay_marker(append.marker.producer_id, append.marker.committed)
            return
        producer_id = NO_PRODUCER if append.producer is None else append.producer.producer_id
        for record in append.records:
            self.replay(record.change, producer_id)

    def after_in_flight(self, go_on: Callable[[float, Effects], None], now_ms: float, out: Effects) -> None:
        """Go on once every write that is under way has ended, at once if there is none."""
        if not self.in_flight:
            go_on(now_ms, out)
            return
        latest_ms = [now_ms]
        gather = Gather(lambda out: go_on(latest_ms[0], out))

        def one_done(_error: ErrorCode, now_ms: float, out: Effects) -> None:
            latest_ms[0] = now_ms
            gather.close(out)

        for append in self.in_flight:
            gather.add()
            append.then(one_done)
        gather.close(out)

    def committed(self, group_id: str, topic: str, partition: int) -> CommittedOffset | None:
        return self.offsets.get(group_id, {}).get(topic, {}).get(partition)

    def has_offset(self, group_id: str, topic: str, partition: int) -> bool:
        """Whether there is an offset to remove, committed or pending."""
        return self.committed(group_id, topic, partition) is not None or self.pending.contains(
            group_id, topic, partition
        )

    def unstable(self, group_id: str) -> set[tuple[str, int]]:
        """Topics and partitions of which it is not certain yet what the group has committed, transactions being open.

        Transactional commits in doubt are among them: if they are in the log, they count once their marker comes.
        """
        unstable = set(self.pending.of_group(group_id))
        for append in self.in_doubt:
            if append.producer is not None:
                unstable |= {key[1:] for key in _keys(append) if key[0] == group_id}
        return unstable

    def keys_in_flight(self) -> set[Key]:
        """Everything for which an offset is on its way to the log."""
        return {key for append in self.in_flight for key in _keys(append)}

    def forget_group(self, group_id: str) -> None:
        """Drop a group of which the log says nothing and that nobody is in."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.saved is None
            and group.is_forgettable
            and group_id not in self.offsets
            and not self.pending.has_group(group_id)
        ):
            del self.groups[group_id]

    def _replay_metadata(self, change: MetadataChange) -> None:
        group = self.groups.get(change.group_id)
        if change.value is None:
            if group is not None:
                group.saved = None
                # Someone may have joined while the tombstone was on its way; then the group lives on.
                self.forget_group(change.group_id)
            return
        if group is None:
            group = self.groups[change.group_id] = ClassicGroup(change.group_id)
        group.saved = change.value

    def _replay_consumer_group(self, change: ConsumerGroupChange) -> None:
        group_id = change.group_id
        self.consumer_groups.apply(change)
        if group_id in self.consumer_groups:
            # Nobody was in the classic one, or all who were are in this one now.
            self.groups.pop(group_id, None)
        elif group_id not in self.groups and (group_id in self.offsets or self.pending.has_group(group_id)):
            self.groups[group_id] = ClassicGroup(group_id)

    def _keep_offset(self, change: OffsetChange) -> None:
        """Hot."""
        group_id, topic, partition, committed = change
        assert committed is not None
        topics = self.offsets.get(group_id)
        if topics is None:
            topics = self.offsets[group_id] = {}
        by_partition = topics.get(topic)
        if by_partition is None:
            by_partition = topics[topic] = {}
        by_partition[partition] = committed

    def _drop_offset(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.offsets.get(group_id)
        by_partition = None if topics is None else topics.get(topic)
        if topics is None or by_partition is None or by_partition.pop(partition, None) is None:
            return
        if not by_partition:
            del topics[topic]
            if not topics:
                del self.offsets[group_id]


def _keys(append: Append) -> Iterator[Key]:
    for record in append.records:
        if isinstance(record.change, OffsetChange):
            yield record.change[:3]


def nothing_more(_error: ErrorCode, _now_ms: float, _out: Effects) -> None:
    """The `finish` of a write that nobody waits for."""
