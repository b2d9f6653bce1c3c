"""Where webhooks are kept: a compacted topic of the cluster, which every gateway follows.

A record's key is the name of a webhook, its value the subscription as JSON; one without a value deletes it. The order
of the topic is the order of changes for everybody: of two made at the same time at two gateways, the later one counts.
The topic is created when the first webhook is. It holds the secrets: whoever may read it can sign.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import msgspec

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.offsets import EARLIEST, LATEST
from culver.gateway.cluster.topics import create_topic
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.producing import Outgoing, Producing
from culver.gateway.reading.partition_reader import Cursor, Readers
from culver.gateway.reading.record import Record
from culver.gateway.webhooks.subscription import STORE_TOPIC, Subscription, stored
from culver.logging import get_logger
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic, MetadataResponse
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.webhooks")

REPLICAS_MAX = 3
_PLACE = TopicPartition(STORE_TOPIC, 0)
# How soon a topic that another gateway has created is noticed.
_LOOK_SECONDS = 1.0
_RETRY_SECONDS = 1.0
_CATCH_UP_SECONDS = 10.0
_NOT_YET = (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.LEADER_NOT_AVAILABLE)
_NOT_YET_SECONDS = 0.1
_READ_RECORDS = 1000
_READ_BYTES = 1024 * 1024


async def create_topic_for_webhooks(cluster: Cluster, name: str, configs: dict[str, str]) -> None:
    """Create a topic with one partition, on three brokers where there are so many; fine if it is there already."""
    brokers = (await cluster.view()).brokers
    try:
        await create_topic(
            cluster, name, partitions=1, replication_factor=min(REPLICAS_MAX, len(brokers)), configs=configs
        )
    except KafkaError as error:
        if error.code is not ErrorCode.TOPIC_ALREADY_EXISTS:
            raise


class Store:
    """The webhooks of the cluster. `on_change` is called with the name of each that is made, changed or deleted."""

    def __init__(
        self, cluster: Cluster, readers: Readers, producing: Producing, on_change: Callable[[str], object]
    ) -> None:
        self._cluster = cluster
        self._readers = readers
        self._producing = producing
        self._on_change = on_change
        self._subscriptions: dict[str, Subscription] = {}
        # How far the topic has been read; None before it has been read to its end once.
        self._position: int | None = None
        self._moved = asyncio.Condition()
        self._look_now = asyncio.Event()
        self._following: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Begin to follow the topic, whether or not it exists yet."""
        self._following = asyncio.create_task(self._follow())

    async def close(self) -> None:
        if self._following is not None:
            self._following.cancel()
            await asyncio.gather(self._following, return_exceptions=True)

    def get(self, name: str) -> Subscription | None:
        return self._subscriptions.get(name)

    def all(self) -> list[Subscription]:
        """All webhooks, by name."""
        return [self._subscriptions[name] for name in sorted(self._subscriptions)]

    async def ready(self) -> None:
        """Wait until the topic has been read once. KafkaError when that takes too long."""
        await self._read_to(0)

    async def catch_up(self) -> None:
        """Wait until everything has been read that is written now. KafkaError, Unreachable."""
        await self.ready()
        if await self._exists():
            await self._read_to(await self._offset(LATEST))

    async def put(self, subscription: Subscription) -> None:
        """Make or change a webhook. Returns when it is stored safely, and known here."""
        await self._write(subscription.name, msgspec.json.encode(subscription))

    async def remove(self, name: str) -> None:
        """Delete a webhook, as put() makes one."""
        await self._write(name, None)

    async def _write(self, name: str, value: bytes | None) -> None:
        if not await self._exists():
            await create_topic_for_webhooks(self._cluster, STORE_TOPIC, {"cleanup.policy": "compact"})
        self._look_now.set()
        record = Outgoing(STORE_TOPIC, value, name.encode(), partition=0)
        deadline = time.monotonic() + _CATCH_UP_SECONDS
        (sent,) = await self._producing.send([record])
        # A topic that has just been created is not known to every broker at once.
        while sent.error is not None and sent.error.code in _NOT_YET and time.monotonic() < deadline:
            await asyncio.sleep(_NOT_YET_SECONDS)
            (sent,) = await self._producing.send([record])
        if sent.error is not None:
            raise sent.error
        await self._read_to(sent.offset + 1)

    async def _exists(self) -> bool:
        """Asked of the cluster for this one topic: it is asked often, and there may be thousands of others."""
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=STORE_TOPIC)], allow_auto_topic_creation=False
        )
        answer = await self._cluster.ask(request, MetadataResponse)
        return any(topic.name == STORE_TOPIC and not topic.error_code for topic in answer.topics)

    async def _read_to(self, position: int) -> None:
        try:
            async with asyncio.timeout(_CATCH_UP_SECONDS), self._moved:
                await self._moved.wait_for(lambda: self._position is not None and self._position >= position)
        except TimeoutError:
            raise KafkaError(
                ErrorCode.REQUEST_TIMED_OUT, f"the topic {STORE_TOPIC} cannot be read at the moment"
            ) from None

    async def _offset(self, where: int) -> int:
        found = (await self._cluster.list_offsets({_PLACE: where}))[_PLACE]
        if isinstance(found, KafkaError):
            raise found
        return found.offset

    # --- following the topic ---

    async def _follow(self) -> None:
        while True:
            try:
                if await self._exists():
                    await self._read()
                await self._replace({}, 0)
            except (KafkaError, Unreachable) as error:
                _log.warning("webhooks cannot be read", topic=STORE_TOPIC, error=str(error))
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            except Exception:  # noqa: BLE001 - the boundary: changes must be followed whatever happens
                _log.exception("webhooks cannot be followed", topic=STORE_TOPIC)
                await asyncio.sleep(_RETRY_SECONDS)
                continue
            try:
                async with asyncio.timeout(_LOOK_SECONDS):
                    await self._look_now.wait()
                self._look_now.clear()
            except TimeoutError:
                continue

    async def _read(self) -> None:
        """Read the topic from its beginning and then as it grows. Returns when there is no such topic any more.

        What is known is replaced only when the end is reached: what has been deleted since, and perhaps been compacted
        away, is found out by not being met, and an old version of a webhook never runs.
        """
        end = await self._offset(LATEST)
        cursor = self._readers.open(*_PLACE, await self._offset(EARLIEST), committed=False)
        try:
            found: dict[str, Subscription] = {}
            while cursor.position < end:
                await _read_into(found, cursor)
            await self._replace(found, cursor.position)
            while True:
                found = dict(self._subscriptions)
                await _read_into(found, cursor)
                await self._replace(found, cursor.position)
        except KafkaError as error:
            if error.code not in (ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.OFFSET_OUT_OF_RANGE):
                raise
            _log.warning("the topic of webhooks has been deleted or cut", topic=STORE_TOPIC, error=str(error))
            self._cluster.forget_view()
        finally:
            cursor.close()

    async def _replace(self, found: dict[str, Subscription], position: int) -> None:
        before, self._subscriptions = self._subscriptions, found
        self._position = position
        for name in sorted(before.keys() | found.keys()):
            if before.get(name) != found.get(name):
                self._on_change(name)
        async with self._moved:
            self._moved.notify_all()


async def _read_into(found: dict[str, Subscription], cursor: Cursor) -> None:
    """Also what nobody sees, such as marks of somebody's transaction: it is there, and so it is waited for."""
    for record in await cursor.read(records_max=_READ_RECORDS, bytes_max=_READ_BYTES, may_be_empty=True):
        _apply(record, found)


def _apply(record: Record, into: dict[str, Subscription]) -> None:
    name = (record.key or b"").decode(errors="replace")
    if record.value is None:
        into.pop(name, None)
        return
    try:
        into[name] = stored(name, record.value)
    except ValueError as error:
        # Somebody else's record, or one of a newer version: the others must not suffer from it.
        _log.error("a webhook cannot be understood", name=name, offset=record.offset, error=str(error))
