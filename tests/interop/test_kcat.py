"""kcat, with the librdkafka that Debian ships: produce, consume, list, query, groups, every codec."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from anchors import Unavailable, debian
from confluent_kafka.admin import AdminClient

from kafka import KafkaAdminClient

pytestmark = pytest.mark.interop

Kcat = Callable[..., str]


@pytest.fixture(scope="module")
def kcat(bootstrap: str) -> Kcat:
    """Runs kcat against the broker: kcat("-L", stdin="...") returns what it printed."""
    try:
        program = debian.kcat()
    except Unavailable as reason:
        pytest.skip(str(reason))

    def run(*arguments: str, stdin: str = "", exit_code: int = 0) -> str:
        command = [program, "-b", bootstrap, "-m", "20", *arguments]
        result = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=60)
        assert result.returncode == exit_code, result.stdout + result.stderr
        return result.stdout + (result.stderr if exit_code else "")

    return run


@pytest.fixture
def topic(request: pytest.FixtureRequest, new_topic: Callable[..., str]) -> str:
    return new_topic(request.node.name)


def lines(count: int) -> str:
    return "".join(f"line {number}\n" for number in range(count))


@pytest.mark.parametrize("codec", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_every_codec_there_and_back(codec: str, kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-z", codec, stdin=lines(500))
    assert kcat("-C", "-t", topic, "-e", "-q") == lines(500)


def test_the_codec_arrives_at_the_broker(kcat: Kcat, topic: str, bootstrap: str) -> None:
    """librdkafka 2.0 stops compressing, silently, when a broker's oldest Produce version is too new for it."""
    kcat("-P", "-t", topic, "-z", "zstd", "-X", "linger.ms=200", stdin="the same again and again\n" * 5000)
    admin = KafkaAdminClient(bootstrap_servers=bootstrap)
    try:
        [answer] = admin.describe_log_dirs({topic: [0]})
    finally:
        admin.close()
    [size] = [
        partition["partition_size"]
        for directory in answer["log_dirs"]
        for described in directory["topics"]
        for partition in described["partitions"]
    ]
    assert size < 50_000, "125,000 bytes of text"


def test_keys_headers_and_nulls(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-K", ":", "-H", "a=1", "-H", "b=2", "-Z", stdin="k1:v1\nk2:\n")
    found = [json.loads(line) for line in kcat("-C", "-t", topic, "-e", "-q", "-J").splitlines()]
    assert [(each["key"], each["payload"], each["headers"]) for each in found] == [
        ("k1", "v1", ["a", "1", "b", "2"]),
        ("k2", None, ["a", "1", "b", "2"]),
    ]
    assert [each["offset"] for each in found] == [0, 1]
    assert all(each["tstype"] == "create" for each in found)


def test_the_broker_is_listed_with_its_topics(
    kcat: Kcat, new_topic: Callable[..., str], bootstrap: str
) -> None:
    topic = new_topic("listed", 3)
    found = json.loads(kcat("-L", "-J"))
    assert [broker["name"] for broker in found["brokers"]] == [bootstrap]
    [described] = [each for each in found["topics"] if each["topic"] == topic]
    leader = found["brokers"][0]["id"]
    assert [
        (each["partition"], each["leader"], each["replicas"], each["isrs"])
        for each in described["partitions"]
    ] == [(number, leader, [{"id": leader}], [{"id": leader}]) for number in range(3)]


def test_offsets_are_queried_by_time(kcat: Kcat, topic: str, bootstrap: str) -> None:
    start_ms = int(time.time() * 1000) - 1_000_000
    with confluent_kafka.Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(10):
            producer.produce(topic, b"v", partition=0, timestamp=start_ms + number * 1000)
        assert producer.flush(20) == 0

    def query(at: int) -> str:
        return kcat("-Q", "-t", f"{topic}:0:{at}").strip()

    assert query(start_ms + 3000) == f"{topic} [0] offset 3"
    assert query(start_ms + 3001) == f"{topic} [0] offset 4"
    assert query(start_ms + 60_000) == f"{topic} [0] offset -1"
    assert query(-1) == f"{topic} [0] offset 10"
    assert query(-2) == f"{topic} [0] offset 0"


def test_reading_from_a_place(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, stdin=lines(20))
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "17") == "line 17\nline 18\nline 19\n"
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "-1") == "line 19\n"
    assert kcat("-C", "-t", topic, "-q", "-o", "beginning", "-c", "2") == "line 0\nline 1\n"
    assert kcat("-C", "-t", topic, "-e", "-q", "-o", "s@0", "-c", "1") == "line 0\n"


def test_an_idempotent_producer(kcat: Kcat, topic: str) -> None:
    kcat("-P", "-t", topic, "-X", "enable.idempotence=true", "-X", "batch.num.messages=10", stdin=lines(1000))
    assert kcat("-C", "-t", topic, "-e", "-q") == lines(1000)


def test_a_group_goes_on_where_it_was(
    kcat: Kcat, new_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    topic, group = new_topic("grouped", 3), unique("kcat-group")
    numbers = sorted(f"line {number}" for number in range(90))
    kcat("-P", "-t", topic, "-K", " ", "-p", "-1", stdin=lines(90))
    settings = ("-X", "auto.offset.reset=earliest", "-X", "enable.partition.eof=true")
    found = kcat("-G", group, *settings, "-q", "-e", "-f", "%k %s\n", topic)
    assert sorted(found.splitlines()) == numbers
    kcat("-P", "-t", topic, "-p", "1", stdin="one more\n")
    found = kcat("-G", group, *settings, "-q", "-e", "-f", "%s\n", topic)
    assert found == "one more\n"


@pytest.fixture
def members(bootstrap: str) -> Iterator[list[subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []
    yield started
    for process in started:
        process.kill()
        process.communicate()


def test_two_kcats_share_a_group(
    kcat: Kcat,
    bootstrap: str,
    new_topic: Callable[..., str],
    unique: Callable[[str], str],
    members: list[subprocess.Popen[str]],
) -> None:
    topic, group = new_topic("shared", 2), unique("kcat-group")
    for _ in range(2):
        command = [debian.kcat(), "-b", bootstrap, "-G", group, "-q", "-u", "-c", "1", "-f", "%p\n"]
        command += ["-X", "auto.offset.reset=earliest", "-X", "heartbeat.interval.ms=200", topic]
        members.append(
            subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        )
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        deadline = time.monotonic() + 30
        while True:
            description = admin.describe_consumer_groups([group])[group].result()
            owners = [len(member.assignment.topic_partitions) for member in description.members]
            if description.state.name == "STABLE" and owners == [1, 1]:
                break
            assert time.monotonic() < deadline, f"the two do not share: {description.state}, {owners}"
            time.sleep(0.05)
    for partition in range(2):
        kcat("-P", "-t", topic, "-p", str(partition), stdin="for one of them\n")
    assert sorted(member.communicate(timeout=30)[0] for member in members) == ["0\n", "1\n"]


def test_an_unknown_partition_is_an_error(kcat: Kcat, topic: str) -> None:
    output = kcat("-C", "-t", topic, "-p", "7", "-e", exit_code=1)
    assert "partition 7 does not exist" in output
