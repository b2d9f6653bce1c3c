"""Consumer instances of the REST proxy's kind: one Kafka consumer each, used by one thread at a time.

The event loop never waits inside librdkafka: every call is made in a thread of a pool that has room for one call of
each instance, so that long polls of some never hold up others. An instance that nobody uses is closed after a while, as
are all of them when the gateway ends.
"""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import confluent_kafka
import msgspec

from culver.gateway.admission import Busy
from culver.gateway.errors import HttpError, Problem
from culver.gateway.private_topics import PATTERNS_TO_HIDE
from culver.gateway.rest.instance_consumer import InstanceConsumer
from culver.gateway.settings import GatewaySettings
from culver.logging import get_logger

_log = get_logger("culver.gateway.consumers")

# What librdkafka may fetch ahead for one instance.
_FETCHED_AHEAD_KIB = 2048
_FETCH_WAIT_MS = 200
_HEARTBEAT_MS = 1000
_MAX_POLL_INTERVAL_MS = 86_400_000
_SWEEP_SECONDS_MAX = 0.5
# Without a request for so long, an instance stops fetching, and only takes part in its group.
_IDLE_SECONDS = 0.5
_CLOSE_SECONDS = 10.0

T = TypeVar("T")


class InstanceOptions(msgspec.Struct, frozen=True):
    """What a client may choose when it makes an instance."""

    format: str = "binary"
    offset_reset: str = "latest"
    auto_commit: bool = True
    fetch_min_bytes: int = 1
    # How long a read may wait at most; None leaves it to each read.
    request_timeout_ms: int | None = None


class ConsumerInstance:
    """One instance: its consumer, whose turn it is, and when it was last used."""

    def __init__(self, group: str, name: str, options: InstanceOptions) -> None:
        self.group = group
        self.name = name
        self.options = options
        self.consumer: InstanceConsumer | None = None
        self.used_at = time.monotonic()
        self.waiting = 0
        self.turn = asyncio.Lock()
        self.closed = False


