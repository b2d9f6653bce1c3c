"""Streaming queries: `spark.readStream.format("culver")` in a real session."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions
from pyspark.sql import DataFrame, SparkSession
from topic_records import produce, stream, values_of

from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory

FINISH_SECONDS = 110


def run_available_now(frame: DataFrame, directory: Path) -> list[int]:
    """Runs the query until it has read what there was; the rows of each batch that had any."""
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(directory / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(directory / "data"))
    assert query.awaitTermination(FINISH_SECONDS)
    return [progress.numInputRows for progress in query.recentProgress if progress.numInputRows]


def test_available_now_goes_on_where_it_stopped(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = culver_topic_factory(partitions=2)
    bootstrap = culver_broker.bootstrap_servers
    values = [b"%03d" % index for index in range(60)]
    for index, value in enumerate(values[:40]):
        produce(bootstrap, topic, [value], partition=index % 2)
    options: dict[str, Any] = {"subscribe": topic, "maxOffsetsPerTrigger": "20", "commitGroup": topic}
    frame = stream(spark, culver_broker, options).select("value")
    assert run_available_now(frame, tmp_path) == [20, 20]
    produce(bootstrap, topic, values[40:], partition=0)
    assert run_available_now(frame, tmp_path) == [20]
    assert values_of(spark.read.parquet(str(tmp_path / "data"))) == values
    # Lag tools see the last batch, too, of which Spark never says that it is done.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
    consumer.close()
    assert [each.offset for each in committed] == [40, 20]


def test_a_running_query_sees_new_records_and_new_partitions(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    produce(bootstrap, culver_topic, [b"first"])
    frame = stream(spark, culver_broker, {"subscribe": culver_topic, "includeHeaders": "true"})
    writer = frame.writeStream.format("memory").queryName("seen")
    query = writer.option("checkpointLocation", str(tmp_path)).start()
    try:
        query.processAllAvailable()
        admin = AdminClient({"bootstrap.servers": bootstrap})
        admin.create_partitions([NewPartitions(culver_topic, 2)])[culver_topic].result(30)
        produce(bootstrap, culver_topic, [b"second"], partition=1, headers=[("h", b"v")])
        query.processAllAvailable()
        rows = spark.table("seen").orderBy("partition").collect()
        end = json.loads(query.lastProgress.sources[0].endOffset)
    finally:
        query.stop()
    assert [(row.partition, bytes(row.value)) for row in rows] == [(0, b"first"), (1, b"second")]
    assert rows[1].headers[0].key == "h"
    assert end == {culver_topic: {"0": 1, "1": 1}}


def test_an_error_names_the_remedy(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    beyond = json.dumps({culver_topic: {"0": 5}})
    frame = stream(spark, culver_broker, {"subscribe": culver_topic, "startingOffsets": beyond})
    with pytest.raises(Exception, match="Set the option failOnDataLoss to false"):
        run_available_now(frame, tmp_path)
