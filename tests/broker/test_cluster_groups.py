"""Groups in a cluster of three: they live where their partition is led, and outlive the broker that led it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from culver.core.coordinator_partitions import partition_for_name
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest, FindCoordinatorResponse
from culver.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from culver.protocol.messages.join_group import (
    JoinGroupRequest,
    JoinGroupRequestProtocol,
    JoinGroupResponse,
)
from culver.protocol.messages.list_groups import ListGroupsRequest, ListGroupsResponse
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
)
from culver.protocol.messages.sync_group import (
    SyncGroupRequest,
    SyncGroupRequestAssignment,
    SyncGroupResponse,
)
from culver.protocol.schema import Message
from culver.testing import Cluster
from culver.wire_client import Unreachable, WireClient

PARTITIONS = 6
GROUPS = [f"group-{number}" for number in range(12)]
ZERO_ID = bytes(16)

M = TypeVar("M", bound=Message)


@pytest.fixture
def cluster() -> Iterator[Cluster]:
    config = {
        "offsets.topic.num.partitions": PARTITIONS,
        "group.initial.rebalance.delay.ms": 0,
        # A machine with too much to do may let a session of two seconds lapse; a dead process is seen all the same.
        "culver.session.timeout.ms": 10_000,
    }
    with Cluster(brokers=3, topics={"t": 1}, config=config) as cluster:
        cluster.wait_until(lambda: coordinator_of(cluster, GROUPS[0]) > 0, "the internal topic is there")
        cluster.wait_until_in_sync(GROUP_OFFSETS_TOPIC)
        yield cluster


def ask(cluster: Cluster, broker_id: int, request: Message, response: type[M]) -> M:
    with WireClient(cluster.broker(broker_id).bootstrap_servers) as client:
        return client.ask_once(request, response)


def coordinator_of(cluster: Cluster, group: str, asked: int | None = None) -> int:
    """The group's coordinator by the word of one broker, -1 while there is none."""
    broker = cluster.running[0] if asked is None else cluster.broker(asked)
    request = FindCoordinatorRequest(coordinator_keys=[group])
    (found,) = ask(cluster, broker.broker_id, request, FindCoordinatorResponse).coordinators
    assert found.error_code in (ErrorCode.NONE, ErrorCode.COORDINATOR_NOT_AVAILABLE)
    return found.node_id


def topic_id(cluster: Cluster) -> bytes:
    from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse

    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = ask(cluster, cluster.running[0].broker_id, request, MetadataResponse).topics
    return topic.topic_id


def commit(cluster: Cluster, broker_id: int, group: str, offset: int) -> ErrorCode:
    partition = OffsetCommitRequestPartition(
        partition_index=0, committed_offset=offset, committed_metadata="here"
    )
    topic = OffsetCommitRequestTopic(name="t", topic_id=topic_id(cluster), partitions=[partition])
    request = OffsetCommitRequest(group_id=group, topics=[topic])
    (answer,) = ask(cluster, broker_id, request, OffsetCommitResponse).topics
    return ErrorCode(answer.partitions[0].error_code)


def committed(cluster: Cluster, broker_id: int, group: str) -> int | ErrorCode:
    topics = [OffsetFetchRequestTopics(name="t", topic_id=topic_id(cluster), partition_indexes=[0])]
    request = OffsetFetchRequest(groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)])
    (answer,) = ask(cluster, broker_id, request, OffsetFetchResponse).groups
    if answer.error_code:
        return ErrorCode(answer.error_code)
    return answer.topics[0].partitions[0].committed_offset


def wait_for_commit(cluster: Cluster, group: str, offset: int) -> None:
    """As a client does: look for the coordinator, and ask again while it moves or loads."""
    cluster.wait_until(
        lambda: (
            (broker := coordinator_of(cluster, group)) > 0
            and broker in {running.broker_id for running in cluster.running}
            and commit(cluster, broker, group, offset) is ErrorCode.NONE
        ),
        f"{group} commits {offset}",
    )


def wait_for_committed(cluster: Cluster, group: str, offset: int) -> None:
    """Until the coordinator answers; what it then says must be right the first time."""
    answers: list[int | ErrorCode] = []

    def answered() -> bool:
        broker = coordinator_of(cluster, group)
        if broker not in {running.broker_id for running in cluster.running}:
            return False
        answers.append(committed(cluster, broker, group))
        return not isinstance(answers[-1], ErrorCode)

    cluster.wait_until(answered, lambda: f"{group} has a coordinator: {answers[-3:]}")
    assert answers[-1] == offset
    assert set(answers[:-1]) <= {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
    }


