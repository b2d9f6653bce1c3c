"""Readers of partitions: those who wait at the end share what one long poll brings, others read for themselves."""

from __future__ import annotations

import asyncio

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.chunks import Chunk, Key, RecentChunks
from culver.gateway.reading.fetching import Fetched, Fetching
from culver.gateway.reading.leader_poll import LeaderPoll, Tail
from culver.gateway.reading.record import Record

_FETCH_MIN_BYTES = 16 << 10
# More is not decoded at once, for the sake of everyone else.
_FETCH_MAX_BYTES = 256 << 10


class Cursor:
    """A place in a partition, for one reader. `position` is the offset to be read next, and may be set."""

    def __init__(self, readers: Readers, tail: Tail, offset: int) -> None:
        """Made by `Readers.open`."""
        (self.topic, self.partition), self.committed = tail.key
        self.position = offset
        self._readers = readers
        self._tail = tail
        # The topic that the position is of, once something has been read.
        self._topic_id: bytes | None = None
        self._waiting: asyncio.Future[None] | None = None
        self._closed = False

    async def read(self, *, records_max: int, bytes_max: int, may_be_empty: bool = False) -> list[Record]:
        """The next records, at least one: waits until there is one. `bytes_max` may be exceeded by a first large one.

        With `may_be_empty` it also returns, with none, when the position has moved past what no reader sees, such as
        the marks of transactions.

        Leader changes, restarts and lost connections are waited out. Raises KafkaError: OFFSET_OUT_OF_RANGE, also when
        the topic was deleted and made again, of which the position says nothing; UNKNOWN_TOPIC_OR_PARTITION once it is
        certain; CORRUPT_MESSAGE and the like for records that cannot be read. After it was cancelled, or raised, it has
        lost nothing and may be called again.
        """
        while True:
            chunk = await self._next_chunk(bytes_max)
            found, self.position = chunk.take(self.position, records_max, bytes_max, at_least_one=True)
            if found or may_be_empty:
                break
        while len(found) < records_max:
            following = self._readers.recent.find(self._tail.key, self.position)
            if following is None or self._tail.topic_id != self._topic_id:
                break
            left_bytes = bytes_max - sum(record.size_bytes for record in found)
            more, self.position = following.take(
                self.position, records_max - len(found), left_bytes, at_least_one=False
            )
            found += more
            if following.next_offset != self.position:
                break  # what is left of it does not fit any more
        return found

    async def _next_chunk(self, bytes_max: int) -> Chunk:
        """One that knows what is at the position; waits for it at the end of the partition."""
        readers, tail = self._readers, self._tail
        # What is kept for others may be of a topic that is no more: where nothing has been read yet, it is asked for.
        chunk = self._recent_chunk() if self._topic_id is not None else None
        if chunk is not None:
            # It waits for nothing, so a reader with much to read would keep everyone else waiting.
            await asyncio.sleep(0)
            return chunk
        while True:
            position = self.position
            if not tail.active or tail.next_offset != position:
                try:
                    fetched = await readers.fetch(tail, position, bytes_max)
                except KafkaError as error:
                    if error.code is ErrorCode.OFFSET_OUT_OF_RANGE:
                        self._topic_id = (
                            None  # perhaps of another topic: whoever reads on knows, and once is enough
                        )
                    raise
                self._check_topic(fetched.topic_id)
                if fetched.chunk.next_offset > position:
                    return fetched.chunk
                if not tail.active:
                    tail.begin(position, readers.poll_at(fetched.leader, committed=self.committed))
            if tail.next_offset <= position:
                await self._change()
            chunk = self._recent_chunk()
            if chunk is not None:
                return chunk

    def _recent_chunk(self) -> Chunk | None:
        tail = self._tail
        chunk = self._readers.recent.find(tail.key, self.position)
        if chunk is not None and tail.topic_id is not None:
            self._check_topic(tail.topic_id)
        return chunk

    def _check_topic(self, topic_id: bytes) -> None:
        """What is read is of the topic with this id: KafkaError when it was another one before."""
        before, self._topic_id = self._topic_id, topic_id
        if before is not None and before != topic_id:
            self._topic_id = None
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"topic {self.topic} was deleted and made again; offset {self.position} was of the former one",
            )

    async def _change(self) -> None:
        self._waiting = change = self._tail.change()
        try:
            await change
        finally:
            self._waiting = None
            self._tail.waited(change)

    def close(self) -> None:
        """No more reading; a read under way is cancelled. Call it, or what others share is kept for nobody."""
        if not self._closed:
            self._closed = True
            if self._waiting is not None:
                self._waiting.cancel()
            self._readers.leave(self._tail)


