"""What the stream reader answers when Spark asks how far the next batch may reach; without Spark itself."""

from __future__ import annotations

import json
import logging
import pickle
from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    ReadMinRows,
)
from topic_records import produce

from culver.spark.options import read_options
from culver.spark.read_settings import DataLost
from culver.spark.stream_reader import StreamReader
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory

ALL = ReadAllAvailable()


class Readers:
    """Makes readers of the session's broker and closes them."""

    def __init__(self, broker: Broker) -> None:
        self.bootstrap = broker.bootstrap_servers
        self.made: list[StreamReader] = []

    def __call__(self, topic: str, **options: Any) -> StreamReader:
        given = {"kafka.bootstrap.servers": self.bootstrap, "startingOffsets": "earliest", **options}
        if not {"assign", "subscribePattern"} & given.keys():
            given["subscribe"] = topic
        reader = StreamReader(read_options(given, streaming=True))
        self.made.append(reader)
        return reader


@pytest.fixture
def reader(culver_broker: Broker) -> Iterator[Readers]:
    readers = Readers(culver_broker)
    yield readers
    for made in readers.made:
        made.stop()


def add_partitions(broker: Broker, topic: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
    admin.create_partitions([NewPartitions(topic, count)])[topic].result(30)


def read_all(reader: StreamReader, start: Any, end: Any) -> list[bytes]:
    ranges = reader.partitions(start, end)
    return [
        value for each in ranges for batch in reader.read(each) for value in batch.column("value").to_pylist()
    ]


def test_batches_follow_each_other(culver_broker: Broker, culver_topic: str, reader: Readers) -> None:
    stream = reader(culver_topic)
    start = stream.initialOffset()
    assert start == {culver_topic: {"0": 0}}
    assert stream.latestOffset(start, ALL) == start
    produce(culver_broker.bootstrap_servers, culver_topic, [b"1", b"2"])
    end = stream.latestOffset(start, ALL)
    assert end == {culver_topic: {"0": 2}}
    assert read_all(stream, start, end) == [b"1", b"2"]
    assert stream.reportLatestOffset() == end
    assert stream.partitions(end, end) == []
    assert json.dumps(stream.latestOffset(end, ALL)) == json.dumps(end)


def test_a_stream_that_begins_with_the_latest(
    culver_broker: Broker, culver_topic: str, reader: Readers
) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"old"])
    assert reader(culver_topic, startingOffsets="latest").initialOffset() == {culver_topic: {"0": 1}}


def test_more_than_ten_partitions_are_in_numeric_order(
    culver_topic_factory: TopicFactory, reader: Readers
) -> None:
    topic = culver_topic_factory(partitions=12)
    assert list(reader(topic).initialOffset()[topic]) == [str(number) for number in range(12)]


def test_limits(culver_broker: Broker, culver_topic_factory: TopicFactory, reader: Readers) -> None:
    topic = culver_topic_factory(partitions=2)
    produce(culver_broker.bootstrap_servers, topic, [b"x" * 100] * 90, partition=0)
    produce(culver_broker.bootstrap_servers, topic, [b"x" * 100] * 10, partition=1)

    def end_of(limit: ReadLimit, **options: str) -> dict[str, int]:
        stream = reader(topic, **options)
        assert type(stream.getDefaultReadLimit()) is type(limit)
        return stream.latestOffset(stream.initialOffset(), limit)[topic]

    assert end_of(ALL) == {"0": 90, "1": 10}
    assert end_of(ReadMaxRows(20), maxOffsetsPerTrigger="20") == {"0": 18, "1": 2}
    assert end_of(ReadMaxRows(1), maxOffsetsPerTrigger="1") == {"0": 1, "1": 1}
    assert end_of(ReadMaxRows(500), maxOffsetsPerTrigger="500") == {"0": 90, "1": 10}
    by_bytes = end_of(ReadMaxBytes(5500), maxBytesPerTrigger="5500")
    assert 40 <= by_bytes["0"] + by_bytes["1"] <= 55
    assert end_of(ReadMinRows(101), minOffsetsPerTrigger="101") == {"0": 0, "1": 0}
    assert end_of(ReadMinRows(101), minOffsetsPerTrigger="101", maxTriggerDelay="0s") == {"0": 90, "1": 10}
    assert end_of(ReadMinRows(100), minOffsetsPerTrigger="100") == {"0": 90, "1": 10}
    # Some triggers take all there is, whatever the options say.
    stream = reader(topic, maxOffsetsPerTrigger="20")
    assert stream.latestOffset(stream.initialOffset(), ALL)[topic] == {"0": 90, "1": 10}


