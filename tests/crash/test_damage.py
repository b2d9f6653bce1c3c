"""Damaged files: torn tails are cut, flipped bits refused and told, what can be rebuilt is rebuilt."""

from __future__ import annotations

import time
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError, TopicPartition
from workload import read_all

import kafka
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsTopic,
)
from culver.testing import Broker
from raw_connection import RawConnection

COUNT = 50


def produce(
    bootstrap: str, partition: int, values: list[bytes], **settings: object
) -> list[KafkaError | None]:
    """One batch for each value; what became of each."""
    outcomes: list[KafkaError | None] = []
    configuration = {
        "bootstrap.servers": bootstrap,
        "message.send.max.retries": 0,
        "log_level": 0,
        **{name.replace("_", "."): value for name, value in settings.items()},
    }
    with confluent_kafka.Producer(configuration) as producer:
        for value in values:
            producer.produce(
                "t", value, partition=partition, on_delivery=lambda error, _message: outcomes.append(error)
            )
            assert producer.flush(20) == 0
    return outcomes


def numbered(start: int, end: int) -> list[bytes]:
    return [b"%d " % number + b"x" * 200 for number in range(start, end)]


def values(broker: Broker, partition: int = 0) -> list[bytes]:
    return [value for _, value in read_all(broker.bootstrap_servers, "t", [partition])[partition]]


def segments(broker: Broker, partition: int = 0) -> list[Path]:
    return sorted((broker.data_dir / f"t-{partition}").glob("*.log"))


