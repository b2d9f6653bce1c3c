"""Three real brokers: replicas are the same byte for byte, followers catch up, impostors get nothing."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from culver.errors import ErrorCode
from culver.protocol.apis import BROKER_HELLO_KEY
from culver.protocol.messages.api_versions import ApiVersionsRequest
from culver.protocol.messages.broker_hello import BrokerHelloRequest
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, PartitionData
from culver.protocol.messages.metadata import MetadataRequest
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record, encode_batch
from culver.testing import Broker, Cluster
from raw_connection import RawConnection

RACKS = ("one", "two", "three")
CONFIG = {"auto.leader.rebalance.enable": False}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with Cluster(brokers=3, config=CONFIG, racks=RACKS) as cluster:
        yield cluster


@pytest.fixture
def mortals() -> Iterator[Cluster]:
    """Brokers that may die."""
    with Cluster(brokers=3, config=CONFIG) as cluster:
        yield cluster


def connect(broker: Broker) -> RawConnection:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    return RawConnection((host, int(port)), timeout_seconds=30)


def produce(cluster: Cluster, topic: str, count: int, size_bytes: int = 1000, acks: int = -1) -> None:
    with connect(cluster.broker(cluster.leader(topic))) as connection:
        for _ in range(count):
            batch = encode_batch([Record(0, int(time.time() * 1000), None, os.urandom(size_bytes))])
            data = TopicProduceData(
                name=topic, partition_data=[PartitionProduceData(index=0, records=memoryview(batch))]
            )
            response = connection.call(ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[data]), 9)
            [answer] = response.responses[0].partition_responses
            assert ErrorCode(answer.error_code) is ErrorCode.NONE


def log_bytes(broker: Broker, topic: str) -> bytes:
    directory = broker.data_dir / f"{topic}-0"
    return b"".join(path.read_bytes() for path in sorted(directory.glob("*.log")))


def wait_until_same(cluster: Cluster, topic: str) -> bytes:
    """Until all replicas are in sync and hold the same bytes, which are returned."""
    cluster.wait_until_in_sync(topic)
    leader = cluster.broker(cluster.leader(topic))
    cluster.wait_until(
        lambda: len({log_bytes(broker, topic) for broker in cluster.brokers}) == 1,
        lambda: f"{[len(log_bytes(broker, topic)) for broker in cluster.brokers]} are the same bytes",
    )
    return log_bytes(leader, topic)


def fetch(connection: RawConnection, topic: str, offset: int = 0, rack: str = "") -> PartitionData:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    request = FetchRequest(
        max_wait_ms=10_000,
        min_bytes=1,
        session_epoch=-1,
        rack_id=rack,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )
    data: PartitionData = connection.call(request, 12).responses[0].partitions[0]
    return data


@pytest.mark.parametrize("flush", ["os", "replicated", "always"])
def test_what_is_acknowledged_is_everywhere(cluster: Cluster, flush: str) -> None:
    topic = f"everywhere-{flush}"
    cluster.create_topic(topic, config={"culver.flush": flush})
    cluster.wait_until_in_sync(topic)
    produce(cluster, topic, 50)
    assert len({log_bytes(broker, topic) for broker in cluster.brokers}) == 1
    assert len(log_bytes(cluster.brokers[0], topic)) > 50_000


def test_large_batches_and_many_segments_are_copied(cluster: Cluster) -> None:
    cluster.create_topic("large", config={"internal.segment.bytes": 1 << 20})
    produce(cluster, "large", 30, size_bytes=300_000)
    assert len(wait_until_same(cluster, "large")) > 9_000_000


def test_a_follower_that_was_away_catches_up(mortals: Cluster) -> None:
    mortals.create_topic("away")
    mortals.wait_until_in_sync("away")
    follower = next(broker for broker in mortals.brokers if broker.broker_id != mortals.leader("away"))
    produce(mortals, "away", 20)
    follower.kill()
    mortals.wait_until(
        lambda: follower.broker_id not in mortals.partition("away").in_sync, "the dead one is out of sync"
    )
    produce(mortals, "away", 50, size_bytes=100_000)
    follower.start()
    assert len(wait_until_same(mortals, "away")) > 5_000_000


def test_what_only_a_dead_leader_had_is_gone_when_it_comes_back(mortals: Cluster) -> None:
    mortals.create_topic("lone", config={"min.insync.replicas": 1})
    mortals.wait_until_in_sync("lone")
    produce(mortals, "lone", 10)
    old = mortals.broker(mortals.leader("lone"))
    others = [broker for broker in mortals.brokers if broker is not old]
    for broker in others:
        broker.suspend()
    produce(mortals, "lone", 5, acks=1)
    old.kill()
    for broker in others:
        broker.resume()
    mortals.wait_for_leader("lone", other_than=old.broker_id)
    produce(mortals, "lone", 7)
    old.start()
    wait_until_same(mortals, "lone")
    with connect(mortals.broker(mortals.leader("lone"))) as connection:
        # Each follower was sent the first of the five before it stood still, and none of them the others.
        assert fetch(connection, "lone").high_watermark in (17, 18)


def test_a_consumer_is_sent_to_the_replica_in_its_rack_and_served_there(cluster: Cluster) -> None:
    cluster.create_topic("racks")
    produce(cluster, "racks", 3)
    cluster.wait_until_in_sync("racks")
    leader = cluster.broker(cluster.leader("racks"))
    closest = next(broker for broker in cluster.brokers if broker is not leader)
    with connect(leader) as connection:
        data = fetch(connection, "racks", rack=RACKS[closest.broker_id - 1])
        assert data.preferred_read_replica == closest.broker_id
        assert not data.records
        data = fetch(connection, "racks", rack=RACKS[leader.broker_id - 1])
        assert data.preferred_read_replica == -1
        assert data.records
    with connect(closest) as connection:
        offset = 0
        while offset < 3:
            data = fetch(connection, "racks", offset)
            assert data.error_code == 0
            offset = max(offset, data.high_watermark)


def test_a_client_that_poses_as_a_broker_is_refused(cluster: Cluster) -> None:
    cluster.create_topic("secret")
    broker = cluster.brokers[0]
    with connect(broker) as connection:
        keys = [api.api_key for api in connection.call(ApiVersionsRequest(), 0).api_keys]
        assert BROKER_HELLO_KEY not in keys
        cluster_id = connection.call(MetadataRequest(topics=[]), 9).cluster_id
        hello = BrokerHelloRequest(cluster_id=cluster_id, broker_id=2, broker_epoch=1 << 40, secret="guess")
        answer = connection.call(hello, 0)
        assert ErrorCode(answer.error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        asked = FetchPartition(partition=0, fetch_offset=0, partition_max_bytes=1 << 20)
        request = FetchRequest(
            replica_id=2,
            max_wait_ms=0,
            min_bytes=1,
            session_epoch=-1,
            topics=[FetchTopic(topic="secret", partitions=[asked])],
        )
        response = connection.call(request, 12)
        assert ErrorCode(response.error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        hello.cluster_id = "another"
        answer = connection.call(hello, 0)
        assert ErrorCode(answer.error_code) is ErrorCode.INCONSISTENT_CLUSTER_ID
    assert "does not know the secret" in broker.log_text
    assert "belongs to cluster" in broker.log_text
