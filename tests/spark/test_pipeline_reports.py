"""What the pipelines report of themselves, from real Spark queries."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from confluent_kafka import Consumer, TopicPartition
from pyspark.sql import DataFrame, SparkSession
from topic_records import produce

from culver.pipelines import archive, logs, transform
from culver.pipelines.progress_report import PIPELINES_TOPIC, Report
from culver.pipelines.streaming import PipelineFailed
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory


def last_report(broker: Broker, name: str) -> Report:
    """The newest report of a pipeline that has ended, with all before it read."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused"})
    try:
        _, end = consumer.get_watermark_offsets(TopicPartition(PIPELINES_TOPIC, 0), timeout=30)
        consumer.assign([TopicPartition(PIPELINES_TOPIC, 0, 0)])
        found: list[Report] = []
        position = 0
        while position < end:
            message: Any = consumer.poll(30)
            assert message is not None
            assert message.error() is None
            position = message.offset() + 1
            if message.key() == name.encode():
                found.append(msgspec.json.decode(message.value(), type=Report))
    finally:
        consumer.close()
    assert found[0].state == "running"
    return found[-1]


def test_the_logs_pipeline_reports_how_far_it_is(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = culver_topic_factory(partitions=2)
    bootstrap = culver_broker.bootstrap_servers
    produce(bootstrap, topic, [b"one", b"two", b"three"], partition=0)
    produce(bootstrap, topic, [b"four"], partition=1)
    logs.run(
        bootstrap, topic, str(tmp_path / topic), once=True, records_per_batch_max=2, group=None, spark=spark
    )
    report = last_report(culver_broker, f"culver-logs-{topic}")
    assert (report.kind, report.state, report.topics) == ("logs", "ended", topic)
    assert report.target == str(tmp_path / topic)
    assert (report.rows, report.lag, report.error) == (4, 0, None)
    assert report.batches == 2
    assert report.batch_duration_ms is not None
    assert report.processed_rows_per_s is not None


def test_a_transform_that_fails_reports_why(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    source, target = culver_topic_factory(), culver_topic_factory()
    produce(culver_broker.bootstrap_servers, source, [b"one"])

    def fail(records: DataFrame) -> DataFrame:
        return records.selectExpr("CAST(assert_true(false, 'no such luck') AS STRING) AS value")

    with pytest.raises(PipelineFailed) as failure:
        transform.run(
            culver_broker.bootstrap_servers,
            source,
            target,
            str(tmp_path / "checkpoint"),
            function=fail,
            once=True,
            spark=spark,
        )
    report = last_report(culver_broker, f"culver-transform-{target}")
    assert (report.kind, report.state) == ("transform", "failed")
    assert report.error == str(failure.value)


def test_an_archive_reports_what_it_has_copied(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    produce(culver_broker.bootstrap_servers, culver_topic, [b"one", b"two", b"three"])
    archive.run(
        culver_broker.bootstrap_servers, culver_topic, str(tmp_path), records_per_round_max=2, spark=spark
    )
    report = last_report(culver_broker, f"culver-archive-{culver_topic}")
    assert (report.kind, report.state) == ("archive", "ended")
    assert (report.batches, report.rows, report.lag) == (2, 3, 0)
