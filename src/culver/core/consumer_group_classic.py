"""JoinGroup, SyncGroup, Heartbeat and LeaveGroup of members that speak the classic protocol in a consumer group.

There is no leader among them and no join phase: each joins by itself, gets its epoch as the generation, and asks for
what the broker has assigned. A member that has to give something up, or could get more, is told so by its heartbeat
(REBALANCE_IN_PROGRESS) and joins again, and says then what it has.
"""

from __future__ import annotations

from collections.abc import Callable

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_member import ClassicSide, Member, MemberMetadata, MemberState
from culver.core.consumer_group_migration import (
    by_topic_id,
    can_downgrade,
    decode_subscription,
    encode_assignment,
)
from culver.core.consumer_group_shard import ConsumerGroupShard
from culver.core.consumer_group_writes import Done, Draft
from culver.core.coordinator_effects import Effects, Reply, RequestContext, Token, append_error
from culver.core.group import CONSUMER_PROTOCOL_TYPE
from culver.core.group_join import MAX_NAME_LENGTH, check_join
from culver.core.group_rebalance import NO_MEMBER_ID, join_error, sync_error
from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupResponse
from culver.protocol.messages.leave_group import (
    LeaveGroupRequest,
    LeaveGroupResponse,
    MemberIdentity,
    MemberResponse,
)
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupResponse


