"""The group coordinator where scripts do not reach: versions, hashes, records, timers, limits."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core.coordinator_effects import Append, Effects, Reply, RequestContext
from culver.core.coordinator_partitions import partition_for_name
from culver.core.group import GroupState
from culver.core.group_coordinator import GroupCoordinator
from culver.core.group_settings import GroupSettings
from culver.errors import ErrorCode
from culver.protocol.messages.delete_groups import DeleteGroupsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.heartbeat import HeartbeatRequest
from culver.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol
from culver.protocol.messages.leave_group import LeaveGroupRequest
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestTopic,
)
from culver.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment
from culver.protocol.schema import encoder


class Topics:
    """One topic, `t`, with one partition."""

    def topic_name(self, topic_id: bytes) -> str | None:
        return "t" if topic_id == b"t" * 16 else None

    def topic_id(self, name: str) -> bytes | None:
        return b"t" * 16 if name == "t" else None

    def partition_exists(self, name: str, partition: int) -> bool:
        return name == "t" and partition == 0


class Setting:
    """A coordinator whose log takes everything at once."""

    def __init__(self, partitions: int = 1, **settings: int) -> None:
        settings = {"group_initial_rebalance_delay_ms": 0, **settings}
        numbers = count(1)
        self.log: list[tuple[int, bytes, bytes | None]] = []
        self.coordinator = GroupCoordinator(
            GroupSettings(offsets_topic_num_partitions=partitions, **settings),
            Topics(),
            lambda stem: f"{stem}-{next(numbers)}",
            lambda: 1_000,
        )
        for number in range(partitions):
            self.coordinator.load_begin(number)
            self.coordinator.load_done(number, 0)

    def ask(self, handle: Callable[..., Effects], request: Any, version: int) -> Any:
        """The answer to a request that is answered at once; it must be one that can be sent."""
        answers = self.all_answers(handle(request, RequestContext("c", "/h", version), object(), 0))
        assert len(answers) == 1
        encoder(type(answers[0]), version)(answers[0])
        return answers[0]

    def all_answers(self, effects: Effects) -> list[Any]:
        answers = []
        for effect in effects:
            if isinstance(effect, Reply):
                answers.append(effect.response)
            else:
                assert isinstance(effect, Append)
                self.log += [(effect.partition, record.key, record.value) for record in effect.records]
                answers += self.all_answers(self.coordinator.append_done(effect, ErrorCode.NONE, 0))
        return answers


def join(version: int, member_id: str = "", instance: str | None = None, **fields: Any) -> JoinGroupRequest:
    return JoinGroupRequest(
        **{
            "group_id": "g",
            "session_timeout_ms": 10_000,
            "rebalance_timeout_ms": 20_000,
            "member_id": member_id,
            "group_instance_id": instance,
            "protocol_type": "consumer",
            "protocols": [JoinGroupRequestProtocol(name="range", metadata=b"m")],
            **fields,
        }
    )


def commit(generation: int = -1, member_id: str = "", metadata: str | None = None) -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=5, committed_leader_epoch=2, committed_metadata=metadata
    )
    topic = OffsetCommitRequestTopic(name="t", topic_id=b"t" * 16, partitions=[partition])
    return OffsetCommitRequest(
        group_id="g", generation_id_or_member_epoch=generation, member_id=member_id, topics=[topic]
    )


def java_hash(text: str) -> int:
    code = 0
    for char in text.encode("utf-16-be").hex(" ", 2).split():
        code = (31 * code + int(char, 16)) % 2**32
    return code - 2**32 if code >= 2**31 else code


@given(st.text(), st.integers(1, 100))
def test_a_group_lives_where_kafka_would_put_it(group_id: str, partitions: int) -> None:
    code = java_hash(group_id)
    expected = 0 if code == -(2**31) else abs(code) % partitions
    assert partition_for_name(group_id, partitions) == expected


@pytest.mark.parametrize(
    ("group_id", "partition"),
    # Computed by Kafka's own classes; the hash of "polygenelubricants" is the smallest int.
    [("", 0), ("g", 3), ("console-consumer-12345", 6), ("polygenelubricants", 0), ("grüße", 23), ("🐦", 25)],
)
def test_known_partitions(group_id: str, partition: int) -> None:
    assert partition_for_name(group_id, 50) == partition


@pytest.mark.parametrize("version", range(10))
def test_join_and_sync_in_every_version(version: int) -> None:
    setting = Setting()
    coordinator = setting.coordinator
    response = setting.ask(coordinator.handle_join_group, join(version), version)
    if version >= 4:
        assert response.error_code == ErrorCode.MEMBER_ID_REQUIRED
        request = join(version, response.member_id)
        response = setting.ask(coordinator.handle_join_group, request, version)
    assert (response.error_code, response.generation_id, response.protocol_name) == (0, 1, "range")
    member_id = response.member_id
    assert [member.member_id for member in response.members] == [member_id]
    sync_version = min(version, 5)
    sync = SyncGroupRequest(
        group_id="g",
        generation_id=1,
        member_id=member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=member_id, assignment=b"a")],
    )
    assert setting.ask(coordinator.handle_sync_group, sync, sync_version).assignment == b"a"
    group = coordinator.group("g")
    assert group is not None
    # Version 0 knows one timeout only.
    assert group.members[member_id].rebalance_timeout_ms == (20_000 if version >= 1 else 10_000)
    heartbeat = HeartbeatRequest(group_id="g", generation_id=1, member_id=member_id)
    assert setting.ask(coordinator.handle_heartbeat, heartbeat, min(version, 4)).error_code == 0


@pytest.mark.parametrize("version", range(10))
def test_a_refused_join_can_be_told_in_every_version(version: int) -> None:
    setting = Setting()
    for request in (join(version, "nobody"), join(version, session_timeout_ms=1), join(version, group_id="")):
        assert setting.ask(setting.coordinator.handle_join_group, request, version).error_code
    setting.ask(setting.coordinator.handle_join_group, join(3), 3)
    response = setting.ask(setting.coordinator.handle_join_group, join(version, "nobody"), version)
    assert response.error_code == ErrorCode.UNKNOWN_MEMBER_ID


def test_sync_since_version_5_must_name_its_protocol() -> None:
    setting = Setting()
    member_id = setting.ask(setting.coordinator.handle_join_group, join(3), 3).member_id
    sync = SyncGroupRequest(group_id="g", generation_id=1, member_id=member_id, assignments=[])
    response = setting.ask(setting.coordinator.handle_sync_group, sync, 5)
    assert response.error_code == ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert setting.ask(setting.coordinator.handle_sync_group, sync, 4).error_code == 0


@pytest.mark.parametrize("version", range(3))
def test_leave_before_version_3_has_one_member_and_one_error(version: int) -> None:
    setting = Setting()
    member_id = setting.ask(setting.coordinator.handle_join_group, join(3), 3).member_id
    leave = setting.coordinator.handle_leave_group
    for expected in (ErrorCode.NONE, ErrorCode.UNKNOWN_MEMBER_ID):
        request = LeaveGroupRequest(group_id="g", member_id=member_id)
        assert setting.ask(leave, request, version).error_code == expected


def test_names_that_would_not_fit_into_a_record_are_refused() -> None:
    setting = Setting()
    handle = setting.coordinator.handle_join_group
    long = "x" * 40_000
    assert setting.ask(handle, join(9, group_id=long), 9).error_code == ErrorCode.INVALID_GROUP_ID
    assert setting.ask(handle, join(9, instance=long), 9).error_code == ErrorCode.INVALID_REQUEST
    assert setting.ask(handle, join(9, protocol_type=long), 9).error_code == ErrorCode.INVALID_REQUEST
    assert setting.coordinator.group(long) is None


def test_the_protocol_most_members_prefer_wins_among_those_all_know() -> None:
    setting = Setting(group_initial_rebalance_delay_ms=3_000)
    coordinator = setting.coordinator
    preferences = [["sticky", "range", "robin"], ["range", "sticky"], ["robin", "range", "sticky"]]
    for token, names in enumerate(preferences):
        protocols = [JoinGroupRequestProtocol(name=name, metadata=name.encode()) for name in names]
        request = join(3, protocols=protocols)
        assert coordinator.handle_join_group(request, RequestContext("c", "/h", 3), token, 0) == []
    answers = [answer for now in (3_000, 6_000) for answer in setting.all_answers(coordinator.expire(now))]
    assert [answer.protocol_name for answer in answers] == ["range"] * 3
    assert {member.metadata for member in answers[0].members} == {b"range"}


def test_a_new_group_waits_no_longer_than_the_rebalance_timeout() -> None:
    setting = Setting(group_initial_rebalance_delay_ms=3_000)
    coordinator = setting.coordinator
    for token in range(6):
        request = join(3, rebalance_timeout_ms=7_000)
        coordinator.handle_join_group(request, RequestContext("c", "/h", 3), token, token * 2_000)
        answers = setting.all_answers(coordinator.expire(token * 2_000 + 1_999))
        if answers:
            break
    assert token * 2_000 + 1_999 >= 7_000
    assert len(answers) == token + 1


@pytest.mark.parametrize("version", range(2, 11))
def test_commits_in_every_version(version: int) -> None:
    setting = Setting()
    handle = setting.coordinator.handle_offset_commit
    response = setting.ask(handle, commit(metadata="x"), version)
    assert response.topics[0].partitions[0].error_code == 0
    partition = setting.coordinator.partition(0)
    assert partition is not None
    committed = partition.committed("g", "t", 0)
    assert committed is not None
    assert (committed.offset, committed.leader_epoch, committed.metadata) == (5, 2, "x")
    assert committed.topic_id == b"t" * 16


@pytest.mark.parametrize("version", range(1, 8))
def test_offset_fetch_before_version_8(version: int) -> None:
    setting = Setting()
    setting.ask(setting.coordinator.handle_offset_commit, commit(metadata=None), 9)
    handle = setting.coordinator.handle_offset_fetch
    request = OffsetFetchRequest(
        group_id="g", topics=[OffsetFetchRequestTopic(name="t", partition_indexes=[0, 1])]
    )
    response = setting.ask(handle, request, version)
    assert [(p.committed_offset, p.metadata) for p in response.topics[0].partitions] == [(5, ""), (-1, "")]
    if version >= 2:
        response = setting.ask(handle, OffsetFetchRequest(group_id="g", topics=None), version)
        assert [p.partition_index for p in response.topics[0].partitions] == [0]
    setting.coordinator.unload(0, 0)
    response = setting.ask(handle, request, version)
    if version >= 2:
        assert response.error_code == ErrorCode.NOT_COORDINATOR
    else:
        codes = [partition.error_code for partition in response.topics[0].partitions]
        assert codes == [ErrorCode.NOT_COORDINATOR] * 2


def test_the_length_of_metadata_is_counted_as_clients_count_it() -> None:
    setting = Setting(offset_metadata_max_bytes=4)
    handle = setting.coordinator.handle_offset_commit
    codes = [
        setting.ask(handle, commit(metadata=text), 9).topics[0].partitions[0].error_code
        for text in ("abcd", "äöüß", "🐦🐦", "🐦🐦x", "abcde")
    ]
    assert codes == [0, 0, 0, ErrorCode.OFFSET_METADATA_TOO_LARGE, ErrorCode.OFFSET_METADATA_TOO_LARGE]


@pytest.mark.parametrize("version", range(7))
def test_a_group_that_is_not_there_is_dead_and_since_version_6_an_error(version: int) -> None:
    setting = Setting()
    handle = setting.coordinator.handle_describe_groups
    (group,) = setting.ask(handle, DescribeGroupsRequest(groups=["nope"]), version).groups
    assert group.group_state == "Dead"
    if version >= 6:
        assert (group.error_code, group.error_message) == (
            ErrorCode.GROUP_ID_NOT_FOUND,
            "there is no group nope",
        )
    else:
        assert (group.error_code, group.error_message) == (0, None)


def test_groups_of_several_partitions_are_deleted_by_one_request() -> None:
    setting = Setting(partitions=50)
    for name in ("a", "b", "c"):
        request = commit()
        request.group_id = name
        setting.ask(setting.coordinator.handle_offset_commit, request, 9)
    deletion = DeleteGroupsRequest(groups_names=["a", "nope", "b", "c", "a"])
    response = setting.ask(setting.coordinator.handle_delete_groups, deletion, 2)
    assert [(result.group_id, result.error_code) for result in response.results] == [
        ("a", 0),
        ("nope", ErrorCode.GROUP_ID_NOT_FOUND),
        ("b", 0),
        ("c", 0),
    ]
    assert all(setting.coordinator.group(name) is None for name in "abc")


def test_a_group_over_the_size_limit_rebalances_when_it_is_loaded() -> None:
    setting = Setting()
    coordinator = setting.coordinator
    member_id = setting.ask(coordinator.handle_join_group, join(9, instance="one"), 9).member_id
    second = join(9, instance="two")
    coordinator.handle_join_group(second, RequestContext("c", "/h", 9), 1, 0)
    coordinator.handle_join_group(join(9, member_id, "one"), RequestContext("c", "/h", 9), 2, 0)
    sync = SyncGroupRequest(group_id="g", generation_id=2, member_id=member_id, assignments=[])
    setting.ask(coordinator.handle_sync_group, sync, 4)
    smaller = GroupCoordinator(
        GroupSettings(offsets_topic_num_partitions=1, group_max_size=1), Topics(), str, lambda: 0
    )
    smaller.load_begin(0)
    for _, key, value in setting.log:
        smaller.replay(0, key, value)
    smaller.load_done(0, 0)
    group = smaller.group("g")
    assert group is not None
    assert (len(group.members), group.state) == (2, GroupState.PREPARING_REBALANCE)


def test_a_group_record_that_cannot_be_read_costs_the_members_but_not_the_offsets() -> None:
    setting = Setting()
    setting.ask(setting.coordinator.handle_offset_commit, commit(), 9)
    coordinator = Setting().coordinator
    coordinator.unload(0, 0)
    coordinator.load_begin(0)
    for _, key, value in setting.log:
        coordinator.replay(0, key, value)
    coordinator.replay(0, b"\x00\x02\x00\x01g", b"\x00\x03\xff\xff")
    coordinator.replay(0, b"\x00\x63whatever", b"?")
    coordinator.load_done(0, 0)
    group = coordinator.group("g")
    partition = coordinator.partition(0)
    assert group is not None
    assert partition is not None
    assert group.state is GroupState.EMPTY
    assert partition.unreadable_groups == ["g"]
    assert partition.committed("g", "t", 0) is not None
