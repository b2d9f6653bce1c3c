"""Reading from real brokers over blocking sockets: leaders, offsets, transactions, lost records."""

from __future__ import annotations

import logging
from itertools import pairwise

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from topic_records import produce

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.delete_records import (
    DeleteRecordsPartition,
    DeleteRecordsRequest,
    DeleteRecordsResponse,
    DeleteRecordsTopic,
)
from culver.spark import partition_reader
from culver.spark.fetching import EARLIEST, LATEST, NO_OFFSET, BlockingCluster
from culver.spark.offset_ranges import OffsetRange, cut
from culver.spark.partition_reader import read_range
from culver.spark.read_settings import DataLost, ReadSettings
from culver.testing import Broker, Cluster
from culver.testing.pytest_plugin import TopicFactory
from culver.wire_client import Unreachable, WireClient

READ_COMMITTED = ReadSettings(read_committed=True)


def read(cluster: BlockingCluster, wanted: OffsetRange, settings: ReadSettings | None = None) -> list[bytes]:
    batches = read_range(cluster, wanted, settings or ReadSettings())
    return [value for batch in batches for value in batch.column("value").to_pylist()]


def delete_records_before(bootstrap: str, topic: str, offset: int) -> None:
    entry = DeleteRecordsTopic(
        name=topic, partitions=[DeleteRecordsPartition(partition_index=0, offset=offset)]
    )
    with WireClient(bootstrap) as client:
        answer = client.ask_once(
            DeleteRecordsRequest(topics=[entry], timeout_ms=10_000), DeleteRecordsResponse
        )
    assert answer.topics[0].partitions[0].error_code == 0


def test_metadata_and_offsets(culver_broker: Broker, culver_topic_factory: TopicFactory) -> None:
    topic = culver_topic_factory(partitions=2)
    for index in range(5):
        produce(
            culver_broker.bootstrap_servers, topic, [b"%d" % index], partition=0, timestamp=1000 * index + 1
        )
    with BlockingCluster(culver_broker.bootstrap_servers) as cluster:
        assert list(cluster.metadata([topic])[topic]) == [0, 1]
        every_topic = cluster.metadata()
        assert topic in every_topic
        assert not [name for name in every_topic if name.startswith("__")]
        first, second = (topic, 0), (topic, 1)
        assert cluster.list_offsets({first: EARLIEST, second: EARLIEST}) == {first: 0, second: 0}
        assert cluster.list_offsets({first: LATEST, second: LATEST}) == {first: 5, second: 0}
        assert cluster.list_offsets({first: 2001, second: 2001}) == {first: 2, second: NO_OFFSET}
        assert cluster.list_offsets({first: 2002}) == {first: 3}


def test_a_topic_that_does_not_exist_is_named(culver_broker: Broker) -> None:
    with (
        BlockingCluster(culver_broker.bootstrap_servers, topic_wait_s=0) as cluster,
        pytest.raises(KafkaError, match="no-such-topic") as failure,
    ):
        cluster.metadata(["no-such-topic"])
    assert failure.value.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


def test_no_broker_there() -> None:
    with (
        BlockingCluster("127.0.0.1:1", retry_s=0) as cluster,
        pytest.raises(Unreachable, match=r"127\.0\.0\.1:1"),
    ):
        cluster.metadata()


def test_a_range_is_read_over_many_fetches(culver_broker: Broker, culver_topic: str) -> None:
    values = [b"%05d" % index * 20 for index in range(3000)]
    for first in range(0, len(values), 500):
        produce(culver_broker.bootstrap_servers, culver_topic, values[first : first + 500])
    small = ReadSettings(fetch_bytes=1000)
    with BlockingCluster(culver_broker.bootstrap_servers) as cluster:
        assert read(cluster, OffsetRange(culver_topic, 0, 0, 3000), small) == values
        assert read(cluster, OffsetRange(culver_topic, 0, 777, 1501)) == values[777:1501]
        assert read(cluster, OffsetRange(culver_topic, 0, 777, 777)) == []


