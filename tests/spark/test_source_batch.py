"""Batch queries: `spark.read.format("culver")` on a real broker."""

from __future__ import annotations

import json
from datetime import datetime
from typing import Any

import pytest
from pyspark.sql import SparkSession
from topic_records import produce, table, values_of

from culver.spark.schema import spark_schema
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory


def test_rows_have_the_columns_of_sparks_kafka_source(
    spark: SparkSession, culver_broker: Broker, culver_topic: str
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    headers = [("trace", b"1"), ("trace", None), ("empty", b"")]
    produce(bootstrap, culver_topic, [b"first"], key=b"k", timestamp=1_700_000_000_123, headers=headers)
    produce(bootstrap, culver_topic, [None], timestamp=1_700_000_000_124)
    frame = table(spark, culver_broker, {"subscribe": culver_topic, "includeHeaders": "true"})
    assert frame.schema == spark_schema(include_headers=True)
    first, second = frame.orderBy("offset").collect()
    assert (first.key, first.value, first.topic) == (bytearray(b"k"), bytearray(b"first"), culver_topic)
    assert (first.partition, first.offset, first.timestampType) == (0, 0, 0)
    assert first.timestamp.astimezone().timestamp() == pytest.approx(1_700_000_000.123)
    assert [(header.key, header.value) for header in first.headers] == headers
    assert (second.key, second.value, second.headers, second.offset) == (None, None, None, 1)

    without = table(spark, culver_broker, {"subscribe": culver_topic})
    assert without.schema == spark_schema(include_headers=False)
    assert without.count() == 2


def test_every_way_to_choose_partitions(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory
) -> None:
    one, two = culver_topic_factory(partitions=2), culver_topic_factory()
    for topic, partition in ((one, 0), (one, 1), (two, 0)):
        produce(culver_broker.bootstrap_servers, topic, [f"{topic}-{partition}"], partition=partition)
    everything = sorted([f"{one}-0".encode(), f"{one}-1".encode(), f"{two}-0".encode()])
    assert values_of(table(spark, culver_broker, {"subscribe": f"{one}, {two}"})) == everything
    prefix = one.rpartition("-")[0]
    assert values_of(table(spark, culver_broker, {"subscribePattern": f"{prefix}-.*"})) == everything
    assert values_of(table(spark, culver_broker, {"subscribePattern": "no-such.*"})) == []
    assigned = table(spark, culver_broker, {"assign": json.dumps({one: [1], two: [0]})})
    assert values_of(assigned) == everything[1:]


def test_offsets_and_timestamps_bound_what_is_read(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory
) -> None:
    topic = culver_topic_factory(partitions=2)
    for partition in (0, 1):
        for index in range(5):
            value = b"%d-%d" % (partition, index)
            produce(
                culver_broker.bootstrap_servers,
                topic,
                [value],
                partition=partition,
                timestamp=1000 * (index + 1),
            )

    def read(**options: Any) -> list[str]:
        return [
            value.decode()
            for value in values_of(table(spark, culver_broker, {"subscribe": topic, **options}))
        ]

    starting, ending = json.dumps({topic: {"0": 3, "1": -2}}), json.dumps({topic: {"0": -1, "1": 2}})
    assert read(startingOffsets=starting, endingOffsets=ending) == ["0-3", "0-4", "1-0", "1-1"]
    assert read(startingTimestamp="4000") == ["0-3", "0-4", "1-3", "1-4"]
    assert read(endingTimestamp="1500", startingOffsets="earliest") == ["0-0", "1-0"]
    by_partition = json.dumps({topic: {"0": 5000, "1": 3500}})
    assert read(startingOffsetsByTimestamp=by_partition) == ["0-4", "1-3", "1-4"]
    assert read(startingTimestamp="99999", startingOffsetsByTimestampStrategy="latest") == []
    with pytest.raises(Exception, match="startingOffsetsByTimestampStrategy"):
        read(startingTimestamp="99999")
    assert len(read(endingTimestamp="99999")) == 10


def test_more_tasks_than_partitions(spark: SparkSession, culver_broker: Broker, culver_topic: str) -> None:
    values = [b"%03d" % index for index in range(100)]
    produce(culver_broker.bootstrap_servers, culver_topic, values)
    frame = table(spark, culver_broker, {"subscribe": culver_topic, "minPartitions": "4"})
    assert frame.rdd.getNumPartitions() == 4
    assert values_of(frame) == values
    limited = table(spark, culver_broker, {"subscribe": culver_topic, "maxRecordsPerPartition": "40"})
    assert limited.rdd.getNumPartitions() == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "assign, subscribe, subscribePattern: one of these must be given"),
        ({"subscribe": "a", "assign": "{}"}, "only one of these can be given"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
        ({"subscribe": "a", "maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"subscribe": "a", "startingOffsets": "latest"}, "leaves nothing to read"),
    ],
)
def test_wrong_options_are_named(
    spark: SparkSession, culver_broker: Broker, options: dict[str, str], message: str
) -> None:
    with pytest.raises(Exception, match=message):
        table(spark, culver_broker, options).collect()


def test_records_gone_by_the_time_they_are_read(
    spark: SparkSession, culver_broker: Broker, culver_topic: str
) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"x"] * 3)
    beyond = {
        "subscribe": culver_topic,
        "startingOffsets": json.dumps({culver_topic: {"0": 1}}),
        "endingOffsets": json.dumps({culver_topic: {"0": 7}}),
        "kafkaConsumer.pollTimeoutMs": "1",
    }
    with pytest.raises(Exception, match="can be read up to offset 3"):
        table(spark, culver_broker, beyond).collect()
    assert len(values_of(table(spark, culver_broker, {**beyond, "failOnDataLoss": "false"}))) == 2


def test_timestamps_are_instants(spark: SparkSession, culver_broker: Broker, culver_topic: str) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"x"], timestamp=1_700_000_000_123)
    frame = table(spark, culver_broker, {"subscribe": culver_topic})
    [row] = frame.selectExpr("unix_millis(timestamp) AS ms", "timestamp").collect()
    assert row.ms == 1_700_000_000_123
    assert isinstance(row.timestamp, datetime)
