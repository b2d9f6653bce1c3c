"""The Java client of Kafka 4.3: producer defaults, every codec, classic groups with each assignor, the admin.

A JVM takes long to start, so each program does all its work in one run and prints what it found; a test is
one claim about it.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import pytest
from anchors import Unavailable, kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAMS = Path(__file__).parent / "java"
CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
ASSIGNORS = ("range", "roundrobin", "sticky", "cooperative-sticky")
COUNT = 100
START_MS = 1_700_000_000_000

Findings = Mapping[str, list[str]]


def run(program: str, *arguments: str) -> Findings:
    """What the program said, in order, by name."""
    try:
        result = kafka.java_source(PROGRAMS / program, *arguments, timeout_seconds=240)
    except Unavailable as reason:
        pytest.skip(str(reason))
    findings: dict[str, list[str]] = {}
    for line in result.stdout.splitlines():
        name, tab, value = line.partition("\t")
        assert tab, f"not a finding: {line}"
        findings.setdefault(name, []).append(value)
    return findings


# -- records -------------------------------------------------------------------------------------------------


def produce_with_confluent(bootstrap: str, topic: str, codec: str) -> None:
    with confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "compression.type": codec, "linger.ms": 20}
    ) as producer:
        for number in range(COUNT):
            producer.produce(
                topic,
                key=b"key %d" % number,
                value=b"value %d" % number if number % 3 else None,
                partition=0,
                timestamp=START_MS + number,
                headers=[("n", b"%d" % number)],
            )
        assert producer.flush(20) == 0


@pytest.fixture(scope="module")
def prefixes(unique: Callable[[str], str], bootstrap: str) -> tuple[str, str]:
    """Topics for Java to write, and topics that confluent-kafka has written for it to read."""
    by_java, by_confluent = unique("by-java"), unique("by-confluent")
    names = [f"{prefix}-{codec}" for prefix in (by_java, by_confluent) for codec in CODECS]
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        # Their records are from 2023: kept, whatever the broker's default says.
        config = {"retention.ms": "-1"}
        wanted = [NewTopic(name, num_partitions=1, replication_factor=1, config=config) for name in names]
        for created in admin.create_topics(wanted).values():
            created.result()
    for codec in CODECS:
        produce_with_confluent(bootstrap, f"{by_confluent}-{codec}", codec)
    return by_java, by_confluent


@pytest.fixture(scope="module")
def round_trip(bootstrap: str, prefixes: tuple[str, str]) -> Findings:
    return run("RoundTrip.java", bootstrap, *prefixes, str(COUNT))


def text(value: bytes | None) -> str:
    return "null" if value is None else base64.b64encode(value).decode()


@pytest.mark.parametrize("codec", CODECS)
def test_what_others_write_java_reads(codec: str, round_trip: Findings) -> None:
    expected = []
    for number in range(COUNT):
        value = b"value %d" % number if number % 3 else None
        headers = f"n={text(b'%d' % number)};"
        key = text(b"key %d" % number)
        expected.append(f"{number} {START_MS + number} CreateTime {key} {text(value)} {headers}")
    assert round_trip[f"read {codec}"] == expected


@pytest.mark.parametrize("codec", CODECS)
def test_what_java_writes_with_its_defaults_others_read(
    codec: str, round_trip: Findings, prefixes: tuple[str, str], bootstrap: str
) -> None:
    assert round_trip[f"offsets in order {codec}"] == ["true"]
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": "unused"})
    try:
        consumer.assign([confluent_kafka.TopicPartition(f"{prefixes[0]}-{codec}", 0, 0)])
        messages = consumer.consume(COUNT, timeout=20)
    finally:
        consumer.close()
    found = [
        (message.offset(), message.key(), message.value(), message.headers(), message.timestamp()[1])
        for message in messages
    ]
    assert found == [
        (
            number,
            None if number % 5 == 0 else b"key %d" % number,
            None if number % 7 == 0 else b"value %d" % number,
            [("n", b"%d" % number), ("null", None)],
            START_MS + number,
        )
        for number in range(COUNT)
    ]


def test_a_record_that_is_too_large_is_refused(round_trip: Findings) -> None:
    assert round_trip["too large"] == ["refused"]


# -- groups --------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def groups(bootstrap: str, unique: Callable[[str], str]) -> Findings:
    prefix = unique("java-groups")
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        names = [f"{prefix}-{assignor}" for assignor in ASSIGNORS]
        for created in admin.create_topics([NewTopic(name, 4, 1) for name in names]).values():
            created.result()
    with confluent_kafka.Producer({"bootstrap.servers": bootstrap}) as producer:
        for name in names:
            for number in range(40):
                producer.produce(name, b"%d" % number, partition=number % 4)
        assert producer.flush(20) == 0
    return run("Groups.java", bootstrap, prefix)


@pytest.mark.parametrize("assignor", ASSIGNORS)
def test_members_share_and_take_over_with_every_assignor(assignor: str, groups: Findings) -> None:
    assert groups[f"shared {assignor}"] == ["true"]
    assert groups[f"read {assignor}"] == ["40 40"], "each record once"
    assert groups[f"taken over {assignor}"] == ["true"]
    assert groups[f"committed {assignor}"] == ["true"]


def test_a_cooperative_rebalance_takes_only_what_moves(groups: Findings) -> None:
    assert groups["revoked cooperative-sticky"] == ["2"]
    assert groups["revoked range"] == ["4"]


def test_a_static_member_comes_back_to_its_seat(groups: Findings) -> None:
    assert groups["static member back"] == ["true"]
    assert groups["static other disturbed"] == ["0"]


# -- administration ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def administration(bootstrap: str, unique: Callable[[str], str]) -> Findings:
    return run("Administration.java", bootstrap, unique("java-admin"))


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "created partitions": "2",
        "created replication": "1",
        "created retention": "100000000",
        "created twice": "TopicExistsException",
        "validated only": "false",
        "bad name": "InvalidTopicException",
        "three replicas": "InvalidReplicationFactorException",
        "described partitions": "3",
        "described leaders": "true",
        "described by id": "true",
        "described unknown": "UnknownTopicOrPartitionException",
        "offset earliest": "0@-1",
        "offset latest": "10@-1",
        "offset of largest time": "5@100000",
        "offset of a time": "4@4000",
        "offset of no time": "-1@-1",
        "low watermark": "4",
        "offset earliest then": "4@-1",
        "deleted beyond the end": "OffsetOutOfRangeException",
        "producers": "1 at 9",
        "config set": "100000000 DYNAMIC_TOPIC_CONFIG LONG",
        "config documented": "true",
        "config synonyms": "[DYNAMIC_TOPIC_CONFIG]",
        "config default": "1073741824 DEFAULT_CONFIG true",
        "config deleted": "604800000",
        "config appended": "delete,compact",
        "config bad": "InvalidConfigurationException",
        "config of the broker": "1073741824",
        "nodes": "1",
        "controller among nodes": "true",
        "cluster id": "22",
        "log size": "true",
        "features": "described",
        "group offsets": "0:0:note 0,1:1:note 1,2:2:note 2",
        "group offsets then": "0:0:note 0,2:2:note 2",
        "group state": "Empty 0",
        "group listed": "true",
        "group deleted twice": "GroupIdNotFoundException",
        "group unknown": "GroupIdNotFoundException",
        "deleted by id": "true",
        "deleted twice": "UnknownTopicOrPartitionException",
    }.items(),
)
def test_the_admin_client_finds(name: str, value: str, administration: Findings) -> None:
    assert administration[name] == [value]