def test_groups_live_where_their_partition_is_led(cluster: Cluster) -> None:
    partitions = cluster.partitions(GROUP_OFFSETS_TOPIC)
    assert {len(partition.replicas) for partition in partitions} == {3}
    for group in GROUPS:
        leader = partitions[partition_for_name(group, PARTITIONS)].leader
        assert {coordinator_of(cluster, group, broker.broker_id) for broker in cluster.brokers} == {leader}
        wait_for_commit(cluster, group, 1)
        for broker in cluster.brokers:
            expected = 1 if broker.broker_id == leader else ErrorCode.NOT_COORDINATOR
            assert committed(cluster, broker.broker_id, group) == expected
    listed = [
        {group.group_id for group in ask(cluster, number, ListGroupsRequest(), ListGroupsResponse).groups}
        for number in (1, 2, 3)
    ]
    assert sorted(group for groups in listed for group in groups) == sorted(GROUPS)
    assert all(listed)


@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_committed_offsets_outlive_their_coordinator(cluster: Cluster, how: str) -> None:
    for number, group in enumerate(GROUPS):
        wait_for_commit(cluster, group, number)
    gone = cluster.broker(coordinator_of(cluster, GROUPS[0]))
    if how == "killed":
        gone.kill()
    else:
        gone.stop()
    for number, group in enumerate(GROUPS):
        wait_for_committed(cluster, group, number)
    for number, group in enumerate(GROUPS):
        wait_for_commit(cluster, group, number + 100)
    gone.start()
    cluster.wait_until_in_sync(GROUP_OFFSETS_TOPIC)
    for number, group in enumerate(GROUPS):
        wait_for_committed(cluster, group, number + 100)


def join(cluster: Cluster, broker_id: int, group: str) -> JoinGroupResponse:
    member_id = ""
    while True:
        request = JoinGroupRequest(
            group_id=group,
            session_timeout_ms=10_000,
            rebalance_timeout_ms=10_000,
            member_id=member_id,
            protocol_type="consumer",
            protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
        )
        response = ask(cluster, broker_id, request, JoinGroupResponse)
        if response.error_code != ErrorCode.MEMBER_ID_REQUIRED:
            assert response.error_code == ErrorCode.NONE
            return response
        member_id = response.member_id


def test_members_stay_in_a_group_that_moves(cluster: Cluster) -> None:
    group = GROUPS[0]
    wait_for_commit(cluster, group, 1)
    first = coordinator_of(cluster, group)
    joined = join(cluster, first, group)
    sync = SyncGroupRequest(
        group_id=group,
        generation_id=joined.generation_id,
        member_id=joined.member_id,
        protocol_type="consumer",
        protocol_name="range",
        assignments=[SyncGroupRequestAssignment(member_id=joined.member_id, assignment=b"all")],
    )
    assert ask(cluster, first, sync, SyncGroupResponse).assignment == b"all"
    cluster.broker(first).kill()

    heartbeat = HeartbeatRequest(
        group_id=group, generation_id=joined.generation_id, member_id=joined.member_id
    )
    answers: list[ErrorCode] = []

    def beaten() -> bool:
        broker = coordinator_of(cluster, group)
        if broker not in {running.broker_id for running in cluster.running}:
            return False
        try:
            answers.append(ErrorCode(ask(cluster, broker, heartbeat, HeartbeatResponse).error_code))
        except Unreachable:
            return False
        return answers[-1] is ErrorCode.NONE

    cluster.wait_until(beaten, lambda: f"the member is known again: {answers[-3:]}")
    assert ErrorCode.UNKNOWN_MEMBER_ID not in answers
    assert ErrorCode.ILLEGAL_GENERATION not in answers

    def synced() -> bool:
        # While groups are being read back heartbeats are answered as if all were well, and syncs are put off.
        answer = ask(cluster, coordinator_of(cluster, group), sync, SyncGroupResponse)
        answers.append(ErrorCode(answer.error_code))
        assert answer.assignment == (b"all" if answers[-1] is ErrorCode.NONE else b"")
        return answers[-1] is ErrorCode.NONE

    cluster.wait_until(synced, lambda: f"the member gets its assignment again: {answers[-3:]}")
    assert set(answers) <= {
        ErrorCode.NONE,
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
    }
