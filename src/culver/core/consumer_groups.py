"""The door to the consumer groups of one partition: which requests are theirs, and who answers them."""

from __future__ import annotations

from collections.abc import Callable

from culver.core.consumer_group import ConsumerGroup
from culver.core.consumer_group_classic import ClassicRequests
from culver.core.consumer_group_describe import consumer_group_error, describe_consumer_group
from culver.core.consumer_group_heartbeat import ConsumerHeartbeats
from culver.core.consumer_group_shard import ConsumerGroupShard
from culver.core.consumer_group_writes import Done
from culver.core.coordinator_effects import Effects, Reply, RequestContext, Token, append_error
from culver.core.group_rebalance import Rebalance, sync_error
from culver.core.group_settings import Topics
from culver.errors import ErrorCode
from culver.protocol.messages.consumer_group_describe import DescribedGroup
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest
from culver.protocol.messages.leave_group import LeaveGroupRequest
from culver.protocol.messages.sync_group import SyncGroupRequest


class ConsumerGroups:
    """Everything that consumer groups do in one partition.

    A group may become a classic one while a classic member's request waits; `again` then handles it as such.
    """

    def __init__(self, rebalance: Rebalance, topics: Topics, new_member_id: Callable[[str], str]) -> None:
        self.shard = ConsumerGroupShard(rebalance, topics, new_member_id)
        self.writes = self.shard.writes
        self.progress = self.shard.progress
        self.heartbeats = ConsumerHeartbeats(self.shard)
        self._classic = ClassicRequests(self.shard, new_member_id)
        self._groups = self.shard.partition.consumer_groups.groups

    def has(self, group_id: str) -> bool:
        """Whether there is a consumer group under this id, or may be one in a moment."""
        return group_id in self._groups or self.writes.is_busy(group_id)

    def join(
        self,
        request: JoinGroupRequest,
        context: RequestContext,
        token: Token,
        again: Done,
        now_ms: float,
        out: Effects,
    ) -> None:
        self._classic.join(request, context, token, again, now_ms, out)

    def sync(self, request: SyncGroupRequest, token: Token, again: Done, now_ms: float, out: Effects) -> None:
        def go_on(now_ms: float, out: Effects) -> None:
            group = self._groups.get(request.group_id)
            if group is None:
                again(now_ms, out)
            else:
                out.append(Reply(token, self._classic.sync(group, request, now_ms)))

        def failed(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            out.append(Reply(token, sync_error(append_error(error))))

        if request.group_id in self._groups:
            go_on(now_ms, out)
        else:
            self.writes.when_idle(request.group_id, go_on, failed, now_ms, out)

    def classic_heartbeat(self, group: ConsumerGroup, request: HeartbeatRequest, now_ms: float) -> ErrorCode:
        return self._classic.heartbeat(group, request, now_ms)

    def leave(
        self,
        request: LeaveGroupRequest,
        context: RequestContext,
        token: Token,
        again: Done,
        now_ms: float,
        out: Effects,
    ) -> None:
        self._classic.leave(request, context, token, again, now_ms, out)

    def describe(self, group_id: str) -> DescribedGroup:
        group = self._groups.get(group_id)
        if group is None:
            reason = f"there is no consumer group {group_id}"
            return consumer_group_error(group_id, ErrorCode.GROUP_ID_NOT_FOUND, reason)
        return describe_consumer_group(group, self.progress.assignor_of(group), self.shard.topics)
