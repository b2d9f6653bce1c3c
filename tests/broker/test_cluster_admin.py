"""What is asked of a cluster of three: topics placed, partitions moved, leaders elected, brokers removed."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import TypeVar

import pytest

from culver.errors import ErrorCode
from culver.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    AlterPartitionReassignmentsResponse,
    ReassignablePartition,
    ReassignableTopic,
)
from culver.protocol.messages.create_topics import (
    CreatableReplicaAssignment,
    CreatableTopic,
    CreateTopicsRequest,
    CreateTopicsResponse,
)
from culver.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from culver.protocol.messages.elect_leaders import ElectLeadersRequest, ElectLeadersResponse, TopicPartitions
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from culver.protocol.messages.list_partition_reassignments import (
    ListPartitionReassignmentsRequest,
    ListPartitionReassignmentsResponse,
)
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from culver.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from culver.protocol.messages.unregister_broker import UnregisterBrokerRequest, UnregisterBrokerResponse
from culver.protocol.records import Record, encode_batch
from culver.protocol.schema import Message
from culver.testing import Cluster
from culver.wire_client import WireClient

M = TypeVar("M", bound=Message)


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    # Leaders go back by themselves after a while; here it is the tests that say when.
    with Cluster(brokers=3, config={"auto.leader.rebalance.enable": False}) as cluster:
        yield cluster


@pytest.fixture
def changing_cluster() -> Iterator[Cluster]:
    """For a test that stops brokers, or adds some."""
    with Cluster(brokers=3, config={"auto.leader.rebalance.enable": False}) as cluster:
        yield cluster


def ask(cluster: Cluster, broker_id: int, request: Message, response: type[M]) -> M:
    with WireClient(cluster.broker(broker_id).bootstrap_servers) as client:
        return client.ask_once(request, response)


def make(cluster: Cluster, name: str, *replicas: tuple[int, ...]) -> None:
    assignments = [
        CreatableReplicaAssignment(partition_index=index, broker_ids=list(brokers))
        for index, brokers in enumerate(replicas)
    ]
    topic = CreatableTopic(name=name, num_partitions=-1, replication_factor=-1, assignments=assignments)
    (made,) = ask(
        cluster, 1, CreateTopicsRequest(topics=[topic], timeout_ms=5000), CreateTopicsResponse
    ).topics
    assert made.error_code == ErrorCode.NONE, made.error_message
    cluster.wait_until(
        lambda: all(len(cluster.partitions(name, broker)) == len(replicas) for broker in cluster.running),
        f"every broker knows {name}",
    )


def topic_id(cluster: Cluster, name: str) -> bytes:
    request = MetadataRequest(topics=[MetadataRequestTopic(name=name)])
    (topic,) = ask(cluster, cluster.running[0].broker_id, request, MetadataResponse).topics
    return topic.topic_id


def produce(cluster: Cluster, name: str, count: int, broker_id: int | None = None) -> ErrorCode:
    batch = encode_batch([Record(i, int(time.time() * 1000), None, b"%d" % i) for i in range(count)])
    data = PartitionProduceData(index=0, records=memoryview(batch))
    topic = TopicProduceData(name=name, topic_id=topic_id(cluster, name), partition_data=[data])
    request = ProduceRequest(acks=-1, timeout_ms=5000, topic_data=[topic])
    leader = cluster.leader(name) if broker_id is None else broker_id
    response = ask(cluster, leader, request, ProduceResponse)
    return ErrorCode(response.responses[0].partition_responses[0].error_code)


def end_offset(cluster: Cluster, name: str, broker_id: int) -> tuple[int, ErrorCode]:
    partition = ListOffsetsPartition(partition_index=0, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name=name, partitions=[partition])])
    (topic,) = ask(cluster, broker_id, request, ListOffsetsResponse).topics
    return topic.partitions[0].offset, ErrorCode(topic.partitions[0].error_code)


def delete_records(cluster: Cluster, name: str, offset: int, broker_id: int) -> tuple[int, ErrorCode]:
    topic = DeleteRecordsTopic(
        name=name, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    request = DeleteRecordsRequest(topics=[topic], timeout_ms=5000)
    (answer,) = ask(cluster, broker_id, request, DeleteRecordsResponse).topics
    return answer.partitions[0].low_watermark, ErrorCode(answer.partitions[0].error_code)


def reassign(cluster: Cluster, name: str, replicas: list[int] | None, asked: int = 1) -> ErrorCode:
    topic = ReassignableTopic(
        name=name, partitions=[ReassignablePartition(partition_index=0, replicas=replicas)]
    )
    request = AlterPartitionReassignmentsRequest(topics=[topic])
    (answer,) = ask(cluster, asked, request, AlterPartitionReassignmentsResponse).responses
    return ErrorCode(answer.partitions[0].error_code)


def moving(cluster: Cluster) -> list[str]:
    response = ask(cluster, 1, ListPartitionReassignmentsRequest(), ListPartitionReassignmentsResponse)
    return [topic.name for topic in response.topics]


def elect(cluster: Cluster, name: str, kind: int) -> ErrorCode:
    request = ElectLeadersRequest(
        election_type=kind, topic_partitions=[TopicPartitions(topic=name, partitions=[0])]
    )
    (answer,) = ask(cluster, 1, request, ElectLeadersResponse).replica_election_results
    return ErrorCode(answer.partition_result[0].error_code)


def test_any_broker_makes_a_topic_and_its_leader_takes_the_records(cluster: Cluster) -> None:
    make(cluster, "placed", (2, 3), (3, 1))
    assert [partition.replicas for partition in cluster.partitions("placed")] == [(2, 3), (3, 1)]
    assert produce(cluster, "placed", 3) is ErrorCode.NONE
    assert produce(cluster, "placed", 3, broker_id=3) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert produce(cluster, "placed", 3, broker_id=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert end_offset(cluster, "placed", 2) == (3, ErrorCode.NONE)
    assert end_offset(cluster, "placed", 3) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert end_offset(cluster, "placed", 1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert end_offset(cluster, "no-such-topic", 1) == (-1, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION)


def test_records_are_deleted_by_the_leader(cluster: Cluster) -> None:
    make(cluster, "cut", (2, 1))
    assert produce(cluster, "cut", 10) is ErrorCode.NONE
    assert delete_records(cluster, "cut", 4, 1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert delete_records(cluster, "cut", 4, 2) == (4, ErrorCode.NONE)


def test_a_partition_moves_to_other_brokers_with_all_it_holds(cluster: Cluster) -> None:
    make(cluster, "moved", (1, 2))
    assert produce(cluster, "moved", 100) is ErrorCode.NONE
    assert reassign(cluster, "moved", None) is ErrorCode.NO_REASSIGNMENT_IN_PROGRESS
    assert reassign(cluster, "moved", [3], asked=2) is ErrorCode.NONE
    cluster.wait_until(
        lambda: cluster.partition("moved").replicas == (3,) and cluster.leader("moved") == 3,
        lambda: f"it has moved: {cluster.partition('moved')}",
    )
    assert "moved" not in moving(cluster)
    cluster.wait_until(
        lambda: end_offset(cluster, "moved", 3) == (100, ErrorCode.NONE), "the new leader has it all"
    )
    cluster.wait_until(lambda: produce(cluster, "moved", 1) is ErrorCode.NONE, "the new leader takes records")
    assert end_offset(cluster, "moved", 1) == (-1, ErrorCode.NOT_LEADER_OR_FOLLOWER)


def test_the_preferred_leader_leads_again_when_asked_for(changing_cluster: Cluster) -> None:
    cluster = changing_cluster
    make(cluster, "preferred", (2, 3))
    cluster.wait_until_in_sync("preferred")
    assert elect(cluster, "preferred", 0) is ErrorCode.ELECTION_NOT_NEEDED
    cluster.broker(2).stop()
    cluster.wait_for_leader("preferred", other_than=2)
    assert elect(cluster, "preferred", 0) is ErrorCode.PREFERRED_LEADER_NOT_AVAILABLE
    cluster.broker(2).start()
    cluster.wait_until_in_sync("preferred")
    assert cluster.leader("preferred") == 3
    assert elect(cluster, "preferred", 0) is ErrorCode.NONE
    assert cluster.leader("preferred") == 2


def test_a_broker_that_is_drained_and_gone_is_removed(changing_cluster: Cluster) -> None:
    cluster = changing_cluster
    number = cluster.add_broker().broker_id
    make(cluster, "drained", (number,))
    assert produce(cluster, "drained", 5) is ErrorCode.NONE

    def unregister() -> ErrorCode:
        request = UnregisterBrokerRequest(broker_id=number)
        return ErrorCode(ask(cluster, 1, request, UnregisterBrokerResponse).error_code)

    assert unregister() is ErrorCode.INVALID_REQUEST
    assert reassign(cluster, "drained", [1]) is ErrorCode.NONE
    cluster.wait_until(lambda: cluster.partition("drained").replicas == (1,), "it is drained")
    cluster.broker(number).stop()
    cluster.wait_until(lambda: unregister() is ErrorCode.NONE, "it is removed")
    assert unregister() is ErrorCode.BROKER_ID_NOT_REGISTERED
    cluster.wait_until(lambda: end_offset(cluster, "drained", 1) == (5, ErrorCode.NONE), "nothing was lost")
