"""The groups of one partition of the offsets topic: what its log says, and what is on its way there."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from culver.core.group import ClassicGroup
from culver.core.coordinator_effects import Append, Effects, Finish, Gather
from culver.core.group_records import (
    CommittedOffset,
    MetadataChange,
    OffsetChange,
    StateChange,
    StateRecord,
)
from culver.errors import ErrorCode


class GroupPartition:
    """Groups and committed offsets, as they stand in one partition's log.

    `replay` is the only way in: it runs for every record when the partition is loaded, and for every record
    that the coordinator itself wrote once that record is durable. So what a client was told is what a
    restart finds.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.loading = True
        # Another broker leads the partition now: nothing can be written any more.
        self.closed = False
        self.groups: dict[str, ClassicGroup] = {}
        # Group id -> topic -> partition -> offset. No empty dictionaries inside.
        self.offsets: dict[str, dict[str, dict[int, CommittedOffset]]] = {}
        self.in_flight: list[Append] = []
        # Changes that are in the log, though it was not seen in time that they are durable.
        self.in_doubt: list[StateChange] = []
        # Groups whose saved metadata made no sense: they start without members.
        self.unreadable_groups: list[str] = []

    def replay(self, change: StateChange) -> None:
        """Apply one record."""
        if isinstance(change, OffsetChange):
            group_id, topic, partition, committed = change
            if committed is None:
                self._drop_offset(group_id, topic, partition)
                return
            topics = self.offsets.get(group_id)
            if topics is None:
                topics = self.offsets[group_id] = {}
            by_partition = topics.get(topic)
            if by_partition is None:
                by_partition = topics[topic] = {}
            by_partition[partition] = committed
            if group_id not in self.groups:
                # A consumer that only commits is a group too: empty, and of no protocol type.
                self.groups[group_id] = ClassicGroup(group_id)
            return
        self._replay_metadata(change)

    def replay_in_doubt(self) -> None:
        """Something later in the log is durable, and so is all before it."""
        changes, self.in_doubt = self.in_doubt, []
        for change in changes:
            self.replay(change)

    def append(self, records: Sequence[StateRecord], finish: Finish, out: Effects) -> None:
        """Ask for these records to be written; `finish` hears how it went."""
        if self.closed:
            finish(ErrorCode.NOT_COORDINATOR, 0.0, out)
            return
        append = Append(self.number, records, finish)
        self.in_flight.append(append)
        out.append(append)

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
        topics = self.offsets.get(group_id)
        if topics is None:
            return None
        by_partition = topics.get(topic)
        return None if by_partition is None else by_partition.get(partition)

    def forget_group(self, group_id: str) -> None:
        """Drop a group of which the log says nothing and that nobody is in."""
        group = self.groups.get(group_id)
        if (
            group is not None
            and group.saved is None
            and group.is_forgettable
            and group_id not in self.offsets
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

    def _drop_offset(self, group_id: str, topic: str, partition: int) -> None:
        topics = self.offsets.get(group_id)
        by_partition = None if topics is None else topics.get(topic)
        if topics is None or by_partition is None or by_partition.pop(partition, None) is None:
            return
        if not by_partition:
            del topics[topic]
            if not topics:
                del self.offsets[group_id]


def nothing_more(_error: ErrorCode, _now_ms: float, _out: Effects) -> None:
    """The `finish` of a write that nobody waits for."""
