"""The group coordinator: every group of every partition of the offsets topic that this broker leads.

It does no I/O. A handler takes a request and returns effects: replies to send, records to append. Time comes
in as `now_ms`, a clock that never goes back; timestamps that outlive the process come from the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial

from culver.core import authorized_operations
from culver.core.consumer_group_describe import consumer_group_error
from culver.core.consumer_group_heartbeat import heartbeat_error
from culver.core.consumer_groups import ConsumerGroups
from culver.core.coordinator_effects import (
    Append,
    Effects,
    Finish,
    Marker,
    Reply,
    RequestContext,
    Token,
)
from culver.core.coordinator_partitions import PartitionsByName
from culver.core.coordinator_timers import Timer, TimerQueue
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_admin import describe_error, describe_group, list_groups
from culver.core.group_join import JoinRequests
from culver.core.group_membership import MemberRequests
from culver.core.group_offset_expiry import OffsetExpiry
from culver.core.group_offset_fetch import fetch_offsets
from culver.core.group_offsets import OffsetRequests, commit_error, txn_commit_error
from culver.core.group_parking import ParkedRequests
from culver.core.group_partition import NO_PRODUCER, GroupPartition
from culver.core.group_rebalance import Rebalance, join_error, sync_error
from culver.core.group_records import decode_change, decode_group_value
from culver.core.group_removal import GroupRemoval, delete_groups
from culver.core.group_settings import GroupSettings, Topics
from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.messages.consumer_group_describe import (
    ConsumerGroupDescribeRequest,
    ConsumerGroupDescribeResponse,
)
from culver.protocol.messages.consumer_group_heartbeat import ConsumerGroupHeartbeatRequest
from culver.protocol.messages.delete_groups import DeleteGroupsRequest, DeleteGroupsResponse
from culver.protocol.messages.describe_groups import DescribeGroupsRequest, DescribeGroupsResponse
from culver.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from culver.protocol.messages.join_group import JoinGroupRequest
from culver.protocol.messages.leave_group import LeaveGroupRequest, LeaveGroupResponse
from culver.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from culver.protocol.messages.offset_commit import OffsetCommitRequest
from culver.protocol.messages.offset_delete import OffsetDeleteRequest, OffsetDeleteResponse
from culver.protocol.messages.offset_fetch import OffsetFetchRequest, OffsetFetchResponse
from culver.protocol.messages.sync_group import SyncGroupRequest
from culver.protocol.messages.txn_offset_commit import TxnOffsetCommitRequest

# A group id goes into record keys with a 16-bit length.
_MAX_GROUP_ID_BYTES = 32_767


class _Shard:
    """One partition with everything that works on it."""

    def __init__(self, coordinator: GroupCoordinator, number: int) -> None:
        self.partition = GroupPartition(number)
        self.rebalance = Rebalance(
            self.partition,
            coordinator.settings,
            coordinator.timers,
            coordinator.parked,
            coordinator.wall_clock_ms,
        )
        self.joins = JoinRequests(self.rebalance, coordinator.new_member_id)
        self.members = MemberRequests(self.rebalance)
        self.offsets = OffsetRequests(self.rebalance, coordinator.topics)
        self.consumers = ConsumerGroups(self.rebalance, coordinator.topics, coordinator.new_member_id)
        self.removal = GroupRemoval(self.partition, self.consumers.writes, self.consumers.progress.erase)
        self.offset_expiry = OffsetExpiry(
            self.partition, coordinator.settings, coordinator.wall_clock_ms, self.removal.remove_unused
        )
        self.expiry_timer = Timer()


class GroupCoordinator:
    """Answers the requests of groups, of both kinds.

    Partitions come and go: `load_begin`, `replay` for each record in its log, `load_done`; `unload` when
    another broker takes over. While a partition loads, requests for its groups hear
    COORDINATOR_LOAD_IN_PROGRESS; without it, NOT_COORDINATOR.

    `new_member_id(stem)` makes an id that no one else has, starting with the stem.
    """

    def __init__(
        self,
        settings: GroupSettings,
        topics: Topics,
        new_member_id: Callable[[str], str],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.topics = topics
        self.new_member_id = new_member_id
        self.wall_clock_ms = wall_clock_ms
        self.timers = TimerQueue()
        self.parked = ParkedRequests()
        self._shards: dict[int, _Shard] = {}
        # The partition of the offsets topic that holds a group.
        self.partition_for = PartitionsByName(settings.offsets_topic_num_partitions)

    # --- partitions ---

    def load_begin(self, partition: int) -> None:
        """This broker now leads the partition and is about to read its log."""
        assert partition not in self._shards, f"partition {partition} is loaded already"
        self._shards[partition] = _Shard(self, partition)

    def replay(self, partition: int, key: bytes, value: bytes | None, producer_id: int = NO_PRODUCER) -> None:
        """One record of a partition that is being loaded, with the producer if it is part of a transaction.

        Raises MalformedRequest if it cannot be read.
        """
        shard = self._shards[partition]
        assert shard.partition.loading
        change = decode_change(key, value)
        if change is not None:
            shard.partition.replay(change, producer_id)

    def replay_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """The end of a transaction in a partition that is being loaded."""
        shard = self._shards[partition]
        assert shard.partition.loading
        shard.partition.replay_marker(producer_id, committed)

    def load_done(self, partition: int, now_ms: float) -> Effects:
        """The whole log has been replayed: its groups are open for requests, their sessions start anew."""
        out: Effects = []
        shard = self._shards[partition]
        state = shard.partition
        state.loading = False
        for group in list(state.groups.values()):
            if group.saved is None:
                state.forget_group(group.group_id)
                continue
            try:
                saved = decode_group_value(group.saved)
            except MalformedRequest:
                state.unreadable_groups.append(group.group_id)
                continue
            group.restore(saved)
            for member in group.members.values():
                shard.rebalance.renew_session(group, member, now_ms)
            if len(group.members) > self.settings.group_max_size or group.needs_rebalance:
                shard.rebalance.prepare(group, now_ms, out)
        shard.consumers.shard.load_done(now_ms)
        interval_ms = self.settings.offsets_retention_check_interval_ms
        # The partitions take turns, so that no check holds up everyone for long.
        turn = (partition + 1) / self.settings.offsets_topic_num_partitions
        self.timers.schedule(
            shard.expiry_timer, now_ms + interval_ms * min(turn, 1.0), partial(self._expire_offsets, shard)
        )
        return out

    def unload(self, partition: int, now_ms: float) -> Effects:
        """Another broker leads the partition now: let everyone who waits look for it there."""
        out: Effects = []
        shard = self._shards.pop(partition, None)
        if shard is None:
            return out
        error = ErrorCode.NOT_COORDINATOR
        shard.expiry_timer.cancel()
        shard.partition.closed = True
        for group in shard.partition.groups.values():
            group.transition_to(GroupState.DEAD, self.wall_clock_ms())
            group.cancel_timers()
            for member in group.members.values():
                shard.rebalance.answer_join(group, member, join_error(member.member_id, error), out)
                shard.rebalance.answer_sync(member, sync_error(error), out)
        shard.consumers.shard.unload()
        for append in list(shard.partition.in_flight):
            append.finish(error, now_ms, out)
        shard.partition.in_flight.clear()
        return out

    # --- the caller's reports ---

    def append_done(self, append: Append, error: ErrorCode, now_ms: float) -> Effects:
        """The records of `append` are durable (`error` is NONE), or could not be written.

        Or they were written, but it was not seen in time that they are durable: then nobody is told so, and they
        count as soon as a later append to the partition is durable, for the log keeps its order.
        """
        out: Effects = []
        shard = self._shards.get(append.partition)
        if shard is None or append not in shard.partition.in_flight:
            # The partition has been unloaded since, and everyone who waited has been told.
            return out
        shard.partition.append_ended(append, error)
        append.finish(error, now_ms, out)
        return out

    def write_marker(self, partition: int, marker: Marker, finish: Finish) -> Effects:
        """End a producer's transaction in a partition; `finish` hears how it went, once it is durable or refused.

        The errors are those of a partition: whoever asks does not look for a coordinator.
        """
        out: Effects = []

        def finish_marker(error: ErrorCode, now_ms: float, out: Effects) -> None:
            if error is ErrorCode.NOT_COORDINATOR:
                error = ErrorCode.NOT_LEADER_OR_FOLLOWER
            finish(error, now_ms, out)

        shard = self._shards.get(partition)
        if shard is None or shard.partition.loading:
            finish(ErrorCode.NOT_LEADER_OR_FOLLOWER, 0.0, out)
        else:
            shard.partition.append([], finish_marker, out, marker=marker)
        return out

    def cancel(self, token: Token) -> None:
        """The client of a parked request is gone; no reply will come for it."""
        self.parked.cancel(token)

    def next_deadline_ms(self) -> float | None:
        """When `expire` wants to be called next, or None if nothing is due ever."""
        return self.timers.next_deadline_ms()

    def expire(self, now_ms: float) -> Effects:
        """Do what is due: end sessions and rebalances, remove old offsets."""
        out: Effects = []
        self.timers.expire(now_ms, out)
        return out

    def on_topics_deleted(self, names: Iterable[str], now_ms: float) -> Effects:
        """Topics are gone: their committed offsets go too."""
        out: Effects = []
        names = list(names)
        for shard in self._shards.values():
            if not shard.partition.loading:
                shard.offset_expiry.topics_deleted(names, now_ms, out)
        return out

    def on_topics_changed(self, names: Iterable[str]) -> None:
        """Topics have come, gone, or have more partitions: consumer groups that read them will look."""
        names = set(names)
        for shard in self._shards.values():
            shard.consumers.shard.topics_changed(names)

    def group(self, group_id: str) -> ClassicGroup | None:
        """A group as it is now, to look at."""
        shard = self._shards.get(self.partition_for(group_id))
        return None if shard is None else shard.partition.groups.get(group_id)

    def partition(self, number: int) -> GroupPartition | None:
        """A loaded (or loading) partition, to look at."""
        shard = self._shards.get(number)
        return None if shard is None else shard.partition

    # --- requests of members ---

    def handle_join_group(
        self, request: JoinGroupRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        shard, error = self._find(request.group_id, needs_name=True)
        if shard is None:
            out.append(Reply(token, join_error(request.member_id, error)))
        else:
            join = partial(shard.joins.handle, request, context, token)
            if shard.consumers.has(request.group_id):
                shard.consumers.join(request, context, token, join, now_ms, out)
            else:
                join(now_ms, out)
        return out

    def handle_sync_group(
        self, request: SyncGroupRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        shard, error = self._find(request.group_id, needs_name=True)
        if shard is None:
            out.append(Reply(token, sync_error(error)))
        else:
            sync = partial(shard.members.sync, request, context, token)
            if shard.consumers.has(request.group_id):
                shard.consumers.sync(request, token, sync, now_ms, out)
            else:
                sync(now_ms, out)
        return out

    def handle_heartbeat(
        self, request: HeartbeatRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        """Hot."""
        shard = self._shards.get(self.partition_for(request.group_id))
        if shard is not None and not shard.partition.loading and request.group_id:
            group = shard.partition.consumer_groups.get(request.group_id)
            if group is None:
                error = shard.members.heartbeat(request, now_ms)
            else:
                error = shard.consumers.classic_heartbeat(group, request, now_ms)
        else:
            _, error = self._find(request.group_id, needs_name=True)
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS:
                # The session will start anew when the group is there; nothing for the member to do.
                error = ErrorCode.NONE
        return [Reply(token, HeartbeatResponse(error_code=error))]

    def handle_leave_group(
        self, request: LeaveGroupRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        shard, error = self._find(request.group_id, needs_name=True)
        if shard is None:
            out.append(Reply(token, LeaveGroupResponse(error_code=error)))
        else:
            leave = partial(shard.members.leave, request, context, token)
            if shard.consumers.has(request.group_id):
                shard.consumers.leave(request, context, token, leave, now_ms, out)
            else:
                leave(now_ms, out)
        return out

    def handle_consumer_group_heartbeat(
        self, request: ConsumerGroupHeartbeatRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        """Hot."""
        out: Effects = []
        shard = self._shards.get(self.partition_for(request.group_id))
        if shard is not None and not shard.partition.loading and request.group_id:
            shard.consumers.heartbeats.handle(request, context, token, now_ms, out)
        else:
            _, error = self._find(request.group_id, needs_name=True)
            if error is ErrorCode.INVALID_GROUP_ID:
                error = ErrorCode.INVALID_REQUEST
            out.append(Reply(token, heartbeat_error(KafkaError(error))))
        return out

    # --- offsets ---

    def handle_offset_commit(
        self, request: OffsetCommitRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        """Hot."""
        out: Effects = []
        shard, error = self._find(request.group_id)
        if shard is None:
            out.append(Reply(token, commit_error(request, error)))
        else:
            shard.offsets.commit(request, context, token, now_ms, out)
        return out

    def handle_txn_offset_commit(
        self, request: TxnOffsetCommitRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        shard, error = self._find(request.group_id, needs_name=True)
        if shard is None:
            if error is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS and context.api_version < 2:
                # Producers of that time take it for final.
                error = ErrorCode.COORDINATOR_NOT_AVAILABLE
            out.append(Reply(token, txn_commit_error(request, error)))
        else:
            shard.offsets.commit_in_transaction(request, context.api_version, token, out)
        return out

    def handle_offset_fetch(
        self, request: OffsetFetchRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []

        def find(group_id: str) -> tuple[GroupPartition | None, ErrorCode]:
            shard, error = self._find(group_id)
            return None if shard is None else shard.partition, error

        def done(response: OffsetFetchResponse, out: Effects) -> None:
            out.append(Reply(token, response))

        fetch_offsets(request, context.api_version, self.topics, find, done, now_ms, out)
        return out

    def handle_offset_delete(
        self, request: OffsetDeleteRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        shard, error = self._find(request.group_id, needs_name=True)
        if shard is None:
            out.append(Reply(token, OffsetDeleteResponse(error_code=error, topics=[])))
        else:
            shard.offsets.delete(request, token, now_ms, out)
        return out

    # --- administration ---

    def handle_describe_groups(
        self, request: DescribeGroupsRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        groups = []
        for group_id in request.groups:
            shard, error = self._find(group_id)
            if shard is None:
                groups.append(describe_error(group_id, error))
            else:
                group = shard.partition.groups.get(group_id)
                described = describe_group(group, group_id, context.api_version)
                if group is not None and request.include_authorized_operations:
                    described.authorized_operations = authorized_operations.ON_GROUP
                groups.append(described)
        return [Reply(token, DescribeGroupsResponse(groups=groups))]

    def handle_consumer_group_describe(
        self, request: ConsumerGroupDescribeRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        groups = []
        for group_id in request.group_ids:
            shard, error = self._find(group_id, needs_name=True)
            if shard is None:
                groups.append(consumer_group_error(group_id, error))
            else:
                described = shard.consumers.describe(group_id)
                if described.error_code == ErrorCode.NONE and request.include_authorized_operations:
                    described.authorized_operations = authorized_operations.ON_GROUP
                groups.append(described)
        return [Reply(token, ConsumerGroupDescribeResponse(groups=groups))]

    def handle_list_groups(
        self, request: ListGroupsRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        partitions = [shard.partition for shard in self._shards.values()]
        if any(partition.loading for partition in partitions):
            response = ListGroupsResponse(error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, groups=[])
        else:
            groups = list_groups(partitions, request.states_filter, request.types_filter)
            response = ListGroupsResponse(error_code=ErrorCode.NONE, groups=groups)
        return [Reply(token, response)]

    def handle_delete_groups(
        self, request: DeleteGroupsRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []

        def find(group_id: str) -> tuple[GroupRemoval | None, ErrorCode]:
            shard, error = self._find(group_id)
            return None if shard is None else shard.removal, error

        def done(response: DeleteGroupsResponse, out: Effects) -> None:
            out.append(Reply(token, response))

        delete_groups(request, find, done, now_ms, out)
        return out

    @property
    def group_count(self) -> int:
        """Of both kinds, in the partitions that are led here."""
        partitions = [shard.partition for shard in self._shards.values()]
        return sum(
            [len(partition.groups) + len(partition.consumer_groups.groups) for partition in partitions]
        )

    # --- inside ---

    def _find(self, group_id: str, *, needs_name: bool = False) -> tuple[_Shard | None, ErrorCode]:
        """The shard of a group, or the reason why it cannot be asked.

        Simple consumers may still commit to and read from the group without a name, as they always could.
        """
        if (needs_name and not group_id) or (
            len(group_id) * 4 > _MAX_GROUP_ID_BYTES and len(group_id.encode()) > _MAX_GROUP_ID_BYTES
        ):
            return None, ErrorCode.INVALID_GROUP_ID
        shard = self._shards.get(self.partition_for(group_id))
        if shard is None:
            return None, ErrorCode.NOT_COORDINATOR
        if shard.partition.loading:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return shard, ErrorCode.NONE

    def _expire_offsets(self, shard: _Shard, now_ms: float, out: Effects) -> None:
        shard.offset_expiry.expire(now_ms, out)
        interval_ms = self.settings.offsets_retention_check_interval_ms
        self.timers.schedule(shard.expiry_timer, now_ms + interval_ms, partial(self._expire_offsets, shard))
