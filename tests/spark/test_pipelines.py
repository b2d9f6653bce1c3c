"""The pipelines in a real session: logs to a store, transforms, archives and replays."""

from __future__ import annotations

import json
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient
from pyspark.sql import DataFrame, SparkSession
from topic_records import produce

from culver.errors import KafkaError
from culver.pipelines import archive, logs, replay, transform
from culver.pipelines.archive_manifest import ArchiveError, ArchiveManifest
from culver.pipelines.demo_lines import ShopLines
from culver.pipelines.log_store.store import LogStore
from culver.pipelines.parsing.lines import parse_lines
from culver.pipelines.streaming import PipelineFailed
from culver.testing import Broker
from culver.testing.pytest_plugin import TopicFactory

LINES = [
    b'{"time":"2026-11-15T10:00:01Z","level":"error","service":"api","msg":"payment refused"}',
    b'time=2026-11-15T11:00:00Z level=info service=web msg="page served"',
    b"<34>1 2026-11-15T10:00:03Z db1 postgres 7 - - deadlock detected",
    b'10.0.0.1 - - [15/Nov/2026:10:00:04 +0000] "GET /index HTTP/1.1" 200 17',
    b"something went wrong somewhere",
    b'{"level":"error", cut off',
    b"\xff\xfe not text",
]


def read(broker: Broker, topic: str, partitions: int = 1) -> list[Any]:
    """The committed records of a topic, partition by partition in order."""
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "reader",
            "isolation.level": "read_committed",
            "enable.partition.eof": True,
        }
    )
    consumer.assign([TopicPartition(topic, index, 0) for index in range(partitions)])
    messages, ends = [], 0
    while ends < partitions:
        message = consumer.poll(30)
        assert message is not None, "the topic has an end"
        if message.error() is not None:
            ends += 1
        else:
            messages.append(message)
    consumer.close()
    return sorted(messages, key=lambda message: (message.partition(), message.offset()))


def origins(store: LogStore) -> Counter[tuple[str, int, int]]:
    """Where the events of a store come from, how often each."""
    found = store.search(limit=100_000).select(["topic", "partition", "offset"]).to_pylist()
    return Counter((row["topic"], row["partition"], row["offset"]) for row in found)


def forget_last_commit(checkpoint: Path) -> None:
    """As if the job had been killed after its last micro-batch, just before Spark noted that it was done."""
    commits = sorted((checkpoint / "commits").glob("[0-9]*"), key=lambda path: int(path.name))
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)


