"""Put records into topics and read rows back, for the tests of this directory."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from confluent_kafka import Producer
from pyspark.sql import DataFrame, SparkSession

from culver.testing import Broker


def produce(bootstrap: str, topic: str, values: Iterable[bytes | None], **options: Any) -> None:
    """Records with these values; `options` are those of confluent_kafka's Producer.produce."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 5, "log_level": 0})
    for value in values:
        producer.produce(topic, value, **options)
    assert producer.flush(30) == 0


def table(spark: SparkSession, broker: Broker, options: Mapping[str, Any]) -> DataFrame:
    """A batch query."""
    reader = spark.read.format("culver").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(**options).load()


def stream(spark: SparkSession, broker: Broker, options: Mapping[str, Any]) -> DataFrame:
    """A streaming query that begins with the first record, unless the options say otherwise."""
    reader = spark.readStream.format("culver").option("kafka.bootstrap.servers", broker.bootstrap_servers)
    return reader.options(**{"startingOffsets": "earliest", **options}).load()


def values_of(frame: DataFrame) -> list[bytes]:
    return sorted(bytes(row.value) for row in frame.select("value").collect())
