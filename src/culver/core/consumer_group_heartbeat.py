"""ConsumerGroupHeartbeat: the one request of members whose group's broker assigns.

Versions 0-1. Epoch 0 joins, -1 leaves, -2 leaves for a while (static members). Since 1 the consumer makes its own
member id, and may subscribe with a pattern.
"""

from __future__ import annotations

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_member import (
    JOIN_EPOCH,
    LEAVE_EPOCH,
    LEAVE_FOR_A_WHILE_EPOCH,
    Member,
    MemberMetadata,
    MemberState,
    Owned,
    is_within,
)
from culver.core.consumer_group_migration import check_upgrade, upgrade
from culver.core.consumer_group_reconciliation import Reported
from culver.core.consumer_group_records import current_record
from culver.core.consumer_group_shard import ConsumerGroupShard
from culver.core.consumer_group_writes import Done, Draft
from culver.core.coordinator_effects import Effects, Reply, RequestContext, Token, append_error
from culver.core.group import GroupState
from culver.core.group_join import MAX_NAME_LENGTH
from culver.core.group_records import group_tombstone
from culver.core.patterns import check_pattern
from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.consumer_group_heartbeat import (
    Assignment,
    ConsumerGroupHeartbeatRequest,
    ConsumerGroupHeartbeatResponse,
    TopicPartitions,
)


