"""Kafka's command-line tools: each does its work and says what an operator expects to read."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import confluent_kafka
import pytest
from anchors import Unavailable, kafka

from culver.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TOOLS = "org.apache.kafka.tools."
TOPICS = TOOLS + "TopicCommand"
GROUPS = TOOLS + "consumer.group.ConsumerGroupCommand"
CONFIGS = "kafka.admin.ConfigCommand"

Tool = Callable[..., str]


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """Runs a tool against the broker and returns what it printed; fails when it fails."""
    try:
        kafka.jars()
    except Unavailable as reason:
        pytest.skip(str(reason))

    def run(classname: str, *arguments: str, stdin: str = "", fails: bool = False) -> str:
        result = kafka.run_tool(
            classname,
            "--bootstrap-server",
            bootstrap,
            *arguments,
            stdin=stdin,
            timeout_seconds=120,
            check=not fails,
        )
        return result.stdout + (result.stderr if fails else "")

    return run


def produce(bootstrap: str, topic: str, count: int, partitions: int = 1) -> None:
    with confluent_kafka.Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(count):
            producer.produce(topic, b"value %d" % number, b"key %d" % number, partition=number % partitions)
        assert producer.flush(20) == 0


def test_topics_are_created_described_altered_listed_and_deleted(
    tool: Tool, unique: Callable[[str], str]
) -> None:
    topic = unique("tool-topic")
    created = tool(TOPICS, "--create", "--topic", topic, "--partitions", "2", "--config", "retention.ms=5000")
    assert f"Created topic {topic}." in created
    tool(TOPICS, "--alter", "--topic", topic, "--partitions", "3")
    described = tool(TOPICS, "--describe", "--topic", topic)
    assert "PartitionCount: 3" in described
    assert "ReplicationFactor: 1" in described
    assert "retention.ms=5000" in described
    partitions = re.findall(r"Partition: (\d+)\s+Leader: (\d+)\s+Replicas: (\d+)\s+Isr: (\d+)", described)
    assert [partition for partition, *_ in partitions] == ["0", "1", "2"]
    assert all(leader == replicas == isr for _, leader, replicas, isr in partitions)
    assert topic in tool(TOPICS, "--list").splitlines()
    assert topic in tool(TOPICS, "--create", "--topic", topic, fails=True)
    tool(TOPICS, "--delete", "--topic", topic)
    assert topic not in tool(TOPICS, "--list").splitlines()


def test_the_console_producer_and_consumer(
    tool: Tool, new_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    topic, group = new_topic("console"), unique("console-group")
    lines = [f"key{number}:value {number}" for number in range(20)]
    tool(
        TOOLS + "ConsoleProducer",
        *("--topic", topic, "--reader-property", "parse.key=true"),
        *("--reader-property", "key.separator=:", "--compression-codec", "zstd"),
        stdin="\n".join(lines) + "\n",
    )
    consumer = TOOLS + "consumer.ConsoleConsumer"
    found = tool(
        consumer,
        *("--topic", topic, "--from-beginning", "--max-messages", "20", "--group", group),
        *("--formatter-property", "print.key=true", "--formatter-property", "key.separator=:"),
    )
    assert found.splitlines() == lines
    # The group has committed what it read: nothing is left for it.
    found = tool(consumer, "--topic", topic, "--timeout-ms", "3000", "--group", group)
    assert found.splitlines() == []


def table(output: str) -> list[dict[str, str]]:
    """Rows of a tool's table as dicts by heading."""
    rows = [line.split() for line in output.splitlines() if line.strip()]
    heading = next(row for row in rows if "TOPIC" in row or "GROUP" in row)
    return [dict(zip(heading, row, strict=False)) for row in rows[rows.index(heading) + 1 :]]


