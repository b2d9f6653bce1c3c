"""Test tools for people who use Culver: brokers in subprocesses, and pytest fixtures around them.

    from culver.testing import Broker, Cluster

    with Broker(topics={"orders": 3}) as broker:
        producer = confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers})

    with Cluster(brokers=3, topics={"orders": 3}) as cluster:
        cluster.broker(cluster.leader("orders", 0)).kill()

`Broker(http=True)` and `Cluster(http=True)` serve HTTP too, at `http_url`; `Gateway` is one in front of any cluster.
The pytest plugin (loaded by itself once Culver is installed) gives the fixtures `culver_broker`, `culver_topic` and
`culver_cluster`; see `culver.testing.pytest_plugin`.
"""

from culver.testing.announced_process import BrokerFailed
from culver.testing.broker import Broker
from culver.testing.cluster import Cluster, ClusterFailed, PartitionState
from culver.testing.gateway import Gateway
from culver.testing.zookeeper import ZooKeeper, ZooKeeperFailed

__all__ = [
    "Broker",
    "BrokerFailed",
    "Cluster",
    "ClusterFailed",
    "Gateway",
    "PartitionState",
    "ZooKeeper",
    "ZooKeeperFailed",
]