class Readers:
    """All readers of the gateway. `buffer_max_bytes` bounds the recent records that are kept for them together."""

    def __init__(self, cluster: Cluster, *, buffer_max_bytes: int) -> None:
        self.recent = RecentChunks(buffer_max_bytes)
        self._cluster = cluster
        self._fetching = Fetching(cluster)
        self._tails: dict[Key, Tail] = {}
        self._polls: dict[tuple[int, bool], LeaderPoll] = {}

    def open(self, topic: str, partition: int, offset: int, *, committed: bool = True) -> Cursor:
        """A cursor at an offset. With `committed`, records of open and aborted transactions are not seen."""
        key = TopicPartition(topic, partition), committed
        tail = self._tails.get(key)
        if tail is None:
            tail = self._tails[key] = Tail(key)
        tail.cursors += 1
        return Cursor(self, tail, offset)

    async def read_range(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        wait_ms: int = 0,
        committed: bool = False,
    ) -> list[Record]:
        """Records from an offset on, for someone who looks around: fewer or none at the end of the partition.

        Waits for the first for `wait_ms`. Raises KafkaError, or Unreachable when no leader answers in good time.
        """
        place = TopicPartition(topic, partition)
        found: list[Record] = []
        left_bytes = bytes_max
        while len(found) < records_max and left_bytes > 0:
            fetched = await self._fetching.fetch(
                place,
                offset,
                bytes_max=_fetch_bytes(left_bytes),
                committed=committed,
                patience_ms=self._cluster.timeout_ms,
            )
            if fetched.chunk.next_offset == offset:
                break
            more, after = fetched.chunk.take(
                offset, records_max - len(found), left_bytes, at_least_one=not found
            )
            if after == offset:
                break
            found += more
            offset = after
            left_bytes -= sum(record.size_bytes for record in more)
        if not found and wait_ms > 0:
            return await self._wait_for_first(place, offset, records_max, bytes_max, wait_ms, committed)
        return found

    async def _wait_for_first(
        self,
        place: TopicPartition,
        offset: int,
        records_max: int,
        bytes_max: int,
        wait_ms: int,
        committed: bool,
    ) -> list[Record]:
        cursor = self.open(*place, offset, committed=committed)
        try:
            async with asyncio.timeout(wait_ms / 1000):
                return await cursor.read(records_max=records_max, bytes_max=bytes_max)
        except TimeoutError:
            return []
        finally:
            cursor.close()

    # -- for cursors ----------------------------------------------------------------------------------------

    async def fetch(self, tail: Tail, offset: int, bytes_max: int) -> Fetched:
        """What is at an offset, of which nothing is kept. Cursors that ask for the same share one fetch."""
        task = tail.fetches.get(offset)
        if task is None:
            place, committed = tail.key
            size_bytes = _fetch_bytes(bytes_max)
            task = asyncio.create_task(
                self._fetching.fetch(place, offset, bytes_max=size_bytes, committed=committed)
            )
            tail.fetches[offset] = task
            task.add_done_callback(lambda done: self._fetched(tail, offset, done))
        return await asyncio.shield(task)

    def _fetched(self, tail: Tail, offset: int, task: asyncio.Task[Fetched]) -> None:
        del tail.fetches[offset]
        if task.cancelled():
            return
        error = task.exception()
        if isinstance(error, KafkaError):
            self.recent.drop(tail.key)  # the partition may be another one by now
        elif error is None and tail.cursors:
            chunk, _, topic_id = task.result()
            if tail.topic_id not in (None, topic_id):
                self.recent.drop(tail.key)
                tail.end()
            tail.topic_id = topic_id
            if chunk.next_offset > offset:
                self.recent.add(tail.key, chunk)

    def poll_at(self, broker_id: int, *, committed: bool) -> LeaderPoll:
        """The long poll at a broker."""
        key = broker_id, committed
        poll = self._polls.get(key)
        if poll is None:
            poll = self._polls[key] = LeaderPoll(
                self._cluster,
                self.recent,
                broker_id,
                committed=committed,
                on_idle=lambda: self._polls.pop(key, None),
            )
        return poll

    def leave(self, tail: Tail) -> None:
        """A cursor has been closed."""
        tail.cursors -= 1
        if not tail.cursors:
            tail.end()
            for fetch in tail.fetches.values():
                fetch.cancel()
            self._tails.pop(tail.key, None)
            self.recent.drop(tail.key)

    async def close(self) -> None:
        """End all polls. Cursors must not be read any more."""
        fetches = [fetch for tail in self._tails.values() for fetch in tail.fetches.values()]
        for fetch in fetches:
            fetch.cancel()
        await asyncio.gather(*(poll.close() for poll in list(self._polls.values())))
        await asyncio.gather(*fetches, return_exceptions=True)


def _fetch_bytes(wanted_bytes: int) -> int:
    return min(max(wanted_bytes, _FETCH_MIN_BYTES), _FETCH_MAX_BYTES)