def test_available_now_ends_where_the_topic_ended(
    culver_broker: Broker, culver_topic: str, reader: Readers
) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"x"] * 5)
    stream = reader(culver_topic, maxOffsetsPerTrigger="2", minOffsetsPerTrigger="2")
    start = stream.initialOffset()
    stream.prepareForTriggerAvailableNow()
    produce(culver_broker.bootstrap_servers, culver_topic, [b"late"] * 5)
    ends = []
    while (end := stream.latestOffset(start, stream.getDefaultReadLimit())) != start:
        ends.append(end[culver_topic]["0"])
        start = end
    assert ends == [2, 4, 5]


def test_new_partitions_are_read_from_their_beginning(
    culver_broker: Broker, culver_topic: str, reader: Readers
) -> None:
    stream = reader(culver_topic)
    start = stream.initialOffset()
    add_partitions(culver_broker, culver_topic, 2)
    produce(culver_broker.bootstrap_servers, culver_topic, [b"new"], partition=1)
    end = stream.latestOffset(start, ALL)
    assert end == {culver_topic: {"0": 0, "1": 1}}
    assert read_all(stream, start, end) == [b"new"]


def test_new_topics_that_match_the_pattern(
    culver_broker: Broker, culver_topic_factory: TopicFactory, reader: Readers
) -> None:
    first = culver_topic_factory()
    stream = reader("", subscribePattern=first.rpartition("-")[0] + "-[0-9]+")
    start = stream.initialOffset()
    assert start == {first: {"0": 0}}
    second = culver_topic_factory()
    produce(culver_broker.bootstrap_servers, second, [b"new"])
    assert stream.latestOffset(start, ALL) == {first: {"0": 0}, second: {"0": 1}}


def test_a_topic_that_shrank_or_went_is_data_loss(
    culver_broker: Broker, culver_topic: str, reader: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    read_before = {culver_topic: {"0": 7, "1": 3}}
    with pytest.raises(DataLost, match=r"-1 is gone.*failOnDataLoss"):
        reader(culver_topic).latestOffset(read_before, ALL)
    with pytest.raises(DataLost, match="ends at offset 0, but 7 has been read"):
        reader(culver_topic).latestOffset({culver_topic: {"0": 7}}, ALL)
    forgiving = reader(culver_topic, failOnDataLoss="false")
    with caplog.at_level(logging.WARNING):
        end = forgiving.latestOffset(read_before, ALL)
    assert end == {culver_topic: {"0": 0}}
    assert forgiving.partitions(read_before, end) == []
    assert "going on without" in caplog.text


def test_progress_is_stored_for_the_group(culver_broker: Broker, culver_topic: str, reader: Readers) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"x"] * 5)
    stream = reader(culver_topic, commitGroup="lag-of-a-job")
    consumer = Consumer({"bootstrap.servers": culver_broker.bootstrap_servers, "group.id": "lag-of-a-job"})

    def stored() -> int:
        return int(consumer.committed([TopicPartition(culver_topic, 0)], timeout=30)[0].offset)

    stream.latestOffset({culver_topic: {"0": 3}}, ALL)
    assert stored() == 3
    stream.latestOffset({culver_topic: {"0": 5}}, ALL)
    assert stored() == 5
    consumer.close()


def test_a_group_that_others_use_does_not_stop_the_query(
    culver_broker: Broker, culver_topic: str, reader: Readers, caplog: pytest.LogCaptureFixture
) -> None:
    consumer = Consumer({"bootstrap.servers": culver_broker.bootstrap_servers, "group.id": "busy"})
    assigned: list[Any] = []
    consumer.subscribe([culver_topic], on_assign=lambda _, partitions: assigned.extend(partitions))
    while not assigned:
        consumer.poll(0.1)
    stream = reader(culver_topic, commitGroup="busy")
    with caplog.at_level(logging.WARNING):
        assert stream.latestOffset(stream.initialOffset(), ALL) == {culver_topic: {"0": 0}}
    assert "progress was not stored for group busy" in caplog.text
    consumer.close()


def test_readers_travel_without_their_connections(culver_topic: str, reader: Readers) -> None:
    stream = reader(culver_topic)
    stream.initialOffset()
    copy = pickle.loads(pickle.dumps(stream))
    assert copy.initialOffset() == stream.initialOffset()
    copy.stop()
