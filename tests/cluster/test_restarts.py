"""Restarting brokers under load: one by one, as an upgrade does it, and under the supervisor."""

from __future__ import annotations

import pytest

from culver.testing import Cluster
from load import Load


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 6}, config={"min.insync.replicas": 2})
def test_a_rolling_restart_fails_no_write(culver_cluster: Cluster) -> None:
    culver_cluster.wait_until_in_sync("orders")
    with Load(culver_cluster, "orders") as load:
        for broker in culver_cluster.brokers:
            broker.restart()
            culver_cluster.wait_until_in_sync("orders")
            load.wait_for(100)
    load.check()


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 3}, config={"min.insync.replicas": 2})
def test_killing_one_leader_after_the_other_loses_nothing(culver_cluster: Cluster) -> None:
    culver_cluster.wait_until_in_sync("orders")
    with Load(culver_cluster, "orders") as load:
        for partition in range(3):
            leader = culver_cluster.leader("orders", partition)
            culver_cluster.broker(leader).kill()
            culver_cluster.wait_for_leader("orders", partition, other_than=leader)
            load.wait_for(100)
            culver_cluster.broker(leader).start()
            culver_cluster.wait_until_in_sync("orders")
    load.check()
