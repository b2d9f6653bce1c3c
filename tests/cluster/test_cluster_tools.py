"""`culver.testing.Cluster`: brokers that a test takes down one by one."""

from __future__ import annotations

import os

import pytest

from culver.errors import ErrorCode, KafkaError
from culver.testing import BrokerFailed, Cluster, ClusterFailed, ZooKeeper


def test_a_cluster_is_ready_with_its_topics_and_leaves_nothing_behind() -> None:
    with Cluster(brokers=3, topics={"orders": 6}, racks=["a", "b", "b"]) as cluster:
        assert [broker.broker_id for broker in cluster.brokers] == [1, 2, 3]
        assert len(cluster.bootstrap_servers.split(",")) == 3
        cluster.wait_until_in_sync("orders")
        partitions = cluster.partitions("orders")
        assert [partition.index for partition in partitions] == list(range(6))
        assert {len(partition.replicas) for partition in partitions} == {3}
        assert {partition.leader for partition in partitions} == {1, 2, 3}
        assert cluster.controller() in (1, 2, 3)
        pids = [broker.pid for broker in cluster.brokers]
        directories = [broker.data_dir for broker in cluster.brokers]
    assert not any(directory.exists() for directory in directories)
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.culver_cluster(brokers=2, topics={"orders": 1})
def test_a_broker_is_killed_replaced_by_another_and_comes_back(culver_cluster: Cluster) -> None:
    leader = culver_cluster.leader("orders", 0)
    culver_cluster.broker(leader).kill()
    assert [broker.broker_id for broker in culver_cluster.running] == [3 - leader]
    assert culver_cluster.wait_for_leader("orders", 0, other_than=leader) == 3 - leader
    culver_cluster.broker(leader).start()
    culver_cluster.wait_until_in_sync("orders")


@pytest.mark.culver_cluster(brokers=2, topics={"orders": 1})
def test_a_suspended_broker_is_deaf_until_it_is_resumed(culver_cluster: Cluster) -> None:
    leader = culver_cluster.leader("orders", 0)
    culver_cluster.broker(leader).suspend()
    assert culver_cluster.broker(leader).suspended
    assert culver_cluster.wait_for_leader("orders", 0, other_than=leader) == 3 - leader
    culver_cluster.broker(leader).resume()
    culver_cluster.wait_until_in_sync("orders")


def test_one_more_broker_joins_and_topics_go_onto_it() -> None:
    with Cluster(brokers=1) as cluster:
        with pytest.raises(KafkaError) as refused:
            cluster.create_topic("orders", replication_factor=2)
        assert refused.value.code == ErrorCode.INVALID_REPLICATION_FACTOR
        assert cluster.add_broker(rack="b").broker_id == 2
        cluster.create_topic("orders", partitions=4, replication_factor=2, config={"min.insync.replicas": 2})
        cluster.wait_until_in_sync("orders")
        assert {partition.leader for partition in cluster.partitions("orders")} == {1, 2}


def test_what_does_not_come_is_told_with_how_things_are() -> None:
    with Cluster(brokers=1, topics={"orders": 1}) as cluster:
        with pytest.raises(ClusterFailed, match="still not: the moon is full"):
            cluster.wait_until(lambda: False, "the moon is full", timeout_s=0.05)
        with pytest.raises(ClusterFailed, match="UNKNOWN_TOPIC_OR_PARTITION"):
            cluster.wait_until(lambda: cluster.leader("nothing"), "nothing is led", timeout_s=0.05)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(ValueError, match="2 racks for 3 brokers"):
        Cluster(brokers=3, racks=["a", "b"])
    with pytest.raises(BrokerFailed):
        _ = Cluster().bootstrap_servers
    with pytest.raises(BrokerFailed, match=r"no\.such\.setting"):
        Cluster(config={"no.such.setting": 1}).start()


def test_a_cluster_meets_in_zookeeper() -> None:
    with (
        ZooKeeper() as zookeeper,
        Cluster(
            brokers=2,
            topics={"orders": 2},
            config={"culver.session.timeout.ms": 1000},
            coordination=f"zookeeper://{zookeeper.address}/culver",
        ) as cluster,
    ):
        leader = cluster.leader("orders", 0)
        cluster.broker(leader).kill()
        assert cluster.wait_for_leader("orders", 0, other_than=leader) == 3 - leader
        cluster.broker(leader).start()
        cluster.wait_until_in_sync("orders")