class ConsumerHeartbeats:
    """Answers ConsumerGroupHeartbeat for the groups of one partition."""

    def __init__(self, shard: ConsumerGroupShard) -> None:
        self._shard = shard
        self._groups = shard.partition.consumer_groups.groups
        self._interval_ms = shard.settings.group_consumer_heartbeat_interval_ms

    def handle(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        token: Token,
        now_ms: float,
        out: Effects,
    ) -> None:
        """Answer at once when there is nothing new, which is nearly always; else once the change is durable. Hot."""
        group = self._groups.get(request.group_id)
        if group is not None and not self._shard.needs_refresh(group):
            member = group.members.get(request.member_id)
            if member is not None and self._nothing_new(request, context, group, member):
                self._shard.sessions.renew(group, member, now_ms)
                out.append(Reply(token, self._response(group, member)))
                return
        try:
            self._check(request, context.api_version)
        except KafkaError as refusal:
            out.append(Reply(token, heartbeat_error(refusal)))
            return
        if request.member_epoch < 0:
            self._leave(request, token, now_ms, out)
        else:
            self._submit(request, context, token, now_ms, out)

    def _nothing_new(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        group: ConsumerGroup,
        member: Member,
    ) -> bool:
        epoch = request.member_epoch
        current, metadata = member.current, member.metadata
        return (
            epoch > 0
            and epoch == current.epoch
            and epoch == group.assignment_epoch
            and epoch == group.epoch
            and (
                current.state is MemberState.STABLE
                or (current.state is MemberState.UNRELEASED_PARTITIONS and not group.can_get_more(member))
            )
            and request.rebalance_timeout_ms == -1
            and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None
            and request.server_assignor is None
            and request.rack_id is None
            and (request.instance_id is None or request.instance_id == metadata.instance_id)
            and metadata.classic is None
            and context.client_id == metadata.client_id
            and context.client_host == metadata.client_host
        )

    def _check(self, request: ConsumerGroupHeartbeatRequest, api_version: int) -> None:
        """Raise KafkaError for a request that makes no sense by itself."""
        epoch = request.member_epoch
        fault = None
        if not request.group_id.strip():
            fault = "the group id is empty"
        elif not request.member_id.strip() and (api_version >= 1 or epoch > 0 or epoch == LEAVE_EPOCH):
            fault = "the member id is missing"
        elif request.instance_id is not None and not request.instance_id.strip():
            fault = "the instance id is empty"
        elif request.rack_id is not None and not request.rack_id.strip():
            fault = "the rack is empty"
        elif epoch < LEAVE_FOR_A_WHILE_EPOCH:
            fault = f"there is no member epoch {epoch}"
        elif epoch == LEAVE_FOR_A_WHILE_EPOCH and request.instance_id is None:
            fault = "only static members leave for a while, and there is no instance id"
        elif request.rebalance_timeout_ms < (0 if epoch == JOIN_EPOCH else -1):
            fault = "a member that joins has to name its rebalance timeout"
        elif epoch == JOIN_EPOCH and (request.topic_partitions is None or request.topic_partitions):
            fault = "a member that joins must have no partitions"
        elif (
            epoch == JOIN_EPOCH
            and request.subscribed_topic_names is None
            and request.subscribed_topic_regex is None
        ):
            fault = "a member that joins has to say to what it subscribes"
        elif _is_too_large(request, self._shard.settings.message_max_bytes):
            fault = "a name or the list of topics is too long"
        if fault is not None:
            raise KafkaError(ErrorCode.INVALID_REQUEST, fault)
        known = self._shard.settings.group_consumer_assignors
        if request.server_assignor is not None and request.server_assignor not in known:
            raise KafkaError(
                ErrorCode.UNSUPPORTED_ASSIGNOR,
                f"there is no {request.server_assignor!r} here: {', '.join(known)}",
            )
        if request.subscribed_topic_regex:
            check_pattern(request.subscribed_topic_regex)

    # --- joining and going on ---

    def _submit(
        self,
        request: ConsumerGroupHeartbeatRequest,
        context: RequestContext,
        token: Token,
        now_ms: float,
        out: Effects,
    ) -> None:
        def step(draft: Draft, _now_ms: float) -> Done:
            try:
                return self._go_on(draft, request, context, token)
            except KafkaError as refusal:
                response = heartbeat_error(refusal)
                return lambda _now_ms, out: out.append(Reply(token, response))

        self._shard.change(
            request.group_id,
            step,
            lambda error: Reply(token, heartbeat_error(KafkaError(append_error(error)))),
            now_ms,
            out,
        )

    def _go_on(
        self, draft: Draft, request: ConsumerGroupHeartbeatRequest, context: RequestContext, token: Token
    ) -> Done:
        shard = self._shard
        joins = request.member_epoch == JOIN_EPOCH
        classic = draft.classic
        group = self._open(draft, request, joins=joins)
        member_id = request.member_id or shard.new_member_id()
        before = self._find(group, request, member_id, joins=joins)
        if before is not None and before.member_id != member_id:
            shard.progress.replace(draft, before, member_id)
        metadata = _updated(MemberMetadata() if before is None else before.metadata, request, context)
        refresh = shard.take_refresh(request.group_id)
        shard.progress.report(draft, member_id, metadata, _reported(request), refresh=refresh)
        tell_all = joins or (
            request.rebalance_timeout_ms != -1
            and (request.subscribed_topic_names is not None or request.subscribed_topic_regex is not None)
            and request.topic_partitions is not None
        )

        def done(now_ms: float, out: Effects) -> None:
            if classic is not None:
                shard.classic_group_gone(classic, now_ms, out)
            response = self._after(request.group_id, member_id, before, now_ms, tell_all=tell_all)
            out.append(Reply(token, response))

        return done

    def _after(
        self, group_id: str, member_id: str, before: Member | None, now_ms: float, *, tell_all: bool
    ) -> ConsumerGroupHeartbeatResponse:
        """A member's report, and what follows from it, is durable."""
        group = self._groups.get(group_id)
        member = None if group is None else group.members.get(member_id)
        if group is None or member is None:
            # Someone has removed it in the same moment.
            return heartbeat_error(KafkaError(ErrorCode.UNKNOWN_MEMBER_ID))
        if before is None or member.current != before.current:
            self._shard.sessions.settle(group, member_id, now_ms)
        else:
            self._shard.sessions.renew(group, member, now_ms)
        assigned = member.current.assigned
        is_new = tell_all or before is None or assigned != before.current.assigned
        return self._response(group, member, assigned if is_new else None)

    def _open(self, draft: Draft, request: ConsumerGroupHeartbeatRequest, *, joins: bool) -> ConsumerGroup:
        """The group that is meant; made, or made of a classic one, for a member that joins."""
        settings = self._shard.settings
        group, classic = draft.group, draft.classic
        count = len(group.members if group is not None else classic.members if classic is not None else ())
        # A static member that comes back takes its own place.
        known = group is not None and (
            request.member_id in group.members or request.instance_id in group.static_members
        )
        if group is None and not joins:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id}")
        if classic is not None and classic.members:
            check_upgrade(classic, settings)
        if count >= settings.group_consumer_max_size and not known:
            raise KafkaError(
                ErrorCode.GROUP_MAX_SIZE_REACHED, f"the group has {count} members, and no more are allowed"
            )
        if group is not None:
            return group
        if classic is None:
            return draft.begin()
        if classic.state is GroupState.EMPTY and not classic.members:
            group = draft.begin()
            if classic.saved is not None:
                draft.write_other([group_tombstone(classic.group_id)])
            return group
        group = upgrade(draft, classic, self._shard.topics)
        self._shard.freeze(classic)
        return group

    def _find(
        self, group: ConsumerGroup, request: ConsumerGroupHeartbeatRequest, member_id: str, *, joins: bool
    ) -> Member | None:
        """Who the member was so far; None for a new one. Raises KafkaError for one that may not go on."""
        instance_id = request.instance_id
        if instance_id is None:
            member = group.members.get(member_id)
            if member is None and not joins:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{member_id} is not in the group")
        else:
            member = group.static_member(instance_id)
            if joins:
                if member is not None and member.member_id != member_id:
                    _check_released(member, instance_id)
                return member
            _check_owner(member, member_id, instance_id)
        if member is not None:
            _check_epoch(member, request)
        return member

    # --- leaving ---

    def _leave(
        self, request: ConsumerGroupHeartbeatRequest, token: Token, now_ms: float, out: Effects
    ) -> None:
        response = ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=request.member_id,
            member_epoch=request.member_epoch,
            heartbeat_interval_ms=0,
        )
        answer = Reply(token, response)

        def step(draft: Draft, _now_ms: float) -> Done:
            try:
                member = self._leaving(draft.group, request)
            except KafkaError as refusal:
                refused = Reply(token, heartbeat_error(refusal))
                return lambda _now_ms, out: out.append(refused)
            if request.member_epoch == LEAVE_FOR_A_WHILE_EPOCH:
                current = member.current._replace(epoch=LEAVE_FOR_A_WHILE_EPOCH, revoking={})
                draft.write(current_record(request.group_id, member.member_id, current))
                return lambda _now_ms, out: out.append(answer)
            return self._shard.remove(draft, [member.member_id], lambda _now_ms, out: out.append(answer))

        self._shard.change(
            request.group_id,
            step,
            lambda error: Reply(token, heartbeat_error(KafkaError(append_error(error)))),
            now_ms,
            out,
        )

    def _leaving(self, group: ConsumerGroup | None, request: ConsumerGroupHeartbeatRequest) -> Member:
        if group is None:
            raise KafkaError(ErrorCode.GROUP_ID_NOT_FOUND, f"there is no consumer group {request.group_id}")
        if request.instance_id is None:
            member = group.members.get(request.member_id)
            if member is None:
                raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"{request.member_id} is not in the group")
            return member
        return _check_owner(group.static_member(request.instance_id), request.member_id, request.instance_id)

    def _response(
        self, group: ConsumerGroup, member: Member, assigned: Owned | None = None
    ) -> ConsumerGroupHeartbeatResponse:
        """Hot when there is nothing to assign."""
        interval_ms = self._interval_ms
        if member.current.state is MemberState.UNRELEASED_PARTITIONS:
            # Others are giving up what this member is to get. It is told to ask more often meanwhile, so that the
            # partitions do not lie idle for a whole interval; in a large group not too often.
            interval_ms = min(interval_ms, max(interval_ms // 10, len(group.members)))
        assignment = None
        if assigned is not None:
            assignment = Assignment(
                topic_partitions=[
                    TopicPartitions(topic_id=topic, partitions=sorted(epochs))
                    for topic, epochs in sorted(assigned.items())
                ]
            )
        return ConsumerGroupHeartbeatResponse(
            error_code=ErrorCode.NONE,
            member_id=member.member_id,
            member_epoch=member.current.epoch,
            heartbeat_interval_ms=interval_ms,
            assignment=assignment,
        )


def heartbeat_error(error: KafkaError) -> ConsumerGroupHeartbeatResponse:
    """A heartbeat that was refused."""
    return ConsumerGroupHeartbeatResponse(
        error_code=error.code, error_message=error.message, member_epoch=0, heartbeat_interval_ms=0
    )


def _updated(
    metadata: MemberMetadata, request: ConsumerGroupHeartbeatRequest, context: RequestContext
) -> MemberMetadata:
    """What the member says of itself now: what it leaves out has not changed."""
    topics, pattern = metadata.topics, metadata.pattern
    if request.subscribed_topic_names is not None:
        topics = tuple(sorted(set(request.subscribed_topic_names)))
    if request.subscribed_topic_regex is not None:
        pattern = request.subscribed_topic_regex or None
    if request.member_epoch == JOIN_EPOCH:
        # Whoever joins says everything.
        topics = topics if request.subscribed_topic_names is not None else ()
        pattern = pattern if request.subscribed_topic_regex is not None else None
    return MemberMetadata(
        request.instance_id if request.instance_id is not None else metadata.instance_id,
        request.rack_id if request.rack_id is not None else metadata.rack_id,
        context.client_id,
        context.client_host,
        topics,
        pattern,
        request.rebalance_timeout_ms if request.rebalance_timeout_ms != -1 else metadata.rebalance_timeout_ms,
        request.server_assignor if request.server_assignor is not None else metadata.assignor,
        None,
    )


def _reported(request: ConsumerGroupHeartbeatRequest) -> Reported:
    if request.topic_partitions is None:
        return None
    return [(item.topic_id, item.partitions) for item in request.topic_partitions]


def _check_epoch(member: Member, request: ConsumerGroupHeartbeatRequest) -> None:
    epoch, current, reported = request.member_epoch, member.current, _reported(request)
    # It may not have seen the last answer; then it has no more than it had before.
    missed_one = epoch == current.previous_epoch and is_within(reported, current.assigned)
    starts_over = current.state is not MemberState.UNKNOWN or reported == []
    if starts_over and (epoch in (JOIN_EPOCH, current.epoch) or missed_one):
        return
    raise KafkaError(
        ErrorCode.FENCED_MEMBER_EPOCH,
        f"the member is in epoch {current.epoch}, not {epoch}: it has to give up all its partitions and join again",
    )


def _check_released(member: Member, instance_id: str) -> None:
    """A static member is replaced when it has left for a while, or spoke the classic protocol."""
    if member.metadata.classic is None and member.current.epoch != LEAVE_FOR_A_WHILE_EPOCH:
        raise KafkaError(
            ErrorCode.UNRELEASED_INSTANCE_ID, f"the instance id {instance_id} belongs to {member.member_id}"
        )


def _check_owner(member: Member | None, member_id: str, instance_id: str) -> Member:
    if member is None:
        raise KafkaError(ErrorCode.UNKNOWN_MEMBER_ID, f"no member has the instance id {instance_id}")
    if member.member_id != member_id:
        raise KafkaError(
            ErrorCode.FENCED_INSTANCE_ID, f"the instance id {instance_id} belongs to {member.member_id}"
        )
    return member


def _is_too_large(request: ConsumerGroupHeartbeatRequest, max_bytes: int) -> bool:
    """Whether what the member says of itself may not fit into a record. A character has up to 4 bytes."""
    texts = (request.member_id, request.instance_id or "", request.rack_id or "")
    topics = request.subscribed_topic_names or ()
    return (
        any(len(text) > MAX_NAME_LENGTH for text in texts)
        or any(len(topic) > MAX_NAME_LENGTH for topic in topics)
        or sum(len(topic) + 1 for topic in topics) * 4 > max_bytes - 16 * MAX_NAME_LENGTH
    )
