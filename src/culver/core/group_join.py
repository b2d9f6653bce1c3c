"""JoinGroup: a member enters a group, or comes again for the next generation.

Versions 0-9. Since 1 a rebalance timeout beside the session timeout; since 4 a new member is first told its
id and joins again with it; since 5 static members; since 9 the leader may be told to skip the assignment.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from culver.core.coordinator_effects import Effects, Reply, RequestContext, Token, append_error
from culver.core.coordinator_timers import Timer
from culver.core.group import ClassicGroup, GroupState, Member, Protocols
from culver.core.group_rebalance import NO_MEMBER_ID, Rebalance, generation_response, join_error, sync_error
from culver.core.group_records import decode_group_value, group_record
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse

# Group state records carry these with a 16-bit length in UTF-8, at most 4 bytes a character.
MAX_NAME_LENGTH = 8_000


class JoinRequests:
    """Answers JoinGroup for the groups of one partition."""

    def __init__(self, rebalance: Rebalance, new_member_id: Callable[[str], str]) -> None:
        self._rebalance = rebalance
        self._settings = rebalance.settings
        self._new_member_id = new_member_id

    def handle(
        self, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: float, out: Effects
    ) -> None:
        """Answer at once, or park the request until the join phase ends."""
        join = Join(request, context, token, now_ms)
        error = check_join(request, self._settings)
        if error is not ErrorCode.NONE:
            out.append(Reply(token, join_error(request.member_id, error)))
            return
        groups = self._rebalance.partition.groups
        group = groups.get(request.group_id)
        if group is None:
            if request.member_id != NO_MEMBER_ID:
                out.append(Reply(token, join_error(request.member_id, ErrorCode.UNKNOWN_MEMBER_ID)))
                return
            group = ClassicGroup(request.group_id)
            group.state_timestamp_ms = self._rebalance.wall_clock_ms()
            groups[request.group_id] = group
        if not self._has_room_for(group, request.member_id):
            # With a smaller group.max.size than before, the last ones to join again are sent away.
            self._rebalance.drop(group, request.member_id, out)
            out.append(Reply(token, join_error(NO_MEMBER_ID, ErrorCode.GROUP_MAX_SIZE_REACHED)))
            self._rebalance.complete_join_if_all_are_here(group, now_ms, out)
        elif not group.supports_protocols(request.protocol_type, (name for name, _ in join.protocols)):
            out.append(Reply(token, join_error(request.member_id, ErrorCode.INCONSISTENT_GROUP_PROTOCOL)))
        elif request.member_id == NO_MEMBER_ID:
            self._join_new(group, join, out)
        else:
            self._join_known(group, join, out)
        self._rebalance.partition.forget_group(group.group_id)

    def _has_room_for(self, group: ClassicGroup, member_id: str) -> bool:
        limit = self._settings.group_max_size
        member = group.members.get(member_id)
        if group.state is GroupState.PREPARING_REBALANCE:
            return (
                member is not None and member.parked_join is not None
            ) or group.awaiting_join_count < limit
        if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
            return member is not None or len(group.members) < limit
        return True

    # --- members without an id ---

    def _join_new(self, group: ClassicGroup, join: Join, out: Effects) -> None:
        request = join.request
        instance_id = request.group_instance_id
        stem = join.context.client_id if instance_id is None else instance_id
        member_id = self._new_member_id(stem[:MAX_NAME_LENGTH])
        if instance_id is not None:
            existing_id = group.static_members.get(instance_id)
            if existing_id is not None:
                self._replace_static(group, group.members[existing_id], member_id, join, out)
                return
        elif join.context.api_version >= 4:
            timer = group.pending_joins[member_id] = Timer()
            self._rebalance.timers.schedule(
                timer,
                join.now_ms + request.session_timeout_ms,
                partial(self._rebalance.pending_join_gone, group, member_id),
            )
            out.append(Reply(join.token, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED)))
            return
        self._add(group, member_id, join, out)

    def _add(self, group: ClassicGroup, member_id: str, join: Join, out: Effects) -> None:
        request = join.request
        pending = group.pending_joins.pop(member_id, None)
        if pending is not None:
            pending.cancel()
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        member = Member(
            member_id,
            request.group_instance_id,
            join.context.client_id,
            join.context.client_host,
            request.session_timeout_ms,
            join.rebalance_timeout_ms,
            join.protocols,
        )
        member.is_new = True
        group.add(member, self._rebalance.parked.park(join.token, join.context.api_version))
        # It cannot send heartbeats before it has an answer, but must not wait for ever in a group that
        # does not settle: a client that was cut off tries again and leaves this member behind.
        self._rebalance.start_session(
            group, member, join.now_ms, self._settings.group_new_member_join_timeout_ms
        )
        self._rebalance.start_or_go_on(group, join.now_ms, out)

    def _replace_static(
        self, group: ClassicGroup, old: Member, member_id: str, join: Join, out: Effects
    ) -> None:
        """A static member has restarted: its new self takes the place of the old one, who is fenced."""
        rebalance = self._rebalance
        request = join.request
        rebalance.answer_join(group, old, join_error(old.member_id, ErrorCode.FENCED_INSTANCE_ID), out)
        rebalance.answer_sync(old, sync_error(ErrorCode.FENCED_INSTANCE_ID), out)
        old_leader = group.leader_id or ""
        member = group.replace_static(old, member_id)
        rebalance.renew_session(group, member, join.now_ms)
        group.update(member, join.protocols, request.session_timeout_ms, join.rebalance_timeout_ms)
        rebalance.park_join(group, member, rebalance.parked.park(join.token, join.context.api_version), out)
        if group.state is GroupState.STABLE:
            if group.select_protocol() == group.protocol_name:
                self._save_replacement(group, old, member, old_leader, out)
            else:
                rebalance.prepare(group, join.now_ms, out)
        elif group.state is GroupState.COMPLETING_REBALANCE:
            # The leader may be assigning to the old id right now: the new one would get nothing.
            rebalance.prepare(group, join.now_ms, out)
        else:
            rebalance.complete_join_if_all_are_here(group, join.now_ms, out)

    def _save_replacement(
        self, group: ClassicGroup, old: Member, member: Member, old_leader: str, out: Effects
    ) -> None:
        """No rebalance: the new self keeps the assignment. It hears so once the log knows its id."""
        generation = group.generation
        parked = member.parked_join
        assert parked is not None

        def finish(error: ErrorCode, now_ms: float, out: Effects) -> None:
            if (
                group.state is not GroupState.STABLE
                or group.generation != generation
                or member.parked_join is not parked
            ):
                # A rebalance has begun meanwhile and answers this join at its end, or the member is gone
                # and was answered when it went.
                return
            if error is not ErrorCode.NONE:
                response = join_error(NO_MEMBER_ID, append_error(error))
                self._rebalance.answer_join(group, member, response, out)
                self._restore_saved_self(group, member, old, now_ms)
                return
            self._rebalance.answer_join(
                group, member, _kept_place(group, member, parked.api_version, old_leader), out
            )

        assignments = {other.member_id: other.assignment for other in group.members.values()}
        record = group_record(group.group_id, group.to_saved_value(assignments))
        self._rebalance.partition.append([record], finish, out)

    def _restore_saved_self(self, group: ClassicGroup, member: Member, old: Member, now_ms: float) -> None:
        """The log did not take the new id, so the one that it holds stays valid.

        That need not be the id that was replaced: it may itself never have got into the log.
        """
        assert group.saved is not None, "a stable group has been saved"
        saved = decode_group_value(group.saved).members
        saved_id = next(item.member_id for item in saved if item.group_instance_id == member.instance_id)
        restored = group.replace_static(member, saved_id)
        group.update(restored, old.protocols, old.session_timeout_ms, old.rebalance_timeout_ms)
        self._rebalance.renew_session(group, restored, now_ms)

    # --- members with an id ---

    def _join_known(self, group: ClassicGroup, join: Join, out: Effects) -> None:
        request = join.request
        member_id = request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(group, member_id, join, out)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not ErrorCode.NONE:
            out.append(Reply(join.token, join_error(member_id, error)))
            return
        member = group.members[member_id]
        state = group.state
        if state is GroupState.PREPARING_REBALANCE:
            self._rejoin(group, member, join, out)
        elif state is GroupState.COMPLETING_REBALANCE:
            if member.protocols == join.protocols:
                # It has not seen the answer to its join.
                self._answer_with_generation(group, join, out)
            else:
                self._rejoin(group, member, join, out)
        elif state is GroupState.STABLE:
            if member_id == group.leader_id or member.protocols != join.protocols:
                # A leader that joins again has a reason, such as new partitions, that only it knows.
                self._rejoin(group, member, join, out)
            else:
                self._answer_with_generation(group, join, out)
        else:
            out.append(Reply(join.token, join_error(member_id, ErrorCode.UNKNOWN_MEMBER_ID)))

    def _rejoin(self, group: ClassicGroup, member: Member, join: Join, out: Effects) -> None:
        group.update(member, join.protocols, join.request.session_timeout_ms, join.rebalance_timeout_ms)
        parked = self._rebalance.parked.park(join.token, join.context.api_version)
        self._rebalance.park_join(group, member, parked, out)
        self._rebalance.start_or_go_on(group, join.now_ms, out)

    def _answer_with_generation(self, group: ClassicGroup, join: Join, out: Effects) -> None:
        response = generation_response(group, join.request.member_id, join.context.api_version)
        out.append(Reply(join.token, response))


def check_join(request: JoinGroupRequest, settings: GroupSettings) -> ErrorCode:
    """Whether a request makes sense by itself, and can be kept in a record."""
    timeout_ms = request.session_timeout_ms
    if not settings.group_min_session_timeout_ms <= timeout_ms <= settings.group_max_session_timeout_ms:
        return ErrorCode.INVALID_SESSION_TIMEOUT
    names = [request.member_id, request.group_instance_id or "", request.protocol_type]
    names.extend(protocol.name for protocol in request.protocols)
    if any(len(name) > MAX_NAME_LENGTH for name in names):
        return ErrorCode.INVALID_REQUEST
    if sum(len(protocol.metadata) for protocol in request.protocols) > settings.message_max_bytes:
        return ErrorCode.MESSAGE_TOO_LARGE
    return ErrorCode.NONE


class Join:
    """One JoinGroup request with what follows from it."""

    __slots__ = ("context", "now_ms", "protocols", "rebalance_timeout_ms", "request", "token")

    def __init__(
        self, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: float
    ) -> None:
        self.request = request
        self.context = context
        self.token = token
        self.now_ms = now_ms
        self.protocols: Protocols = tuple((p.name, bytes(p.metadata)) for p in request.protocols)
        self.rebalance_timeout_ms = (
            request.rebalance_timeout_ms if context.api_version >= 1 else request.session_timeout_ms
        )


def _kept_place(group: ClassicGroup, member: Member, api_version: int, old_leader: str) -> JoinGroupResponse:
    """The answer to a static member that takes its old place without a rebalance."""
    if api_version >= 9:
        is_leader = member.member_id == group.leader_id
        return generation_response(group, member.member_id, api_version, skip_assignment=is_leader)
    # Older clients cannot be told to skip the assignment: let a leader take itself for a follower.
    response = generation_response(group, member.member_id, api_version)
    response.leader = old_leader
    response.members = []
    return response