def test_consumer_groups_are_listed_described_reset_and_deleted(
    tool: Tool, bootstrap: str, new_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    topic, group = new_topic("groups", 2), unique("tool-group")
    produce(bootstrap, topic, 20, partitions=2)
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "auto.offset.reset": "earliest",
            "client.id": "watched",
        }
    )
    try:
        consumer.subscribe([topic])
        assert len(consumer.consume(20, timeout=30)) == 20
        consumer.commit(asynchronous=False)
        assert group in tool(GROUPS, "--list").split()
        rows = table(tool(GROUPS, "--describe", "--group", group))
        assert sorted((row["PARTITION"], row["CURRENT-OFFSET"], row["LAG"]) for row in rows) == [
            ("0", "10", "0"),
            ("1", "10", "0"),
        ]
        assert {row["CLIENT-ID"] for row in rows} == {"watched"}
        state = tool(GROUPS, "--describe", "--group", group, "--state")
        assert "Stable" in state
        assert "range" in state
        [member] = table(tool(GROUPS, "--describe", "--group", group, "--members"))
        assert member["#PARTITIONS"] == "2"
        refused = tool(
            GROUPS,
            *("--reset-offsets", "--group", group, "--topic", topic, "--to-earliest", "--execute"),
            fails=True,
        )
        assert "the current state is Stable" in refused
    finally:
        consumer.close()

    reset = ("--reset-offsets", "--group", group, "--topic", topic)
    rows = table(tool(GROUPS, *reset, "--shift-by", "-3", "--dry-run"))
    assert {row["NEW-OFFSET"] for row in rows} == {"7"}
    tool(GROUPS, *reset, "--to-earliest", "--execute")
    rows = table(tool(GROUPS, "--describe", "--group", group))
    assert {(row["CURRENT-OFFSET"], row["LAG"]) for row in rows} == {("0", "10")}
    tool(GROUPS, *reset, "--to-datetime", "2100-01-01T00:00:00.000", "--execute")
    rows = table(tool(GROUPS, "--describe", "--group", group))
    assert {row["LAG"] for row in rows} == {"0"}, "a time after the last record means the end"
    tool(GROUPS, "--delete-offsets", "--group", group, "--topic", f"{topic}:1")
    rows = table(tool(GROUPS, "--describe", "--group", group))
    assert [row["PARTITION"] for row in rows] == ["0"]
    tool(GROUPS, "--delete", "--group", group)
    assert group not in tool(GROUPS, "--list").split()


