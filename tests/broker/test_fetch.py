"""Fetch over a raw connection: when it waits and when there is nothing to wait for."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
from culver.protocol.messages.metadata import MetadataRequest
from culver.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    TopicProduceData,
)
from culver.protocol.records import Record, encode_batch
from culver.testing import Broker
from raw_connection import RawConnection

FOR_EVER_MS = 60_000


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(config={"culver.flush": "os"}) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        yield connection


def produce(connection: RawConnection, topic: str, size_bytes: int) -> None:
    batch = memoryview(encode_batch([Record(0, int(time.time() * 1000), None, os.urandom(size_bytes))]))
    data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])
    response = connection.call(ProduceRequest(acks=1, timeout_ms=1000, topic_data=[data]), 9)
    assert response.responses[0].partition_responses[0].error_code == 0


def fetch(
    connection: RawConnection, topic: str, offset: int, min_bytes: int, max_bytes: int = 1 << 20
) -> bytes:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=max_bytes)
    response: FetchResponse = connection.call(
        FetchRequest(
            max_wait_ms=FOR_EVER_MS,
            min_bytes=min_bytes,
            max_bytes=1 << 20,
            isolation_level=0,
            topics=[FetchTopic(topic=topic, partitions=[asked])],
        ),
        12,
    )
    [data] = response.responses[0].partitions
    assert data.error_code == 0
    return bytes(data.records or b"")  # type: ignore[arg-type]


def test_a_segment_that_ends_does_not_make_a_fetch_wait(broker: Broker, connection: RawConnection) -> None:
    broker.create_topic("segments", config={"internal.segment.bytes": 2000})
    for _ in range(10):
        produce(connection, "segments", 500)
    # A segment holds three batches; more is there, so an answer below min_bytes comes at once.
    assert 500 < len(fetch(connection, "segments", 0, min_bytes=1 << 20)) < 2000


def test_a_limit_does_not_make_a_fetch_wait(broker: Broker, connection: RawConnection) -> None:
    broker.create_topic("limits")
    for _ in range(10):
        produce(connection, "limits", 500)
    assert len(fetch(connection, "limits", 0, min_bytes=100_000, max_bytes=1200)) == 1200


def test_what_is_on_disk_alone_is_brought_to_memory_and_sent_whole(
    broker: Broker, connection: RawConnection
) -> None:
    broker.create_topic("cold")
    for _ in range(32):
        produce(connection, "cold", 30_000)
    segment = Path(broker.data_dir) / "cold-0" / "00000000000000000000.log"
    size = segment.stat().st_size
    descriptor = os.open(segment, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        # All of it but the first and the last 64 KiB.
        os.posix_fadvise(descriptor, 65_536, size - 2 * 65_536, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)
    assert fetch(connection, "cold", 0, min_bytes=size) == segment.read_bytes()


def test_large_answers_keep_their_place_among_others(broker: Broker, connection: RawConnection) -> None:
    broker.create_topic("large")
    for _ in range(40):
        produce(connection, "large", 100_000)
    content = (Path(broker.data_dir) / "large-0" / "00000000000000000000.log").read_bytes()
    begun = []
    for number in range(40):
        begun.append(connection.begin(large_fetch("large", number), 12))
        begun.append(connection.begin(MetadataRequest(topics=[]), 9))
    # Nothing has been read so far: the socket is full, and most of the answers wait at the broker.
    position = 0
    for number, one in enumerate(begun):
        answer = connection.finish(one)
        if number % 2:
            assert answer.brokers
        else:
            [data] = answer.responses[0].partitions
            records = bytes(data.records)
            assert records == content[position : position + len(records)]
            assert len(records) == min(1 << 20, len(content) - position)
            position += len(content) // 40


def test_a_client_that_leaves_in_the_middle_of_a_large_answer_leaves_nothing_open(broker: Broker) -> None:
    broker.create_topic("left")
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        for _ in range(40):
            produce(connection, "left", 100_000)
        before = open_files(broker)
    for _ in range(10):
        with RawConnection((host, int(port))) as connection:
            for number in range(20):
                connection.begin(large_fetch("left", number), 12)
            connection.receive_frame()
    with RawConnection((host, int(port))) as connection:
        deadline = time.monotonic() + 10
        while open_files(broker) > before and time.monotonic() < deadline:
            connection.call(MetadataRequest(topics=[]), 9)
        assert open_files(broker) <= before


def test_a_client_that_takes_nothing_costs_no_memory(broker: Broker, connection: RawConnection) -> None:
    broker.create_topic("slow")
    for _ in range(40):
        produce(connection, "slow", 100_000)
    host, _, port = broker.bootstrap_servers.rpartition(":")
    before = resident_bytes(broker)
    with contextlib.ExitStack() as stack:
        for _ in range(30):
            slow = stack.enter_context(RawConnection((host, int(port))))
            for number in range(20):
                slow.begin(large_fetch("slow", number), 12)
        # Others are served meanwhile; 30 times 20 MB have been asked for.
        for _ in range(20):
            assert fetch(connection, "slow", 0, min_bytes=1)
        assert resident_bytes(broker) - before < 50 << 20


def large_fetch(topic: str, offset: int) -> FetchRequest:
    asked = FetchPartition(partition=0, fetch_offset=offset, partition_max_bytes=1 << 20)
    return FetchRequest(
        max_wait_ms=0,
        min_bytes=1,
        max_bytes=1 << 20,
        isolation_level=0,
        topics=[FetchTopic(topic=topic, partitions=[asked])],
    )


def open_files(broker: Broker) -> int:
    return len(os.listdir(f"/proc/{broker.pid}/fd"))


def resident_bytes(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) * 1024
