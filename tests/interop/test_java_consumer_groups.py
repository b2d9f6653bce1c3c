"""The Java client of Kafka 4.3 in groups whose broker assigns (KIP-848), and Kafka's tools looking at them."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import confluent_kafka
import pytest
from anchors import Unavailable, kafka

from culver.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "java" / "ConsumerGroups.java"
TOOLS = "org.apache.kafka.tools."
SETTINGS = {
    "group.initial.rebalance.delay.ms": 0,
    "group.consumer.heartbeat.interval.ms": 200,
    "offsets.topic.num.partitions": 1,
}

Findings = Mapping[str, list[str]]


@pytest.fixture(scope="module")
def broker_or_none() -> Iterator[Broker | None]:
    if os.environ.get("CULVER_TEST_BOOTSTRAP"):
        yield None
        return
    with Broker(config=SETTINGS) as broker:
        yield broker


@pytest.fixture(scope="module")
def bootstrap(broker_or_none: Broker | None) -> str:
    return os.environ["CULVER_TEST_BOOTSTRAP"] if broker_or_none is None else broker_or_none.bootstrap_servers


@pytest.fixture(scope="module")
def topic(bootstrap: str, unique: Callable[[str], str]) -> str:
    """A topic with six partitions of ten records each, and two small ones whose names begin with its name."""
    name = unique("assigned")
    with confluent_kafka.admin.AdminClient({"bootstrap.servers": bootstrap}) as admin:
        wanted = [
            confluent_kafka.admin.NewTopic(each, num_partitions=count, replication_factor=1)
            for each, count in ((name, 6), (f"{name}-x", 1), (f"{name}-y", 1))
        ]
        for created in admin.create_topics(wanted).values():
            created.result()
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for number in range(60):
        producer.produce(name, b"%d" % number, partition=number % 6)
    assert producer.flush(20) == 0
    return name


@pytest.fixture(scope="module")
def groups(bootstrap: str, topic: str) -> Findings:
    try:
        result = kafka.java_source(PROGRAM, bootstrap, topic, timeout_seconds=240)
    except Unavailable as reason:
        pytest.skip(str(reason))
    findings: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        name, tab, value = line.partition("\t")
        assert tab, f"not a finding: {line}"
        findings.setdefault(name, []).append(value)
    return findings


@pytest.mark.parametrize("assignor", ["uniform", "range"])
def test_members_share_and_take_over_with_both_assignors(assignor: str, groups: Findings) -> None:
    assert groups[f"shared {assignor}"] == ["true"]
    assert groups[f"read {assignor}"] == ["60 60"], "each record once"
    assert groups[f"described {assignor}"] == [f"Consumer Stable {assignor} 2"]
    assert groups[f"taken over {assignor}"] == ["true"]
    assert groups[f"committed {assignor}"] == ["true"]


def test_only_what_moves_is_taken(groups: Findings) -> None:
    assert groups["revoked uniform"] == ["3"]
    assert groups["revoked in the end uniform"] == ["3"]


def test_patterns_are_the_brokers_to_match(groups: Findings) -> None:
    assert groups["pattern"] == ["true"]
    assert groups["broken pattern"] == ["InvalidRegularExpression"]


def test_a_static_member_comes_back_to_its_seat(groups: Findings) -> None:
    assert groups["static member back"] == ["true"]
    assert groups["static other disturbed"] == ["0"]
    assert groups["static rival"] == ["UnreleasedInstanceIdException"]


@pytest.mark.parametrize("strategy", ["range", "cooperative-sticky"])
def test_a_group_changes_its_kind_with_its_members(strategy: str, groups: Findings) -> None:
    assert groups[f"before {strategy}"] == ["Classic"]
    assert groups[f"mixed {strategy}"] == ["true Consumer"]
    assert groups[f"upgraded members {strategy}"] == ["[false, true]"]
    assert groups[f"read by both {strategy}"] == ["60"]
    assert groups[f"back {strategy}"] == ["true Classic"]
    assert groups[f"lost {strategy}"] == ["0"]
    assert groups[f"committed by both {strategy}"] == ["true"]


def test_kafkas_tool_shows_the_group(
    bootstrap: str, topic: str, unique: Callable[[str], str], groups: Findings
) -> None:
    group = unique("shown")
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": group, "group.protocol": "consumer", "client.id": "me"}
    )
    try:
        consumer.subscribe([topic])
        while not consumer.assignment():
            consumer.poll(0.05)
        tool = TOOLS + "consumer.group.ConsumerGroupCommand"
        arguments = ("--bootstrap-server", bootstrap, "--group", group, "--describe")
        members = kafka.run_tool(tool, *arguments, "--members", "--verbose").stdout
        state = kafka.run_tool(tool, *arguments, "--state", "--verbose").stdout
    finally:
        consumer.close()
    assert f"{topic}:0,1,2,3,4,5" in members
    assert "uniform" in state
    assert "Stable" in state


def test_kafkas_dump_tool_reads_the_records(broker_or_none: Broker | None, groups: Findings) -> None:
    if broker_or_none is None:
        pytest.skip("the log files are elsewhere")
    logs = sorted(str(path) for path in broker_or_none.data_dir.glob("**/__consumer_offsets-0/*.log"))
    dump = kafka.run_tool(TOOLS + "DumpLogSegments", "--files", ",".join(logs), "--offsets-decoder").stdout
    for kind in (3, 5, 6, 7, 8, 16):
        assert f'"type":"{kind}"' in dump, f"records of kind {kind}"
    assert '"classicMemberMetadata":{"sessionTimeoutMs"' in dump
    assert "skipping" not in dump.lower()
