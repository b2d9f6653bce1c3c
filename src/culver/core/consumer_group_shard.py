"""What all requests of one partition's consumer groups share: its groups, its line of writes, sessions and removal."""

from __future__ import annotations

from collections.abc import Callable, Collection

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_migration import can_downgrade, downgraded, write_downgraded
from culver.core.consumer_group_progress import Progress
from culver.core.consumer_group_sessions import Overdue, Sessions
from culver.core.consumer_group_writes import Done, Draft, GroupWrites, Step
from culver.core.coordinator_effects import WRITTEN_ANYHOW, Effects, Reply, append_error
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_rebalance import Rebalance, join_error, sync_error
from culver.core.group_records import decode_group_value
from culver.core.group_settings import Topics
from culver.core.patterns import matching_topics
from culver.errors import ErrorCode


class ConsumerGroupShard:
    """The consumer groups of one partition, and the classic ones that become such."""

    def __init__(self, rebalance: Rebalance, topics: Topics, new_member_id: Callable[[str], str]) -> None:
        self.rebalance = rebalance
        self.partition = rebalance.partition
        self.settings = rebalance.settings
        self.topics = topics
        self._new_member_id = new_member_id
        self.progress = Progress(self.settings, topics, rebalance.wall_clock_ms)
        self.writes = GroupWrites(
            self.partition, rebalance.timers, self._certain, self._written, self.progress.conclude
        )
        # Groups with a write on its way for which topics were looked at that have changed since.
        self._stale: set[str] = set()
        self.sessions = Sessions(self.settings, rebalance.timers, self._fence)

    def new_member_id(self) -> str:
        return self._new_member_id("consumer")

    # --- changes ---

    def change(
        self,
        group_id: str,
        step: Step,
        refused: Callable[[ErrorCode], Reply],
        now_ms: float,
        out: Effects,
    ) -> None:
        """Make a change for someone who waits; `refused` is the answer if the log does not take it."""

        def failed(error: ErrorCode, now_ms: float, out: Effects) -> None:
            self._failed(group_id, error, now_ms, out)
            out.append(refused(error))

        self.writes.submit(group_id, step, failed, now_ms, out)

    def needs_refresh(self, group: ConsumerGroup) -> bool:
        """Whether topics have changed since the group last looked, in a way that matters to it. Hot."""
        if group.refresh_wanted and self.progress.is_up_to_date(group):
            group.refresh_wanted = False
        return group.refresh_wanted

    def take_refresh(self, group_id: str) -> bool:
        """Whether topics have changed since the group last looked; from now on they have not."""
        group = self.partition.consumer_groups.get(group_id)
        if group is None or not group.refresh_wanted:
            return False
        group.refresh_wanted = False
        return True

    def remove(self, draft: Draft, member_ids: Collection[str], then: Done) -> Done:
        """Members go; with the last that speaks the consumer protocol, the group becomes a classic one."""
        group = draft.group
        assert group is not None
        if not can_downgrade(group, member_ids, self.settings):
            self.progress.remove(draft, member_ids)
            return then
        classic = downgraded(group, member_ids, self.topics, self.rebalance.wall_clock_ms())
        self.progress.erase(draft)
        write_downgraded(draft, classic)

        def done(now_ms: float, out: Effects) -> None:
            self._adopt(classic, now_ms, out)
            then(now_ms, out)

        return done

    def _fence(
        self, group: ConsumerGroup, member_id: str, overdue: Overdue, now_ms: float, out: Effects
    ) -> None:
        """A member's time is up."""

        def step(draft: Draft, _now_ms: float) -> Done:
            member = None if draft.group is None else draft.group.members.get(member_id)
            if member is None or not overdue(member):
                return _nothing
            return self.remove(draft, [member_id], _nothing)

        def failed(error: ErrorCode, now_ms: float, out: Effects) -> None:
            self._failed(group.group_id, error, now_ms, out)
            self.sessions.try_again(group, member_id, now_ms)

        self.writes.submit(group.group_id, step, failed, now_ms, out)

    def _failed(self, group_id: str, error: ErrorCode, now_ms: float, out: Effects) -> None:
        group = self.partition.consumer_groups.get(group_id)
        if group is not None:
            group.refresh_wanted = True
        classic = self.partition.groups.get(group_id)
        if classic is not None and classic.state is GroupState.DEAD and not self.partition.closed:
            self._answer_waiting(classic, append_error(error), out)
            if error not in WRITTEN_ANYHOW:
                self._revive(classic, now_ms, out)

    # --- classic groups that become consumer groups, and back ---

    def freeze(self, classic: ClassicGroup) -> None:
        """A classic group is about to become a consumer group: until that is durable nothing happens in it."""
        classic.transition_to(GroupState.DEAD, self.rebalance.wall_clock_ms())
        classic.cancel_timers()

    def classic_group_gone(self, classic: ClassicGroup, now_ms: float, out: Effects) -> None:
        """It has become a consumer group: whoever waits in it has to join that."""
        if classic.state is not GroupState.DEAD:
            classic.transition_to(GroupState.DEAD, self.rebalance.wall_clock_ms())
            classic.cancel_timers()
        self._answer_waiting(classic, ErrorCode.REBALANCE_IN_PROGRESS, out)
        group = self.partition.consumer_groups.get(classic.group_id)
        if group is not None:
            self.sessions.start_missing(group, now_ms)

    def _answer_waiting(self, classic: ClassicGroup, error: ErrorCode, out: Effects) -> None:
        for member in classic.members.values():
            self.rebalance.answer_join(classic, member, join_error(member.member_id, error), out)
            self.rebalance.answer_sync(member, sync_error(error), out)

    def _revive(self, dead: ClassicGroup, now_ms: float, out: Effects) -> None:
        """The log did not take the change: the classic group is what it was when it was last saved."""
        del self.partition.groups[dead.group_id]
        if dead.saved is not None:
            classic = ClassicGroup(dead.group_id)
            classic.saved = dead.saved
            classic.restore(decode_group_value(dead.saved))
            self._begin(classic, now_ms, out)
        elif dead.group_id in self.partition.offsets:
            self.partition.groups[dead.group_id] = ClassicGroup(dead.group_id)

    def _adopt(self, classic: ClassicGroup, now_ms: float, out: Effects) -> None:
        """A consumer group has become this classic one."""
        saved = self.partition.groups.get(classic.group_id)
        if saved is not None and not self.partition.closed:
            classic.saved = saved.saved
            self._begin(classic, now_ms, out)

    def _begin(self, classic: ClassicGroup, now_ms: float, out: Effects) -> None:
        self.partition.groups[classic.group_id] = classic
        for member in classic.members.values():
            self.rebalance.renew_session(classic, member, now_ms)
        if classic.members:
            self.rebalance.prepare(classic, now_ms, out)

    def _certain(self, group_id: str, now_ms: float, out: Effects) -> None:
        """A write of which it was not known how it ended is durable, and nobody was there to go on from it."""
        group = self.partition.consumer_groups.get(group_id)
        if group is not None:
            group.refresh_wanted = True
            self.sessions.start_missing(group, now_ms)
            return
        classic = self.partition.groups.get(group_id)
        if classic is not None and classic.saved is not None and classic.is_forgettable:
            classic.restore(decode_group_value(classic.saved))
            self._begin(classic, now_ms, out)

    def _written(self, group_id: str) -> None:
        if group_id in self._stale:
            self._stale.discard(group_id)
            group = self.partition.consumer_groups.get(group_id)
            if group is not None:
                group.refresh_wanted = True

    # --- coming and going of the partition ---

    def load_done(self, now_ms: float) -> None:
        """All records have been replayed."""
        for group in list(self.partition.consumer_groups.groups.values()):
            group.rebuild_owners()
            # What it knows of its topics may be old.
            group.refresh_wanted = True
            self.sessions.start_missing(group, now_ms)

    def unload(self) -> None:
        """Another broker takes over. Those who wait hear of it with the writes that they wait for."""
        for group in self.partition.consumer_groups.groups.values():
            group.close()

    def topics_changed(self, names: Collection[str]) -> None:
        """Topics have come, gone or changed: the groups that read them look at them with the next heartbeat."""
        groups = self.partition.consumer_groups.groups
        index = self.partition.consumer_groups.index
        self._stale |= self.writes.busy_groups()
        for name in names:
            for group_id in index.by_topic.get(name, ()):
                groups[group_id].refresh_wanted = True
        # Only the names that changed are matched: a cluster may have many topics, and many groups with patterns.
        existing = [name for name in names if self.topics.topic_id(name) is not None]
        for group_id in index.with_patterns if existing else ():
            group = groups[group_id]
            if any(matching_topics(pattern, existing) - known for pattern, known in group.patterns.items()):
                group.refresh_wanted = True


def _nothing(_now_ms: float, _out: Effects) -> None:
    """Nobody waits for this."""
