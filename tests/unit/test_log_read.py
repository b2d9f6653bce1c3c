"""Reads: which batches come back, how many bytes, and what happens when they are not in memory."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import LogFixture, batch, records_of, whole_batches

from culver.errors import ErrorCode, KafkaError
from culver.filesystem import OsFileSystem
from culver.log.partition_log import ColdRead, ReadResult


def read(
    fixture: LogFixture, offset: int, max_bytes: int = 1 << 20, up_to: int | None = None, **options: Any
) -> bytes:
    log = fixture.log
    result = log.read(offset, max_bytes, log.end_offset if up_to is None else up_to, **options)
    assert isinstance(result, ReadResult)
    assert result.size == sum(map(len, result.buffers))
    return b"".join(result.buffers)


def offsets(data: bytes) -> list[int]:
    return [int.from_bytes(whole[:8], "big") for whole, _ in whole_batches(data)]


@pytest.fixture
def ten() -> LogFixture:
    """Ten batches of two records each."""
    fixture = LogFixture()
    for number in range(10):
        fixture.append(b"%d" % number, b"second")
    return fixture


def test_a_read_inside_a_batch_returns_the_whole_batch(ten: LogFixture) -> None:
    assert offsets(read(ten, 5))[0] == 4


def test_a_read_at_the_end_is_empty_and_beyond_it_an_error(ten: LogFixture) -> None:
    assert read(ten, 20) == b""
    for offset in (-1, 21):
        with pytest.raises(KafkaError) as caught:
            ten.log.read(offset, 100, 20)
        assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_nothing_at_or_above_the_bound_is_returned(ten: LogFixture) -> None:
    assert offsets(read(ten, 0, up_to=6)) == [0, 2, 4]
    assert len(read(ten, 0, up_to=6)) == 3 * len(batch(b"0", b"second"))
    assert read(ten, 6, up_to=6) == b""


def test_max_bytes_cuts_the_last_batch_and_never_the_first(ten: LogFixture) -> None:
    size = len(batch(b"0", b"second"))
    assert len(read(ten, 0, max_bytes=size + 10)) == size + 10
    assert len(read(ten, 0, max_bytes=1)) == size
    assert len(read(ten, 0, max_bytes=0)) == size
    assert read(ten, 0, max_bytes=size - 1, at_least_one=False) == b""
    assert len(read(ten, 0, max_bytes=size, at_least_one=False)) == size


def test_a_consumer_that_goes_on_where_it_was_cut_sees_every_record_once(ten: LogFixture) -> None:
    for max_bytes in (1, 70, 100, 200, 1 << 20):
        assert [r.offset for r in records_of(ten.log, max_bytes=max_bytes)] == list(range(20))


def test_a_read_ends_with_its_segment_and_goes_on_in_the_next() -> None:
    fixture = LogFixture(segment_bytes=300)
    for _ in range(20):
        fixture.append(b"x" * 50)
    assert fixture.log.segment_count > 3
    assert [r.offset for r in records_of(fixture.log)] == list(range(20))
    assert [r.offset for r in records_of(fixture.log, start=7)] == list(range(7, 20))


def test_bytes_that_are_not_cached_are_loaded_elsewhere_first(ten: LogFixture) -> None:
    ten.faulty.chill()
    cold = ten.log.read(0, 1 << 20, 20)
    assert isinstance(cold, ColdRead)
    cold.load()
    assert offsets(read(ten, 0)) == list(range(0, 20, 2))


def test_a_cold_search_for_the_offset_does_not_wait_either(ten: LogFixture) -> None:
    ten.faulty.chill()
    assert isinstance(ten.log.read(7, 1 << 20, 20), ColdRead)
    assert offsets(read(ten, 7, wait=True))[0] == 6


def test_what_is_cached_of_the_bytes_wanted_is_returned(ten: LogFixture) -> None:
    size = len(batch(b"0", b"second"))
    for cached_bytes in range(10 * size + 1):
        ten.faulty.chill(cached_bytes)
        result = ten.log.read(0, 1 << 20, 20)
        if cached_bytes < size:
            assert isinstance(result, ColdRead)
        else:
            assert isinstance(result, ReadResult)
            assert result.size == cached_bytes
        ten.faulty.chill(cached_bytes)
        cold = ten.log.read(7, 1 << 20, 20)
        if cached_bytes >= 4 * size:
            assert isinstance(cold, ReadResult)
            assert offsets(bytes(cold.buffers[0]))[0] == 6
        else:
            assert isinstance(cold, ColdRead)
            cold.load()
            assert offsets(read(ten, 7))[0] == 6
    assert [r.offset for r in records_of(ten.log)] == list(range(20))


def test_a_segment_deleted_while_it_is_loaded_is_no_error(ten: LogFixture) -> None:
    ten.faulty.chill()
    cold = ten.log.read(0, 1 << 20, 20)
    assert isinstance(cold, ColdRead)
    ten.fs.remove(cold.path)
    cold.load()


def test_a_disk_that_cannot_read_says_so(ten: LogFixture) -> None:
    ten.faulty.chill()
    cold = ten.log.read(0, 1 << 20, 20)
    assert isinstance(cold, ColdRead)
    ten.faulty.fail("read")
    with pytest.raises(OSError):
        cold.load()


@given(
    sizes=st.lists(st.integers(1, 400), min_size=1, max_size=60),
    counts=st.data(),
    interval=st.sampled_from([0, 100, 4096]),
    segment_bytes=st.sampled_from([700, 2000, 1 << 20]),
)
def test_any_read_returns_what_is_in_the_log(
    sizes: list[int], counts: st.DataObject, interval: int, segment_bytes: int
) -> None:
    fixture = LogFixture(index_interval_bytes=interval, segment_bytes=segment_bytes)
    stored = []
    for size in sizes:
        values = [b"x" * (size // 3 + 1)] * counts.draw(st.integers(1, 3))
        base = fixture.append(*values)
        stored.append((base, base + len(values)))
    end = fixture.log.end_offset
    for _ in range(10):
        offset = counts.draw(st.integers(0, end - 1))
        max_bytes = counts.draw(st.integers(0, 2000))
        boundaries = [after for _, after in stored if after > offset]
        up_to = counts.draw(st.sampled_from(boundaries))
        found = whole_batches(read(fixture, offset, max_bytes, up_to=up_to))
        expected = [after for _, after in stored if offset < after <= up_to]
        assert [after for _, after in found] == expected[: len(found)]
        assert found
    for max_bytes in (1, 150, 1000):
        assert [r.offset for r in records_of(fixture.log, max_bytes=max_bytes)] == list(range(end))


def test_real_files_read_the_same_after_reopening(tmp_path: Path) -> None:
    fixture = LogFixture(OsFileSystem(), str(tmp_path / "orders-0"), segment_bytes=5000)
    for number in range(100):
        fixture.append(b"%d" % number * 50)
    expected = fixture.values()
    assert expected == [b"%d" % number * 50 for number in range(100)]
    fixture.close_and_reopen()
    assert fixture.values() == expected
    for offset, max_bytes in itertools.product((0, 33, 99), (1, 500, 100_000)):
        assert offsets(read(fixture, offset, max_bytes))[0] == offset
    fixture.log.close()
