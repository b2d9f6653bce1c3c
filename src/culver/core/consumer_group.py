"""One consumer group, whose broker assigns the partitions: epochs, members, targets, and who has which partition."""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum
from typing import TypeAlias

from culver.core.consumer_group_member import Current, Member, MemberMetadata, MemberState, Owned
from culver.core.consumer_group_records import (
    ConsumerGroupChange,
    CurrentChange,
    EpochChange,
    MemberChange,
    OldTopicsChange,
    Partitions,
    PatternChange,
    TargetChange,
    TargetEpochChange,
)
from culver.core.coordinator_timers import Timer

NOTHING: Partitions = {}


class ConsumerGroupState(Enum):
    """Where a group stands; the values are the names that clients see."""

    EMPTY = "Empty"
    # The group's epoch is ahead of the target's.
    ASSIGNING = "Assigning"
    # Members are on their way to the target.
    RECONCILING = "Reconciling"
    STABLE = "Stable"


class MemberTimers:
    """The deadlines of one member; see `Sessions` for what they are about."""

    __slots__ = ("join", "must_join", "must_sync", "rebalance", "session", "sync")

    def __init__(self) -> None:
        self.session = Timer()
        self.rebalance = Timer()
        self.join = Timer()
        self.sync = Timer()
        self.must_join = False
        self.must_sync = False

    def cancel(self) -> None:
        for timer in (self.session, self.rebalance, self.join, self.sync):
            timer.cancel()


class SubscriptionIndex:
    """Which groups of a partition read which topic, and which subscribe with a pattern."""

    __slots__ = ("by_topic", "with_patterns")

    def __init__(self) -> None:
        self.by_topic: dict[str, set[str]] = {}
        self.with_patterns: set[str] = set()

    def add(self, topic: str, group_id: str) -> None:
        self.by_topic.setdefault(topic, set()).add(group_id)

    def remove(self, topic: str, group_id: str) -> None:
        groups = self.by_topic.get(topic)
        if groups is not None:
            groups.discard(group_id)
            if not groups:
                del self.by_topic[topic]


class ConsumerGroupTable:
    """The consumer groups of one partition of the offsets topic."""

    def __init__(self) -> None:
        self.groups: dict[str, ConsumerGroup] = {}
        self.index = SubscriptionIndex()

    def __contains__(self, group_id: str) -> bool:
        return group_id in self.groups

    def get(self, group_id: str) -> ConsumerGroup | None:
        return self.groups.get(group_id)

    def apply(self, change: ConsumerGroupChange) -> None:
        """One record. A group comes with the first record of it, and goes with the one that removes its epoch."""
        group = self.groups.get(change.group_id)
        if isinstance(change, EpochChange) and change.epoch is None:
            if group is not None:
                group.close()
                del self.groups[change.group_id]
            return
        if group is None:
            if change[-1] is None or change == OldTopicsChange(change.group_id, False):
                return
            group = self.groups[change.group_id] = ConsumerGroup(change.group_id, self.index)
        group.apply(change)


Owners: TypeAlias = dict[bytes, dict[int, str]]


