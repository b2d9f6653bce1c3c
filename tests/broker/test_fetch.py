"""Fetch over a raw connection: when it waits and when there is nothing to wait for."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from culver.protocol.messages.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic
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
