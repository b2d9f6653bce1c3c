"""How a group gets from one generation to the next."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from culver.core.coordinator_effects import Effects
from culver.core.coordinator_timers import TimerQueue
from culver.core.group import ClassicGroup, GroupState, Member
from culver.core.group_parking import ParkedRequest, ParkedRequests
from culver.core.group_partition import GroupPartition, nothing_more
from culver.core.group_records import group_record
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.join_group import JoinGroupResponse, JoinGroupResponseMember
from culver.protocol.messages.sync_group import SyncGroupResponse

NO_MEMBER_ID = ""


class Rebalance:
    """Moves the groups of one partition; see `ClassicGroup` for the states."""

    def __init__(
        self,
        partition: GroupPartition,
        settings: GroupSettings,
        timers: TimerQueue,
        parked: ParkedRequests,
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.partition = partition
        self.settings = settings
        self.timers = timers
        self.parked = parked
        self.wall_clock_ms = wall_clock_ms

    # --- from any settled state into a rebalance ---

    def start_or_go_on(self, group: ClassicGroup, now_ms: float, out: Effects) -> None:
        """A member came, changed or went: start a rebalance, or see whether the present one can go on."""
        if group.can_rebalance:
            self.prepare(group, now_ms, out)
        else:
            self.complete_join_if_all_are_here(group, now_ms, out)

    def prepare(self, group: ClassicGroup, now_ms: float, out: Effects) -> None:
        """Everyone has to join again."""
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member in group.members.values():
                member.assignment = b""
            self.answer_syncs(group, ErrorCode.REBALANCE_IN_PROGRESS, now_ms, out)
        group.pending_syncs.clear()
        group.sync_timer.cancel()
        group.assignment_in_flight = None
        is_initial = group.state is GroupState.EMPTY
        group.transition_to(GroupState.PREPARING_REBALANCE, self.wall_clock_ms())
        if is_initial:
            self._wait_for_first_members(group, now_ms, out)
        elif group.all_members_joined:
            self.complete_join(group, now_ms, out)
        else:
            self._wait_for_rejoins(group, now_ms)

    def _wait_for_first_members(self, group: ClassicGroup, now_ms: float, out: Effects) -> None:
        # Without this delay a group of ten would go through ten rebalances as its members start.
        group.new_member_added = False
        delay_ms = self.settings.group_initial_rebalance_delay_ms
        if delay_ms == 0:
            self.complete_join(group, now_ms, out)
            return
        remaining_ms = max(group.rebalance_timeout_ms - delay_ms, 0)
        self.timers.schedule(
            group.join_timer,
            now_ms + delay_ms,
            partial(self._first_members_had_time, group, delay_ms, remaining_ms),
        )

    def _first_members_had_time(
        self, group: ClassicGroup, delay_ms: int, remaining_ms: int, now_ms: float, out: Effects
    ) -> None:
        if not group.new_member_added or remaining_ms == 0:
            self.complete_join(group, now_ms, out)
            return
        # Members are still arriving: wait on, up to the rebalance timeout in all.
        group.new_member_added = False
        next_delay_ms = min(self.settings.group_initial_rebalance_delay_ms, remaining_ms)
        next_remaining_ms = max(remaining_ms - delay_ms, 0)
        self.timers.schedule(
            group.join_timer,
            now_ms + next_delay_ms,
            partial(self._first_members_had_time, group, next_delay_ms, next_remaining_ms),
        )

    def _wait_for_rejoins(self, group: ClassicGroup, now_ms: float) -> None:
        self.timers.schedule(
            group.join_timer, now_ms + group.rebalance_timeout_ms, partial(self.complete_join, group)
        )

    # --- the end of the join phase ---

    def complete_join_if_all_are_here(self, group: ClassicGroup, now_ms: float, out: Effects) -> None:
        """End the join phase early, but never the time that a new group's members have to arrive."""
        if (
            group.state is GroupState.PREPARING_REBALANCE
            and group.previous_state is not GroupState.EMPTY
            and group.all_members_joined
        ):
            self.complete_join(group, now_ms, out)

    def complete_join(self, group: ClassicGroup, now_ms: float, out: Effects) -> None:
        """Go on with those who have joined. Static members stay even if they have not."""
        group.join_timer.cancel()
        late = [m for m in group.members.values() if m.parked_join is None and m.instance_id is None]
        for member in late:
            self.drop(group, member.member_id, out)
        if not group.elect_leader_among_joined() and group.members:
            # Only static members are left and none of them is here. Someone has to lead, so wait: they
            # come back, or their sessions end.
            self._wait_for_rejoins(group, now_ms)
            return
        group.start_next_generation(self.wall_clock_ms())
        if group.state is GroupState.EMPTY:
            # Nobody waits for this. If it is lost, a restart finds the old members and their sessions end.
            self.partition.append([group_record(group.group_id, group.to_saved_value({}))], nothing_more, out)
            return
        for member in group.members.values():
            self.answer_join_with_generation(group, member, out)
            self.renew_session(group, member, now_ms)
            member.is_new = False
            group.pending_syncs.add(member.member_id)
        self.timers.schedule(
            group.sync_timer,
            now_ms + group.rebalance_timeout_ms,
            partial(self._syncs_are_late, group, group.generation),
        )

    def _syncs_are_late(self, group: ClassicGroup, generation: int, now_ms: float, out: Effects) -> None:
        if group.generation != generation or group.state not in (
            GroupState.COMPLETING_REBALANCE,
            GroupState.STABLE,
        ):
            return
        if group.pending_syncs:
            for member_id in sorted(group.pending_syncs):
                self.drop(group, member_id, out)
            self.prepare(group, now_ms, out)

    # --- members that go ---

    def drop(self, group: ClassicGroup, member_id: str, out: Effects) -> None:
        """Remove a member, pending or not, and tell it so if it is waiting for us."""
        member = group.members.get(member_id)
        if member is not None:
            self.answer_join(
                group,
                member,
                join_error(NO_MEMBER_ID, ErrorCode.UNKNOWN_MEMBER_ID),
                out,
            )
            self.answer_sync(member, sync_error(ErrorCode.UNKNOWN_MEMBER_ID), out)
        group.remove(member_id)

    def member_gone(self, group: ClassicGroup, member: Member, now_ms: float, out: Effects) -> None:
        """Remove a member whose session has ended, and let the others go on without it."""
        self.drop(group, member.member_id, out)
        if group.state in (GroupState.STABLE, GroupState.COMPLETING_REBALANCE):
            self.prepare(group, now_ms, out)
        elif group.state is GroupState.PREPARING_REBALANCE and group.all_members_joined:
            self.complete_join(group, now_ms, out)

    def renew_session(self, group: ClassicGroup, member: Member, now_ms: float) -> None:
        """Start, or start again, the time within which this member must be heard of."""
        self.start_session(group, member, now_ms, member.session_timeout_ms)

    def start_session(self, group: ClassicGroup, member: Member, now_ms: float, timeout_ms: int) -> None:
        timer = member.session_timer
        if timer.fire is None:
            timer.fire = partial(self._session_ended, group, member)
        self.timers.move(timer, now_ms + timeout_ms)

    def _session_ended(self, group: ClassicGroup, member: Member, now_ms: float, out: Effects) -> None:
        if group.members.get(member.member_id) is member and not member.keeps_session_while_parked():
            self.member_gone(group, member, now_ms, out)

    def pending_join_gone(self, group: ClassicGroup, member_id: str, now_ms: float, out: Effects) -> None:
        """Someone who was given an id never joined with it."""
        group.remove(member_id)
        if group.state is GroupState.PREPARING_REBALANCE and group.all_members_joined:
            self.complete_join(group, now_ms, out)
        self.partition.forget_group(group.group_id)

    # --- answers ---

    def answer_join(
        self, group: ClassicGroup, member: Member, response: JoinGroupResponse, out: Effects
    ) -> None:
        parked = group.unpark_join(member)
        if parked is not None:
            self.parked.answer(parked, response, out)

    def answer_join_with_generation(self, group: ClassicGroup, member: Member, out: Effects) -> None:
        """The present generation, and for the leader who is in it."""
        if member.parked_join is not None:
            response = generation_response(group, member.member_id, member.parked_join.api_version)
            self.answer_join(group, member, response, out)

    def answer_sync(self, member: Member, response: SyncGroupResponse, out: Effects) -> bool:
        parked = member.parked_sync
        if parked is None:
            return False
        member.parked_sync = None
        self.parked.answer(parked, response, out)
        return True

    def answer_syncs(self, group: ClassicGroup, error: ErrorCode, now_ms: float, out: Effects) -> None:
        """Tell everyone who waits for an assignment what it is, or why there is none."""
        for member in group.members.values():
            if member.parked_sync is None:
                continue
            if error is ErrorCode.NONE:
                response = assignment_response(group, member)
            else:
                response = sync_error(error)
            self.answer_sync(member, response, out)
            # A session that ended while the member was parked was passed over, so its timer stands still.
            self.renew_session(group, member, now_ms)

    def park_join(self, group: ClassicGroup, member: Member, parked: ParkedRequest, out: Effects) -> None:
        """Keep this join waiting. One that waits already was given up by its client, which asked again."""
        self.answer_join(
            group,
            member,
            join_error(member.member_id, ErrorCode.REBALANCE_IN_PROGRESS),
            out,
        )
        group.park_join(member, parked)


