"""The sink: what rows become records, and that a micro-batch which is run again is written once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from culver.testing import Broker


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"culver.flush": "os"}) as broker:
        yield broker


def read(broker: Broker, topic: str, partitions: int = 1, isolation: str = "read_committed") -> list[Any]:
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": isolation,
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    messages, ends = [], 0
    while ends < partitions:
        message = consumer.poll(10)
        assert message is not None, "the topic has an end"
        if message.error() is not None:
            ends += 1
        else:
            messages.append(message)
    consumer.close()
    return messages


def options(broker: Broker, **more: str) -> dict[str, str]:
    return {"kafka.bootstrap.servers": broker.bootstrap_servers, **more}


def test_a_batch_is_appended(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("appended", partitions=2)
    rows = spark.sql(
        "SELECT CAST(id AS STRING) AS key, encode(concat('value ', id), 'utf-8') AS value, "
        "CAST(id % 2 AS INT) AS partition, 'appended' AS topic, "
        "array(struct('h' AS key, encode(CAST(id AS STRING), 'utf-8') AS value)) AS headers FROM range(20)"
    )
    rows.write.format("culver").options(**options(broker)).mode("append").save()
    found = read(broker, "appended", 2)
    assert sorted((int(m.key()), m.value(), m.partition(), m.headers()) for m in found) == [
        (n, b"value %d" % n, n % 2, [("h", b"%d" % n)]) for n in range(20)
    ]


def test_the_option_names_the_topic(spark: SparkSession, broker: Broker) -> None:
    broker.create_topic("optional", partitions=1)
    rows = spark.sql("SELECT 'v' AS value, 'elsewhere' AS topic")
    rows.write.format("culver").options(**options(broker, topic="optional")).mode("append").save()
    (message,) = read(broker, "optional")
    assert (message.key(), message.value(), message.headers()) == (None, b"v", None)


@pytest.mark.parametrize(
    ("query", "more", "complaint"),
    [
        ("SELECT 1 AS id", {"topic": "t"}, "there is no column `value`"),
        ("SELECT 1 AS value", {"topic": "t"}, "column value is int"),
        ("SELECT 'v' AS value", {}, "neither an option `topic` nor a column"),
        ("SELECT 'v' AS value, 'x' AS extra", {"topic": "t"}, "no record has a column extra"),
        ("SELECT 'v' AS value", {"topic": "t", "colour": "red"}, "option colour: is not known"),
        ("SELECT 'v' AS value", {"topic": "t", "kafka.transactional.id": "x"}, "kafka.transactional.id"),
        ("SELECT 'v' AS value, CAST(NULL AS STRING) AS topic", {}, "a row has no topic"),
        (
            "SELECT 'v' AS value",
            {"topic": "t", "kafka.no.such.setting": "1"},
            "an option kafka.* cannot be used",
        ),
    ],
)
def test_what_cannot_be_written_is_named(
    spark: SparkSession, broker: Broker, query: str, more: dict[str, str], complaint: str
) -> None:
    writer = spark.sql(query).write.format("culver").options(**options(broker, **more)).mode("append")
    with pytest.raises(PySparkException) as caught:
        writer.save()
    assert complaint in str(caught.value)