@pytest.mark.parametrize("torn_bytes", [1, 11, 12, 60, 61, 200])
def test_a_torn_write_at_the_end_is_cut_off(torn_bytes: int) -> None:
    """The first bytes of a batch that never got further: as a power cut leaves it."""
    with Broker(topics={"t": 1}) as broker:
        assert produce(broker.bootstrap_servers, 0, numbered(0, COUNT)) == [None] * COUNT
        broker.kill()
        [segment] = segments(broker)
        whole = segment.read_bytes()
        last_batch = whole[-(len(whole) // COUNT) :]
        segment.write_bytes(whole + last_batch[:torn_bytes])
        broker.start()
        assert values(broker) == numbered(0, COUNT)
        assert segment.read_bytes() == whole
        assert "cut a torn write off the log's end" in broker.log_text
        assert produce(broker.bootstrap_servers, 0, numbered(COUNT, COUNT + 1)) == [None]
        assert values(broker) == numbered(0, COUNT + 1)


@pytest.mark.parametrize("lost_bytes", [1, 100, 260])
def test_a_log_that_lost_its_last_bytes_keeps_all_before_them(lost_bytes: int) -> None:
    with Broker(topics={"t": 1}) as broker:
        produce(broker.bootstrap_servers, 0, numbered(0, COUNT))
        broker.kill()
        [segment] = segments(broker)
        with segment.open("r+b") as file:
            file.truncate(segment.stat().st_size - lost_bytes)
        broker.start()
        assert values(broker) == numbered(0, COUNT - 1)
        # The next record takes the place of the one that is gone, and readers see it there.
        assert produce(broker.bootstrap_servers, 0, [b"next"]) == [None]
        assert values(broker) == [*numbered(0, COUNT - 1), b"next"]


def fetch_error(broker: Broker, partition: int) -> ErrorCode:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    asked = FetchPartition(partition=partition, fetch_offset=0, partition_max_bytes=1000)
    request = FetchRequest(
        max_wait_ms=0, min_bytes=0, max_bytes=1000, topics=[FetchTopic(topic="t", partitions=[asked])]
    )
    with RawConnection((host, int(port))) as connection:
        response = connection.call(request, 11)
    return ErrorCode(response.responses[0].partitions[0].error_code)


def list_offsets_error(broker: Broker, partition: int) -> ErrorCode:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    asked = ListOffsetsPartition(partition_index=partition, timestamp=-1)
    request = ListOffsetsRequest(replica_id=-1, topics=[ListOffsetsTopic(name="t", partitions=[asked])])
    with RawConnection((host, int(port))) as connection:
        response = connection.call(request, 5)
    return ErrorCode(response.topics[0].partitions[0].error_code)


def test_a_flipped_bit_is_refused_and_told_and_nothing_is_deleted() -> None:
    with Broker(topics={"t": 2}) as broker:
        for partition in range(2):
            produce(broker.bootstrap_servers, partition, numbered(0, COUNT))
        broker.kill()
        [segment] = segments(broker)
        sound = segment.read_bytes()
        damaged = bytearray(sound)
        damaged[len(sound) // 2] ^= 4
        segment.write_bytes(damaged)

        for _ in range(2):  # the second start finds what the first has left
            broker.start()
            assert values(broker, partition=1) == numbered(0, COUNT), "others are served"
            assert produce(broker.bootstrap_servers, 1, []) == []
            [refusal] = produce(broker.bootstrap_servers, 0, [b"new"])
            assert refusal is not None
            assert refusal.code() == KafkaError.KAFKA_STORAGE_ERROR
            assert fetch_error(broker, 0) is ErrorCode.KAFKA_STORAGE_ERROR
            assert list_offsets_error(broker, 0) is ErrorCode.KAFKA_STORAGE_ERROR
            assert fetch_error(broker, 1) is ErrorCode.NONE
            told = [line for line in broker.log_text.splitlines() if "corrupt" in line]
            assert any(str(segment) in line and "at byte" in line for line in told), told
            broker.kill()
            assert segment.read_bytes() == damaged, "what cannot be read is not deleted"

        segment.write_bytes(sound)
        broker.start()
        assert values(broker) == numbered(0, COUNT), "once repaired it serves again"
        assert produce(broker.bootstrap_servers, 0, numbered(COUNT, COUNT + 1)) == [None]


def test_a_clean_stop_does_not_bury_a_corruption() -> None:
    with Broker(topics={"t": 1}) as broker:
        produce(broker.bootstrap_servers, 0, numbered(0, COUNT))
        broker.kill()
        [segment] = segments(broker)
        damaged = bytearray(segment.read_bytes())
        damaged[len(damaged) // 2] ^= 1
        segment.write_bytes(damaged)
        broker.start()
        assert fetch_error(broker, 0) is ErrorCode.KAFKA_STORAGE_ERROR
        broker.restart()
        assert fetch_error(broker, 0) is ErrorCode.KAFKA_STORAGE_ERROR
        assert segment.read_bytes() == damaged


# -- what can be rebuilt -------------------------------------------------------------------------------------


def fill_three_segments(broker: Broker) -> int:
    """A topic of three segments, the n-th record n seconds after an hour ago; when that was, in ms."""
    broker.create_topic("t", 1, {"segment.bytes": 1_048_576})
    start_ms = int(time.time() * 1000) - 3_600_000
    with confluent_kafka.Producer(
        {"bootstrap.servers": broker.bootstrap_servers, "enable.idempotence": True, "batch.num.messages": 10}
    ) as producer:
        for number in range(3000):
            producer.produce(
                "t", b"%d " % number + b"x" * 800, partition=0, timestamp=start_ms + number * 1000
            )
            producer.poll(0)
        assert producer.flush(20) == 0
    return start_ms


def check_lookups(broker: Broker, start_ms: int) -> None:
    found = read_all(broker.bootstrap_servers, "t", [0])[0]
    assert [(offset, int(value.split()[0])) for offset, value in found] == [(n, n) for n in range(3000)]
    # A fetch that waits for data at the old place would hold up the next one.
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "unused", "fetch.wait.max.ms": 10}
    consumer = confluent_kafka.Consumer(settings)
    try:
        for number in (0, 1, 777, 1500, 2345, 2999):
            [place] = consumer.offsets_for_times(
                [TopicPartition("t", 0, start_ms + number * 1000)], timeout=20
            )
            assert place.offset == number
            consumer.assign([TopicPartition("t", 0, number)])
            message = consumer.poll(20)
            assert message is not None
            assert message.offset() == number
    finally:
        consumer.close()


def last_sequences(broker: Broker) -> list[int]:
    client = kafka.KafkaAdminClient(bootstrap_servers=broker.bootstrap_servers)
    try:
        place = kafka.TopicPartition("t", 0)
        return [each.last_sequence for each in client.describe_producers([place])[place].active_producers]
    finally:
        client.close()


@pytest.mark.parametrize("crash", [False, True], ids=["after a clean stop", "after a crash"])
@pytest.mark.parametrize(
    "patterns",
    [
        pytest.param(["*.index"], id="offset indexes"),
        pytest.param(["*.timeindex"], id="time indexes"),
        pytest.param(
            ["*.index", "*.timeindex", "*.snapshot", "leader-epoch-checkpoint"], id="all but the log"
        ),
    ],
)
def test_missing_files_are_rebuilt_from_the_log(patterns: list[str], crash: bool) -> None:
    with Broker() as broker:
        start_ms = fill_three_segments(broker)
        assert len(segments(broker)) == 3
        if crash:
            broker.kill()
        else:
            broker.stop()
        removed = [path for pattern in patterns for path in (broker.data_dir / "t-0").glob(pattern)]
        assert removed or crash
        for path in removed:
            path.unlink()
        broker.start()
        check_lookups(broker, start_ms)
        assert last_sequences(broker) == [2999]
        broker.restart()
        check_lookups(broker, start_ms)
        assert last_sequences(broker) == [2999]


@pytest.mark.parametrize("damage", ["emptied", "cut", "overwritten"])
@pytest.mark.parametrize("pattern", ["*.index", "*.timeindex"])
def test_damaged_indexes_are_rebuilt_from_the_log(pattern: str, damage: str) -> None:
    """Index files are not synced: after a power cut any of them may be empty or incomplete."""
    with Broker() as broker:
        start_ms = fill_three_segments(broker)
        broker.stop()
        found = sorted((broker.data_dir / "t-0").glob(pattern))
        assert found
        for path in found:
            size_bytes = path.stat().st_size
            if damage == "emptied":
                path.write_bytes(b"")
            elif damage == "cut":
                path.write_bytes(path.read_bytes()[: size_bytes // 2 | 1])
            else:
                path.write_bytes(b"\xff" * size_bytes)
        broker.start()
        check_lookups(broker, start_ms)


def test_without_its_checkpoint_and_marker_the_directory_is_scanned() -> None:
    with Broker() as broker:
        start_ms = fill_three_segments(broker)
        broker.stop()
        for name in ("log-checkpoint", "clean-shutdown"):
            (broker.data_dir / name).unlink()
        broker.start()
        check_lookups(broker, start_ms)
        assert last_sequences(broker) == [2999]
