"""What a batch query reads, as its options say: partitions, offsets, timestamps, tasks; without Spark itself."""

from __future__ import annotations

import json

import pytest
from topic_records import produce

from culver.errors import KafkaError
from culver.spark.batch_reader import BatchReader
from culver.spark.offset_ranges import OffsetRange
from culver.spark.option_values import InvalidOption
from culver.spark.options import read_options
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory


def planned(broker: Broker, **options: str) -> list[OffsetRange]:
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
    ranges = BatchReader(read_options(given, streaming=False)).partitions()
    assert all(isinstance(each, OffsetRange) for each in ranges)
    return [each for each in ranges if isinstance(each, OffsetRange) and each.size]


def read(broker: Broker, **options: str) -> list[str]:
    """The values of all tasks, in order."""
    given = {"kafka.bootstrap.servers": broker.bootstrap_servers, **options}
    reader = BatchReader(read_options(given, streaming=False))
    batches = [batch for each in reader.partitions() for batch in reader.read(each)]
    return sorted(value.decode() for batch in batches for value in batch.column("value").to_pylist())


def test_every_way_to_choose_partitions(culver_broker: Broker, culver_topic_factory: TopicFactory) -> None:
    one, two = culver_topic_factory(partitions=2), culver_topic_factory()
    for topic, partition in ((one, 0), (one, 1), (two, 0)):
        produce(
            culver_broker.bootstrap_servers, topic, [f"{topic}-{partition}".encode()], partition=partition
        )
    everything = sorted([f"{one}-0", f"{one}-1", f"{two}-0"])
    assert read(culver_broker, subscribe=f"{one}, {two}") == everything
    prefix = one.rpartition("-")[0]
    assert read(culver_broker, subscribePattern=f"{prefix}-.*") == everything
    assert read(culver_broker, subscribePattern="no-such.*") == []
    assert read(culver_broker, assign=json.dumps({one: [1], two: [0]})) == everything[1:]
    with pytest.raises(KafkaError, match="has 2 partitions, so there is no 5"):
        read(culver_broker, assign=json.dumps({one: [0, 5]}))


def test_offsets_and_timestamps_bound_what_is_read(
    culver_broker: Broker, culver_topic_factory: TopicFactory
) -> None:
    topic = culver_topic_factory(partitions=2)
    for partition in (0, 1):
        for index in range(5):
            value, when = b"%d-%d" % (partition, index), 1000 * (index + 1)
            produce(culver_broker.bootstrap_servers, topic, [value], partition=partition, timestamp=when)

    def found(**options: str) -> list[str]:
        return read(culver_broker, subscribe=topic, **options)

    starting, ending = json.dumps({topic: {"0": 3, "1": -2}}), json.dumps({topic: {"0": -1, "1": 2}})
    assert found(startingOffsets=starting, endingOffsets=ending) == ["0-3", "0-4", "1-0", "1-1"]
    assert found(startingTimestamp="4000") == ["0-3", "0-4", "1-3", "1-4"]
    assert found(endingTimestamp="1500", startingOffsets="earliest") == ["0-0", "1-0"]
    by_partition = json.dumps({topic: {"0": 5000, "1": 3500}})
    assert found(startingOffsetsByTimestamp=by_partition) == ["0-4", "1-3", "1-4"]
    assert found(startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(InvalidOption, match="startingOffsetsByTimestampStrategy"):
        found(startingTimestamp="99999")
    assert len(found(endingTimestamp="99999")) == 10
    with pytest.raises(InvalidOption, match=f"says nothing about {topic}-1"):
        found(startingOffsets=json.dumps({topic: {"0": 3}}))
    with pytest.raises(InvalidOption, match=f"names {topic}-2, which the job does not read"):
        found(endingOffsets=json.dumps({topic: {"0": 3, "1": 3, "2": 3}}))


def test_more_tasks_than_partitions(culver_broker: Broker, culver_topic: str) -> None:
    values = [f"{index:03}" for index in range(100)]
    produce(culver_broker.bootstrap_servers, culver_topic, [value.encode() for value in values])
    assert len(planned(culver_broker, subscribe=culver_topic)) == 1
    assert len(planned(culver_broker, subscribe=culver_topic, minPartitions="4")) == 4
    assert len(planned(culver_broker, subscribe=culver_topic, maxRecordsPerPartition="40")) == 3
    assert read(culver_broker, subscribe=culver_topic, minPartitions="4") == values


def test_a_topic_without_records(culver_broker: Broker, culver_topic: str) -> None:
    assert read(culver_broker, subscribe=culver_topic) == []
