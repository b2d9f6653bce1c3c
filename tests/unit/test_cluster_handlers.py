"""Requests that are about the cluster: where partitions are, who leads them, and how to change that."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from cluster_node import ClusterNode, Exchange

from culver.broker.handlers import (
    alter_configs,
    create_partitions,
    create_topics,
    describe_cluster,
    describe_configs,
    describe_topic_partitions,
    find_coordinator,
    list_offsets,
    metadata,
    offset_for_leader_epoch,
    unregister_broker,
)
from culver.core import entries
from culver.core.coordinator_partitions import partition_for_name
from culver.core.image import PartitionImage
from culver.core.image_builder import ImageChange
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode
from culver.protocol.messages.alter_configs import AlterableConfig, AlterConfigsRequest, AlterConfigsResource
from culver.protocol.messages.create_partitions import (
    CreatePartitionsAssignment,
    CreatePartitionsRequest,
    CreatePartitionsTopic,
)
from culver.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
)
from culver.protocol.messages.describe_cluster import DescribeClusterRequest
from culver.protocol.messages.describe_configs import DescribeConfigsRequest, DescribeConfigsResource
from culver.protocol.messages.describe_topic_partitions import DescribeTopicPartitionsRequest, TopicRequest
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.messages.offset_for_leader_epoch import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from culver.protocol.messages.unregister_broker import UnregisterBrokerRequest

BROKER = 4


@pytest.fixture
def node() -> ClusterNode:
    return ClusterNode()


def led_by_one(index: int = 0) -> PartitionImage:
    return PartitionImage(index, 1, 5, (1, 2, 3), (1, 2, 3))


# --- topics ---


def create(node: ClusterNode, **topic: Any) -> tuple[ErrorCode, str | None]:
    asked = CreatableTopic(**{"num_partitions": 3, "replication_factor": 3, "name": "t", **topic})
    (result,) = node.ask(create_topics, CreateTopicsRequest(topics=[asked]), 7).topics
    return ErrorCode(result.error_code), result.error_message


def assignment(index: int, *brokers: int) -> CreatableReplicaAssignment:
    return CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))


def by_hand(node: ClusterNode, *assignments: CreatableReplicaAssignment) -> ErrorCode:
    return create(node, num_partitions=-1, replication_factor=-1, assignments=list(assignments))[0]


def test_a_topic_is_spread_over_the_brokers(node: ClusterNode) -> None:
    assert create(node)[0] is ErrorCode.NONE
    partitions = [node.partition("t", index) for index in range(3)]
    assert {partition.leader for partition in partitions} == {1, 2, 3}
    assert all(set(partition.replicas) == {1, 2, 3} for partition in partitions)
    assert all(partition.isr == partition.replicas for partition in partitions)


def test_the_answer_tells_how_many_replicas_there_are(node: ClusterNode) -> None:
    asked = CreatableTopic(name="t", num_partitions=2, replication_factor=2)
    (result,) = node.ask(create_topics, CreateTopicsRequest(topics=[asked]), 7).topics
    assert (result.num_partitions, result.replication_factor) == (2, 2)


def test_more_replicas_than_brokers_are_refused(node: ClusterNode) -> None:
    assert create(node, replication_factor=4)[0] is ErrorCode.INVALID_REPLICATION_FACTOR


def test_replicas_may_be_named_by_hand(node: ClusterNode) -> None:
    assert by_hand(node, assignment(1, 3, 1), assignment(0, 2, 3)) is ErrorCode.NONE
    assert [node.partition("t", index).replicas for index in (0, 1)] == [(2, 3), (3, 1)]
    assert node.partition("t", 0).leader == 2


def test_what_is_named_by_hand_must_make_sense(node: ClusterNode) -> None:
    refused = ErrorCode.INVALID_REPLICA_ASSIGNMENT
    assert by_hand(node, assignment(0, 2, 2)) is refused
    assert by_hand(node, assignment(0)) is refused
    assert by_hand(node, assignment(0, 2, 9)) is refused
    assert by_hand(node, assignment(0, 1), assignment(2, 1)) is refused
    assert by_hand(node, assignment(0, 1), assignment(1, 1, 2)) is refused
    node.let_live(1, 2)
    assert by_hand(node, assignment(0, 3)) is refused
    assert by_hand(node, assignment(0, 3, 2)) is ErrorCode.NONE
    assert node.partition("t").isr == (2,)


def test_a_topic_that_says_nothing_gets_the_default_as_far_as_there_are_brokers() -> None:
    node = ClusterNode(registered=2, alive=(1, 2), default_replication_factor=3)
    assert create(node, replication_factor=-1)[0] is ErrorCode.NONE
    assert len(node.partition("t").replicas) == 2


def add_partitions(node: ClusterNode, name: str, count: int, *assignments: tuple[int, ...]) -> ErrorCode:
    asked = CreatePartitionsTopic(
        name=name,
        count=count,
        assignments=[CreatePartitionsAssignment(broker_ids=list(brokers)) for brokers in assignments] or None,
    )
    request = CreatePartitionsRequest(topics=[asked], timeout_ms=1000, validate_only=False)
    (result,) = node.ask(create_partitions, request, 3).results
    return ErrorCode(result.error_code)


def test_new_partitions_have_as_many_replicas_as_the_old(node: ClusterNode) -> None:
    node.make_topic("t", PartitionImage(0, 1, 0, (1, 2), (1, 2)))
    assert add_partitions(node, "t", 3) is ErrorCode.NONE
    assert [len(partition.replicas) for partition in node.image.topics["t"].partitions] == [2, 2, 2]
    assert add_partitions(node, "t", 4, (3, 1)) is ErrorCode.NONE
    assert node.partition("t", 3).replicas == (3, 1)
    assert add_partitions(node, "t", 5, (3, 1, 2)) is ErrorCode.INVALID_REPLICA_ASSIGNMENT


def test_the_partitions_of_the_internal_topic_stay_as_many_as_they_are(node: ClusterNode) -> None:
    node.make_topic(GROUP_OFFSETS_TOPIC, led_by_one())
    assert add_partitions(node, GROUP_OFFSETS_TOPIC, 2) is ErrorCode.INVALID_PARTITIONS


# --- metadata ---


def described(node: ClusterNode, version: int = 12) -> Any:
    request = MetadataRequest(topics=[MetadataRequestTopic(name="t")])
    (topic,) = node.ask(metadata, request, version).topics
    return topic.partitions[0]


def test_metadata_names_the_living_and_the_controller(node: ClusterNode) -> None:
    node.let_live(1, 3)
    response = node.ask(metadata, MetadataRequest(topics=[]), 12)
    assert [broker.node_id for broker in response.brokers] == [1, 3]
    assert (response.controller_id, response.cluster_id) == (2, "cluster")


def test_a_broker_that_has_not_joined_names_all_that_there_are(node: ClusterNode) -> None:
    """It cannot tell who is alive, and a client that is told of nobody forgets them all."""
    node.let_live()
    response = node.ask(metadata, MetadataRequest(topics=[]), 12)
    assert [broker.node_id for broker in response.brokers] == [1, 2, 3]


def test_replicas_on_dead_brokers_are_offline(node: ClusterNode) -> None:
    node.make_topic("t", led_by_one())
    node.let_live(1, 3)
    found = described(node)
    assert (found.error_code, found.leader_id, found.offline_replicas) == (0, 1, [2])
    assert found.replica_nodes == [1, 2, 3]


@pytest.mark.parametrize("leader", [-1, 2])
def test_without_a_living_leader_there_is_none(node: ClusterNode, leader: int) -> None:
    node.make_topic("t", PartitionImage(0, leader, 5, (1, 2, 3), (2,)))
    node.let_live(1, 3)
    found = described(node)
    assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert found.leader_epoch == 5


def test_the_first_clients_hear_of_living_replicas_only(node: ClusterNode) -> None:
    node.make_topic("t", led_by_one())
    node.let_live(1, 3)
    found = described(node, version=0)
    assert (found.error_code, found.replica_nodes) == (ErrorCode.REPLICA_NOT_AVAILABLE, [1, 3])


def test_a_topic_made_by_asking_has_the_default_number_of_replicas() -> None:
    node = ClusterNode(default_replication_factor=2, num_partitions=1)
    assert len(described(node).replica_nodes) == 2


def test_a_page_of_topics_tells_the_same(node: ClusterNode) -> None:
    node.make_topic("t", PartitionImage(0, 2, 5, (1, 2, 3), (2,), (3,)))
    node.let_live(1, 3)
    request = DescribeTopicPartitionsRequest(topics=[TopicRequest(name="t")])
    (topic,) = node.ask(describe_topic_partitions, request, 0).topics
    (found,) = topic.partitions
    assert (found.error_code, found.leader_id) == (ErrorCode.LEADER_NOT_AVAILABLE, -1)
    assert (found.isr_nodes, found.eligible_leader_replicas, found.offline_replicas) == ([2], [3], [2])


def test_brokers_that_do_not_run_are_shown_on_request(node: ClusterNode) -> None:
    node.let_live(1, 3)
    response = node.ask(
        describe_cluster, DescribeClusterRequest(include_cluster_authorized_operations=False), 2
    )
    assert [broker.broker_id for broker in response.brokers] == [1, 3]
    request = DescribeClusterRequest(include_cluster_authorized_operations=False, include_fenced_brokers=True)
    response = node.ask(describe_cluster, request, 2)
    assert [(broker.broker_id, broker.is_fenced) for broker in response.brokers] == [
        (1, False),
        (2, True),
        (3, False),
    ]


# --- coordinators ---


def coordinators(node: ClusterNode, *groups: str) -> list[tuple[int, ErrorCode]]:
    response = node.ask(find_coordinator, FindCoordinatorRequest(coordinator_keys=list(groups)), 4)
    return [(found.node_id, ErrorCode(found.error_code)) for found in response.coordinators]


def test_a_groups_coordinator_leads_its_partition(node: ClusterNode) -> None:
    leaders = {0: 3, 1: 2, 2: 1}
    node.make_topic(
        GROUP_OFFSETS_TOPIC,
        *(PartitionImage(index, leader, 0, (1, 2, 3), (1, 2, 3)) for index, leader in leaders.items()),
    )
    groups = [f"group{number}" for number in range(10)]
    expected = [(leaders[partition_for_name(group, 3)], ErrorCode.NONE) for group in groups]
    assert coordinators(node, *groups) == expected
    old = node.ask(find_coordinator, FindCoordinatorRequest(key="group0"), 1)
    assert (old.node_id, old.port) == (expected[0][0], 9000 + expected[0][0])
    node.let_live(1)
    for group, (leader, error) in zip(groups, coordinators(node, *groups), strict=True):
        known = leaders[partition_for_name(group, 3)] == 1
        assert (leader, error) == (
            (1, ErrorCode.NONE) if known else (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE)
        )


def test_who_has_lost_a_coordinator_waits_for_the_next(node: ClusterNode) -> None:
    node.make_topic(GROUP_OFFSETS_TOPIC, PartitionImage(0, 2, 0, (1, 2, 3), (1, 2, 3)))
    node.suspects.hung_up(2)
    exchange = Exchange(4)
    request = FindCoordinatorRequest(coordinator_keys=["group"])
    assert find_coordinator.handle(node, exchange, request) is None  # type: ignore[arg-type]
    before = node.image
    node.let_live(1, 3)
    node.suspects.image_changed(ImageChange(before, node.image))
    assert exchange.response is None, "it is dead, and nobody leads in its place"
    before = node.image
    node.put_partition(GROUP_OFFSETS_TOPIC, PartitionImage(0, 3, 1, (1, 2, 3), (1, 3)))
    node.suspects.image_changed(ImageChange(before, node.image))
    [found] = exchange.response.coordinators
    assert (found.node_id, found.error_code) == (3, 0)


def test_who_asks_again_for_the_same_coordinator_may_be_faster_than_the_news(node: ClusterNode) -> None:
    node.make_topic(GROUP_OFFSETS_TOPIC, PartitionImage(0, 2, 0, (1, 2, 3), (1, 2, 3)))
    exchange = Exchange(4)
    for group in ("group", "other"):
        request = FindCoordinatorRequest(coordinator_keys=[group])
        assert find_coordinator.handle(node, exchange, request) is not None  # type: ignore[arg-type]
    assert find_coordinator.handle(node, exchange, request) is None  # type: ignore[arg-type]
    node.scheduler.run()
    assert exchange.response.coordinators[0].node_id == 2


@pytest.mark.parametrize(("registered", "replicas"), [(1, 1), (2, 2), (3, 3), (5, 3)])
def test_the_internal_topic_has_three_replicas_if_there_are_as_many_brokers(
    registered: int, replicas: int
) -> None:
    node = ClusterNode(registered=registered, alive=range(1, registered + 1))
    groups = [f"group{number}" for number in range(10)]
    # Other brokers may not have heard of the new topic yet.
    for leader, error in coordinators(node, *groups):
        assert (leader, error) in ((1, ErrorCode.NONE), (-1, ErrorCode.COORDINATOR_NOT_AVAILABLE))
    topic = node.image.topics[GROUP_OFFSETS_TOPIC]
    assert coordinators(node, *groups) == [
        (topic.partitions[partition_for_name(group, 50)].leader, ErrorCode.NONE) for group in groups
    ]
    assert {len(partition.replicas) for partition in topic.partitions} == {replicas}
    assert {partition.leader for partition in topic.partitions} == set(range(1, registered + 1))
    assert topic.config["cleanup.policy"] == "compact"


# --- brokers ---


def unregister(node: ClusterNode, broker: int) -> ErrorCode:
    return ErrorCode(node.ask(unregister_broker, UnregisterBrokerRequest(broker_id=broker), 0).error_code)


def test_a_broker_that_is_gone_and_holds_nothing_can_be_removed(node: ClusterNode) -> None:
    node.make_topic("t", PartitionImage(0, 1, 0, (1, 2), (1, 2)))
    assert unregister(node, 3) is ErrorCode.INVALID_REQUEST
    assert unregister(node, 9) is ErrorCode.BROKER_ID_NOT_REGISTERED
    node.let_live(1)
    assert unregister(node, 2) is ErrorCode.INVALID_REQUEST
    assert unregister(node, 3) is ErrorCode.NONE
    assert set(node.image.registrations) == {1, 2}


def alter_broker(node: ClusterNode, name: str, **settings: str) -> ErrorCode:
    configs = [AlterableConfig(name=key.replace("_", "."), value=value) for key, value in settings.items()]
    resource = AlterConfigsResource(resource_type=BROKER, resource_name=name, configs=configs)
    request = AlterConfigsRequest(resources=[resource], validate_only=False)
    (answer,) = node.ask(alter_configs, request, 2).responses
    return ErrorCode(answer.error_code)


def test_settings_for_all_brokers_and_for_this_one(node: ClusterNode) -> None:
    assert alter_broker(node, "", log_retention_ms="1000") is ErrorCode.NONE
    assert alter_broker(node, "1", log_retention_ms="2000") is ErrorCode.NONE
    assert node.builder.broker_settings == {
        None: {"log.retention.ms": "1000"},
        1: {"log.retention.ms": "2000"},
    }
    assert f"{entries.CONFIG}broker-default" in node.store.entries
    assert alter_broker(node, "2", log_retention_ms="3000") is ErrorCode.INVALID_REQUEST

    node.config = node.config.with_dynamic(
        node.builder.broker_settings[None], node.builder.broker_settings[1]
    )
    resources = [DescribeConfigsResource(resource_type=BROKER, resource_name=name) for name in ("", "1")]
    for_all, own = node.ask(describe_configs, DescribeConfigsRequest(resources=resources), 4).results
    assert [(found.name, found.value) for found in for_all.configs] == [("log.retention.ms", "1000")]
    assert {found.name: found.value for found in own.configs}["log.retention.ms"] == "2000"


# --- leaders ---


class LedPartition:
    """As much of a partition as ListOffsets needs."""

    def __init__(self, *, leading: bool, high_watermark: int = 10, epoch_start_offset: int = 10) -> None:
        self.topic, self.index, self.leader_epoch = "t", 0, 6
        self.leading = leading
        self.state = SimpleNamespace(epoch_start_offset=epoch_start_offset) if leading else None
        self.log = SimpleNamespace(
            high_watermark=high_watermark,
            start_offset=0,
            corruption=None,
            offset_for_timestamp=lambda timestamp: (timestamp, timestamp, 6),
        )

    def epoch_error(self, claimed: int) -> ErrorCode:
        return ErrorCode.NONE

    def epoch_at(self, offset: int) -> int:
        return 6

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        return epoch, 12


def offset_of(node: ClusterNode, timestamp: int, version: int = 6) -> tuple[int, ErrorCode]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=timestamp)
    topic = ListOffsetsTopic(name="t", partitions=[partition])
    request = ListOffsetsRequest(replica_id=-1, topics=[topic])
    (answer,) = node.ask(list_offsets, request, version).topics[0].partitions
    return answer.offset, ErrorCode(answer.error_code)


def test_only_the_leader_tells_offsets(node: ClusterNode) -> None:
    assert offset_of(node, -1) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)
    node.make_topic("t", led_by_one())
    assert offset_of(node, -1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    node.partitions.add(LedPartition(leading=False))  # type: ignore[arg-type]
    assert offset_of(node, -1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    node.partitions.add(LedPartition(leading=True))  # type: ignore[arg-type]
    assert offset_of(node, -1) == (10, ErrorCode.NONE)


def test_a_new_leader_does_not_say_where_the_end_is_before_it_knows(node: ClusterNode) -> None:
    node.partitions.add(LedPartition(leading=True, high_watermark=8))  # type: ignore[arg-type]
    assert offset_of(node, -1) == (-1, ErrorCode.OFFSET_NOT_AVAILABLE)
    assert offset_of(node, -1, version=4) == (-1, ErrorCode.LEADER_NOT_AVAILABLE)
    assert offset_of(node, -2) == (0, ErrorCode.NONE)
    assert offset_of(node, 7) == (7, ErrorCode.NONE)
    assert offset_of(node, 9) == (-1, ErrorCode.OFFSET_NOT_AVAILABLE)
    assert offset_of(node, -5, version=9) == (-1, ErrorCode.NONE)


def epoch_end(node: ClusterNode, replica_id: int) -> tuple[int, ErrorCode]:
    partition = OffsetForLeaderPartition(partition=0, leader_epoch=5)
    request = OffsetForLeaderEpochRequest(
        replica_id=replica_id, topics=[OffsetForLeaderTopic(topic="t", partitions=[partition])]
    )
    (answer,) = node.ask(offset_for_leader_epoch, request, 4).topics[0].partitions
    return answer.end_offset, ErrorCode(answer.error_code)


def test_nobody_poses_as_a_replica(node: ClusterNode) -> None:
    node.partitions.add(LedPartition(leading=True))  # type: ignore[arg-type]
    assert epoch_end(node, -1) == (12, ErrorCode.NONE)
    assert epoch_end(node, 2) == (-1, ErrorCode.CLUSTER_AUTHORIZATION_FAILED)