class ConsumerInstances:
    """All instances of this gateway, by group and name."""

    def __init__(self, settings: GatewaySettings, stopping: asyncio.Event) -> None:
        self._settings = settings
        self._stopping = stopping
        self._timeout_s = settings.consumer_instance_timeout_ms / 1000
        self._instances: dict[tuple[str, str], ConsumerInstance] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._executor: ThreadPoolExecutor | None = None
        self._sweeper: asyncio.Task[None] | None = None

    async def start(self) -> None:
        # One thread more than instances: somebody has to close one while all others wait for records.
        workers = min(self._settings.consumer_instances_max, 10_000) + 1
        self._executor = ThreadPoolExecutor(workers, thread_name_prefix="consumer-instance")
        self._sweeper = asyncio.create_task(self._sweep(), name="consumer-instances")

    async def close(self) -> None:
        """Close all of them, so that they leave their groups; but do not wait for ever."""
        if self._sweeper is not None:
            self._sweeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._sweeper
        for instance in list(self._instances.values()):
            self._remove(instance)
        if self._closing:
            await asyncio.wait(self._closing, timeout=_CLOSE_SECONDS)
        if self._executor is not None:
            self._executor.shutdown(wait=False, cancel_futures=True)

    @property
    def count(self) -> int:
        """How many there are, with those that are being closed."""
        return len(self._instances) + len(self._closing)

    async def create(self, group: str, name: str | None, options: InstanceOptions) -> ConsumerInstance:
        """A new instance. HttpError: 40902 when there is one of that name, 429 when there are too many."""
        name = name or f"rest-consumer-{uuid.uuid4()}"
        if (group, name) in self._instances:
            raise HttpError(Problem.CONSUMER_EXISTS, f"group {group} has a consumer instance {name} already")
        if self.count >= self._settings.consumer_instances_max:
            raise Busy(f"there are {self.count} consumer instances; delete some, or wait until some expire")
        instance = ConsumerInstance(group, name, options)
        self._instances[group, name] = instance
        try:
            async with instance.turn:
                instance.consumer = await self._in_thread(lambda: self._consumer(group, name, options))
        except BaseException:
            self._instances.pop((group, name), None)
            raise
        return instance

    def get(self, group: str, name: str) -> ConsumerInstance:
        """HttpError 40403 when there is none."""
        instance = self._instances.get((group, name))
        if instance is None:
            raise HttpError(
                Problem.CONSUMER_NOT_FOUND,
                f"group {group} has no consumer instance {name} here; it may have expired",
            )
        return instance

    async def use(self, instance: ConsumerInstance, call: Callable[[InstanceConsumer], T]) -> T:
        """Make a call with the instance's consumer, after those that came before it."""
        instance.waiting += 1
        try:
            async with instance.turn:
                if instance.closed or instance.consumer is None:
                    raise HttpError(Problem.CONSUMER_NOT_FOUND)
                consumer = instance.consumer
                return await self._in_thread(lambda: call(consumer))
        finally:
            instance.waiting -= 1
            instance.used_at = time.monotonic()

    async def delete(self, instance: ConsumerInstance) -> None:
        """Close it, as its client has all it wants, and wait until it has left its group."""
        await asyncio.shield(self._remove(instance, has_read=True))

    async def _in_thread(self, call: Callable[[], T]) -> T:
        """The thread is waited for even if the request is given up: the consumer is not free before."""
        assert self._executor is not None
        future = asyncio.get_running_loop().run_in_executor(self._executor, call)
        try:
            return await asyncio.shield(future)
        except asyncio.CancelledError:
            await asyncio.wait([future])
            raise

    def _consumer(self, group: str, name: str, options: InstanceOptions) -> InstanceConsumer:
        settings: Mapping[str, object] = {
            "bootstrap.servers": self._settings.bootstrap,
            "client.id": name,
            "log.connection.close": False,
            **self._settings.client_settings,
            "group.id": group,
            "topic.blacklist": PATTERNS_TO_HIDE,
            # `none` has another name in librdkafka.
            "auto.offset.reset": "error" if options.offset_reset == "none" else options.offset_reset,
            "enable.auto.commit": options.auto_commit,
            # Only what has been handed to the client counts as read, not what lies fetched ahead.
            "enable.auto.offset.store": False,
            "queued.max.messages.kbytes": _FETCHED_AHEAD_KIB,
            # A seek, or the first read after a rest, waits for the fetch that is under way to end.
            "fetch.wait.max.ms": _FETCH_WAIT_MS,
            # So long it takes to hear that the group changes.
            "heartbeat.interval.ms": _HEARTBEAT_MS,
            # An instance lives for as long as its own timeout says, however seldom it reads.
            "max.poll.interval.ms": min(
                max(self._settings.consumer_instance_timeout_ms + 60_000, 300_000), _MAX_POLL_INTERVAL_MS
            ),
        }
        logger = logging.getLogger("culver.gateway.librdkafka")
        return InstanceConsumer(confluent_kafka.Consumer(dict(settings), logger=logger))

    # --- the end of an instance ---

    def _remove(self, instance: ConsumerInstance, *, has_read: bool = False) -> asyncio.Task[None]:
        self._instances.pop((instance.group, instance.name), None)
        if instance.consumer is not None:
            instance.consumer.hurry()
        task = asyncio.create_task(self._close(instance, has_read))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)
        return task

    async def _close(self, instance: ConsumerInstance, has_read: bool) -> None:
        async with instance.turn:
            instance.closed = True
            consumer, instance.consumer = instance.consumer, None
            if consumer is not None:
                await self._in_thread(lambda: consumer.close(has_read=has_read))

    async def _sweep(self) -> None:
        """Look after those that nobody uses at the moment. When the gateway ends, nobody waits for a long poll."""
        while not await self._stops_within(min(_SWEEP_SECONDS_MAX, self._timeout_s / 4)):
            for instance in list(self._instances.values()):
                if instance.waiting or instance.turn.locked():
                    continue
                idle_s = time.monotonic() - instance.used_at
                if idle_s > self._timeout_s:
                    _log.info("consumer instance expired", group=instance.group, instance=instance.name)
                    self._remove(instance)
                elif idle_s > _IDLE_SECONDS:
                    await self._stay_member(instance)
        for instance in self._instances.values():
            if instance.consumer is not None:
                instance.consumer.hurry()

    async def _stay_member(self, instance: ConsumerInstance) -> None:
        async with instance.turn:
            consumer = instance.consumer
            if consumer is not None:
                try:
                    await self._in_thread(consumer.stay_member)
                except Exception as error:  # noqa: BLE001 (whatever befalls one, the others are looked after)
                    _log.error("resting consumer instance", instance=instance.name, error=repr(error))

    async def _stops_within(self, seconds: float) -> bool:
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._stopping.wait()
        return self._stopping.is_set()