class ConsumerGroup:
    """What the log says of one group. `apply` is the only door; timers and `refresh_wanted` are soft.

    The epoch goes up with every change of members, subscriptions or topics; the target assignment is computed for an
    epoch at once. Each member then moves to its target by itself, with its own heartbeats: first it gives up what it
    is to lose, then its epoch becomes the target's, then it gets what others have given up. A partition belongs to
    the member that was told of it until that member has confirmed that it let go of it, or is removed.
    """

    def __init__(self, group_id: str, index: SubscriptionIndex | None = None) -> None:
        self.group_id = group_id
        # A member that wants nothing does not raise it; and 0 is the epoch of those who are not in the group.
        self.epoch = 1
        self.metadata_hash = 0
        self.assignment_epoch = 0
        self.members: dict[str, Member] = {}
        self.targets: dict[str, Partitions] = {}
        self.static_members: dict[str, str] = {}
        # Pattern -> the topics that it stood for when it was last looked at.
        self.patterns: dict[str, frozenset[str]] = {}
        self.has_old_topics_record = False
        # Derived, kept up to date by `apply`.
        self.owners: Owners = {}
        self.topic_counts: dict[str, int] = {}
        self._index = index
        # Soft: topics that matter to the group may have changed; the next heartbeat finds out.
        self.refresh_wanted = False
        self.timers: dict[str, MemberTimers] = {}

    def draft(self) -> ConsumerGroup:
        """A copy to try changes on. It has no timers and is in no index."""
        copy = ConsumerGroup(self.group_id)
        copy.epoch = self.epoch
        copy.metadata_hash = self.metadata_hash
        copy.assignment_epoch = self.assignment_epoch
        copy.members = self.members.copy()
        copy.targets = self.targets.copy()
        copy.static_members = self.static_members.copy()
        copy.patterns = self.patterns.copy()
        copy.has_old_topics_record = self.has_old_topics_record
        copy.owners = {topic: owners.copy() for topic, owners in self.owners.items()}
        copy.topic_counts = self.topic_counts.copy()
        return copy

    # --- queries ---

    @property
    def state(self) -> ConsumerGroupState:
        if not self.members:
            return ConsumerGroupState.EMPTY
        if self.epoch > self.assignment_epoch:
            return ConsumerGroupState.ASSIGNING
        if all(member.is_reconciled_to(self.assignment_epoch) for member in self.members.values()):
            return ConsumerGroupState.STABLE
        return ConsumerGroupState.RECONCILING

    def static_member(self, instance_id: str) -> Member | None:
        member_id = self.static_members.get(instance_id)
        return None if member_id is None else self.members[member_id]

    def topics_of(self, metadata: MemberMetadata) -> Iterable[str]:
        """The names of all topics that a member with this metadata wants, whether they exist or not."""
        if metadata.pattern is None:
            return metadata.topics
        return {*metadata.topics, *self.patterns.get(metadata.pattern, ())}

    def is_subscribed_to(self, topic: str) -> bool:
        return topic in self.topic_counts

    def owner(self, topic: bytes, partition: int) -> str | None:
        owners = self.owners.get(topic)
        return None if owners is None else owners.get(partition)

    def can_get_more(self, member: Member) -> bool:
        """Whether something that the member is to get is nobody's."""
        for topic, partitions in self.targets.get(member.member_id, NOTHING).items():
            assigned = member.current.assigned.get(topic, {})
            for partition in partitions:
                if partition not in assigned and self.owner(topic, partition) is None:
                    return True
        return False

    def waits_for_others(self, member: Member) -> bool:
        """Whether something that the member is to get still belongs to another."""
        if member.current.state is not MemberState.UNRELEASED_PARTITIONS:
            return False
        for topic, partitions in self.targets.get(member.member_id, NOTHING).items():
            assigned = member.current.assigned.get(topic, {})
            for partition in partitions:
                if partition not in assigned and self.owner(topic, partition) is not None:
                    return True
        return False

    def preferred_assignor(self, default: str) -> str:
        """The one that most members ask for; of several the one first in the alphabet, so that it does not change."""
        counts: dict[str, int] = {}
        for member in self.members.values():
            if member.metadata.assignor is not None:
                counts[member.metadata.assignor] = counts.get(member.metadata.assignor, 0) + 1
        return min(counts, key=lambda name: (-counts[name], name), default=default)

    @property
    def classic_members(self) -> list[Member]:
        return [member for member in self.members.values() if member.metadata.classic is not None]

    def supports_classic_protocols(self, protocol_type: str, names: Iterable[str]) -> bool:
        """Whether someone with these protocols shares one with all the others who speak the classic protocol."""
        classic = self.classic_members
        others = [
            {name for name, _ in member.metadata.classic.protocols}
            for member in classic
            if member.metadata.classic
        ]
        return protocol_type == "consumer" and any(all(name in known for known in others) for name in names)

    # --- the door ---

    def apply(self, change: ConsumerGroupChange) -> None:
        """One record. In a log that was compacted they come in any order; members may be known in part."""
        if isinstance(change, CurrentChange):
            self._apply_current(change)
        elif isinstance(change, TargetChange):
            if change.partitions is None:
                self.targets.pop(change.member_id, None)
            else:
                self.targets[change.member_id] = change.partitions
        elif isinstance(change, MemberChange):
            self._apply_member(change)
        elif isinstance(change, EpochChange):
            self.epoch = change.epoch or 1
            self.metadata_hash = change.metadata_hash
        elif isinstance(change, TargetEpochChange):
            self.assignment_epoch = change.epoch or 0
        elif isinstance(change, PatternChange):
            self._apply_pattern(change)
        else:
            assert isinstance(change, OldTopicsChange)
            self.has_old_topics_record = change.present

    def rebuild_owners(self) -> None:
        """After a load: in a compacted log the order of records may have left gaps."""
        self.owners = {}
        for member in self.members.values():
            self._own(member.member_id, member.current.assigned)
            self._own(member.member_id, member.current.revoking)

    def close(self) -> None:
        """The group is gone, or no longer ours."""
        for timers in self.timers.values():
            timers.cancel()
        self.timers.clear()
        if self._index is not None:
            for topic in self.topic_counts:
                self._index.remove(topic, self.group_id)
            self._index.with_patterns.discard(self.group_id)

    def _apply_member(self, change: MemberChange) -> None:
        old = self.members.get(change.member_id)
        if old is not None:
            self._count(old.metadata.topics, -1)
            instance_id = old.metadata.instance_id
            if instance_id is not None and self.static_members.get(instance_id) == change.member_id:
                del self.static_members[instance_id]
        metadata = change.metadata
        if metadata is None:
            if old is not None:
                del self.members[change.member_id]
                self._disown(old.member_id, old.current)
            timers = self.timers.pop(change.member_id, None)
            if timers is not None:
                timers.cancel()
            return
        self.members[change.member_id] = (old or Member(change.member_id))._replace(metadata=metadata)
        self._count(metadata.topics, 1)
        if metadata.instance_id is not None:
            self.static_members[metadata.instance_id] = change.member_id

    def _apply_current(self, change: CurrentChange) -> None:
        old = self.members.get(change.member_id)
        current = change.current
        if old is None:
            if current is None:
                return
            old = Member(change.member_id)
        self._disown(old.member_id, old.current)
        # Without a record it is as if it had just come; the record that removes the member follows.
        self.members[old.member_id] = old._replace(current=current or Current())
        if current is not None:
            self._own(old.member_id, current.assigned)
            self._own(old.member_id, current.revoking)

    def _apply_pattern(self, change: PatternChange) -> None:
        self._count(self.patterns.pop(change.pattern, ()), -1)
        if change.topics is not None:
            self.patterns[change.pattern] = change.topics
            self._count(change.topics, 1)
        if self._index is not None:
            if self.patterns:
                self._index.with_patterns.add(self.group_id)
            else:
                self._index.with_patterns.discard(self.group_id)

    def _count(self, topics: Iterable[str], step: int) -> None:
        for topic in topics:
            count = self.topic_counts.get(topic, 0) + step
            if count:
                self.topic_counts[topic] = count
                if count == 1 and step == 1 and self._index is not None:
                    self._index.add(topic, self.group_id)
            else:
                del self.topic_counts[topic]
                if self._index is not None:
                    self._index.remove(topic, self.group_id)

    def _own(self, member_id: str, partitions: Owned) -> None:
        for topic, epochs in partitions.items():
            owners = self.owners.setdefault(topic, {})
            for partition in epochs:
                owners[partition] = member_id

    def _disown(self, member_id: str, current: Current) -> None:
        for partitions in (current.assigned, current.revoking):
            for topic, epochs in partitions.items():
                owners = self.owners.get(topic)
                if owners is None:
                    continue
                for partition in epochs:
                    if owners.get(partition) == member_id:
                        del owners[partition]
                if not owners:
                    del self.owners[topic]
