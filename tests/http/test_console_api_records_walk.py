"""Walking through records: what a filter lets through, and that a walk finds all there is, in order, bit by bit."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Sequence
from typing import Any

import pytest

from culver.errors import ErrorCode, KafkaError
from culver.gateway.console.browsing import BACKWARD, FORWARD, Bounds, Browsing, Found, Positions, Work
from culver.gateway.console.record_filter import FilterError, parse_filter
from culver.gateway.console.record_view import SHOWN_BYTES_MAX, data_of
from culver.gateway.reading.record import Record


def record(
    offset: int = 0,
    value: bytes | None = b"",
    *,
    partition: int = 0,
    key: bytes | None = None,
    timestamp_ms: int = 0,
    headers: Sequence[tuple[str, bytes | None]] = (),
) -> Record:
    return Record("t", partition, offset, timestamp_ms, 0, key, value, tuple(headers))


# --- filters ---

ORDER = record(
    value=b'{"user": {"id": 42, "name": "Ann Smith"}, "tags": ["a", "b"], "paid": true, "total": 9.5}',
    key=b"order-7",
    headers=[("trace", b"ABC-1"), ("empty", None)],
    partition=3,
)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "smith",
        '"ann smith"',
        "order abc",
        "key:ORDER",
        "value:smith",
        "header:abc",
        "header.trace:abc-1",
        "trace",
        "partition:3",
        ".user.id=42",
        ".user.id>=42 .user.id<43",
        ".user.id!=41",
        ".user.name~smith",
        '.user.name="ann smith"',
        ".tags[1]=b",
        ".paid=true",
        ".total>9",
        ".user.name>a",
        "-nobody",
        "-key:nobody -.user.id=1",
    ],
)
def test_a_filter_that_lets_the_record_through(text: str) -> None:
    assert parse_filter(text)(ORDER)


@pytest.mark.parametrize(
    "text",
    [
        "nobody",
        "smith nobody",
        "-smith",
        "key:smith",
        "value:order",
        "header.other:abc",
        "partition:4",
        ".user.id=4",
        ".user.id>42",
        ".user.id!=42",
        ".user.name<a",
        ".user.nothing!=1",
        ".tags[9]=b",
        ".paid>0",
    ],
)
def test_a_filter_that_does_not(text: str) -> None:
    assert not parse_filter(text)(ORDER)


def test_filters_look_at_bytes_that_are_neither_json_nor_text() -> None:
    odd = record(value=b"\xff\xfeABC", key=None)
    assert parse_filter("abc")(odd)
    assert not parse_filter(".a=1")(odd)
    assert not parse_filter(".a=1")(record(value=None))
    assert parse_filter("STRASSE")(record(value="Straße".encode()))


@pytest.mark.parametrize("text", ['"not closed', "partition:x", "x" * 1001, "a " * 21])
def test_a_filter_that_cannot_be_read_says_so(text: str) -> None:
    with pytest.raises(FilterError):
        parse_filter(text)


# --- what is shown ---


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        (b'{"a": 1}', "json"),
        (b" [1, 2]", "json"),
        (b"{broken", "text"),
        (b"plain", "text"),
        (b"", "text"),
        (b"12", "text"),
        (b'{"id": 9007199254740993}', "text"),
        (b"[" * 2000 + b"]" * 2000, "text"),
        (b"\xff", "base64"),
        (b"\x08\x96\x01", "base64"),
        (b"\x00", "base64"),
        (b"\x1b[31mred\x1b[0m\r\n", "text"),
    ],
)
def test_content_is_decoded_where_that_loses_nothing(content: bytes, encoding: str) -> None:
    found = data_of(content)
    assert found is not None
    assert (found.encoding, found.bytes, found.truncated) == (encoding, len(content), False)


def test_long_content_is_cut_between_characters() -> None:
    found = data_of("é".encode() * SHOWN_BYTES_MAX)
    assert found is not None
    assert found.text == "é" * (SHOWN_BYTES_MAX // 2)
    assert (found.truncated, found.bytes) == (True, 2 * SHOWN_BYTES_MAX)
    odd = data_of(b"x" + "é".encode() * SHOWN_BYTES_MAX)
    assert odd is not None
    assert odd.text == "x" + "é" * (SHOWN_BYTES_MAX // 2 - 1)


# --- walks ---


class Log:
    """Partitions in memory, read as the gateway reads them: so many records or bytes at a time, never none."""

    def __init__(self, partitions: dict[int, list[Record]]) -> None:
        self.partitions = partitions
        self.reads = 0
        self.broken: set[int] = set()

    async def read_range(
        self,
        topic: str,
        partition: int,
        offset: int,
        *,
        records_max: int,
        bytes_max: int,
        committed: bool = False,
    ) -> list[Record]:
        self.reads += 1
        await asyncio.sleep(0)
        if partition in self.broken:
            raise KafkaError(ErrorCode.CORRUPT_MESSAGE)
        found: list[Record] = []
        size = 0
        for each in self.partitions[partition]:
            if each.offset >= offset:
                if found and (len(found) == records_max or size + each.size_bytes > bytes_max):
                    break
                found.append(each)
                size += each.size_bytes
        return found

    @property
    def bounds(self) -> dict[int, Bounds]:
        return {
            index: Bounds(
                min((each.offset for each in records), default=0), records[-1].offset + 1 if records else 0
            )
            for index, records in self.partitions.items()
        }

    def start(self, direction: str) -> Positions:
        bounds = self.bounds
        return Positions(
            direction,
            {index: each.earliest if direction == FORWARD else each.latest for index, each in bounds.items()},
        )


def sparse_log(seed: int, partitions: int, size_bytes: int = 10) -> Log:
    """Partitions of different lengths, with gaps as compaction and transactions leave them."""
    chance = random.Random(seed)
    found = {}
    for index in range(partitions):
        offset, at_ms, records = chance.randrange(5), 1000, []
        for _ in range(chance.randrange(0, 200)):
            offset += chance.choice((1, 1, 1, 2, 50, 3000))
            at_ms += chance.randrange(0, 20)
            value = b"x" * chance.randrange(0, size_bytes)
            records.append(record(offset, value, partition=index, timestamp_ms=at_ms))
        found[index] = records
    return Log(found)


def walk(log: Log, positions: Positions, limit: int, work: Any = None, **options: Any) -> Found:
    async def run() -> Found:
        browsing = Browsing(log, "t", log.bounds, positions, limit=limit, **options)
        return await browsing.find(work or Work.begin())

    return asyncio.run(run())


def walk_to_the_end(log: Log, direction: str, limit: int, **options: Any) -> list[Record]:
    found, positions = [], log.start(direction)
    for _ in range(10_000):
        page = walk(log, positions, limit, **options)
        assert len(page.records) <= limit
        found += page.records
        positions = Positions.parse(str(page.positions))
        if page.stopped == "end":
            return found
    raise AssertionError("the walk does not end")


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize("direction", [FORWARD, BACKWARD])
def test_page_by_page_a_walk_finds_every_record_once_and_each_partition_in_order(
    seed: int, direction: str
) -> None:
    log = sparse_log(seed, partitions=1 + seed % 4)
    found = walk_to_the_end(log, direction, limit=7 + seed)
    everything = [each for records in log.partitions.values() for each in records]
    assert sorted(found, key=lambda each: (each.partition, each.offset)) == everything
    step = 1 if direction == FORWARD else -1
    for index, records in log.partitions.items():
        assert [each for each in found if each.partition == index] == records[::step]
    times = [each.timestamp_ms for each in found]
    assert times == sorted(times, reverse=direction == BACKWARD)


def test_a_walk_starts_with_the_newest_and_reads_little_for_it() -> None:
    log = Log({0: [record(offset, b"x" * 100, timestamp_ms=offset) for offset in range(100_000)]})
    page = walk(log, log.start(BACKWARD), limit=50)
    assert [each.offset for each in page.records] == list(range(99_999, 99_949, -1))
    assert page.stopped == "limit"
    assert page.work.records <= 200
    assert log.reads <= 2


def test_records_that_are_large_are_read_a_few_at_a_time() -> None:
    large = b"x" * 1_000_000
    log = Log({0: [record(offset, large, timestamp_ms=offset) for offset in range(200)]})
    page = walk(log, log.start(BACKWARD), limit=100)
    offsets = [each.offset for each in page.records]
    assert offsets == list(range(199, 199 - len(offsets), -1))
    assert offsets
    # The budget, and at most one more read for what was on its way.
    assert page.work.bytes < 2 * 64 * 1024 * 1024
    rest = walk_to_the_end(log, BACKWARD, limit=100)
    assert len(rest) == 200


def test_a_filter_that_finds_little_stops_when_it_has_looked_at_enough_and_goes_on_from_there() -> None:
    log = Log({0: [record(offset, b"%d" % offset, timestamp_ms=offset) for offset in range(3000)]})
    wanted = parse_filter("2999")

    async def page(positions: Positions) -> Found:
        loop = asyncio.get_running_loop()
        work = Work(loop.time() + 60, records_max=1000)
        browsing = Browsing(log, "t", log.bounds, positions, limit=10, wanted=wanted)
        return await browsing.find(work)

    first = asyncio.run(page(log.start(FORWARD)))
    assert (first.records, first.stopped, first.work.records) == ([], "work", 1000)
    second = asyncio.run(page(first.positions))
    assert second.positions.offsets == {0: 2000}
    third = asyncio.run(page(second.positions))
    assert [each.offset for each in third.records] == [2999]
    assert third.stopped == "end"


def test_a_partition_that_cannot_be_read_does_not_hide_the_others() -> None:
    log = sparse_log(3, partitions=2)
    log.broken = {0}
    page = walk(log, log.start(FORWARD), limit=10_000)
    assert page.records == log.partitions[1]
    assert isinstance(page.errors[0], KafkaError)


@pytest.mark.parametrize(
    "text", ["", "x", "b.1", "b.1:2.", "f.-1:2", "b.1:2:3", "b" + ".1:99999999999999999999"]
)
def test_a_cursor_that_nobody_gave_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="cursor"):
        Positions.parse(text)


def test_a_walk_that_goes_on_reads_every_record_once() -> None:
    log = Log(
        {
            index: [record(offset, b"x", partition=index, timestamp_ms=offset) for offset in range(5000)]
            for index in range(3)
        }
    )

    async def run() -> tuple[list[Record], int]:
        browsing = Browsing(log, "t", log.bounds, log.start(FORWARD), limit=500, goes_on=True)
        found: list[Record] = []
        scanned = 0
        while True:
            page = await browsing.find(Work.begin())
            found += page.records
            scanned += page.work.records
            if page.stopped == "end":
                return found, scanned

    found, scanned = asyncio.run(run())
    assert len(found) == scanned == 15_000
    assert [each.timestamp_ms for each in found] == sorted(each.timestamp_ms for each in found)
    assert log.reads == 3
