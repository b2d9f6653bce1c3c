"""Held against the real things: rows as of Spark's own Kafka connector, and topics of Apache Kafka."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from anchors import Unavailable, spark_connector
from anchors.kafka import Kafka
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic
from topic_records import produce

from culver.errors import ErrorCode
from culver.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from culver.protocol.records import Record, encode_batch
from culver.spark.connection import Connection
from culver.spark.fetching import LATEST, BlockingCluster
from culver.spark.offset_ranges import OffsetRange
from culver.spark.partition_reader import read_range
from culver.spark.read_settings import ReadSettings
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory
from culver.wire_client import host_and_port

COMPARISON = Path(__file__).parent / "connector_comparison.py"
COMPARISON_SECONDS = 580
TIMESTAMP_MS = 1_700_000_000_123
PRODUCE_BY_NAME = 12  # the last version that names topics, rather than giving their ids


@pytest.mark.interop
@pytest.mark.timeout(600)
def test_rows_equal_those_of_sparks_connector(
    culver_broker: Broker, culver_topic_factory: TopicFactory
) -> None:
    try:
        jars = ",".join(str(jar) for jar in spark_connector.jars())
    except Unavailable as reason:
        pytest.skip(str(reason))
    plain, appended, transactional, odd = (
        culver_topic_factory(partitions=3),
        culver_topic_factory(config={"message.timestamp.type": "LogAppendTime"}),
        culver_topic_factory(),
        culver_topic_factory(config={"message.timestamp.after.max.ms": 2**62}),
    )
    fill_plain(culver_broker.bootstrap_servers, plain)
    produce(culver_broker.bootstrap_servers, appended, [b"appended"] * 3, timestamp=1)
    fill_transactional(culver_broker.bootstrap_servers, transactional)
    produce_raw(culver_broker.bootstrap_servers, odd)
    middle = json.dumps({plain: {"0": 5, "1": -2, "2": 7}})
    end = json.dumps({plain: {"0": 11, "1": -1, "2": 7}})
    cases: list[tuple[dict[str, Any], int]] = [
        ({"subscribe": plain}, 60),
        ({"subscribe": plain, "includeHeaders": "true"}, 60),
        ({"subscribe": plain, "startingOffsets": middle, "endingOffsets": end}, 26),
        ({"subscribe": plain, "startingTimestamp": str(TIMESTAMP_MS + 30)}, 30),
        ({"subscribePattern": f"{plain}|{appended}", "minPartitions": "7"}, 63),
        ({"subscribe": appended}, 3),
        ({"subscribe": transactional}, 9),
        ({"subscribe": transactional, "kafka.isolation.level": "read_committed"}, 6),
        ({"subscribe": odd, "includeHeaders": "true"}, 4),
    ]
    command = [sys.executable, str(COMPARISON), jars, culver_broker.bootstrap_servers]
    command.append(json.dumps([options for options, _ in cases]))
    done = subprocess.run(command, capture_output=True, text=True, timeout=COMPARISON_SECONDS)
    assert done.returncode == 0, done.stderr[-4000:]
    same = {"same schema": True, "only theirs": [], "only ours": []}
    assert json.loads(done.stdout.splitlines()[-1]) == [{**same, "rows": rows} for _, rows in cases]


@pytest.mark.interop
@pytest.mark.timeout(300)
def test_topics_of_apache_kafka_are_read() -> None:
    """The requests of a reader, served by Kafka itself: an aborted transaction left out, progress stored."""
    try:
        kafka = Kafka()
    except Unavailable as reason:
        pytest.skip(str(reason))
    with kafka:
        admin = AdminClient({"bootstrap.servers": kafka.bootstrap})
        admin.create_topics([NewTopic("plain", 3), NewTopic("transactional", 1)])["plain"].result(60)
        fill_plain(kafka.bootstrap, "plain")
        fill_transactional(kafka.bootstrap, "transactional")
        with BlockingCluster(kafka.bootstrap) as cluster:
            assert list(cluster.metadata(["plain"])["plain"]) == [0, 1, 2]
            assert set(cluster.metadata()) == {"plain", "transactional"}
            places = [("plain", 0), ("plain", 1), ("plain", 2), ("transactional", 0)]
            ends = cluster.list_offsets(dict.fromkeys(places, LATEST), read_committed=True)
            settings = ReadSettings(read_committed=True, include_headers=True, fetch_bytes=1000)
            rows = {
                place: sum(
                    batch.num_rows for batch in read_range(cluster, OffsetRange(*place, 0, end), settings)
                )
                for place, end in ends.items()
            }
            cluster.commit_offsets("job", ends)
        assert rows == dict(zip(places, (20, 20, 20, 6), strict=True))
        consumer = Consumer({"bootstrap.servers": kafka.bootstrap, "group.id": "job"})
        [stored] = consumer.committed([TopicPartition("transactional", 0)], timeout=60)
        consumer.close()
        assert stored.offset == ends["transactional", 0]


def fill_plain(bootstrap: str, topic: str) -> None:
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = Producer({"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 5})
        base = TIMESTAMP_MS + 12 * ("none", "gzip", "snappy", "lz4", "zstd").index(codec)
        for number in range(12):
            producer.produce(
                topic,
                None if number % 5 == 0 else b"value-%d" % number * number,
                key=None if number % 3 == 0 else b"key-%d" % number,
                partition=number % 3,
                timestamp=base + number,
                headers=[(f"h{index}", None if index else b"v") for index in range(number % 4)],
            )
        assert producer.flush(30) == 0


def fill_transactional(bootstrap: str, topic: str) -> None:
    producer = Producer({"bootstrap.servers": bootstrap, "transactional.id": topic})
    producer.init_transactions(30)
    for end in (producer.commit_transaction, producer.abort_transaction, producer.commit_transaction):
        producer.begin_transaction()
        for number in range(3):
            producer.produce(topic, b"%d" % number)
        producer.flush()
        end(30)


def produce_raw(bootstrap: str, topic: str) -> None:
    """What few clients write: header keys that are empty or no UTF-8, times at the ends of what calendars know."""
    records = [
        Record(0, TIMESTAMP_MS, b"", b"", (("\udcff\udc80", b"\xff"), ("", b""))),
        Record(1, 0, None, b"epoch"),
        Record(2, 1, None, b"x", (("ключ", None),)),
        Record(3, 253_402_300_799_999, None, b"the last millisecond of 9999"),
    ]
    data = PartitionProduceData(index=0, records=bytes(encode_batch(records)))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[data])],
    )
    connection = Connection(host_and_port(bootstrap), 30.0, "tests")
    answer = connection.ask(request, ProduceResponse, newest=PRODUCE_BY_NAME)
    connection.close()
    assert answer.responses[0].partition_responses[0].error_code == ErrorCode.NONE
