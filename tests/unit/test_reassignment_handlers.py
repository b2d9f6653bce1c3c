"""Partitions moved to other brokers, and leaders elected on request."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from cluster_node import ClusterNode

from culver.broker.handlers import (
    alter_partition_reassignments,
    elect_leaders,
    list_partition_reassignments,
)
from culver.core.image import PartitionImage
from culver.errors import ErrorCode
from culver.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from culver.protocol.messages.elect_leaders import ElectLeadersRequest, TopicPartitions
from culver.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsTopics,
)


@pytest.fixture
def node() -> ClusterNode:
    return ClusterNode()


def led_by_one(index: int = 0) -> PartitionImage:
    return PartitionImage(index, 1, 5, (1, 2, 3), (1, 2, 3))


# --- reassignments ---


def reassign(
    node: ClusterNode, replicas: list[int] | None, *, topic: str = "t", keep_factor: bool = False
) -> ErrorCode:
    partition = ReassignablePartition(partition_index=0, replicas=replicas)
    request = AlterPartitionReassignmentsRequest(
        topics=[ReassignableTopic(name=topic, partitions=[partition])],
        allow_replication_factor_change=not keep_factor,
    )
    (answer,) = node.ask(alter_partition_reassignments, request, 1).responses
    return ErrorCode(answer.partitions[0].error_code)


def moving(node: ClusterNode, *topics: ListPartitionReassignmentsTopics) -> list[Any]:
    request = ListPartitionReassignmentsRequest(topics=list(topics) or None)
    response = node.ask(list_partition_reassignments, request, 0)
    return [
        (topic.name, found.partition_index, found.replicas, found.adding_replicas, found.removing_replicas)
        for topic in response.topics
        for found in topic.partitions
    ]


def test_a_partition_is_moved_and_the_move_given_up() -> None:
    node = ClusterNode(registered=4, alive=(1, 2, 3, 4))
    node.make_topic("t", led_by_one(), led_by_one(1))
    node.make_topic("u", led_by_one())
    assert moving(node) == []
    assert reassign(node, None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(node, [4, 2, 1]) is ErrorCode.NONE
    under_way = [("t", 0, [4, 2, 1, 3], [4], [3])]
    assert moving(node) == under_way
    assert moving(node, ListPartitionReassignmentsTopics(name="t", partition_indexes=[0, 1, 7])) == under_way
    assert moving(node, ListPartitionReassignmentsTopics(name="u", partition_indexes=[0])) == []
    assert moving(node, ListPartitionReassignmentsTopics(name="nothing", partition_indexes=[0])) == []
    assert reassign(node, None) is ErrorCode.NONE
    assert moving(node) == []
    assert set(node.partition("t").replicas) == {1, 2, 3}


def test_what_cannot_be_moved(node: ClusterNode) -> None:
    node.make_topic("t", led_by_one())
    assert reassign(node, [1], topic="nothing") is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    for replicas in ([], [1, 1], [1, 9], [-1]):
        assert reassign(node, replicas) is ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert reassign(node, [1, 2], keep_factor=True) is ErrorCode.INVALID_REPLICATION_FACTOR
    assert reassign(node, [1, 2, 3]) is ErrorCode.NONE
    assert moving(node) == []


def test_a_partition_named_twice_is_not_moved(node: ClusterNode) -> None:
    node.make_topic("t", led_by_one())
    named = [ReassignablePartition(partition_index=0, replicas=replicas) for replicas in ([1], [2])]
    request = AlterPartitionReassignmentsRequest(topics=[ReassignableTopic(name="t", partitions=named)])
    (answer,) = node.ask(alter_partition_reassignments, request, 0).responses
    assert [found.error_code for found in answer.partitions] == [ErrorCode.INVALID_REQUEST] * 2


def test_who_was_slower_tries_again_on_the_newest_entry(node: ClusterNode) -> None:
    node.make_topic("t", led_by_one())
    node.store.lagging = True
    node.put_partition(
        "t", replace(led_by_one(), isr=(1, 2))
    )  # the leader, which this broker has not heard of yet
    changes = []
    original = node.administration.change_partitions

    def counted(asked: Any, done: Any) -> None:
        changes.append(asked)
        original(asked, done)
        node.store.report()

    node.administration.change_partitions = counted  # type: ignore[method-assign]
    assert reassign(node, [2, 1]) is ErrorCode.NONE
    assert len(changes) == 2
    assert node.partition("t").isr == (1, 2)
    assert node.partition("t").removing == (3,)


# --- elections ---


def elect(node: ClusterNode, kind: int, *topics: TopicPartitions) -> list[tuple[str, int, ErrorCode]]:
    request = ElectLeadersRequest(election_type=kind, topic_partitions=list(topics) or None)
    response = node.ask(elect_leaders, request, 2)
    assert response.error_code == 0
    return [
        (topic.topic, found.partition_id, ErrorCode(found.error_code))
        for topic in response.replica_election_results
        for found in topic.partition_result
    ]


def test_the_preferred_replica_leads_again(node: ClusterNode) -> None:
    not_preferred = PartitionImage(0, 2, 7, (1, 2, 3), (1, 2, 3))
    node.make_topic("t", not_preferred, led_by_one(1), replace(not_preferred, index=2, isr=(2, 3)))
    asked = TopicPartitions(topic="t", partitions=[0, 1, 2, 3])
    assert elect(node, elect_leaders.PREFERRED, asked, TopicPartitions(topic="nothing", partitions=[0])) == [
        ("t", 0, ErrorCode.NONE),
        ("t", 1, ErrorCode.ELECTION_NOT_NEEDED),
        ("t", 2, ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE),
        ("t", 3, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        ("nothing", 0, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ]
    assert (node.partition("t").leader, node.partition("t").leader_epoch) == (1, 8)


def test_of_all_partitions_those_are_told_where_something_was_to_be_done(node: ClusterNode) -> None:
    node.make_topic("t", PartitionImage(0, 2, 7, (1, 2, 3), (1, 2, 3)), led_by_one(1))
    assert elect(node, elect_leaders.PREFERRED) == [("t", 0, ErrorCode.NONE)]
    assert elect(node, elect_leaders.PREFERRED) == []


def test_any_living_replica_leads_if_asked_for_at_any_price(node: ClusterNode) -> None:
    node.make_topic(
        "t", PartitionImage(0, -1, 7, (1, 2, 3), (1,)), led_by_one(1), PartitionImage(2, -1, 7, (1,), (1,))
    )
    node.let_live(2, 3)
    asked = TopicPartitions(topic="t", partitions=[0, 2])
    assert elect(node, elect_leaders.UNCLEAN, asked) == [
        ("t", 0, ErrorCode.NONE),
        ("t", 2, ErrorCode.ELIGIBLE_LEADERS_NOT_AVAILABLE),
    ]
    assert (node.partition("t").leader, node.partition("t").isr) == (2, (2,))
    assert elect(node, elect_leaders.UNCLEAN, TopicPartitions(topic="t", partitions=[0])) == [
        ("t", 0, ErrorCode.ELECTION_NOT_NEEDED)
    ]


def test_there_are_two_kinds_of_elections(node: ClusterNode) -> None:
    response = node.ask(elect_leaders, ElectLeadersRequest(election_type=2, topic_partitions=None), 2)
    assert response.error_code == ErrorCode.INVALID_REQUEST