def join_error(member_id: str, error: ErrorCode) -> JoinGroupResponse:
    """A JoinGroup that failed."""
    return JoinGroupResponse(error_code=error, protocol_name="", leader="", member_id=member_id, members=[])


def sync_error(error: ErrorCode) -> SyncGroupResponse:
    """A SyncGroup that failed."""
    return SyncGroupResponse(error_code=error, assignment=b"")


def generation_response(
    group: ClassicGroup, member_id: str, api_version: int, *, skip_assignment: bool = False
) -> JoinGroupResponse:
    """A successful JoinGroup: the group as it is now. Only the leader learns of the other members."""
    is_leader = member_id == group.leader_id
    protocol_name = group.protocol_name
    if protocol_name is None and api_version < 7:
        protocol_name = ""
    return JoinGroupResponse(
        error_code=ErrorCode.NONE,
        generation_id=group.generation,
        protocol_type=group.protocol_type,
        protocol_name=protocol_name,
        leader=group.leader_id or "",
        skip_assignment=skip_assignment,
        member_id=member_id,
        members=[
            JoinGroupResponseMember(
                member_id=member.member_id,
                group_instance_id=member.instance_id,
                metadata=member.metadata(group.protocol_name),
            )
            for member in group.members.values()
        ]
        if is_leader
        else [],
    )


def assignment_response(group: ClassicGroup, member: Member) -> SyncGroupResponse:
    """A successful SyncGroup."""
    return SyncGroupResponse(
        error_code=ErrorCode.NONE,
        protocol_type=group.protocol_type,
        protocol_name=group.protocol_name,
        assignment=member.assignment,
    )
