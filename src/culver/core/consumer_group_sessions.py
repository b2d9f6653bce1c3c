"""The deadlines of consumer groups' members, and what happens when they pass: the member is removed.

session: it has to be heard of. rebalance: it has to let go of what it was told to give up. join and sync, for members
that speak the classic protocol: they have to join after they were told to, and to ask for their assignment after that.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TypeAlias

from culver.core.consumer_group import ConsumerGroup, MemberTimers
from culver.core.consumer_group_member import Member, MemberState
from culver.core.coordinator_effects import Effects
from culver.core.coordinator_timers import NEVER, TimerQueue
from culver.core.group_settings import GroupSettings

# When the log did not take the removal of a member.
_TRY_AGAIN_MS = 1_000

Overdue: TypeAlias = Callable[[Member], bool]
Fence: TypeAlias = Callable[[ConsumerGroup, str, Overdue, float, Effects], None]
"""Removes a member of a group if it is still overdue when its turn has come."""


class Sessions:
    """Sets and moves the timers of members. `fence` is called when one has passed."""

    def __init__(self, settings: GroupSettings, timers: TimerQueue, fence: Fence) -> None:
        self._settings = settings
        self._timers = timers
        self._fence = fence

    def renew(self, group: ConsumerGroup, member: Member, now_ms: float) -> None:
        """The member has been heard of. Hot."""
        timers = group.timers.get(member.member_id)
        if timers is None:
            timers = self._start(group, member.member_id)
        classic = member.metadata.classic
        timeout_ms = (
            self._settings.group_consumer_session_timeout_ms
            if classic is None
            else classic.session_timeout_ms
        )
        self._timers.move(timers.session, now_ms + timeout_ms)

    def settle(self, group: ConsumerGroup, member_id: str, now_ms: float) -> None:
        """A member's change is in the log: set its deadlines accordingly."""
        member = group.members.get(member_id)
        if member is None:
            return
        self.renew(group, member, now_ms)
        timers = group.timers[member_id]
        if member.metadata.classic is None and member.current.state is MemberState.UNREVOKED_PARTITIONS:
            self._timers.move(timers.rebalance, now_ms + _at_least_0(member.metadata.rebalance_timeout_ms))
        else:
            timers.rebalance.cancel()

    def start_missing(self, group: ConsumerGroup, now_ms: float) -> None:
        """After a load, or after a write of which it was not known how it ended: everyone's time starts."""
        for member_id in list(group.members):
            if member_id not in group.timers:
                self.settle(group, member_id, now_ms)

    def told_to_join(self, group: ConsumerGroup, member: Member, now_ms: float) -> None:
        """A member that speaks the classic protocol was told to join again."""
        timers = group.timers.get(member.member_id) or self._start(group, member.member_id)
        if not timers.must_join:
            timers.must_join = True
            self._timers.move(timers.join, now_ms + _at_least_0(member.metadata.rebalance_timeout_ms))

    def joined(self, group: ConsumerGroup, member: Member, now_ms: float) -> None:
        """It has joined, and has to ask for its assignment next."""
        timers = group.timers.get(member.member_id) or self._start(group, member.member_id)
        timers.must_join = False
        timers.join.cancel()
        timers.must_sync = True
        self._timers.move(timers.sync, now_ms + _at_least_0(member.metadata.rebalance_timeout_ms))

    def synced(self, group: ConsumerGroup, member: Member, now_ms: float) -> None:
        timers = group.timers.get(member.member_id)
        if timers is not None:
            timers.must_sync = False
            timers.sync.cancel()
        self.renew(group, member, now_ms)

    def try_again(self, group: ConsumerGroup, member_id: str, now_ms: float) -> None:
        """The log did not take the removal."""
        timers = group.timers.get(member_id)
        if timers is not None and timers.session.deadline_ms == NEVER:
            self._timers.move(timers.session, now_ms + _TRY_AGAIN_MS)

    def _start(self, group: ConsumerGroup, member_id: str) -> MemberTimers:
        timers = group.timers[member_id] = MemberTimers()

        def session_ended(_member: Member) -> bool:
            return timers.session.deadline_ms == NEVER  # renewed meanwhile, it has a deadline again

        def holds_on(member: Member) -> bool:
            return (
                member.current.state is MemberState.UNREVOKED_PARTITIONS
                and timers.rebalance.deadline_ms == NEVER
            )

        timers.session.fire = partial(self._fence, group, member_id, session_ended)
        timers.rebalance.fire = partial(self._fence, group, member_id, holds_on)
        timers.join.fire = partial(self._fence, group, member_id, lambda _member: timers.must_join)
        timers.sync.fire = partial(self._fence, group, member_id, lambda _member: timers.must_sync)
        return timers


def _at_least_0(timeout_ms: int) -> int:
    return max(timeout_ms, 0)
