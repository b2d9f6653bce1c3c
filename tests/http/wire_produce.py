"""Records put into a partition through the gateway's own cluster client, for tests of what reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import uvloop

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.partition_reader import Readers
from culver.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from culver.protocol.records import Record, encode_batch

# The last version that names topics.
_PRODUCE_BY_NAME = 12
WAIT_SECONDS = 30.0

# The first event loop of a process opens a pipe for signals that stays: it must not count as a test's leak.
uvloop.run(asyncio.sleep(0))


def run(test: Callable[[], Awaitable[Any]]) -> Any:
    """Run a test's coroutine on the gateway's kind of event loop, for a while at most."""

    async def limited() -> Any:
        async with asyncio.timeout(60):
            return await test()

    return uvloop.run(limited())


@asynccontextmanager
async def connected(bootstrap: str):
    cluster = Cluster(bootstrap)
    await cluster.start()
    try:
        yield cluster
    finally:
        await cluster.close()


@asynccontextmanager
async def reading(bootstrap: str, buffer_max_bytes: int = 16 << 20):
    """A cluster and readers of it."""
    async with connected(bootstrap) as cluster:
        readers = Readers(cluster, buffer_max_bytes=buffer_max_bytes)
        try:
            yield cluster, readers
        finally:
            await readers.close()


async def produce(
    cluster: Cluster,
    topic: str,
    values: Sequence[bytes],
    partition: int = 0,
    headers: tuple[tuple[str, bytes], ...] = (),
    **batch: Any,
) -> int:
    """Write one batch at the leader, wherever that is by now: the offset of its first record."""
    records = [Record(at, 1_000 + at, b"key", value, headers) for at, value in enumerate(values)]
    entry = PartitionProduceData(index=partition, records=bytes(encode_batch(records, **batch)))
    request = ProduceRequest(
        transactional_id=None,
        acks=-1,
        timeout_ms=10_000,
        topic_data=[TopicProduceData(name=topic, partition_data=[entry])],
    )
    found: list[int] = []

    async def written() -> bool:
        try:
            view = await cluster.view(max_age_ms=0)
            leader = view.leader(TopicPartition(topic, partition)).leader
            answer = await cluster.ask(
                request, ProduceResponse, broker_id=leader, newest_version=_PRODUCE_BY_NAME, purpose="writing"
            )
        except (Unreachable, KafkaError):
            return False
        part = answer.responses[0].partition_responses[0]
        found.append(part.base_offset)
        return part.error_code == 0

    await until(written)
    return found[-1]


async def until(condition: Callable[[], Any], timeout_s: float = WAIT_SECONDS) -> None:
    """Wait for a condition, which may be a coroutine function."""
    async with asyncio.timeout(timeout_s):
        while True:
            holds = condition()
            if asyncio.iscoroutine(holds):
                holds = await holds
            if holds:
                return
            await asyncio.sleep(0.01)
