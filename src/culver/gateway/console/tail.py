"""/api/topics/{topic}/tail: records as they are written, as server-sent events.

A tail is live before it is complete: when more comes than a person could read, or than the browser takes, the oldest
are left out, and it says how many.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Mapping

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.console.browsing import FORWARD, PARTITIONS_MAX, Positions
from culver.gateway.console.live import (
    EVENT_STREAM,
    KEEP_ALIVE,
    KEEP_ALIVE_S,
    LiveResponse,
    check_room,
    sent_event,
)
from culver.gateway.console.parameters import PARTITIONS, TOPIC, numbers, refused
from culver.gateway.console.places import bounds_of, chosen_partitions, topic_of
from culver.gateway.console.record_filter import Filter
from culver.gateway.console.record_view import RecordView, view_of
from culver.gateway.console.records import FILTER, ISOLATION, filter_of, is_committed, walk_of
from culver.gateway.reading.record import Record
from culver.gateway.routing import Answer, Endpoint, Parameter
from culver.gateway.services import Services, services_of
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.console")

# So many records wait at most, and are sent so often at most: 200 in a second.
_WAITING_MAX = 100
_BETWEEN_SENDS_S = 0.5
_READ_RECORDS_MAX = 500
_READ_BYTES_MAX = 1024 * 1024
# A tail that begins further back than so many offsets, in a partition, leaves out what is older.
_BEHIND_MAX = 10_000
# A browser that takes nothing for so long is no reason to go on reading at full speed.
_STALLED_S = 5.0


class Skipped(msgspec.Struct, frozen=True):
    """Records that were left out."""

    count: int


class TailPosition(msgspec.Struct, frozen=True):
    """How far was read, and how many records were looked at since the beginning."""

    latest: dict[str, int]
    scanned: int


class TailProblem(msgspec.Struct, frozen=True):
    """Why the tail ends."""

    message: str


class Tail:
    """One open tail: a reader for each partition, and what waits to be sent."""

    def __init__(
        self,
        services: Services,
        topic: str,
        offsets: Mapping[int, int],
        committed: bool,
        wanted: Filter | None,
        skipped: int,
    ) -> None:
        self._services = services
        self._topic = topic
        self._positions = dict(offsets)
        self._committed = committed
        self._wanted = wanted
        self._waiting: deque[Record] = deque()
        self._skipped = skipped
        self._scanned = 0
        self._failure: str | None = None
        self._news = asyncio.Event()
        if skipped:
            self._news.set()
        self._sent = asyncio.Event()
        self._last_sent_s = asyncio.get_running_loop().time()

    async def events(self) -> AsyncGenerator[bytes, None]:
        """The server-sent events, until the reader goes away or there is nothing to read from any more."""
        pumps = [asyncio.create_task(self._pump(index)) for index in self._positions]
        try:
            yield KEEP_ALIVE  # the browser learns that it is connected
            while self._failure is None:
                yield await self._next()
            yield sent_event("problem", TailProblem(self._failure))
        finally:
            for pump in pumps:
                pump.cancel()
            await asyncio.gather(*pumps, return_exceptions=True)

    async def _next(self) -> bytes:
        loop = asyncio.get_running_loop()
        self._last_sent_s = loop.time()
        self._sent.set()
        self._sent.clear()
        try:
            async with asyncio.timeout(KEEP_ALIVE_S):
                await self._news.wait()
        except TimeoutError:
            return KEEP_ALIVE
        # What comes quickly is sent together.
        await asyncio.sleep(max(0.0, self._last_sent_s + _BETWEEN_SENDS_S - loop.time()))
        self._news.clear()
        parts = []
        if self._skipped:
            parts.append(sent_event("skipped", Skipped(self._skipped)))
            self._skipped = 0
        records = sorted(self._waiting, key=lambda record: record.timestamp_ms)
        self._waiting.clear()
        parts += [sent_event("record", view_of(record)) for record in records]
        latest = {str(index): offset for index, offset in sorted(self._positions.items())}
        cursor = str(Positions(FORWARD, self._positions))
        parts.append(sent_event("position", TailPosition(latest, self._scanned), cursor))
        return b"".join(parts)

    async def _pump(self, index: int) -> None:
        """Read one partition for as long as the tail is open."""
        cursor = self._services.readers.open(
            self._topic, index, self._positions[index], committed=self._committed
        )
        try:
            while True:
                try:
                    records = await cursor.read(records_max=_READ_RECORDS_MAX, bytes_max=_READ_BYTES_MAX)
                except KafkaError as error:
                    if error.code is not ErrorCode.OFFSET_OUT_OF_RANGE:
                        raise
                    # Retention was quicker than the reader: go on with what there is.
                    cursor.position = await self._end_of(index)
                    continue
                self._take(index, records)
                await self._wait_if_stalled()
        except (KafkaError, Unreachable) as error:
            self._fail(str(error))
        except Exception:  # noqa: BLE001 - the boundary: a tail that says nothing more would look like a quiet topic
            _log.exception("a tail broke down", topic=self._topic, partition=index)
            self._fail("the gateway failed; its log says why")
        finally:
            cursor.close()

    def _fail(self, message: str) -> None:
        self._failure = message
        self._news.set()

    async def _end_of(self, index: int) -> int:
        place = TopicPartition(self._topic, index)
        bounds, errors = await bounds_of(self._services.cluster, [place], committed=self._committed)
        if errors:
            raise errors[place]
        return bounds[place].latest

    def _take(self, index: int, records: list[Record]) -> None:
        if not records:
            return
        self._scanned += len(records)
        self._positions[index] = records[-1].offset + 1
        self._waiting.extend(record for record in records if self._wanted is None or self._wanted(record))
        while len(self._waiting) > _WAITING_MAX:
            self._waiting.popleft()
            self._skipped += 1
        self._news.set()

    async def _wait_if_stalled(self) -> None:
        if asyncio.get_running_loop().time() - self._last_sent_s < _STALLED_S or not self._waiting:
            return
        try:
            async with asyncio.timeout(_STALLED_S):
                await self._sent.wait()
        except TimeoutError:
            return  # one more look, so that what waits is not too old when the browser comes back


async def tail(request: Request) -> Response:
    services = services_of(request)
    check_room(services.console)
    name = request.path_params["topic"]
    _, topic = await topic_of(services.cluster, name)
    # All of them, also those that have nothing yet: that is where the next record may come.
    if len(chosen_partitions(topic, numbers(request, "partition"))) > PARTITIONS_MAX:
        raise refused(f"choose {PARTITIONS_MAX} partitions at most, such as partition=0,1,2")
    wanted, committed = filter_of(request), is_committed(request)
    positions, bounds, errors = await walk_of(services, request, committed)
    if errors:
        raise next(iter(errors.values()))
    offsets = {**positions.offsets}
    last = request.headers.get("last-event-id", "")
    if last:
        # A browser that comes back goes on where it was, as far as it is still the same tail.
        with contextlib.suppress(ValueError):
            before = Positions.parse(last).offsets
            offsets = {index: before.get(index, offset) for index, offset in offsets.items()}
    nearest = {
        index: min(max(offset, bounds[index].latest - _BEHIND_MAX), bounds[index].latest)
        for index, offset in offsets.items()
    }
    skipped = sum(max(0, nearest[index] - offset) for index, offset in offsets.items())
    events = Tail(services, name, nearest, committed, wanted, skipped).events()
    return LiveResponse(services, events, EVENT_STREAM)


ROUTES = [
    Endpoint(
        "GET",
        "/api/topics/{topic}/tail",
        tail,
        "Records as they are written, as server-sent events.",
        "console",
        parameters=(
            TOPIC,
            PARTITIONS,
            Parameter("from", "Where to begin; at the end by default."),
            FILTER,
            Parameter("cursor", "Begin where an earlier answer stopped."),
            ISOLATION,
            Parameter("Last-Event-ID", "Where the connection before was cut.", where="header"),
        ),
        answers={200: Answer("Events: record, skipped, position, problem.", RecordView, (EVENT_STREAM,))},
        errors=(403, 404, 422, 429, 503),
        description="`record` has a record as in lists; `skipped` says how many were left out because too many "
        "came; `position` follows each bunch, and its id resumes; `problem` says why the stream ends.",
    ),
]
