"""What must hold for groups whatever clients, the clock and the log do, in any order."""

from __future__ import annotations

from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from culver.core.coordinator_effects import Append, Effects, Reply, RequestContext
from culver.core.group import ClassicGroup, GroupState
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_partition import GroupPartition
from culver.core.group_records import decode_change, decode_group_value
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from culver.protocol.messages.leave_group import LeaveGroupRequest, MemberIdentity
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment

PARTITION = 0
GROUPS = st.sampled_from(["g", "h"])
INSTANCES = st.sampled_from([None, None, "one", "two"])
PROTOCOLS = st.sampled_from([["range"], ["range", "sticky"], ["sticky", "range"], ["sticky"]])
FAILURES = st.sampled_from([ErrorCode.KAFKA_STORAGE_ERROR, ErrorCode.NOT_ENOUGH_REPLICAS])


class AllTopics:
    """Every name is a topic."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return None

    def topic_id(self, name: str) -> bytes | None:
        return None

    def partition_exists(self, name: str, partition: int) -> bool:
        return True


class Groups(RuleBasedStateMachine):
    """Any number of clients, a log that is slow and sometimes refuses, a clock, and crashes."""

    def __init__(self) -> None:
        super().__init__()
        self.now_ms = 0
        self.wall_ms = 1_000_000
        self.tokens = 0
        self.ids = 0
        self.log: list[tuple[bytes, bytes | None]] = []
        self.in_flight: list[Append] = []
        self.unanswered: dict[int, tuple[str, str]] = {}
        self.instance_of_token: dict[int, str | None] = {}
        self.member_of_sync: dict[int, str] = {}
        # Group id, member id, generation and instance id, as clients were told.
        self.known: list[tuple[str, str, int, str | None]] = []
        self.generations: dict[ClassicGroup, int] = {}
        self.assignments: dict[tuple[ClassicGroup, int, str], bytes] = {}
        self.start()

    def start(self) -> None:
        self.coordinator = GroupCoordinator(
            GroupSettings(
                offsets_topic_num_partitions=1,
                group_max_size=4,
                offsets_retention_ms=3_600_000,
                offsets_retention_check_interval_ms=600_000,
            ),
            AllTopics(),
            self.new_id,
            lambda: self.wall_ms,
        )
        self.load()

    def load(self) -> None:
        self.coordinator.load_begin(PARTITION)
        for key, value in self.log:
            self.coordinator.replay(PARTITION, key, value)
        self.carry_out(self.coordinator.load_done(PARTITION, self.now_ms))

    def new_id(self, stem: str) -> str:
        self.ids += 1
        return f"{stem}-{self.ids}"

    def token(self, group_id: str, what: str, instance: str | None = None) -> int:
        self.tokens += 1
        self.unanswered[self.tokens] = (group_id, what)
        self.instance_of_token[self.tokens] = instance
        return self.tokens

    def carry_out(self, effects: Effects) -> None:
        for effect in effects:
            if isinstance(effect, Append):
                for record in effect.records:
                    assert decode_change(record.key, record.value) == record.change
                self.in_flight.append(effect)
            else:
                self.reply(effect)

    def reply(self, reply: Reply) -> None:
        token: Any = reply.token
        response: Any = reply.response
        group_id, what = self.unanswered.pop(token)
        if what == "join":
            assert isinstance(response, JoinGroupResponse)
            if response.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                self.known.append((group_id, response.member_id, -1, None))
            elif response.error_code == ErrorCode.NONE:
                instance = self.instance_of_token[token]
                self.known.append((group_id, response.member_id, response.generation_id, instance))
        elif what == "sync" and response.error_code == ErrorCode.NONE:
            group = self.coordinator.group(group_id)
            assert group is not None
            member_id = self.member_of_sync.pop(token)
            key = (group, group.generation, member_id)
            assert self.assignments.setdefault(key, response.assignment) == response.assignment

    # --- clients ---

    @rule(group=GROUPS, instance=st.sampled_from(["one", "two"]))
    def restart_static_member(self, group: str, instance: str) -> None:
        self.join(group, "", instance, ["range"], 9)

    @rule(group=GROUPS, instance=INSTANCES, protocols=PROTOCOLS, version=st.sampled_from([0, 3, 4, 9]))
    def join_new(self, group: str, instance: str | None, protocols: list[str], version: int) -> None:
        self.join(group, "", instance if version >= 5 else None, protocols, version)

    @precondition(lambda self: self.known)
    @rule(data=st.data(), protocols=PROTOCOLS)
    def join_again(self, data: st.DataObject, protocols: list[str]) -> None:
        group, member_id, _, instance = data.draw(st.sampled_from(self.known))
        self.join(group, member_id, instance, protocols, 9)

    def join(
        self, group: str, member_id: str, instance: str | None, protocols: list[str], version: int
    ) -> None:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=30_000,
            member_id=member_id,
            group_instance_id=instance,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name=name, metadata=b"") for name in protocols],
        )
        token = self.token(group, "join", instance)
        context = RequestContext("c", "/host", version)
        self.carry_out(self.coordinator.handle_join_group(request, context, token, self.now_ms))

    @precondition(lambda self: self.known)
    @rule(data=st.data(), assignment=st.binary(max_size=2))
    def sync_anyhow(self, data: st.DataObject, assignment: bytes) -> None:
        self.sync(*data.draw(st.sampled_from(self.known)), assignment)

    @rule(group_id=GROUPS, assignment=st.binary(max_size=2), data=st.data())
    def sync_well(self, group_id: str, assignment: bytes, data: st.DataObject) -> None:
        """A member of the present generation, more often than not its leader."""
        group = self.coordinator.group(group_id)
        if group is not None and group.members:
            assert group.leader_id is not None
            member_id = data.draw(st.sampled_from([group.leader_id, *group.members]))
            self.sync(group_id, member_id, group.generation, None, assignment)

    @rule(group_id=GROUPS, assignment=st.binary(max_size=2), done=st.booleans())
    def settle(self, group_id: str, assignment: bytes, done: bool) -> None:
        """Everyone joins again and syncs; the log may or may not have the assignment at the end."""
        group = self.coordinator.group(group_id)
        if group is None or not group.members:
            return
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            self.advance(9_000)
        for member in list(group.members.values()):
            if group.state is GroupState.PREPARING_REBALANCE and member.parked_join is None:
                names = [name for name, _ in member.protocols]
                self.join(group_id, member.member_id, member.instance_id, names, 9)
        if group.state is GroupState.COMPLETING_REBALANCE:
            for member_id in list(group.members):
                self.sync(group_id, member_id, group.generation, None, assignment)
            if done:
                self.log_writes_all()

    def sync(
        self, group: str, member_id: str, generation: int, instance: str | None, assignment: bytes
    ) -> None:
        token = self.token(group, "sync")
        self.member_of_sync[token] = member_id
        members = {other for group_id, other, _, _ in self.known if group_id == group}
        request = SyncGroupRequest(
            group_id=group,
            generation_id=generation,
            member_id=member_id,
            group_instance_id=instance,
            assignments=[
                SyncGroupRequestAssignment(member_id=other, assignment=assignment + other.encode())
                for other in sorted(members)
            ],
        )
        context = RequestContext("c", "/host", 4)
        self.carry_out(self.coordinator.handle_sync_group(request, context, token, self.now_ms))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def heartbeat(self, data: st.DataObject) -> None:
        group, member_id, generation, instance = data.draw(st.sampled_from(self.known))
        request = HeartbeatRequest(
            group_id=group, generation_id=generation, member_id=member_id, group_instance_id=instance
        )
        token = self.token(group, "heartbeat")
        context = RequestContext("c", "/host", 4)
        self.carry_out(self.coordinator.handle_heartbeat(request, context, token, self.now_ms))

    @precondition(lambda self: self.known)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        group, member_id, _, instance = data.draw(st.sampled_from(self.known))
        members = [MemberIdentity(member_id=member_id, group_instance_id=instance)]
        if instance is not None and data.draw(st.booleans()):
            members = [MemberIdentity(member_id="", group_instance_id=instance)]
        token = self.token(group, "leave")
        context = RequestContext("c", "/host", 5)
        request = LeaveGroupRequest(group_id=group, members=members)
        self.carry_out(self.coordinator.handle_leave_group(request, context, token, self.now_ms))

    @rule(group=GROUPS, offset=st.integers(0, 99), topic=st.sampled_from("tu"), data=st.data())
    def commit(self, group: str, offset: int, topic: str, data: st.DataObject) -> None:
        who = data.draw(st.sampled_from([*self.known, (group, "", -1, None)]))
        partition = OffsetCommitRequestPartition(
            partition_index=0, committed_offset=offset, committed_metadata=None
        )
        request = OffsetCommitRequest(
            group_id=who[0],
            generation_id_or_member_epoch=who[2],
            member_id=who[1],
            group_instance_id=who[3],
            topics=[OffsetCommitRequestTopic(name=topic, partitions=[partition])],
        )
        token = self.token(who[0], "commit")
        context = RequestContext("c", "/host", 9)
        self.carry_out(self.coordinator.handle_offset_commit(request, context, token, self.now_ms))

    @rule(group=GROUPS, stable=st.booleans())
    def fetch(self, group: str, stable: bool) -> None:
        topics = [OffsetFetchRequestTopics(name="t", partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
        )
        token = self.token(group, "fetch")
        context = RequestContext("c", "/host", 9)
        self.carry_out(self.coordinator.handle_offset_fetch(request, context, token, self.now_ms))

    @rule(group=GROUPS)
    def delete_group(self, group: str) -> None:
        token = self.token(group, "delete")
        request = DeleteGroupsRequest(groups_names=[group])
        context = RequestContext("c", "/host", 2)
        self.carry_out(self.coordinator.handle_delete_groups(request, context, token, self.now_ms))

    @rule(group=GROUPS)
    def delete_offset(self, group: str) -> None:
        token = self.token(group, "offset-delete")
        partition = OffsetDeleteRequestPartition(partition_index=0)
        request = OffsetDeleteRequest(
            group_id=group, topics=[OffsetDeleteRequestTopic(name="t", partitions=[partition])]
        )
        context = RequestContext("c", "/host", 0)
        self.carry_out(self.coordinator.handle_offset_delete(request, context, token, self.now_ms))

    @precondition(lambda self: self.unanswered)
    @rule(data=st.data())
    def disconnect(self, data: st.DataObject) -> None:
        parked = sorted(token for token in self.unanswered if token in self.coordinator.parked._by_token)
        if parked:
            token = data.draw(st.sampled_from(parked))
            self.coordinator.cancel(token)
            del self.unanswered[token]

    # --- the world ---

    @rule(delta_ms=st.sampled_from([100, 3_000, 9_000, 31_000, 700_000, 4_000_000]))
    def advance(self, delta_ms: int) -> None:
        self.now_ms += delta_ms
        self.wall_ms += delta_ms
        self.carry_out(self.coordinator.expire(self.now_ms))

    @precondition(lambda self: self.in_flight)
    @rule(count=st.integers(1, 3))
    def log_writes(self, count: int) -> None:
        for append in self.in_flight[:count]:
            self.log += [(record.key, record.value) for record in append.records]
            self.in_flight.remove(append)
            self.carry_out(self.coordinator.append_done(append, ErrorCode.NONE, self.now_ms))

    @precondition(lambda self: self.in_flight)
    @rule(error=FAILURES)
    def log_refuses(self, error: ErrorCode) -> None:
        append = self.in_flight.pop(0)
        self.carry_out(self.coordinator.append_done(append, error, self.now_ms))

    @rule()
    def delete_topic(self) -> None:
        self.carry_out(self.coordinator.on_topics_deleted(["u"], self.now_ms))

    @rule(how=st.integers(0, 5))
    def lose_the_coordinator(self, how: int) -> None:
        """Not too often, or nothing else would ever get far."""
        if how == 0:
            self.crash()
        elif how == 1:
            self.move_away_and_back()

    def crash(self) -> None:
        self.unanswered.clear()
        self.in_flight.clear()
        self.start()

    def move_away_and_back(self) -> None:
        self.carry_out(self.coordinator.unload(PARTITION, self.now_ms))
        assert not self.unanswered
        # What was in flight may have reached the log or not; here it has not.
        for append in self.in_flight:
            assert self.coordinator.append_done(append, ErrorCode.NONE, self.now_ms) == []
        self.in_flight.clear()
        self.load()

    def teardown(self) -> None:
        """Let everything come to its end: nobody is left without an answer."""
        for _ in range(100):
            if not self.unanswered:
                break
            self.log_writes_all()
            self.advance(31_000)
        assert not self.unanswered
        assert len(self.coordinator.parked) == 0

    def log_writes_all(self) -> None:
        while self.in_flight:
            self.log_writes(3)

    # --- what holds at any time ---

    def groups(self) -> list[ClassicGroup]:
        partition = self.coordinator.partition(PARTITION)
        assert partition is not None
        return list(partition.groups.values())

    @invariant()
    def generations_never_go_back(self) -> None:
        for group in self.groups():
            assert group.generation >= self.generations.get(group, 0)
            self.generations[group] = group.generation

    @invariant()
    def the_books_are_right(self) -> None:
        waiting = 0
        for group in self.groups():
            members = group.members
            joined = [m for m in members.values() if m.parked_join is not None]
            synced = [m for m in members.values() if m.parked_sync is not None]
            waiting += sum(1 for m in joined if m.parked_join and m.parked_join.token is not None)
            waiting += sum(1 for m in synced if m.parked_sync and m.parked_sync.token is not None)
            assert group.awaiting_join_count == len(joined)
            assert group.static_members == {m.instance_id: i for i, m in members.items() if m.instance_id}
            assert group.pending_syncs <= members.keys()
            assert not group.pending_joins.keys() & members.keys()
            assert group.leader_id in members if members else group.leader_id is None
            assert len(members) <= 4 or group.state is GroupState.PREPARING_REBALANCE
            if group.state is GroupState.EMPTY:
                assert not members
            if group.state is not GroupState.COMPLETING_REBALANCE:
                assert not synced
            if group.state is GroupState.COMPLETING_REBALANCE:
                assert not joined
            if group.state in (GroupState.COMPLETING_REBALANCE, GroupState.STABLE):
                assert group.protocol_name is not None
                assert all(m.metadata(group.protocol_name) is not None for m in members.values())
        assert waiting == len(self.coordinator.parked)

    @invariant()
    def the_log_says_what_the_coordinator_says(self) -> None:
        fresh = GroupPartition(PARTITION)
        for key, value in self.log:
            change = decode_change(key, value)
            assert change is not None
            fresh.replay(change)
        partition = self.coordinator.partition(PARTITION)
        assert partition is not None
        assert partition.offsets == fresh.offsets
        saved = {group_id: group.saved for group_id, group in partition.groups.items() if group.saved}
        assert saved == {group_id: group.saved for group_id, group in fresh.groups.items() if group.saved}

    @invariant()
    def a_stable_group_would_survive_a_restart(self) -> None:
        if self.in_flight:
            return
        for group in self.groups():
            if group.state is GroupState.STABLE:
                assert group.saved is not None
                value = decode_group_value(group.saved)
                assert value.generation == group.generation
                assert value.leader == group.leader_id
                assert {m.member_id: m.assignment for m in value.members} == {
                    member.member_id: member.assignment for member in group.members.values()
                }


Groups.TestCase.settings = settings(
    max_examples=150,
    stateful_step_count=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
TestGroups = Groups.TestCase
