"""Fetches of consumers in a cluster: up to the high watermark, from any replica, from the closest one."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from replica_world import ReplicaNode, ReplicaWorld

from culver.broker.handlers import fetch
from culver.broker.request_statistics import ApiStatistics
from culver.core.image import BrokerInfo
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
)


class Consumer:
    def __init__(self, node: ReplicaNode, version: int = 12) -> None:
        self.node = node
        self.version = version
        self.replies: list[FetchResponse] = []

    def fetch(
        self,
        offset: int = 0,
        *,
        epoch: int = -1,
        min_bytes: int = 1,
        wait_ms: int = 0,
        rack: str = "",
        topic: str = "t",
        index: int = 0,
    ) -> FetchResponse | None:
        asked = FetchPartition(
            partition=index, fetch_offset=offset, current_leader_epoch=epoch, partition_max_bytes=1 << 20
        )
        known = self.node.image.topics.get(topic)
        request = FetchRequest(
            max_wait_ms=wait_ms,
            min_bytes=min_bytes,
            session_epoch=-1,
            rack_id=rack,
            topics=[
                FetchTopic(topic=topic, topic_id=known.topic_id if known else bytes(16), partitions=[asked])
            ],
        )
        exchange: Any = SimpleNamespace(
            connection=SimpleNamespace(sends_files=False, peer_broker=None),
            route=SimpleNamespace(statistics=ApiStatistics()),
            version=self.version,
            reply=self.replies.append,
            abandoned=False,
            on_abandon=None,
        )
        return fetch.handle(self.node, exchange, request)  # type: ignore[arg-type]

    def data(self, offset: int = 0, **options: Any) -> PartitionData:
        response = self.fetch(offset, **options)
        assert response is not None
        return response.responses[0].partitions[0]


def size_of(data: PartitionData) -> int:
    return sum(len(buffer) for buffer in data.records or ())  # type: ignore[arg-type]


@pytest.fixture
def world() -> ReplicaWorld:
    """One leads, two and three follow; `committed` is everywhere, `appended` only at the leader."""
    world = ReplicaWorld(3)
    world.make_topic()
    world.run()
    world[1].append(b"committed")
    world.run(600)
    for number in (2, 3):
        world[number].fetchers.close()
    world[1].append(b"appended")
    world.run()
    return world


# -- the leader ---------------------------------------------------------------------------------------------


def test_nobody_sees_what_is_not_committed(world: ReplicaWorld) -> None:
    data = Consumer(world[1]).data(0)
    assert (data.high_watermark, data.last_stable_offset) == (1, 1)
    assert 0 < size_of(data) < world[1].partition().log.size_bytes


@pytest.mark.parametrize("offset", [1, 2])
def test_an_offset_that_is_appended_but_not_committed_is_waited_for(world: ReplicaWorld, offset: int) -> None:
    data = Consumer(world[1]).data(offset)
    assert data.error_code == 0
    assert size_of(data) == 0


def test_an_offset_beyond_the_log_is_out_of_range(world: ReplicaWorld) -> None:
    assert Consumer(world[1]).data(3).error_code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_a_long_poll_ends_when_the_high_watermark_moves_not_when_something_is_appended(
    world: ReplicaWorld,
) -> None:
    consumer = Consumer(world[1])
    assert consumer.fetch(1, wait_ms=5000) is None
    world[1].append(b"more")
    world.run()
    assert consumer.replies == []
    partition = world[1].partition()
    for number in (2, 3):
        world[1].replication.follower_fetched(partition, number, 1, 2)
    world[1].after_requests()
    [response] = consumer.replies
    [data] = response.responses[0].partitions
    assert data.high_watermark == 2
    assert size_of(data) > 0


def test_a_long_poll_counts_committed_bytes_only(world: ReplicaWorld) -> None:
    consumer = Consumer(world[1])
    assert consumer.fetch(1, wait_ms=5000, min_bytes=1200) is None
    partition = world[1].partition()
    for _ in range(3):
        world[1].append(bytes(400))
        for number in (2, 3):
            world[1].replication.follower_fetched(partition, number, 1, partition.log.end_offset - 1)
        world[1].after_requests()
    assert consumer.replies == [], "enough is appended, but not committed"
    for number in (2, 3):
        world[1].replication.follower_fetched(partition, number, 1, partition.log.end_offset)
    world[1].after_requests()
    assert len(consumer.replies) == 1


def test_a_long_poll_ends_when_its_time_is_up(world: ReplicaWorld) -> None:
    consumer = Consumer(world[1])
    assert consumer.fetch(1, wait_ms=5000) is None
    world.run(4999)
    assert consumer.replies == []
    world.run(1)
    assert size_of(consumer.replies[0].responses[0].partitions[0]) == 0
    assert not world[1].partition().waiters


def test_a_long_poll_ends_when_the_partition_is_gone(world: ReplicaWorld) -> None:
    consumer = Consumer(world[1])
    assert consumer.fetch(1, wait_ms=5000) is None
    world[1].partitions.remove(world[1].partition())
    world[1].after_requests()
    [response] = consumer.replies
    assert response.responses[0].partitions[0].error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER


# -- followers ----------------------------------------------------------------------------------------------


def test_a_follower_serves_what_it_knows_to_be_committed(world: ReplicaWorld) -> None:
    data = Consumer(world[2]).data(0)
    assert data.error_code == 0
    assert data.high_watermark == 1
    assert size_of(data) > 0


def test_a_follower_does_not_know_what_lies_beyond_its_log(world: ReplicaWorld) -> None:
    assert Consumer(world[2]).data(1).error_code == 0
    assert Consumer(world[2]).data(2).error_code == ErrorCode.OFFSET_NOT_AVAILABLE


@pytest.mark.parametrize("version", [4, 9, 10])
def test_old_clients_are_served_by_leaders_alone(world: ReplicaWorld, version: int) -> None:
    assert Consumer(world[2], version).data().error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert Consumer(world[1], version).data().error_code == 0


def test_a_long_poll_at_a_follower_ends_when_it_hears_of_the_high_watermark(world: ReplicaWorld) -> None:
    consumer = Consumer(world[2])
    assert consumer.fetch(1, wait_ms=5000) is None
    log = world[2].partition().log
    missing = world[1].filesystem.read(world[1].partition().log._active.path)[log.size_bytes :]
    world[2].partition().appended_bytes += log.append_replica(missing)
    world[2].after_requests()
    assert consumer.replies == []
    world[2].replication.followed(world[2].partition(), 2, 0)
    world[2].after_requests()
    assert size_of(consumer.replies[0].responses[0].partitions[0]) > 0


# -- the closest replica ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rack", "preferred"), [("rack1", -1), ("rack2", 2), ("rack3", 3), ("elsewhere", -1), ("", -1)]
)
def test_a_consumer_is_sent_to_the_replica_in_its_rack(
    world: ReplicaWorld, rack: str, preferred: int
) -> None:
    data = Consumer(world[1]).data(0, rack=rack, wait_ms=5000)
    assert data.preferred_read_replica == preferred
    assert (size_of(data) == 0) == (preferred >= 0)


def test_a_replica_that_does_not_have_the_offset_yet_is_not_named(world: ReplicaWorld) -> None:
    assert Consumer(world[1]).data(1, rack="rack2").preferred_read_replica == 2
    assert Consumer(world[1]).data(2, rack="rack2").preferred_read_replica == -1


def test_a_replica_that_is_not_in_sync_is_not_named(world: ReplicaWorld) -> None:
    state = world[1].partition().state
    assert state is not None
    state.update((1, 2, 3), (1, 3), 1, 0.0)
    assert Consumer(world[1]).data(0, rack="rack2").preferred_read_replica == -1


def test_a_replica_that_is_not_alive_is_not_named(world: ReplicaWorld) -> None:
    world.image = world.image.without_broker(2)
    assert Consumer(world[1]).data(0, rack="rack2").preferred_read_replica == -1


def test_of_several_the_one_that_is_furthest_is_named(world: ReplicaWorld) -> None:
    for number in (2, 3):
        world.image = world.image.with_broker(BrokerInfo(number, "host", 1, "rack", epoch=1))
    world[1].replication.follower_fetched(world[1].partition(), 3, 1, 2)
    assert Consumer(world[1]).data(0, rack="rack").preferred_read_replica == 3


def test_a_follower_sends_nobody_elsewhere(world: ReplicaWorld) -> None:
    data = Consumer(world[2]).data(0, rack="rack3")
    assert data.preferred_read_replica == -1
    assert size_of(data) > 0


def test_the_selection_can_be_switched_off() -> None:
    world = ReplicaWorld(2, replica_selector_class="")
    world.make_topic()
    world.run()
    world[1].append(b"a")
    world.run(600)
    assert Consumer(world[1]).data(0, rack="rack2").preferred_read_replica == -1


# -- elsewhere ----------------------------------------------------------------------------------------------


def test_a_fenced_client_is_told_who_leads(world: ReplicaWorld) -> None:
    world.lead(2)
    response = Consumer(world[1], 16).fetch(0, epoch=0)
    assert response is not None
    [data] = response.responses[0].partitions
    assert data.error_code == ErrorCode.FENCED_LEADER_EPOCH
    assert data.current_leader == LeaderIdAndEpoch(leader_id=2, leader_epoch=1)
    assert response.node_endpoints == [NodeEndpoint(node_id=2, host="host2", port=9092, rack="rack2")]


def test_a_partition_that_is_held_elsewhere_is_looked_for_there(world: ReplicaWorld) -> None:
    world[3].partitions.remove(world[3].partition())
    response = Consumer(world[3], 17).fetch()
    assert response is not None
    [data] = response.responses[0].partitions
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert data.current_leader == LeaderIdAndEpoch(leader_id=1, leader_epoch=0)
    assert [broker.node_id for broker in response.node_endpoints] == [1]


def test_older_clients_are_not_told_more_than_they_understand(world: ReplicaWorld) -> None:
    world.lead(2)
    response = Consumer(world[1], 12).fetch(0, epoch=0)
    assert response is not None
    assert response.responses[0].partitions[0].current_leader is None
    assert response.node_endpoints == []


def test_a_partition_that_does_not_exist_is_nowhere(world: ReplicaWorld) -> None:
    assert Consumer(world[1]).data(index=5).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert Consumer(world[1]).data(topic="no").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_a_newer_epoch_than_the_broker_s_is_unknown(world: ReplicaWorld) -> None:
    assert Consumer(world[1]).data(0, epoch=7).error_code == ErrorCode.UNKNOWN_LEADER_EPOCH
