"""One long poll at each leader for everyone who waits at the end of a partition there.

A partition that joins while the poll is under way does not wait for it to end: it is polled on a second connection,
briefly each time, until the next round of the main one takes it in. Both may bring the same records; then the second
to arrive is ignored.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.chunks import Key, RecentChunks
from culver.gateway.reading.fetch_session import FetchSession, Wanted, put_without_session
from culver.gateway.reading.fetching import (
    Fetched,
    answers_by_partition,
    decode_chunk,
    fetch_request,
    newest_version,
)
from culver.logging import get_logger
from culver.protocol.messages.fetch import FetchResponse, PartitionData
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.reading")

_MAIN_WAIT_MS = 500
_NEWCOMERS_WAIT_MS = 50
# How long an answer may take beyond that before the leader is looked for elsewhere.
_PATIENCE_MS = 3_000
_POLL_MAX_BYTES = 8 << 20
_PARTITION_MAX_BYTES = 256 << 10
# A tail nobody waits at is polled on for so long, and so far, because its readers are likely to be back at once.
_UNWANTED_MAX_S = 1.0
_UNWANTED_MAX_BYTES = 256 << 10
# Decoding this much holds up everything else in the gateway for long enough.
_DECODE_AT_ONCE_BYTES = 256 << 10
# A poll of many partitions costs the broker time whatever it finds, so they follow each other less closely.
_PARTITIONS_WITHOUT_PAUSE = 100
_PAUSE_PER_PARTITION_S = 1e-5


class Tail:
    """The end of a partition, and who waits there. It is `active` while it is part of a poll.

    `fetches` are those under way for cursors elsewhere in the partition, by offset. `topic_id` is that of the topic
    which had the name when it was last read, None before: a topic that is deleted and made again has another.
    """

    __slots__ = (
        "_poll",
        "_unwanted_bytes",
        "_waiting",
        "_wanted_at",
        "cursors",
        "fetches",
        "key",
        "next_offset",
        "topic_id",
    )

    def __init__(self, key: Key) -> None:
        self.key = key
        self.cursors = 0
        self.fetches: dict[int, asyncio.Task[Fetched]] = {}
        self.next_offset = -1
        self.topic_id: bytes | None = None
        self._poll: LeaderPoll | None = None
        self._waiting: set[asyncio.Future[None]] = set()
        self._wanted_at = 0.0
        self._unwanted_bytes = 0

    @property
    def active(self) -> bool:
        return self._poll is not None

    @property
    def asked_for(self) -> Wanted:
        """What a poll is to ask for."""
        assert self.topic_id is not None, "a tail is polled that was never read"
        return Wanted(self.next_offset, self.topic_id)

    @property
    def wanted(self) -> bool:
        return bool(self._waiting) or (
            time.monotonic() - self._wanted_at < _UNWANTED_MAX_S
            and self._unwanted_bytes < _UNWANTED_MAX_BYTES
        )

    def begin(self, offset: int, poll: LeaderPoll) -> None:
        """Be polled at a leader which has nothing beyond `offset` yet."""
        self.next_offset = offset
        self._poll = poll
        self._wanted_at = time.monotonic()
        self._unwanted_bytes = 0
        poll.add(self)

    def change(self) -> asyncio.Future[None]:
        """Done when there is something new, or when the tail is not active any more. `waited` must follow."""
        self._wanted_at = time.monotonic()
        self._unwanted_bytes = 0
        future: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.add(future)
        return future

    def waited(self, future: asyncio.Future[None]) -> None:
        """Nobody waits for it any more."""
        self._waiting.discard(future)

    def moved_to(self, offset: int, size_bytes: int) -> None:
        """There are records up to `offset`."""
        self.next_offset = offset
        self._unwanted_bytes += size_bytes
        self._wake()

    def end(self) -> None:
        """Be polled no more. Those who wait look for themselves, and meet whatever is the matter."""
        if self._poll is not None:
            self._poll.remove(self)
            self._poll = None
        self._wake()

    def _wake(self) -> None:
        waiting, self._waiting = self._waiting, set()
        for future in waiting:
            if not future.done():
                future.set_result(None)


class LeaderPoll:
    """The polls at one broker, of committed records or of all."""

    def __init__(
        self,
        cluster: Cluster,
        recent: RecentChunks,
        broker_id: int,
        *,
        committed: bool,
        on_idle: Callable[[], object],
    ) -> None:
        self.fetches = 0
        self._cluster = cluster
        self._recent = recent
        self._broker_id = broker_id
        self._committed = committed
        self._on_idle = on_idle
        self._tails: dict[TopicPartition, Tail] = {}
        self._in_main: set[TopicPartition] = set()
        self._main: asyncio.Task[None] | None = None
        self._newcomers: asyncio.Task[None] | None = None

    def add(self, tail: Tail) -> None:
        self._tails[tail.key[0]] = tail
        if self._main is None:
            self._main = asyncio.create_task(self._run_main())
        elif self._newcomers is None:
            self._newcomers = asyncio.create_task(self._run_newcomers())

    def remove(self, tail: Tail) -> None:
        self._tails.pop(tail.key[0], None)
        # A poll that is under way carries the old request: the partition may come back before it ends.
        self._in_main.discard(tail.key[0])

    async def _run_main(self) -> None:
        session = FetchSession(partition_max_bytes=_PARTITION_MAX_BYTES)
        try:
            while wanted := self._wanted():
                self._in_main = set(wanted)
                await self._poll(wanted, "tails", _MAIN_WAIT_MS, session)
                if len(wanted) > _PARTITIONS_WITHOUT_PAUSE:
                    await asyncio.sleep(len(wanted) * _PAUSE_PER_PARTITION_S)
        except Exception:  # noqa: BLE001 - the boundary: readers look for themselves, and begin anew
            _log.exception("a poll broke down", broker=self._broker_id)
            self._end_all()
        finally:
            self._main = None
            self._in_main = set()
            if not self._tails:
                self._on_idle()

    async def _run_newcomers(self) -> None:
        try:
            while wanted := [place for place in self._wanted() if place not in self._in_main]:
                await self._poll(wanted, "new tails", _NEWCOMERS_WAIT_MS)
        except Exception:  # noqa: BLE001 - the boundary, as above
            _log.exception("a poll of new tails broke down", broker=self._broker_id)
            self._end_all()
        finally:
            self._newcomers = None

    def _wanted(self) -> list[TopicPartition]:
        """The partitions to be polled. Those that nobody waits for any more are let go."""
        for tail in [tail for tail in self._tails.values() if not tail.wanted]:
            tail.end()
        return list(self._tails)

    async def _poll(
        self, wanted: list[TopicPartition], lane: str, wait_ms: int, session: FetchSession | None = None
    ) -> None:
        asked = {place: self._tails[place].asked_for for place in wanted}
        names = {each.topic_id: place.topic for place, each in asked.items()}
        request = fetch_request([], bytes_max=_POLL_MAX_BYTES, committed=self._committed, max_wait_ms=wait_ms)
        if session is None:
            put_without_session(request, asked, _PARTITION_MAX_BYTES)
        else:
            session.put_into(request, asked)
        self.fetches += 1
        try:
            answer = await self._cluster.ask(
                request,
                FetchResponse,
                broker_id=self._broker_id,
                newest_version=newest_version(names),
                timeout_ms=wait_ms + _PATIENCE_MS,
                purpose=f"{lane} {'committed' if self._committed else 'all'}",
            )
            if session is not None and not session.answered(answer):
                return
            answers = answers_by_partition(answer, names)
        except (Unreachable, KafkaError) as error:
            _log.info("a poll failed", broker=self._broker_id, partitions=len(wanted), reason=str(error))
            self._cluster.forget_view()  # the broker may not lead anything any more
            self._end_all()
            return
        decoded_bytes = 0
        for place, found in answers.items():
            if place in asked:
                decoded_bytes += self._take(place, asked[place], found)
            if decoded_bytes > _DECODE_AT_ONCE_BYTES:
                decoded_bytes = 0
                await asyncio.sleep(0)

    def _take(self, place: TopicPartition, asked: Wanted, found: PartitionData) -> int:
        """What was found for a tail: the bytes that were decoded."""
        tail = self._tails.get(place)
        if tail is None or tail.asked_for != asked:
            return 0  # it has moved meanwhile: these records are there already
        offset = asked.offset
        if found.error_code:
            tail.end()
            return 0
        try:
            chunk, fetched_bytes = decode_chunk(place, offset, found)
        except KafkaError:
            tail.end()
            return 0
        if chunk.next_offset > offset:
            self._recent.add(tail.key, chunk)
            # The next poll asks for it behind the others: whoever has much must not use up the whole answer always.
            self._tails[place] = self._tails.pop(place)
            tail.moved_to(chunk.next_offset, chunk.size_bytes)
        elif fetched_bytes:
            tail.end()  # a batch larger than a poll takes: its readers fetch it themselves
        return fetched_bytes

    async def close(self) -> None:
        tasks = [task for task in (self._main, self._newcomers) if task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        self._end_all()

    def _end_all(self) -> None:
        for tail in list(self._tails.values()):
            tail.end()