def test_configurations_are_described_and_altered(tool: Tool, new_topic: Callable[..., str]) -> None:
    topic = new_topic("configs")
    entity = ("--entity-type", "topics", "--entity-name", topic)
    tool(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=12345,cleanup.policy=[compact,delete]")
    described = tool(CONFIGS, *entity, "--describe")
    assert "retention.ms=12345" in described
    assert "cleanup.policy=compact,delete" in described
    assert "segment.bytes" not in described, "only what the topic sets"
    assert "segment.bytes=1073741824" in tool(CONFIGS, *entity, "--describe", "--all")
    tool(CONFIGS, *entity, "--alter", "--delete-config", "retention.ms")
    assert "retention.ms=" not in tool(CONFIGS, *entity, "--describe")
    refused = tool(CONFIGS, *entity, "--alter", "--add-config", "retention.ms=never", fails=True)
    assert "InvalidConfigurationException" in refused
    brokers = tool(CONFIGS, "--entity-type", "brokers", "--entity-name", "1", "--describe", "--all")
    assert "log.segment.bytes=1073741824" in brokers


def test_records_are_deleted_and_offsets_told(
    tool: Tool, bootstrap: str, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    topic = new_topic("trimmed", 2)
    produce(bootstrap, topic, 20, partitions=2)
    wanted = tmp_path / "delete.json"
    wanted.write_text(
        json.dumps({"partitions": [{"topic": topic, "partition": 0, "offset": 4}], "version": 1})
    )
    deleted = tool(TOOLS + "DeleteRecordsCommand", "--offset-json-file", str(wanted))
    assert f"partition: {topic}-0\tlow_watermark: 4" in deleted
    shell = TOOLS + "GetOffsetShell"
    assert tool(shell, "--topic", topic).split() == [f"{topic}:0:10", f"{topic}:1:10"]
    earliest = tool(shell, "--topic", topic, "--time", "earliest").split()
    assert earliest == [f"{topic}:0:4", f"{topic}:1:0"]
    latest_time = tool(shell, "--topic", topic, "--time", "max-timestamp").split()
    assert len(latest_time) == 2


def test_log_directories_are_described(tool: Tool, bootstrap: str, new_topic: Callable[..., str]) -> None:
    topic = new_topic("sized")
    produce(bootstrap, topic, 100)
    output = tool(TOOLS + "LogDirsCommand", "--describe", "--topic-list", topic)
    found = json.loads(output.splitlines()[-1])
    [partition] = [
        partition
        for broker in found["brokers"]
        for directory in broker["logDirs"]
        for partition in directory["partitions"]
    ]
    assert partition["partition"] == f"{topic}-0"
    assert 1000 < partition["size"] < 10_000
    assert not partition["isFuture"]


def test_the_load_generators_finish_without_an_error(
    tool: Tool, bootstrap: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic("load", 3)
    output = tool(
        TOOLS + "ProducerPerformance",
        *("--topic", topic, "--num-records", "20000", "--record-size", "100", "--throughput", "-1"),
    )
    assert output.splitlines()[-1].startswith("20000 records sent")
    output = tool(TOOLS + "VerifiableProducer", "--topic", topic, "--max-messages", "500")
    events = [json.loads(line) for line in output.splitlines() if line.startswith("{")]
    assert sum(event["name"] == "producer_send_success" for event in events) == 500
    assert not [event for event in events if event["name"] == "producer_send_error"]
    output = tool(
        TOOLS + "ConsumerPerformance", "--topic", topic, "--num-records", "20500", "--timeout", "30000"
    )
    assert "20500" in output.splitlines()[-1]


def test_the_cluster_and_its_versions(tool: Tool, bootstrap: str) -> None:
    versions = tool(TOOLS + "BrokerApiVersionsCommand")
    assert f"{bootstrap} (id: 1 rack: null" in versions
    for line in (
        "Produce(0): 0 to 13",
        "Fetch(1): 4 to 18",
        "Metadata(3): 0 to 13",
        "ApiVersions(18): 0 to 4",
    ):
        assert line in versions
    result = kafka.run_tool(TOOLS + "ClusterTool", "cluster-id", "--bootstrap-server", bootstrap)
    assert re.search(r"Cluster ID: \S{22}", result.stdout)


def test_kafkas_dump_tool_reads_what_the_broker_has_written(
    tool: Tool,
    bootstrap: str,
    broker_or_none: Broker | None,
    new_topic: Callable[..., str],
    unique: Callable[[str], str],
) -> None:
    """Records, and the group coordinator's own records with Kafka's decoder for them."""
    if broker_or_none is None:
        pytest.skip("the broker's files are elsewhere")
    topic, group = new_topic("dumped"), unique("dumped-group")
    produce(bootstrap, topic, 3)
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        consumer.commit(offsets=[confluent_kafka.TopicPartition(topic, 0, 2)], asynchronous=False)
    finally:
        consumer.close()
    data = broker_or_none.data_dir
    dump = TOOLS + "DumpLogSegments"
    [segment] = (data / f"{topic}-0").glob("*.log")
    records = kafka.run_tool(dump, "--files", str(segment), "--print-data-log").stdout
    assert re.findall(r"payload: (value \d)", records) == ["value 0", "value 1", "value 2"]
    assert "isvalid: false" not in records
    logs = [str(path) for path in data.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    offsets = kafka.run_tool(dump, "--files", ",".join(logs), "--offsets-decoder").stdout
    [committed] = [line for line in offsets.splitlines() if group in line and topic in line]
    assert '"offset":2' in committed
