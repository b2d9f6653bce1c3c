"""Without the metadata store: what goes on while the lease is certain, what stops then, and that it resumes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from culver.cli.failure import ExitCode
from culver.errors import ErrorCode
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record, encode_batch
from culver.testing import Broker, Cluster, ZooKeeper
from culver.wire_client import host_and_port
from load import Load, read_all
from raw_connection import RawConnection

SESSION_MS = 2000
SETTINGS = {"min.insync.replicas": 2, "culver.session.timeout.ms": SESSION_MS}


def write(broker: Broker, acks: int = -1) -> ErrorCode:
    """One record, straight to a broker, without a client that tries again."""
    batch = memoryview(encode_batch([Record(0, 1_700_000_000_000, None, b"-1", ())]))
    data = TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch)])
    with RawConnection(host_and_port(broker.bootstrap_servers)) as connection:
        answer = connection.call(ProduceRequest(acks=acks, timeout_ms=5000, topic_data=[data]), 9)
    return ErrorCode(answer.responses[0].partition_responses[0].error_code)


@pytest.fixture
def zookeeper() -> Iterator[ZooKeeper]:
    with ZooKeeper() as zookeeper:
        yield zookeeper


@pytest.fixture
def cluster(zookeeper: ZooKeeper) -> Iterator[Cluster]:
    where = f"zookeeper://{zookeeper.address}/culver"
    with Cluster(brokers=3, topics={"orders": 1}, config=SETTINGS, coordination=where) as cluster:
        cluster.wait_until_in_sync("orders")
        yield cluster


def suspend(zookeeper: ZooKeeper) -> Callable[[], object]:
    zookeeper.suspend()
    return zookeeper.resume


def kill(zookeeper: ZooKeeper) -> Callable[[], object]:
    zookeeper.kill()
    return zookeeper.start


@pytest.mark.parametrize("lose", [suspend, kill])
def test_writes_end_with_the_lease_and_come_back_with_the_store(
    zookeeper: ZooKeeper, cluster: Cluster, lose: Callable[[ZooKeeper], Callable[[], object]]
) -> None:
    leader = cluster.broker(cluster.leader("orders"))
    others = [broker for broker in cluster.brokers if broker is not leader]
    with Load(cluster, "orders") as load:
        lost_at_s = time.monotonic()
        bring_back = lose(zookeeper)
        assert write(leader) is ErrorCode.NONE, "the lease was good for a while"
        cluster.wait_until(
            lambda: write(leader) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "writes are refused", timeout_s=20
        )
        assert time.monotonic() - lost_at_s < SESSION_MS / 1000 + 5
        assert write(leader, acks=1) is ErrorCode.NOT_LEADER_OR_FOLLOWER
        acknowledged = list(load.acknowledged)
        # What was committed can be read, from brokers that know of nobody who leads.
        assert set(acknowledged) <= set(read_all(leader.bootstrap_servers, "orders"))
        assert all(broker.running for broker in others)
        bring_back()
        load.wait_for(100)
        cluster.wait_until_in_sync("orders")
    assert not load.failed, "a client with default settings sits it out"
    read = read_all(cluster.bootstrap_servers, "orders")
    assert sorted(set(load.acknowledged) - set(read)) == []
    numbers = [number for number in read if number >= 0]
    assert len(numbers) == len(set(numbers))


def log_files(cluster: Cluster) -> list[Path]:
    return sorted(path for broker in cluster.brokers for path in broker.data_dir.rglob("*.log"))


def wipe(zookeeper: ZooKeeper) -> None:
    """The server comes back without its data."""
    zookeeper.kill()
    assert zookeeper._workspace is not None
    shutil.rmtree(zookeeper._workspace / "data")
    zookeeper.start()


def wipe_and_grow(zookeeper: ZooKeeper) -> None:
    """The same, and it has seen more changes since than the brokers ever heard of."""
    zookeeper.kill()
    assert zookeeper._workspace is not None
    shutil.rmtree(zookeeper._workspace / "data")
    zookeeper.start()
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        client.create("/others")
        for number in range(2000):
            client.set_async("/others", b"%d" % number)
        client.sync("/others")
    finally:
        client.stop()
        client.close()


def remove_entries(zookeeper: ZooKeeper) -> None:
    """Somebody removes what says which cluster this is, under the eyes of the brokers."""
    client = KazooClient(zookeeper.address)
    client.start()
    try:
        client.delete("/culver/cluster")
        client.delete("/culver", recursive=True)
    finally:
        client.stop()
        client.close()


@pytest.mark.parametrize("lose", [wipe, wipe_and_grow, remove_entries])
def test_a_store_that_has_forgotten_the_cluster_makes_nobody_delete_logs(
    zookeeper: ZooKeeper, cluster: Cluster, lose: Callable[[ZooKeeper], object]
) -> None:
    with Load(cluster, "orders"):
        pass
    before = log_files(cluster)
    assert len(before) == 3
    lose(zookeeper)
    cluster.wait_until(lambda: not cluster.running, "all brokers have stopped")
    for broker in cluster.brokers:
        assert broker._process is not None
        assert broker._process.poll() == ExitCode.IN_USE
        assert "does not know the cluster" in broker.log_text
        assert "The logs of this broker stay as they are" in broker.log_text
        assert "Traceback" not in broker.log_text
        broker.kill()
    assert log_files(cluster) == before


@pytest.mark.culver_cluster(brokers=3, topics={"orders": 1}, config=SETTINGS)
def test_a_local_store_whose_file_is_moved_away_is_lost_until_it_is_back(culver_cluster: Cluster) -> None:
    cluster = culver_cluster
    cluster.wait_until_in_sync("orders")
    leader = cluster.broker(cluster.leader("orders"))
    workspace = cluster._workspace
    assert workspace is not None
    names = [path.name for path in workspace.iterdir() if path.is_file()]
    aside = workspace / "aside"
    aside.mkdir()
    with Load(cluster, "orders") as load:
        for name in names:
            shutil.move(workspace / name, aside / name)
        cluster.wait_until(
            lambda: write(leader) is ErrorCode.NOT_LEADER_OR_FOLLOWER, "writes are refused", timeout_s=20
        )
        assert set(load.acknowledged) <= set(read_all(leader.bootstrap_servers, "orders"))
        for broker in cluster.brokers:
            assert broker.running
            assert "the file was removed or replaced while it was in use" in broker.log_text
        for name in names:
            shutil.move(aside / name, workspace / name)
        load.wait_for(100)
        cluster.wait_until_in_sync("orders")
    assert not load.failed
    assert set(load.acknowledged) <= set(read_all(cluster.bootstrap_servers, "orders"))
    assert "Traceback" not in "".join(broker.log_text for broker in cluster.brokers)