def test_read_committed_leaves_out_what_was_aborted_and_what_is_open(
    culver_broker: Broker, culver_topic: str
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": culver_topic})
    producer.init_transactions(30)
    for outcome in (
        producer.commit_transaction,
        producer.abort_transaction,
        producer.commit_transaction,
        None,
    ):
        producer.begin_transaction()
        for _ in range(3):
            producer.produce(culver_topic, outcome.__name__ if outcome else "open")
        producer.flush()
        if outcome is not None:
            outcome(30)
    place = culver_topic, 0
    with BlockingCluster(bootstrap) as cluster:
        stable = cluster.list_offsets({place: LATEST}, read_committed=True)[place]
        end = cluster.list_offsets({place: LATEST})[place]
        assert (stable, end) == (12, 15)
        committed = read(cluster, OffsetRange(*place, 0, stable), READ_COMMITTED)
        assert committed == [b"commit_transaction"] * 6
        assert len(read(cluster, OffsetRange(*place, 0, end))) == 12
    producer.abort_transaction(30)


def test_records_that_are_gone(
    culver_broker: Broker, culver_topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    produce(bootstrap, culver_topic, [b"%d" % index for index in range(10)])
    delete_records_before(bootstrap, culver_topic, 4)
    forgiving = ReadSettings(fail_on_data_loss=False, stall_s=0)
    with BlockingCluster(bootstrap) as cluster:
        with pytest.raises(DataLost, match=r"offset 0 of .* is gone: .* 4 to 10.*failOnDataLoss"):
            read(cluster, OffsetRange(culver_topic, 0, 0, 8))
        with caplog.at_level(logging.WARNING, partition_reader.__name__):
            assert read(cluster, OffsetRange(culver_topic, 0, 0, 8), forgiving) == [b"4", b"5", b"6", b"7"]
        assert "going on without" in caplog.text
        assert read(cluster, OffsetRange(culver_topic, 0, 0, 3), forgiving) == []
        assert read(cluster, OffsetRange(culver_topic, 0, 8, 12), forgiving) == [b"8", b"9"]
        with pytest.raises(DataLost, match="can be read up to offset 10"):
            read(cluster, OffsetRange(culver_topic, 0, 8, 12), ReadSettings(stall_s=0))


def test_progress_is_visible_to_the_group(culver_broker: Broker, culver_topic: str) -> None:
    bootstrap = culver_broker.bootstrap_servers
    produce(bootstrap, culver_topic, [b"x"] * 5)
    with BlockingCluster(bootstrap) as cluster:
        cluster.commit_offsets("job", {(culver_topic, 0): 3})
        cluster.commit_offsets("job", {})
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "job"})
    [found] = consumer.committed([TopicPartition(culver_topic, 0)], timeout=30)
    consumer.close()
    assert found.offset == 3


@pytest.mark.culver_cluster(topics={"orders": 1})
def test_reading_follows_the_leader(culver_cluster: Cluster) -> None:
    values = [b"%05d" % index * 10 for index in range(2000)]
    for first in range(0, 2000, 100):
        produce(culver_cluster.bootstrap_servers, "orders", values[first : first + 100])
    with BlockingCluster(culver_cluster.bootstrap_servers) as cluster:
        batches = read_range(cluster, OffsetRange("orders", 0, 0, 2000), ReadSettings(fetch_bytes=20_000))
        found = next(batches).column("value").to_pylist()
        assert len(found) < 2000
        culver_cluster.broker(culver_cluster.leader("orders", 0)).kill()
        for batch in batches:
            found += batch.column("value").to_pylist()
    assert found == values


def test_ranges_are_cut_into_tasks() -> None:
    large, small, empty = OffsetRange("t", 0, 10, 100), OffsetRange("t", 1, 0, 10), OffsetRange("t", 2, 5, 5)
    assert cut([large, small, empty]) == [large, small]
    assert cut([large, small, empty], at_least=2) == [large, small]
    pieces = cut([large, small, empty], at_least=5)
    assert len(pieces) >= 5
    assert pieces[0].start == 10
    assert pieces[-2].end == 100
    assert all(one.end == other.start for one, other in pairwise(pieces[:-1]))
    assert pieces[-1] == small
    assert [piece.size for piece in cut([large], records_max=40)] == [30, 30, 30]
    assert len(cut([small], at_least=100)) == 10
