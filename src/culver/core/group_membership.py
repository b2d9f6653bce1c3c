"""SyncGroup, Heartbeat and LeaveGroup: what members do between joining and going.

SyncGroup 0-5: since 3 static members, since 5 the protocol is checked. Heartbeat 0-4: since 3 static members.
LeaveGroup 0-5: since 3 several members at once, and static ones by their instance id.
"""

from __future__ import annotations

from culver.core.coordinator_effects import Effects, Reply, RequestContext, Token, append_error
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_rebalance import NO_MEMBER_ID, Rebalance, assignment_response, sync_error
from culver.core.group_records import group_record
from culver.errors import ErrorCode
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from culver.protocol.messages.sync_group import SyncGroupRequest

_SETTLED = (GroupState.COMPLETING_REBALANCE, GroupState.STABLE)


class MemberRequests:
    """Answers SyncGroup, Heartbeat and LeaveGroup for the groups of one partition."""

    def __init__(self, rebalance: Rebalance) -> None:
        self._rebalance = rebalance
        self._groups = rebalance.partition.groups

    # --- SyncGroup ---

    def sync(
        self, request: SyncGroupRequest, context: RequestContext, token: Token, now_ms: float, out: Effects
    ) -> None:
        """Hand out assignments; the leader's request brings them, everyone else's waits for it."""
        group = self._groups.get(request.group_id)
        error = self._check_sync(group, request, context.api_version)
        if error is not ErrorCode.NONE or group is None:
            out.append(Reply(token, sync_error(error)))
            return
        member = group.members[request.member_id]
        group.pending_syncs.discard(member.member_id)
        if not group.pending_syncs:
            group.sync_timer.cancel()
        if group.state is GroupState.STABLE:
            out.append(Reply(token, assignment_response(group, member)))
            return
        # A request that waits already was given up by its client, which asked again.
        self._rebalance.answer_sync(member, sync_error(ErrorCode.REBALANCE_IN_PROGRESS), out)
        member.parked_sync = self._rebalance.parked.park(token, context.api_version)
        if member.member_id == group.leader_id and group.assignment_in_flight is None:
            self._save_assignment(group, request, out)

    def _check_sync(
        self, group: ClassicGroup | None, request: SyncGroupRequest, api_version: int
    ) -> ErrorCode:
        if api_version >= 5 and (request.protocol_type is None or request.protocol_name is None):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group is None or group.state is GroupState.EMPTY:
            return ErrorCode.UNKNOWN_MEMBER_ID
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            return error
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if _differs(request.protocol_type, group.protocol_type) or _differs(
            request.protocol_name, group.protocol_name
        ):
            return ErrorCode.INCONSISTENT_GROUP_PROTOCOL
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    def _save_assignment(self, group: ClassicGroup, request: SyncGroupRequest, out: Effects) -> None:
        given = {item.member_id: bytes(item.assignment) for item in request.assignments}
        # More members than partitions, or a forgetful leader: the rest get nothing to do.
        assignments = {member_id: given.get(member_id, b"") for member_id in group.members}
        generation = group.generation
        group.assignment_in_flight = generation

        def finish(error: ErrorCode, now_ms: float, out: Effects) -> None:
            if group.state is not GroupState.COMPLETING_REBALANCE or group.assignment_in_flight != generation:
                # The next rebalance began meanwhile; it has sent everyone back to join again.
                return
            group.assignment_in_flight = None
            if error is not ErrorCode.NONE:
                self._rebalance.answer_syncs(group, append_error(error), now_ms, out)
                self._rebalance.prepare(group, now_ms, out)
                return
            for member in group.members.values():
                member.assignment = assignments[member.member_id]
            group.transition_to(GroupState.STABLE, self._rebalance.wall_clock_ms())
            self._rebalance.answer_syncs(group, ErrorCode.NONE, now_ms, out)

        record = group_record(group.group_id, group.to_saved_value(assignments))
        self._rebalance.partition.append([record], finish, out)

    # --- Heartbeat ---

    def heartbeat(self, request: HeartbeatRequest, now_ms: float) -> ErrorCode:
        """Renew a member's session. Hot: every member, every few seconds."""
        group = self._groups.get(request.group_id)
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = request.member_id
        if request.group_instance_id is not None:
            error = group.check_member(member_id, request.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        member = group.members.get(member_id)
        if member is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        if request.generation_id != group.generation:
            return ErrorCode.ILLEGAL_GENERATION
        if group.state is GroupState.DEAD:
            # It is becoming a consumer group; its members will join that.
            return ErrorCode.REBALANCE_IN_PROGRESS
        self._rebalance.renew_session(group, member, now_ms)
        if group.state is GroupState.PREPARING_REBALANCE:
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # --- LeaveGroup ---

    def leave(
        self, request: LeaveGroupRequest, context: RequestContext, token: Token, now_ms: float, out: Effects
    ) -> None:
        """Let members go at once, without waiting for their sessions to end."""
        if context.api_version >= 3:
            identities = request.members
        else:
            identities = [MemberIdentity(member_id=request.member_id)]
        group = self._groups.get(request.group_id)
        responses = [
            MemberResponse(
                member_id=identity.member_id,
                group_instance_id=identity.group_instance_id,
                error_code=self._leave_one(group, identity, out),
            )
            for identity in identities
        ]
        if group is not None and any(response.error_code == ErrorCode.NONE for response in responses):
            if group.state in _SETTLED:
                self._rebalance.prepare(group, now_ms, out)
            else:
                self._rebalance.complete_join_if_all_are_here(group, now_ms, out)
            self._rebalance.partition.forget_group(group.group_id)
        if context.api_version >= 3:
            response = LeaveGroupResponse(error_code=ErrorCode.NONE, members=responses)
        else:
            response = LeaveGroupResponse(error_code=responses[0].error_code)
        out.append(Reply(token, response))

    def _leave_one(self, group: ClassicGroup | None, identity: MemberIdentity, out: Effects) -> ErrorCode:
        if group is None:
            return ErrorCode.UNKNOWN_MEMBER_ID
        member_id = identity.member_id
        if member_id == NO_MEMBER_ID:
            # An administrator removes a static member by its name alone.
            owner = group.static_members.get(identity.group_instance_id or "")
            if identity.group_instance_id is None or owner is None:
                return ErrorCode.UNKNOWN_MEMBER_ID
            member_id = owner
        elif member_id not in group.pending_joins:
            error = group.check_member(member_id, identity.group_instance_id)
            if error is not ErrorCode.NONE:
                return error
        self._rebalance.drop(group, member_id, out)
        return ErrorCode.NONE


def _differs(asked: str | None, actual: str | None) -> bool:
    return asked is not None and actual is not None and asked != actual
