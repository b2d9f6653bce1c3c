"""Who is refused: clients that pose as replicas or brokers, and brokers that do not belong where they were started."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from culver.core import entries
from culver.errors import ErrorCode
from culver.protocol.messages.broker_hello import BrokerHelloRequest
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic, ReplicaState
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
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.records import Record, encode_batch
from culver.testing import Broker, BrokerFailed, Cluster
from culver.wire_client import host_and_port
from load import Load
from raw_connection import RawConnection

LATEST = -1


def connected(broker: Broker) -> RawConnection:
    return RawConnection(host_and_port(broker.bootstrap_servers))


def cluster_entry(metadata_file: Path) -> entries.ClusterEntry:
    """What only brokers may read: the cluster's id and secret."""
    connection = sqlite3.connect(metadata_file)
    try:
        ((value,),) = connection.execute("SELECT value FROM entries WHERE path = ?", (entries.CLUSTER,))
    finally:
        connection.close()
    return entries.decode(value, entries.ClusterEntry)


@dataclass
class Stage:
    """A partition whose high watermark stands still: one in-sync replica, broker `silent`, is suspended."""

    cluster: Cluster
    leader: Broker
    silent: Broker
    secret: entries.ClusterEntry
    topic_id: bytes

    def end_offset(self) -> int:
        """Up to where consumers may read."""
        asked = ListOffsetsTopic(
            name="orders", partitions=[ListOffsetsPartition(partition_index=0, timestamp=LATEST)]
        )
        with connected(self.leader) as connection:
            answer = connection.call(ListOffsetsRequest(replica_id=-1, topics=[asked]), 7)
        [partition] = answer.topics[0].partitions
        assert partition.error_code == 0
        return int(partition.offset)

    def append(self, acks: int) -> None:
        batch = memoryview(encode_batch([Record(0, 1_700_000_000_000, None, b"0", ())]))
        data = TopicProduceData(name="orders", partition_data=[PartitionProduceData(index=0, records=batch)])
        with connected(self.leader) as connection:
            answer = connection.call(ProduceRequest(acks=acks, timeout_ms=20_000, topic_data=[data]), 9)
        assert answer.responses[0].partition_responses[0].error_code == 0

    def fetch(self, broker_id: int, epoch: int, version: int, offset: int = 1) -> FetchRequest:
        """As a follower asks that has everything below the offset."""
        by_id = version >= 13
        asked = FetchPartition(
            partition=0, fetch_offset=offset, partition_max_bytes=1 << 20, current_leader_epoch=-1
        )
        return FetchRequest(
            replica_id=-1 if version >= 15 else broker_id,
            replica_state=ReplicaState(replica_id=broker_id, replica_epoch=epoch) if version >= 15 else None,
            max_wait_ms=0,
            min_bytes=0,
            session_epoch=-1 if version < 15 else 0,
            topics=[
                FetchTopic(
                    topic="" if by_id else "orders",
                    topic_id=self.topic_id if by_id else bytes(16),
                    partitions=[asked],
                )
            ],
        )

    def hello(self, **fields: Any) -> BrokerHelloRequest:
        good: dict[str, Any] = {
            "cluster_id": self.secret.id,
            "broker_id": self.silent.broker_id,
            "broker_epoch": 0,
            "secret": self.secret.secret,
        }
        return BrokerHelloRequest(**good | fields)


@pytest.fixture(scope="module")
def stage() -> Iterator[Stage]:
    settings = {"min.insync.replicas": 2, "culver.session.timeout.ms": 120_000}
    with Cluster(brokers=3, topics={"orders": 1}, config=settings) as cluster:
        cluster.wait_until_in_sync("orders")
        leader = cluster.broker(cluster.leader("orders"))
        silent = cluster.broker(1 if leader.broker_id != 1 else 2)
        with connected(leader) as connection:
            metadata = connection.call(MetadataRequest(topics=[MetadataRequestTopic(name="orders")]), 12)
        assert cluster._workspace is not None
        secret = cluster_entry(cluster._workspace / "metadata.sqlite")
        stage = Stage(cluster, leader, silent, secret, metadata.topics[0].topic_id)
        stage.append(acks=-1)
        silent.suspend()
        stage.append(acks=1)
        assert stage.end_offset() == 1
        yield stage
        # Nothing of all that was taken for what the silent broker has; it goes on where it was.
        assert stage.end_offset() == 1
        assert set(cluster.partitions("orders", leader)[0].in_sync) == {1, 2, 3}
        silent.resume()
        cluster.wait_until(lambda: stage.end_offset() == 2, "the high watermark moves")
        cluster.wait_until_in_sync("orders")
        with Load(cluster, "orders"):
            pass


@pytest.mark.parametrize("version", [4, 11, 13, 15, 18])
def test_a_client_that_poses_as_a_replica_acknowledges_nothing(stage: Stage, version: int) -> None:
    with connected(stage.leader) as connection:
        answer = connection.call(stage.fetch(stage.silent.broker_id, 0, version, offset=2), version)
        assert answer.error_code == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED if version >= 7 else 0)
        [partition] = answer.responses[0].partitions
        assert partition.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert not partition.records
        # The connection is still good for what everybody may ask.
        assert connection.call(MetadataRequest(topics=[]), 12).brokers
    assert stage.end_offset() == 1