class ClassicRequests:
    """Answers requests of the classic protocol for the consumer groups of one partition."""

    def __init__(self, shard: ConsumerGroupShard, new_member_id: Callable[[str], str]) -> None:
        self._shard = shard
        self._groups = shard.partition.consumer_groups.groups
        self._new_member_id = new_member_id

    # --- JoinGroup ---

    def join(
        self,
        request: JoinGroupRequest,
        context: RequestContext,
        token: Token,
        again: Done,
        now_ms: float,
        out: Effects,
    ) -> None:
        """Let a member in. `again` handles the request anew, should the group turn into a classic one."""
        shard = self._shard

        def step(draft: Draft, _now_ms: float) -> Done:
            if draft.group is None:
                draft.is_last = True
                return again
            if not draft.group.members and request.member_id == NO_MEMBER_ID:
                # Nobody speaks the consumer protocol here: a classic member makes it a classic group.
                shard.progress.erase(draft)
                return again
            try:
                if not draft.group.members:
                    raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
                return self._join(draft, draft.group, request, context, token, again)
            except KafkaError as refusal:
                response = Reply(token, join_error(NO_MEMBER_ID, refusal.code))
                return lambda _now_ms, out: out.append(response)

        shard.change(
            request.group_id,
            step,
            lambda error: Reply(token, join_error(request.member_id, append_error(error))),
            now_ms,
            out,
        )

    def _join(
        self,
        draft: Draft,
        group: ConsumerGroup,
        request: JoinGroupRequest,
        context: RequestContext,
        token: Token,
        again: Done,
    ) -> Done:
        shard = self._shard
        settings = shard.settings
        instance_id = request.group_instance_id
        fault = check_join(request, settings)
        if fault is not ErrorCode.NONE:
            raise KafkaError(fault)
        if settings.group_consumer_migration_policy == "disabled":
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        if len(group.members) >= settings.group_consumer_max_size and request.member_id not in group.members:
            raise KafkaError(ErrorCode.GROUP_MAX_SIZE_REACHED)
        if not group.supports_classic_protocols(request.protocol_type, (p.name for p in request.protocols)):
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
        stem = context.client_id if instance_id is None else instance_id
        member_id = request.member_id or self._new_member_id(stem[:MAX_NAME_LENGTH])
        if request.member_id == NO_MEMBER_ID and instance_id is None and context.api_version >= 4:
            response = Reply(token, join_error(member_id, ErrorCode.MEMBER_ID_REQUIRED))
            return lambda _now_ms, out: out.append(response)
        before = self._joining(group, member_id, request)
        metadata = self._metadata(request, context)
        if before is not None and before.member_id != member_id:
            if before.metadata.classic is None and can_downgrade(group, [before.member_id], settings):
                # It is the last that spoke the consumer protocol, and comes back with the classic one.
                return shard.remove(draft, [before.member_id], again)
            shard.progress.replace(draft, before, member_id)
        subscription = decode_subscription(request.protocols[0].metadata)
        owned = by_topic_id(subscription.owned_partitions, shard.topics)
        reported = [(topic, sorted(indexes)) for topic, indexes in owned.items()]
        refresh = shard.take_refresh(request.group_id)
        shard.progress.report(draft, member_id, metadata, reported, refresh=refresh)

        def done(now_ms: float, out: Effects) -> None:
            hard = self._groups.get(request.group_id)
            member = None if hard is None else hard.members.get(member_id)
            if hard is None or member is None:
                # It was removed, or the group became a classic one, in the same moment.
                out.append(Reply(token, join_error(member_id, ErrorCode.REBALANCE_IN_PROGRESS)))
                return
            shard.sessions.settle(hard, member_id, now_ms)
            shard.sessions.joined(hard, member, now_ms)
            response = JoinGroupResponse(
                error_code=ErrorCode.NONE,
                generation_id=member.current.epoch,
                protocol_type=CONSUMER_PROTOCOL_TYPE,
                protocol_name=request.protocols[0].name,
                leader="",
                member_id=member_id,
                members=[],
            )
            out.append(Reply(token, response))

        return done

    def _joining(self, group: ConsumerGroup, member_id: str, request: JoinGroupRequest) -> Member | None:
        """Who the member was so far; None for a new one."""
        if request.group_instance_id is None:
            return group.members.get(member_id)
        member = group.static_member(request.group_instance_id)
        if request.member_id != NO_MEMBER_ID:
            if member is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
            if member.member_id != request.member_id:
                raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        return member

    def _metadata(self, request: JoinGroupRequest, context: RequestContext) -> MemberMetadata:
        try:
            subscription = decode_subscription(request.protocols[0].metadata)
        except MalformedRequest as error:
            raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL) from error
        rebalance_timeout_ms = (
            request.rebalance_timeout_ms if context.api_version >= 1 else request.session_timeout_ms
        )
        return MemberMetadata(
            request.group_instance_id,
            subscription.rack_id or None,
            context.client_id,
            context.client_host,
            tuple(sorted(set(subscription.topics))),
            None,
            rebalance_timeout_ms,
            None,
            ClassicSide(
                request.session_timeout_ms,
                tuple((protocol.name, bytes(protocol.metadata)) for protocol in request.protocols),
            ),
        )

    # --- SyncGroup ---

    def sync(self, group: ConsumerGroup, request: SyncGroupRequest, now_ms: float) -> SyncGroupResponse:
        """What the member has been assigned; that is known already."""
        try:
            member = _member(group, request.member_id, request.group_instance_id)
            side = _side(member)
            if member.current.epoch != request.generation_id:
                raise KafkaError(ErrorCode.ILLEGAL_GENERATION)
            name, subscription = side.protocols[0]
            if request.protocol_type not in (None, CONSUMER_PROTOCOL_TYPE) or request.protocol_name not in (
                None,
                name,
            ):
                raise KafkaError(ErrorCode.INCONSISTENT_GROUP_PROTOCOL)
            if (
                group.epoch > member.current.epoch
                and member.current.state is not MemberState.UNREVOKED_PARTITIONS
            ):
                self._shard.sessions.told_to_join(group, member, now_ms)
                raise KafkaError(ErrorCode.REBALANCE_IN_PROGRESS)
        except KafkaError as refusal:
            return sync_error(refusal.code)
        self._shard.sessions.synced(group, member, now_ms)
        assigned = {topic: frozenset(epochs) for topic, epochs in member.current.assigned.items()}
        return SyncGroupResponse(
            error_code=ErrorCode.NONE,
            protocol_type=request.protocol_type,
            protocol_name=request.protocol_name,
            assignment=encode_assignment(assigned, subscription, self._shard.topics),
        )

    # --- Heartbeat ---

    def heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: float) -> ErrorCode:
        """Renew a session; whoever has to join again hears so."""
        try:
            member = _member(group, request.member_id, request.group_instance_id)
            _side(member)
        except KafkaError as refusal:
            return refusal.code
        current = member.current
        if current.epoch != request.generation_id:
            return ErrorCode.ILLEGAL_GENERATION
        self._shard.sessions.renew(group, member, now_ms)
        if (
            current.epoch < group.epoch
            or current.state is MemberState.UNREVOKED_PARTITIONS
            or self._shard.needs_refresh(group)
            or (current.state is MemberState.UNRELEASED_PARTITIONS and not group.waits_for_others(member))
        ):
            self._shard.sessions.told_to_join(group, member, now_ms)
            return ErrorCode.REBALANCE_IN_PROGRESS
        return ErrorCode.NONE

    # --- LeaveGroup ---

    def leave(
        self,
        request: LeaveGroupRequest,
        context: RequestContext,
        token: Token,
        again: Done,
        now_ms: float,
        out: Effects,
    ) -> None:
        """Let members go; an administrator's request may name any of them."""
        if context.api_version >= 3:
            identities = request.members
        else:
            identities = [MemberIdentity(member_id=request.member_id)]

        def step(draft: Draft, _now_ms: float) -> Done:
            if draft.group is None:
                draft.is_last = True
                return again
            answers = []
            leaving: dict[str, None] = {}
            for identity in identities:
                code = ErrorCode.NONE
                try:
                    leaving[_leaving(draft.group, identity).member_id] = None
                except KafkaError as refusal:
                    code = refusal.code
                answers.append(
                    MemberResponse(
                        member_id=identity.member_id,
                        group_instance_id=identity.group_instance_id,
                        error_code=code,
                    )
                )
            if context.api_version >= 3:
                response = LeaveGroupResponse(error_code=ErrorCode.NONE, members=answers)
            else:
                response = LeaveGroupResponse(error_code=answers[0].error_code)

            def done(_now_ms: float, out: Effects) -> None:
                out.append(Reply(token, response))

            return self._shard.remove(draft, leaving, done) if leaving else done

        self._shard.change(
            request.group_id,
            step,
            lambda error: Reply(token, LeaveGroupResponse(error_code=append_error(error))),
            now_ms,
            out,
        )


def _member(group: ConsumerGroup, member_id: str, instance_id: str | None) -> Member:
    if instance_id is not None:
        owner = group.static_member(instance_id)
        if owner is not None and owner.member_id != member_id:
            raise KafkaError(ErrorCode.FENCED_INSTANCE_ID)
        if owner is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    member = group.members.get(member_id)
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
    return member


def _side(member: Member) -> ClassicSide:
    if member.metadata.classic is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, "the member does not speak the classic protocol")
    return member.metadata.classic


def _leaving(group: ConsumerGroup, identity: MemberIdentity) -> Member:
    if identity.member_id == NO_MEMBER_ID and identity.group_instance_id is not None:
        member = group.static_member(identity.group_instance_id)
        if member is None:
            raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID)
        return member
    return _member(group, identity.member_id, identity.group_instance_id)