def test_logs_takes_every_line_once(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic = culver_topic_factory(partitions=2)
    bootstrap = culver_broker.bootstrap_servers
    produce(bootstrap, topic, LINES, partition=0, headers=[("host", b"shipper1")])
    produce(bootstrap, topic, [LINES[0], None], partition=1)
    reports: list[logs.LogsProgress] = []

    def run() -> logs.LogsProgress:
        return logs.run(
            bootstrap,
            topic,
            str(tmp_path / "store"),
            once=True,
            group=topic,
            default_service="unnamed",
            compact_files=3,
            spark=spark,
            on_progress=reports.append,
        )

    done = run()
    assert (done.lines, done.unparsed, done.batches) == (9, 1, 1)
    assert reports == [done]
    store = LogStore(str(tmp_path / "store"), create=False)
    first = {(topic, 0, offset): 1 for offset in range(7)} | {(topic, 1, offset): 1 for offset in range(2)}
    assert origins(store) == first
    by_offset = {row["offset"]: row for row in store.search(where="partition = 0").to_pylist()}
    assert [by_offset[offset]["format"] for offset in range(7)] == [
        "json",
        "logfmt",
        "syslog5424",
        "access",
        "plain",
        "unparsed",
        "plain",
    ]
    assert by_offset[2]["host"] == "db1"  # what the line says counts more than who brought it
    assert by_offset[4]["host"] == "shipper1"
    assert by_offset[4]["service"] == "unnamed"
    assert (tmp_path / "store" / "data" / "date=2026-11-15" / "hour=11").is_dir()

    # A micro-batch that comes again is passed over, and what is new is taken.
    forget_last_commit(tmp_path / "store" / logs.CHECKPOINT_DIRECTORY)
    produce(bootstrap, topic, [b"one more payment"], partition=1)
    again = run()
    assert (again.lines, again.replayed) == (1, 1)
    assert origins(store) == first | {(topic, 1, 2): 1}
    assert {row["offset"] for row in store.search("payment").to_pylist()} == {0, 2}

    # Lag tools see how far it is.
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": topic})
    committed = consumer.committed([TopicPartition(topic, 0), TopicPartition(topic, 1)], timeout=30)
    consumer.close()
    assert [each.offset for each in committed] == [7, 3]


def test_logs_merges_small_files_and_lets_old_events_go(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    now_ms = int(time.time() * 1000)
    old = [b'{"time":"2020-01-01T00:00:00Z","msg":"old %d"}' % number for number in range(3)]
    new = [b'{"time":%d,"msg":"new %d"}' % (now_ms, number) for number in range(3)]
    produce(culver_broker.bootstrap_servers, culver_topic, old + new)
    path = str(tmp_path / "store")
    done = logs.run(
        culver_broker.bootstrap_servers,
        culver_topic,
        path,
        once=True,
        group=None,
        records_per_batch_max=2,
        compact_files=2,
        keep="30d",
        spark=spark,
    )
    assert (done.batches, done.lines) == (3, 6)
    store = LogStore(path, create=False)
    # Old ones are let go after the first batch, and then once a minute.
    assert done.expired_lines == 2
    assert store.expire("30d").rows == 1
    assert sorted(row["message"] for row in store.search("new").to_pylist()) == ["new 0", "new 1", "new 2"]
    assert len(store.parquet_files()) == 1


def test_a_pipeline_says_why_it_failed(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    with pytest.raises(PipelineFailed, match="no-such-topic"):
        logs.run(bootstrap, "no-such-topic", str(tmp_path / "store"), once=True, spark=spark)
    with pytest.raises(ValueError, match="no time"):
        logs.run(bootstrap, culver_topic, str(tmp_path / "store"), keep="soon", spark=spark)
    with pytest.raises(ValueError, match="either sql or a function"):
        transform.run(bootstrap, culver_topic, culver_topic, str(tmp_path / "checkpoint"), spark=spark)
    with pytest.raises(ValueError, match="names no function"):
        transform.run(
            bootstrap, culver_topic, "x", str(tmp_path / "checkpoint"), function="json:nothing", spark=spark
        )
    with pytest.raises(KafkaError, match="no-such-topic"):
        archive.run(bootstrap, "no-such-topic", str(tmp_path), spark=spark)


def test_errors_per_service_per_minute(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    source, target = culver_topic_factory(), culver_topic_factory()
    bootstrap = culver_broker.bootstrap_servers

    def line(moment: str, level: str, service: str) -> bytes:
        return f"time=2026-11-15T{moment}Z level={level} service={service} msg=x".encode()

    def run() -> list[Any]:
        transform.run(
            bootstrap,
            source,
            target,
            str(tmp_path / "checkpoint"),
            sql=transform.ERRORS_PER_SERVICE_PER_MINUTE,
            watermark="1 minute",
            once=True,
            spark=spark,
        )
        return [(message.key(), json.loads(message.value())) for message in read(culver_broker, target)]

    early = [("10:00:01", "error", "api"), ("10:00:50", "error", "api"), ("10:00:59", "info", "api")]
    produce(bootstrap, source, [line(*each) for each in [*early, ("10:00:30", "fatal", "db")]])
    assert run() == []  # more of that minute may come
    produce(bootstrap, source, [line("10:00:05", "error", "api"), line("10:05:00", "error", "api")])
    expected = [
        (b"api", {"service": "api", "minute": "2026-11-15T10:00:00Z", "errors": 3}),
        (b"db", {"service": "db", "minute": "2026-11-15T10:00:00Z", "errors": 1}),
    ]
    assert sorted(run(), key=lambda each: each[0]) == expected
    # The last micro-batch run again writes nothing.
    forget_last_commit(tmp_path / "checkpoint")
    assert sorted(run(), key=lambda each: each[0]) == expected


def test_the_demo_has_lines_of_every_format() -> None:
    lines = ShopLines().lines(500)
    formats = set(parse_lines([*lines, ShopLines.needle()])["format"].to_pylist())
    assert formats == {"json", "logfmt", "syslog5424", "access", "plain"}


def shout(records: DataFrame) -> DataFrame:
    return records.selectExpr("key", "upper(CAST(value AS STRING)) AS value", "partition", "headers")


def test_transform_by_a_function_keeps_the_order_of_partitions(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    source, target = culver_topic_factory(partitions=2), culver_topic_factory(partitions=2)
    bootstrap = culver_broker.bootstrap_servers
    for partition in range(2):
        values = [b"%c%d" % (97 + partition, number) for number in range(20)]
        produce(bootstrap, source, values, partition=partition, key=b"k", headers=[("h", b"v")])
    done = transform.run(
        bootstrap, source, target, str(tmp_path / "checkpoint"), function=shout, once=True, spark=spark
    )
    assert (done.records, done.batches) == (40, 1)
    found = read(culver_broker, target, 2)
    assert [message.value() for message in found] == [
        b"%c%d" % (65 + partition, number) for partition in range(2) for number in range(20)
    ]
    assert {message.key() for message in found} == {b"k"}
    assert found[0].headers() == [("h", b"v")]


def test_an_archive_is_complete_and_comes_back_in_order(
    spark: SparkSession, culver_broker: Broker, culver_topic_factory: TopicFactory, tmp_path: Path
) -> None:
    topic, target = culver_topic_factory(partitions=2), culver_topic_factory(partitions=2)
    bootstrap = culver_broker.bootstrap_servers
    directory = str(tmp_path / "archive")
    producer = Producer({"bootstrap.servers": bootstrap})
    for number in range(60):
        producer.produce(
            topic,
            b"v%d" % number if number % 7 else None,
            key=b"k%d" % number,
            partition=number % 2,
            headers=[("n", b"%d" % number)] if number % 3 else None,
            timestamp=1_700_000_000_000 + number,
        )
    producer.flush()
    reports: list[archive.ArchiveProgress] = []
    done = archive.run(
        bootstrap, topic, directory, records_per_round_max=20, spark=spark, on_progress=reports.append
    )
    assert (done.archived_records, done.gaps, done.total_offsets) == (60, [], 60)
    assert [report.done_offsets for report in reports] == [0, 20, 40, 60]
    # Run again, it takes what is new and nothing else.
    produce(bootstrap, topic, [b"later"], partition=1, timestamp=1_700_000_000_100)
    assert archive.run(bootstrap, topic, directory, spark=spark).total_offsets == 1
    manifest = ArchiveManifest(directory, topic)
    manifest.refresh()
    assert manifest.ends() == {0: 30, 1: 31}
    assert spark.read.parquet(*manifest.parquet_files()).count() == 61

    def published() -> list[tuple[Any, ...]]:
        return [
            (message.partition(), message.key(), message.value(), message.headers(), message.timestamp()[1])
            for message in read(culver_broker, target, 2)
        ]

    first = replay.run(
        bootstrap,
        topic,
        directory,
        target=target,
        replay_id=target,
        end=20,
        records_per_transaction=7,
        spark=spark,
    )
    assert (first.records, first.partitions) == (40, {0: 20, 1: 20})
    # Under the same id the rest follows, and nothing twice.
    rest = replay.run(bootstrap, topic, directory, target=target, replay_id=target, spark=spark)
    assert rest.records == 21
    original = [
        (message.partition(), message.key(), message.value(), message.headers(), message.timestamp()[1])
        for message in read(culver_broker, topic, 2)
    ]
    assert published() == original
    by_time = replay.run(
        bootstrap, topic, directory, target=target, since=1_700_000_000_050_000, partitions="1", spark=spark
    )
    assert by_time.partitions == {1: 6}


def test_an_archive_tells_what_retention_took(
    spark: SparkSession, culver_broker: Broker, culver_topic: str, tmp_path: Path
) -> None:
    bootstrap = culver_broker.bootstrap_servers
    directory = str(tmp_path)
    produce(bootstrap, culver_topic, [b"%d" % number for number in range(5)])
    archive.run(bootstrap, culver_topic, directory, spark=spark)
    produce(bootstrap, culver_topic, [b"%d" % number for number in range(5, 10)])
    admin = AdminClient({"bootstrap.servers": bootstrap})
    place = TopicPartition(culver_topic, 0, 8)
    admin.delete_records([place])[place].result(30)
    (gap,) = archive.run(bootstrap, culver_topic, directory, spark=spark).gaps
    assert (gap.partition, gap.start, gap.end) == (0, 5, 8)
    manifest = ArchiveManifest(directory, culver_topic)
    manifest.refresh()
    assert manifest.records == 7
    other = ArchiveManifest(directory, culver_topic)
    other.refresh()
    manifest.commit(1, [], 0)
    with pytest.raises(ArchiveError, match="another process"):
        other.commit(1, [], 0)
    Path(manifest.parquet_files()[0]).write_bytes(b"damaged")
    with pytest.raises(PipelineFailed, match="put it back from a copy"):
        replay.run(bootstrap, culver_topic, directory, spark=spark)
    assert archive.clear(manifest, older_than_s=0) == 0
