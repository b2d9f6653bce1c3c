"""Consumer instances without HTTP around them: when they end, and what they do while nobody reads."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from http_call import call

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.rest.consumer_instances import ConsumerInstance, ConsumerInstances, InstanceOptions
from culver.gateway.rest.instance_consumer import InstanceConsumer
from culver.gateway.settings import GatewaySettings
from culver.testing import Broker

NOWHERE = "127.0.0.1:1"
EARLIEST = InstanceOptions(format="text", offset_reset="earliest")


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"group.initial.rebalance.delay.ms": 0}}


@asynccontextmanager
async def running(
    bootstrap: str, stopping: asyncio.Event | None = None, timeout_ms: int = 60_000
) -> AsyncIterator[ConsumerInstances]:
    settings = GatewaySettings(bootstrap=bootstrap, consumer_instance_timeout_ms=timeout_ms)
    instances = ConsumerInstances(settings, stopping or asyncio.Event())
    await instances.start()
    try:
        yield instances
    finally:
        await instances.close()


async def offsets_read(
    instances: ConsumerInstances, instance: ConsumerInstance, count: int, *, rests: bool = False
) -> list[int]:
    """The offsets of so many records, a few at a time; the instance rests in between."""
    offsets: list[int] = []
    async with asyncio.timeout(30):
        while len(offsets) < count:
            records = await instances.use(
                instance, lambda consumer: consumer.read("text", wait_ms=500, max_bytes=100, min_bytes=1)
            )
            offsets += [record.offset for record in records]
            if rests:
                await instances.use(instance, InstanceConsumer.stay_member)
    return offsets


@pytest.fixture
def numbered(url: str, topic: str) -> str:
    """A topic with 200 records."""
    body = "".join(f"{number}\n" for number in range(200)).encode()
    assert call("POST", f"{url}/ingest/{topic}", body, "text/plain").status == 200
    return topic


def test_what_the_client_may_not_have_got_is_read_again_after_the_instance_expired(
    http_broker: Broker, numbered: str
) -> None:
    async def read_all(count: int, *, has_read: bool) -> tuple[list[int], list[int]]:
        """What the group had committed, and the offsets that are read after it."""
        async with running(http_broker.bootstrap_servers) as instances:
            instance = await instances.create("uncertain", None, EARLIEST)
            await instances.use(instance, lambda consumer: consumer.assign([TopicPartition(numbered, 0)]))
            committed = await instances.use(instance, lambda consumer: consumer.committed(None))
            offsets = await offsets_read(instances, instance, count)
            if has_read:
                await instances.delete(instance)
            return [each.offset for each in committed], offsets

    committed, offsets = asyncio.run(read_all(1, has_read=False))
    assert (committed, offsets[0]) == ([], 0)
    committed, offsets = asyncio.run(read_all(1, has_read=True))
    assert (committed, offsets[0]) == ([], 0)
    assert asyncio.run(read_all(0, has_read=True)) == ([offsets[-1] + 1], [])


def test_nothing_is_lost_while_an_instance_rests(http_broker: Broker, numbered: str) -> None:
    async def read_with_rests() -> list[int]:
        async with running(http_broker.bootstrap_servers) as instances:
            instance = await instances.create("resting", None, EARLIEST)
            await instances.use(instance, lambda consumer: consumer.subscribe([numbered], None))
            return await offsets_read(instances, instance, 200, rests=True)

    assert asyncio.run(read_with_rests()) == list(range(200))


def test_an_instance_that_rested_through_a_rebalance_reads_on(
    http_broker: Broker, url: str, new_topic: Callable[..., str]
) -> None:
    topic = new_topic(partitions=2)
    for key in range(20):  # some for each partition
        assert call("POST", f"{url}/ingest/{topic}?key={key}", b"x", "text/plain").status == 200

    async def check() -> None:
        async with running(http_broker.bootstrap_servers) as instances, asyncio.timeout(30):
            resting = await instances.create("rebalanced", None, EARLIEST)
            await instances.use(resting, lambda consumer: consumer.subscribe([topic], None))
            while not await instances.use(resting, InstanceConsumer.assignment):
                await instances.use(resting, InstanceConsumer.stay_member)
            await instances.use(resting, InstanceConsumer.stay_member)
            other = await instances.create("rebalanced", None, EARLIEST)
            await instances.use(other, lambda consumer: consumer.subscribe([topic], None))
            while await instances.use(resting, InstanceConsumer.assignment):
                await instances.use(other, InstanceConsumer.stay_member)
                await instances.use(resting, InstanceConsumer.stay_member)
            await asyncio.gather(
                offsets_read(instances, resting, 1),
                offsets_read(instances, other, 1),
            )

    asyncio.run(check())


def test_an_instance_that_nobody_uses_expires() -> None:
    async def check() -> None:
        async with running(NOWHERE, timeout_ms=100) as instances:
            await instances.create("group", "idle", InstanceOptions())
            async with asyncio.timeout(10):
                while instances.count:
                    await asyncio.sleep(0.01)
            with pytest.raises(HttpError) as missing:
                instances.get("group", "idle")
            assert missing.value.problem is Problem.CONSUMER_NOT_FOUND

    asyncio.run(check())


def test_a_gateway_that_ends_waits_for_no_long_poll() -> None:
    async def check() -> None:
        stopping = asyncio.Event()
        async with running(NOWHERE, stopping) as instances:
            instance = await instances.create("group", "waiting", InstanceOptions())
            await instances.use(instance, lambda consumer: consumer.assign([TopicPartition("topic", 0)]))
            poll = asyncio.create_task(
                instances.use(
                    instance,
                    lambda consumer: consumer.read("binary", wait_ms=60_000, max_bytes=1, min_bytes=1),
                )
            )
            await asyncio.sleep(0)
            stopping.set()
            async with asyncio.timeout(10):
                assert await poll == []

    asyncio.run(check())