@pytest.mark.parametrize("version", [3, 4])
def test_a_client_that_poses_as_a_replica_hears_of_no_epochs(stage: Stage, version: int) -> None:
    asked = OffsetForLeaderTopic(
        topic="orders", partitions=[OffsetForLeaderPartition(partition=0, leader_epoch=0)]
    )
    request = OffsetForLeaderEpochRequest(replica_id=stage.silent.broker_id, topics=[asked])
    with connected(stage.leader) as connection:
        [partition] = connection.call(request, version).topics[0].partitions
        assert partition.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
        assert partition.end_offset == -1
        request.replica_id = -1
        [partition] = connection.call(request, version).topics[0].partitions
        assert (partition.error_code, partition.end_offset) == (0, 2)


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"secret": "guess"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "secret"),
        ({"secret": ""}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "secret"),
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "culver.coordination"),
        ({"broker_epoch": -1}, ErrorCode.STALE_BROKER_EPOCH, "stop one of the two"),
        ({"broker_id": None}, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "give each its own"),
    ],
)
def test_a_greeting_that_is_not_right_opens_nothing(
    stage: Stage, fields: dict[str, Any], code: ErrorCode, reason: str
) -> None:
    if "broker_id" in fields:
        fields = {"broker_id": stage.leader.broker_id}
    with connected(stage.leader) as connection:
        answer = connection.call(stage.hello(**fields), 0)
        assert ErrorCode(answer.error_code) is code
        assert reason in answer.error_message
        refused = connection.call(stage.fetch(stage.silent.broker_id, 0, 18, offset=2), 18)
        assert refused.error_code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert stage.end_offset() == 1
    assert "guess" not in stage.leader.log_text


def test_who_knows_the_secret_still_speaks_for_nobody_else(stage: Stage) -> None:
    bystander = ({1, 2, 3} - {stage.leader.broker_id, stage.silent.broker_id}).pop()
    with connected(stage.leader) as connection:
        assert connection.call(stage.hello(broker_id=9), 0).error_code == 0
        for broker_id, epoch, code in (
            (stage.silent.broker_id, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            (bystander, 0, ErrorCode.CLUSTER_AUTHORIZATION_FAILED),
            (9, 4, ErrorCode.STALE_BROKER_EPOCH),
        ):
            answer = connection.call(stage.fetch(broker_id, epoch, 18, offset=2), 18)
            assert ErrorCode(answer.error_code) is code
        # Known by its own name it is no replica.
        [partition] = connection.call(stage.fetch(9, 0, 18, offset=2), 18).responses[0].partitions
        assert partition.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert stage.end_offset() == 1


# -- brokers that do not belong there ---------------------------------------------------------------------


def refusal(broker: Broker) -> str:
    """What a broker says that must not start."""
    with pytest.raises(BrokerFailed, match=r"ended at start with exit code [1-9]") as failure:
        broker.start()
    message = str(failure.value)
    assert "Traceback" not in message
    return message


def test_a_taken_broker_id_is_refused(tmp_path: Path) -> None:
    coordination = f"local:{tmp_path / 'metadata.sqlite'}"
    settings = {"culver.session.timeout.ms": 500}
    with Broker(broker_id=7, coordination=coordination, topics={"orders": 1}, config=settings) as broker:
        message = refusal(Broker(broker_id=7, coordination=coordination, config=settings))
        assert (
            f"the broker id 7 is taken by a broker that is running at {broker.bootstrap_servers}" in message
        )
        assert "--broker-id" in message
        with Load(broker, "orders") as load:
            pass
        load.check()


def test_a_data_directory_of_another_is_refused(tmp_path: Path) -> None:
    coordination = f"local:{tmp_path / 'metadata.sqlite'}"
    with Broker(broker_id=7, coordination=coordination, data_dir=tmp_path / "seven"):
        pass
    message = refusal(Broker(broker_id=8, coordination=coordination, data_dir=tmp_path / "seven"))
    assert "belongs to broker 7" in message
    assert "Start it with broker id 7, or give it a directory of its own" in message
    elsewhere = f"local:{tmp_path / 'elsewhere.sqlite'}"
    with Broker(broker_id=1, coordination=elsewhere):
        message = refusal(Broker(broker_id=7, coordination=elsewhere, data_dir=tmp_path / "seven"))
    assert "belongs to cluster" in message
    assert "point it at the metadata store of cluster" in message
    with Broker(broker_id=7, coordination=coordination, data_dir=tmp_path / "seven"):
        pass


@pytest.mark.parametrize("coordination", ["local", "shared"])
def test_an_empty_store_founds_no_cluster_over_old_logs(tmp_path: Path, coordination: str) -> None:
    data = tmp_path / "data"
    where: dict[str, Any] = {"data_dir": data}
    metadata = data / "metadata.sqlite"
    if coordination == "shared":
        metadata = tmp_path / "metadata.sqlite"
        where["coordination"] = f"local:{metadata}"
    with Broker(topics={"orders": 1}, **where) as broker:
        with Load(broker, "orders") as load:
            pass
        broker.stop()
        shutil.move(metadata, tmp_path / "aside")
        for _ in range(2):
            assert "is empty. Bring the store's data back" in refusal(broker)
        for suffix in ("", "-wal", "-shm"):
            Path(f"{metadata}{suffix}").unlink(missing_ok=True)
        shutil.move(tmp_path / "aside", metadata)
        broker.start()
        load.check()
