"""Batch queries: `spark.read.format("culver")` on a real broker."""

from __future__ import annotations

import json

import pytest
from pyspark.sql import SparkSession
from topic_records import produce, table, values_of

from culver.spark.schema import spark_schema
from culver.testing import Broker


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
    assert [(header.key, header.value) for header in first.headers] == headers
    assert (second.key, second.value, second.headers, second.offset) == (None, None, None, 1)

    [instant, _] = frame.orderBy("offset").selectExpr("unix_millis(timestamp) AS ms").collect()
    assert instant.ms == 1_700_000_000_123

    without = table(spark, culver_broker, {"subscribe": culver_topic})
    assert without.schema == spark_schema(include_headers=False)
    assert without.count() == 2


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "assign, subscribe, subscribePattern: one of these must be given"),
        ({"subscribe": "no-such-topic"}, "no-such-topic"),
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
