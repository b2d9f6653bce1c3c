"""One subscriber: reads its partitions and hands records to its connection, as fast as that takes them.

Each partition has a task that reads and then waits for its turn on the connection. While the connection does not
take more, or credits are used up, nothing is read: what the tasks hold meanwhile has a bound, and what goes beyond it
is given back and read again later. So a receiver that stalls costs its bound and nothing else.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, ParamSpec, Protocol

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster, Unreachable
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.problems import http_error, unreachable
from culver.gateway.push.encoding import Encoded, Encodings
from culver.gateway.push.notices import Notice, failed
from culver.gateway.push.starting import EARLIEST, LATEST, Start, start_positions
from culver.gateway.push.window import Window
from culver.gateway.push.wish import Wish
from culver.gateway.reading.partition_reader import Cursor, Readers
from culver.gateway.reading.record import Record
from culver.logging import get_logger

_log = get_logger("culver.gateway.push")

Arguments = ParamSpec("Arguments")

_READ_RECORDS_MAX = 500
_READ_BYTES_MAX = 256 * 1024
# What goes to the connection in one piece. Larger pieces would wait in its buffer, where nothing bounds them.
_PIECE_BYTES = 32 * 1024
# A receiver that does not even take notices is not one.
_NOTICES_MAX = 1000
_RETRY_SECONDS = 0.5


class ReceiverGone(Exception):
    """The connection is closed: nobody is there to send to."""


class Receiver(Protocol):
    """The connection, which is used by one at a time. A call waits while the other side does not read."""

    async def send_records(
        self, partition: TopicPartition, records: Sequence[Encoded], attempt: int
    ) -> None: ...

    async def send_notice(self, notice: Notice) -> None: ...


class Subscription:
    """What is sent to one receiver. The partitions are given to it and taken from it by `assignment`."""

    def __init__(
        self,
        name: str,
        wish: Wish,
        receiver: Receiver,
        *,
        cluster: Cluster,
        readers: Readers,
        encodings: Encodings,
        buffer_bytes: int,
    ) -> None:
        self.name = name
        self.wish = wish
        self.window = Window(wish.credits, acknowledged_by_hand=wish.acknowledged_by_hand)
        # Called when there may be something to commit.
        self.on_progress: Callable[[], object] = lambda: None
        # Done when the subscription is over: with the error that ended it, or None.
        self.ended: asyncio.Future[HttpError | None] = asyncio.get_running_loop().create_future()
        self._receiver = receiver
        self._cluster = cluster
        self._readers = readers
        self._encodings = encodings
        self._buffer_bytes = buffer_bytes
        self._held_bytes = 0
        self._spare = asyncio.Event()
        self._turn = asyncio.Lock()
        self._paused = False
        # Set while records may be sent, new ones or again: there are credits and room, and nobody paused.
        self._flowing = asyncio.Event()
        self._credited = asyncio.Event()
        self._notices: deque[Notice] = deque()
        self._notifying = False
        self._refused = asyncio.Event()
        self._sends_refused = False
        # One is due: new records wait for it.
        self._refused_first = False
        self._feeds: dict[TopicPartition, asyncio.Task[None]] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._update_flow()

    # --- partitions ---

    def feed(self, partition: TopicPartition, position: int, committed: int | None = None) -> None:
        """Send the records of a partition from a position on."""
        self.window.assign(partition, position, committed)
        self._feeds[partition] = self.run(self._feed, partition)

    def stop_feeding(self, partitions: Iterable[TopicPartition]) -> None:
        """Read no more of these. They stay in the window until `forget`."""
        for partition in partitions:
            if (task := self._feeds.pop(partition, None)) is not None:
                task.cancel()

    def is_feeding(self, partition: TopicPartition) -> bool:
        """Is the partition being read? Not any more, when it was deleted."""
        return partition in self._feeds

    def forget(self, partitions: Iterable[TopicPartition]) -> None:
        """Wait for no more acknowledgements of these."""
        for partition in partitions:
            self.window.revoke(partition)
        self._update_flow()

    async def seek(self, partition: TopicPartition, where: int | str) -> None:
        """Go on from another offset, or from `earliest` or `latest`. KafkaError for a partition it does not have."""
        if isinstance(where, str):
            where = await self.offset_at(partition, {"earliest": EARLIEST, "latest": LATEST}[where])
        if partition not in self._feeds:
            raise KafkaError(
                ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, f"{partition} is not assigned to this subscription"
            )
        self.stop_feeding([partition])
        self.window.seek(partition, where)
        self._feeds[partition] = self.run(self._feed, partition)
        self._moved()

    async def offset_at(self, partition: TopicPartition, timestamp: int) -> int:
        """The offset of a partition at a time, at LATEST or EARLIEST."""
        return (await start_positions(self._cluster, [partition], Start(timestamp)))[partition]

    # --- the receiver's side ---

    def acknowledge(self, partition: TopicPartition, offset: int) -> None:
        self.window.acknowledge(partition, offset)
        self._moved()

    def acknowledge_up_to(self, partition: TopicPartition, offset: int) -> None:
        self.window.acknowledge_up_to(partition, offset)
        self._moved()

    def acknowledge_below(self, positions: Mapping[TopicPartition, int]) -> int:
        count = self.window.acknowledge_below(positions)
        self._moved()
        return count

    def refuse(self, partition: TopicPartition, offset: int, delay_ms: int) -> None:
        """Send a record again, after a while."""
        if self.window.refuse(partition, offset, _now_ms() + delay_ms):
            self._put_refused_first()
            self._refused.set()
            if not self._sends_refused:
                self._sends_refused = True
                self.run(self._send_refused)

    def grant(self, credits: int) -> None:
        self.window.grant(credits)
        self._update_flow()

    def pause(self, paused: bool) -> None:
        """Send no new records, or go on."""
        self._paused = paused
        self._update_flow()

    def notify(self, notice: Notice) -> None:
        """Tell the receiver something, when the connection takes it."""
        self._notices.append(notice)
        if len(self._notices) > _NOTICES_MAX:
            self.end(HttpError(Problem.UNAVAILABLE, "the receiver takes nothing"))
        elif not self._notifying:
            self._notifying = True
            self.run(self._send_notices)

    # --- its life ---

    def run(
        self,
        work: Callable[Arguments, Coroutine[Any, Any, None]],
        *args: Arguments.args,
        **kwargs: Arguments.kwargs,
    ) -> asyncio.Task[None]:
        """A task that ends with the subscription, and ends it when it fails."""
        task = asyncio.create_task(self._guarded(partial(work, *args, **kwargs)))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def end(self, error: HttpError | None) -> None:
        """It is over: for the receiver's side to find out and to close."""
        if not self.ended.done():
            self.ended.set_result(error)

    async def close(self) -> None:
        """End all its tasks."""
        self.end(None)
        for task in self._tasks:
            task.cancel()
        while self._tasks:
            await asyncio.wait(self._tasks)

    async def _guarded(self, work: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await work()
        except ReceiverGone:
            self.end(None)
        except HttpError as error:
            self.end(error)
        except KafkaError as error:
            self.end(http_error(error))
        except Unreachable as error:
            self.end(unreachable(error))
        except Exception as error:  # noqa: BLE001 - a boundary: it logs, and the subscription ends
            _log.exception("push failed", subscription=self.name, error=f"{type(error).__name__}: {error}")
            self.end(HttpError(Problem.INTERNAL))

    def _update_flow(self) -> None:
        _set(self._flowing, self.window.room > 0 and not self._paused and not self._refused_first)
        _set(self._credited, self.window.credits > 0 and not self._paused)

    def _moved(self) -> None:
        self._update_flow()
        self.on_progress()

    # --- reading and sending ---

    async def _feed(self, partition: TopicPartition) -> None:
        cursor = self._readers.open(partition.topic, partition.partition, self.window.positions[partition])
        try:
            while True:
                try:
                    await self._read_on(partition, cursor)
                except KafkaError as error:
                    self.notify(failed(http_error(error)))
                    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        self._cannot_be_read(partition, error)
                        return
                    cursor.position = await self._position_in_range(partition, cursor.position)
        finally:
            cursor.close()

    def _cannot_be_read(self, partition: TopicPartition, error: KafkaError) -> None:
        """A partition was deleted, or cannot be read any more. In a group the coordinator takes it away."""
        self._feeds.pop(partition, None)
        if not self._feeds and self.wish.group is None:
            self.end(http_error(error))

    async def _position_in_range(self, partition: TopicPartition, position: int) -> int:
        """Where to go on when the records at a position are gone: at the first that is left, or at the end."""
        while True:
            try:
                earliest = await self.offset_at(partition, EARLIEST)
                latest = await self.offset_at(partition, LATEST)
                break
            except (KafkaError, Unreachable):
                await asyncio.sleep(_RETRY_SECONDS)
        if position < earliest:
            self.window.sent(partition, [], earliest)
            return earliest
        self.window.seek(partition, latest)
        return latest

    async def _read_on(self, partition: TopicPartition, cursor: Cursor) -> None:
        bytes_max = min(_READ_BYTES_MAX, self._buffer_bytes)
        while True:
            if not self._flowing.is_set():
                await self._flowing.wait()
            records = await cursor.read(records_max=_READ_RECORDS_MAX, bytes_max=bytes_max)
            size = sum([record.size_bytes for record in records])
            if self._held_bytes and self._held_bytes + size > self._buffer_bytes:
                cursor.position = records[0].offset
                self._spare.clear()
                await self._spare.wait()
                continue
            self._held_bytes += size
            try:
                await self._hand_over(partition, records, cursor.position)
            finally:
                self._held_bytes -= size
                if 2 * self._held_bytes <= self._buffer_bytes:
                    self._spare.set()

    async def _hand_over(self, partition: TopicPartition, records: list[Record], position: int) -> None:
        """Hot path: every record for every subscriber comes through here."""
        window = self.window
        by_hand = self.wish.acknowledged_by_hand
        metered = self.wish.credits is not None
        done, count = 0, len(records)
        while done < count:
            if not self._flowing.is_set():
                await self._flowing.wait()
            async with self._turn:
                if not self._flowing.is_set():
                    continue  # whoever had the turn before used up the credits
                piece = self._piece(records, done, window.room if metered else count)
                done += len(piece)
                after = position if done == count else piece[-1].record.offset + 1
                offsets = [encoded.record.offset for encoded in piece]
                if by_hand:  # first, as the acknowledgement may be faster than the end of this call
                    window.sent(partition, offsets, after)
                    self._update_flow()
                await self._receiver.send_records(partition, piece, 1)
                if not by_hand:  # afterwards: handed to the connection is what acknowledges them
                    window.sent(partition, offsets, after)
                    if metered:
                        self._update_flow()
            self.on_progress()
            if done < count:
                await asyncio.sleep(0)  # others have a turn on the loop

    def _piece(self, records: list[Record], begin: int, room: int) -> list[Encoded]:
        """The next records that go out together."""
        if len(records) == 1:
            return [self._encodings.of(records[0])]
        piece = []
        size = 0
        for record in records[begin : begin + room] if begin or room < len(records) else records:
            encoded = self._encodings.of(record)
            piece.append(encoded)
            size += encoded.size_bytes
            if size >= _PIECE_BYTES:
                break
        return piece

    async def _send_refused(self) -> None:
        """Send refused records again when their time has come, until none is left."""
        while (due_ms := self.window.next_due_ms) is not None:
            if (wait_ms := due_ms - _now_ms()) > 0:
                self._refused.clear()  # a later refusal may be due sooner
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait_ms / 1000):
                        await self._refused.wait()
                continue
            self._put_refused_first()
            await self._credited.wait()
            if (due := self.window.due(_now_ms())) is not None:
                await self._send_again(*due)
            self._put_refused_first()
        self._sends_refused = False

    def _put_refused_first(self) -> None:
        """New records wait while a refused one is due: otherwise they could take every credit there ever is."""
        due_ms = self.window.next_due_ms
        self._refused_first = due_ms is not None and due_ms <= _now_ms()
        self._update_flow()

    async def _send_again(self, partition: TopicPartition, offset: int) -> None:
        try:
            found = await self._readers.read_range(
                partition.topic, partition.partition, offset, records_max=1, bytes_max=1, wait_ms=1000
            )
        except (KafkaError, Unreachable) as error:
            if isinstance(error, KafkaError) and not error.retriable:
                self.acknowledge(partition, offset)  # it is gone, and nobody will ever send it
            else:
                await asyncio.sleep(_RETRY_SECONDS)
            return
        if not found or found[0].offset != offset:
            self.acknowledge(partition, offset)  # compacted away, or deleted by age
            return
        async with self._turn:
            if self.window.due(_now_ms()) != (partition, offset):
                return  # acknowledged or revoked meanwhile
            attempt = self.window.sent_again(partition, offset)
            self._update_flow()
            await self._receiver.send_records(partition, [self._encodings.of(found[0])], attempt)

    async def _send_notices(self) -> None:
        async with self._turn:
            while self._notices:
                await self._receiver.send_notice(self._notices.popleft())
            self._notifying = False

    async def keep_alive(self, send: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Send a sign of life, unless something else is being sent."""
        if not self._turn.locked():
            async with self._turn:
                await send()


def _set(event: asyncio.Event, is_so: bool) -> None:
    if is_so:
        event.set()
    else:
        event.clear()


def _now_ms() -> float:
    return time.monotonic() * 1000
