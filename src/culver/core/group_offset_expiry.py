"""Committed offsets that go by themselves: nobody has used them for long, or their topic is gone."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeAlias

from culver.core.consumer_group import ConsumerGroup
from culver.core.coordinator_effects import Effects
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_partition import GroupPartition, nothing_more
from culver.core.group_records import (
    NO_TIMESTAMP,
    CommittedOffset,
    StateRecord,
    group_tombstone,
    offset_tombstone,
)
from culver.core.group_settings import GroupSettings
from culver.core.group_transactions import Key

# Records per write when many offsets go at once: small enough for any batch size limit.
_MAX_TOMBSTONES_PER_APPEND = 1_000

_Base: TypeAlias = Callable[[CommittedOffset], int]


class OffsetExpiry:
    """Removes offsets of the groups of one partition, and groups that hold nothing more.

    `remove_unused` removes a consumer group that has neither members nor offsets, if it is so by then.
    """

    def __init__(
        self,
        partition: GroupPartition,
        settings: GroupSettings,
        wall_clock_ms: Callable[[], int],
        remove_unused: Callable[[str, float, Effects], None],
    ) -> None:
        self._partition = partition
        self._retention_ms = settings.offsets_retention_ms
        self._wall_clock_ms = wall_clock_ms
        self._remove_unused = remove_unused

    def expire(self, now_ms: float, out: Effects) -> None:
        """Remove offsets that nobody has used for the retention time, and groups that hold nothing more."""
        self._partition.after_in_flight(self._expire, now_ms, out)

    def _expire(self, now_ms: float, out: Effects) -> None:
        # Those came after the check was due, while it waited for others.
        in_flight = self._partition.keys_in_flight()
        groups_in_flight = {key[0] for key in in_flight}
        records: list[StateRecord] = []
        for classic in list(self._partition.groups.values()):
            group_id = classic.group_id
            is_left = self._expire_group(classic, _expiry_base(classic), in_flight, records)
            is_left |= group_id in groups_in_flight
            if not is_left and classic.state is GroupState.EMPTY and classic.is_forgettable:
                if classic.saved is not None or group_id in self._partition.offsets:
                    records.append(group_tombstone(group_id))
                else:
                    self._partition.forget_group(group_id)
        unused = []
        for consumer in self._partition.consumer_groups.groups.values():
            group_id = consumer.group_id
            is_left = self._expire_group(consumer, _commit_time, in_flight, records)
            is_left |= group_id in groups_in_flight
            # Offsets that go now are seen to be gone at the next check.
            if not is_left and group_id not in self._partition.offsets and not consumer.members:
                unused.append(group_id)
        self._append_in_parts(records, out)
        for group_id in unused:
            self._remove_unused(group_id, now_ms, out)

    def _expire_group(
        self,
        group: ClassicGroup | ConsumerGroup,
        base: _Base | None,
        in_flight: set[Key],
        records: list[StateRecord],
    ) -> bool:
        """Collect the tombstones of a group's old offsets; whether it has, or may yet get, others."""
        group_id = group.group_id
        pending = self._partition.pending
        # What an open transaction may yet commit keeps the group.
        is_left = pending.has_group(group_id)
        wall_ms = self._wall_clock_ms()
        for topic, offsets in self._partition.offsets.get(group_id, {}).items():
            if base is None or group.is_subscribed_to(topic):
                is_left = True
                continue
            for partition, committed in offsets.items():
                if (
                    self._is_expired(committed, base(committed), wall_ms)
                    and not pending.contains(group_id, topic, partition)
                    and (group_id, topic, partition) not in in_flight
                ):
                    records.append(offset_tombstone(group_id, topic, partition))
                else:
                    is_left = True
        return is_left

    def _is_expired(self, committed: CommittedOffset, base_ms: int, wall_ms: int) -> bool:
        if committed.expire_timestamp_ms != NO_TIMESTAMP:
            return wall_ms >= committed.expire_timestamp_ms
        return wall_ms - base_ms >= self._retention_ms

    def topics_deleted(self, names: Iterable[str], now_ms: float, out: Effects) -> None:
        """Remove all offsets of these topics: one with the same name starts anew."""
        names = set(names)
        self._partition.after_in_flight(lambda _now_ms, out: self._topics_deleted(names, out), now_ms, out)

    def _topics_deleted(self, names: set[str], out: Effects) -> None:
        keys: dict[Key, None] = {
            (group_id, topic, partition): None
            for group_id, topics in self._partition.offsets.items()
            for topic in names
            for partition in topics.get(topic, ())
        }
        keys |= {key: None for key in self._partition.pending.all_keys() if key[1] in names}
        # Those came after the deletion: they are of another topic of the same name.
        in_flight = self._partition.keys_in_flight()
        records = [offset_tombstone(*key) for key in keys if key not in in_flight]
        self._append_in_parts(records, out)

    def _append_in_parts(self, records: list[StateRecord], out: Effects) -> None:
        for start in range(0, len(records), _MAX_TOMBSTONES_PER_APPEND):
            # If it fails, the next check finds the same offsets again.
            self._partition.append(records[start : start + _MAX_TOMBSTONES_PER_APPEND], nothing_more, out)


def _expiry_base(group: ClassicGroup) -> _Base | None:
    """From when on the retention time of an offset runs; None while the group is in use."""
    if group.protocol_type is None:
        return _commit_time
    if group.state is GroupState.EMPTY:
        if group.state_timestamp_ms == NO_TIMESTAMP:
            return _commit_time
        emptied_ms = group.state_timestamp_ms
        return lambda committed: emptied_ms
    if (
        group.state is GroupState.STABLE
        and group.uses_consumer_protocol
        and group.subscribed_topics is not None
    ):
        return _commit_time
    return None


def _commit_time(committed: CommittedOffset) -> int:
    return committed.commit_timestamp_ms
