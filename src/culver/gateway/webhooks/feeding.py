"""Reads the partitions of a webhook into its ordering, as far as there is room, whatever becomes of their topics."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.offsets import EARLIEST
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.partition_reader import Cursor, Readers
from culver.gateway.webhooks.ordering import Ordering, Room
from culver.gateway.webhooks.subscription import Subscription
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.webhooks")

# Partitions are read side by side, so what one of them reads at a time is a small part of what all may hold.
_READ_MAX_BYTES = 256 << 10
_RETRY_SECONDS = 1.0


class Feeding:
    """One task for each partition. `on_records` is called when some were added, `on_trouble` with what is wrong."""

    def __init__(
        self,
        subscription: Subscription,
        cluster: Cluster,
        readers: Readers,
        ordering: Ordering,
        *,
        on_records: Callable[[], object],
        on_trouble: Callable[[str], object],
    ) -> None:
        self._subscription = subscription
        self._cluster = cluster
        self._readers = readers
        self._ordering = ordering
        self._on_records = on_records
        self._on_trouble = on_trouble
        self._tasks: dict[TopicPartition, asyncio.Task[None]] = {}
        # Set, and replaced by another, whenever something was acknowledged.
        self._progress = asyncio.Event()

    @property
    def partitions(self) -> list[TopicPartition]:
        return sorted(self._tasks)

    def begin(self, partition: TopicPartition, committed: int | None) -> None:
        """Read a partition from its committed offset, or from where the webhook begins."""
        self._tasks[partition] = asyncio.create_task(self._feed(partition, committed))

    async def end(self, partitions: Iterable[TopicPartition]) -> None:
        """Read no more of these; what was read stays."""
        tasks = [self._tasks.pop(each) for each in partitions if each in self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def progressed(self) -> None:
        """There may be room again."""
        self._progress.set()
        self._progress = asyncio.Event()

    async def _feed(self, partition: TopicPartition, committed: int | None) -> None:
        position = committed if committed is not None else await self._patiently(self._start, partition)
        # The same one all the time: it notices when the topic it has read is another one after a while.
        cursor = self._readers.open(*partition, position)
        try:
            while True:
                self._ordering.assign(partition, cursor.position)
                error = await self._read(partition, cursor)
                self._on_trouble(f"{partition} cannot be read: {error}")
                # What was read is sent first, even if the partition has lost it meanwhile.
                while self._ordering.holds_records(partition):
                    await self._progress.wait()
                cursor.position = self._ordering.positions()[partition]
                await asyncio.sleep(_RETRY_SECONDS)
                if isinstance(error, KafkaError) and error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                    cursor.position = await self._patiently(self._earliest, partition)
                self._ordering.revoke(partition)
        finally:
            cursor.close()

    async def _read(self, partition: TopicPartition, cursor: Cursor) -> Exception:
        """Read until that is not possible any more; returns why."""
        try:
            while True:
                room = await self._room(partition)
                bytes_max = min(room.bytes, _READ_MAX_BYTES)
                # What nobody sees is behind the webhook too: it is not to be seen as its lag.
                records = await cursor.read(records_max=room.records, bytes_max=bytes_max, may_be_empty=True)
                self._ordering.add(partition, records, cursor.position)
                self._on_records()
        except (KafkaError, Unreachable) as error:
            return error
        except Exception as error:  # noqa: BLE001 - the boundary: it is tried again, and does not end unnoticed
            _log.exception("webhook cannot read", partition=str(partition))
            return error

    async def _room(self, partition: TopicPartition) -> Room:
        while (room := self._ordering.room(partition)) is None:
            await self._progress.wait()
        return room

    async def _patiently(
        self, ask: Callable[[TopicPartition], Awaitable[int]], partition: TopicPartition
    ) -> int:
        while True:
            try:
                return await ask(partition)
            except (KafkaError, Unreachable) as error:
                self._on_trouble(f"{partition} has no beginning: {error}")
                await asyncio.sleep(_RETRY_SECONDS)

    async def _start(self, partition: TopicPartition) -> int:
        view = await self._cluster.view()
        view.partition(partition)
        topic_id = view.topics[partition.topic].topic_id.hex()
        return self._subscription.start(partition.topic, topic_id, partition.partition)

    async def _earliest(self, partition: TopicPartition) -> int:
        found = (await self._cluster.list_offsets({partition: EARLIEST}))[partition]
        if isinstance(found, KafkaError):
            raise found
        return found.offset
