"""How a consumer group goes on when a member comes, changes, reports or goes: the records of one change, in order."""

from __future__ import annotations

from collections.abc import Callable, Collection

from culver.core.consumer_group import NOTHING, ConsumerGroup
from culver.core.consumer_group_member import Current, Member, MemberMetadata
from culver.core.consumer_group_reconciliation import Reported, reconcile
from culver.core.consumer_group_records import (
    current_record,
    epoch_record,
    member_record,
    old_topics_tombstone,
    pattern_record,
    target_epoch_record,
    target_record,
)
from culver.core.consumer_group_target import metadata_hash, resolved_pattern, target_assignment
from culver.core.consumer_group_writes import Draft
from culver.core.group_settings import GroupSettings, Topics


class Progress:
    """Writes changes of members and their consequences into drafts. It keeps nothing itself."""

    def __init__(self, settings: GroupSettings, topics: Topics, wall_clock_ms: Callable[[], int]) -> None:
        self._settings = settings
        self._topics = topics
        self._wall_clock_ms = wall_clock_ms

    def assignor_of(self, group: ConsumerGroup) -> str:
        """The assignor that the group uses, among those that this broker still offers."""
        default = self._settings.group_consumer_assignors[0]
        preferred = group.preferred_assignor(default)
        return preferred if preferred in self._settings.group_consumer_assignors else default

    def is_up_to_date(self, group: ConsumerGroup) -> bool:
        """Whether the topics that the group reads, and those that its patterns stand for, are as it knows them."""
        return metadata_hash(group, self._topics) == group.metadata_hash and all(
            resolved_pattern(pattern, self._topics) == topics for pattern, topics in group.patterns.items()
        )

    def report(
        self, draft: Draft, member_id: str, metadata: MemberMetadata, reported: Reported, *, refresh: bool
    ) -> None:
        """A member says this of itself and of what it has. What follows from that comes with `conclude`."""
        group = draft.group
        assert group is not None
        known = group.members.get(member_id)
        before = MemberMetadata() if known is None else known.metadata
        wants_anew = (before.topics, before.pattern) != (metadata.topics, metadata.pattern)
        if known is None or before != metadata:
            draft.write(member_record(group.group_id, member_id, metadata))
        if wants_anew or refresh:
            self._resolve_patterns(draft, group, everything=refresh)
            self._raise_epoch_if(draft, group, always=wants_anew)
        draft.reports[member_id] = reported

    def conclude(self, draft: Draft) -> None:
        """Everyone has reported: the target, if it is to be another, and one step of each towards it."""
        group = draft.group
        if group is None or not draft.reports:
            return
        if group.epoch > group.assignment_epoch:
            self._assign(draft, group)

        def is_taken(topic: bytes, partition: int) -> bool:
            return group.owner(topic, partition) is not None

        for member_id, reported in draft.reports.items():
            member = group.members.get(member_id)
            if member is None:
                continue
            target = group.targets.get(member_id, NOTHING)
            current = reconcile(member.current, group.assignment_epoch, target, reported, is_taken)
            if current != member.current:
                draft.write(current_record(group.group_id, member_id, current))

    def replace(self, draft: Draft, old: Member, member_id: str) -> None:
        """A static member comes back under another id: it takes the place of its former self."""
        group = draft.group
        assert group is not None
        target = group.targets.get(old.member_id, NOTHING)
        self._remove_member(draft, group, old.member_id)
        draft.write(member_record(group.group_id, member_id, old.metadata))
        draft.write(target_record(group.group_id, member_id, target))
        current = Current(0, 0, old.current.state, old.current.assigned, old.current.revoking)
        draft.write(current_record(group.group_id, member_id, current))

    def remove(self, draft: Draft, member_ids: Collection[str]) -> None:
        """Members go. The target is computed anew with the next heartbeat of someone who stays."""
        group = draft.group
        assert group is not None
        for member_id in member_ids:
            self._remove_member(draft, group, member_id)
        self._resolve_patterns(draft, group, everything=False)
        self._raise_epoch_if(draft, group, always=True)

    def erase(self, draft: Draft) -> None:
        """The whole group goes."""
        group = draft.group
        assert group is not None
        group_id = group.group_id
        for member_id in list(group.members):
            self._remove_member(draft, group, member_id)
        for pattern in list(group.patterns):
            draft.write(pattern_record(group_id, pattern, None))
        draft.write(target_epoch_record(group_id, None))
        if group.has_old_topics_record:
            draft.write(old_topics_tombstone(group_id))
        draft.write(epoch_record(group_id, None))
        draft.group = None
        draft.is_last = True

    def _remove_member(self, draft: Draft, group: ConsumerGroup, member_id: str) -> None:
        draft.write(current_record(group.group_id, member_id, None))
        draft.write(target_record(group.group_id, member_id, None))
        draft.write(member_record(group.group_id, member_id, None))

    def _resolve_patterns(self, draft: Draft, group: ConsumerGroup, *, everything: bool) -> None:
        """Look up the topics of new patterns (or of all of them), and forget those that nobody uses."""
        if not group.patterns and all(member.metadata.pattern is None for member in group.members.values()):
            return
        used = {
            member.metadata.pattern
            for member in group.members.values()
            if member.metadata.pattern is not None
        }
        for pattern in sorted(group.patterns.keys() - used):
            draft.write(pattern_record(group.group_id, pattern, None))
        for pattern in sorted(used if everything else used - group.patterns.keys()):
            topics = resolved_pattern(pattern, self._topics)
            if group.patterns.get(pattern) != topics:
                draft.write(pattern_record(group.group_id, pattern, topics, self._wall_clock_ms()))

    def _raise_epoch_if(self, draft: Draft, group: ConsumerGroup, *, always: bool) -> None:
        known = metadata_hash(group, self._topics)
        if always or known != group.metadata_hash:
            draft.write(epoch_record(group.group_id, group.epoch + 1, known))
            if group.has_old_topics_record:
                draft.write(old_topics_tombstone(group.group_id))

    def _assign(self, draft: Draft, group: ConsumerGroup) -> None:
        targets = target_assignment(group, self.assignor_of(group), self._topics)
        for member_id, target in targets.items():
            if group.targets.get(member_id) != target:
                draft.write(target_record(group.group_id, member_id, target))
        draft.write(target_epoch_record(group.group_id, group.epoch, self._wall_clock_ms()))
