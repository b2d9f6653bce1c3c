"""Rolling, indexes, lookups by time, retention, DeleteRecords and truncation."""

from __future__ import annotations

import errno

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, NOW_MS, LogFixture, batch, record, records_of, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log.batches import RELATIVE_OFFSET_MAX
from culver.log.indexes import IndexDamaged, OffsetIndex, TimeIndex
from culver.protocol.records import encode_batch

SIZE = len(batch(b"value"))


def log_files(fixture: LogFixture) -> list[str]:
    return [name for name in fixture.fs.list(fixture.directory) if name.endswith(".log")]


# -- rolling --------------------------------------------------------------------------------------------------


def test_a_segment_holds_at_most_segment_bytes() -> None:
    fixture = LogFixture(segment_bytes=3 * SIZE)
    for _ in range(7):
        fixture.append()
    assert log_files(fixture) == [f"{offset:020d}.log" for offset in (0, 3, 6)]
    assert fixture.fs.size(f"{DIRECTORY}/{0:020d}.log") == 3 * SIZE


def test_a_segment_spans_at_most_segment_ms_of_record_time() -> None:
    fixture = LogFixture(segment_ms=1000)
    for timestamp in (0, 1000, 1001, 1500, 2002):
        fixture.append(timestamp=NOW_MS + timestamp)
    assert log_files(fixture) == [f"{offset:020d}.log" for offset in (0, 2, 4)]


def test_jitter_brings_a_roll_forward_and_never_delays_it() -> None:
    fixture = LogFixture(segment_ms=1000, segment_jitter_ms=900)
    fixture.append(timestamp=NOW_MS)
    rolled_after = next(
        passed
        for passed in range(0, 1002, 10)
        if fixture.append(timestamp=NOW_MS + passed) and fixture.log.segment_count > 1
    )
    assert 100 <= rolled_after <= 1001


def test_a_full_index_ends_a_segment() -> None:
    fixture = LogFixture(index_interval_bytes=0, segment_index_bytes=36)
    for _ in range(20):
        fixture.append()
    assert fixture.log.segment_count >= 4
    assert [r.offset for r in records_of(fixture.log)] == list(range(20))


def test_offsets_too_far_from_the_base_end_a_segment() -> None:
    fixture = LogFixture()
    fixture.append()
    fixture.log._end_offset = RELATIVE_OFFSET_MAX  # as after two thousand million records
    fixture.append(b"last that fits")
    fixture.append(b"first of the next", b"segment")
    assert log_files(fixture)[-1] == f"{RELATIVE_OFFSET_MAX + 1:020d}.log"


def test_settings_changed_in_between_count() -> None:
    fixture = LogFixture()
    fixture.append()
    fixture.log.update_config(fixture.config.replace(segment_bytes=SIZE))
    fixture.append()
    assert fixture.log.segment_count == 2


# -- indexes --------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.integers(1, 1000), st.integers(1, 1000)), max_size=50))
def test_offset_index_round_trips(steps: list[tuple[int, int]]) -> None:
    index = OffsetIndex()
    offset = position = 0
    for offset_step, position_step in steps:
        offset += offset_step
        position += position_step
        index.append(offset, position)
    loaded = OffsetIndex.from_bytes(index.to_bytes(), position + 1)
    loaded.verify()
    assert (loaded.offsets, loaded.positions) == (index.offsets, index.positions)
    if steps:
        with pytest.raises(IndexDamaged):
            OffsetIndex.from_bytes(index.to_bytes(), position)
        with pytest.raises(IndexDamaged):
            OffsetIndex.from_bytes(index.to_bytes()[:-1], position + 1)


def test_time_index_keeps_only_entries_that_say_something_new() -> None:
    index = TimeIndex()
    for timestamp, offset in ((10, 1), (10, 2), (9, 3), (12, 4)):
        index.append(timestamp, offset)
    assert [index.entry(number) for number in range(len(index))] == [(10, 1), (12, 4)]
    loaded = TimeIndex.from_bytes(index.to_bytes())
    loaded.verify()
    assert [loaded.offset_before(timestamp) for timestamp in (9, 10, 11, 12, 13)] == [0, 1, 1, 4, 4]
    loaded.truncate(4)
    assert len(loaded) == 1


# -- by time --------------------------------------------------------------------------------------------------


def test_the_first_record_at_or_after_a_moment_is_found_inside_its_batch() -> None:
    fixture = LogFixture()
    times = [100, 300, 200, 400, 400, 50]
    records = [record(b"%d" % at, timestamp=at, offset=at_index) for at_index, at in enumerate(times[:3])]
    fixture.log.append(memoryview(encode_batch(records)), 5)
    records = [record(b"%d" % at, timestamp=at, offset=at_index) for at_index, at in enumerate(times[3:])]
    fixture.log.append(memoryview(encode_batch(records)), 6)
    assert fixture.log.offset_for_timestamp(0) == (0, 100, 5)
    assert fixture.log.offset_for_timestamp(101) == (1, 300, 5)
    assert fixture.log.offset_for_timestamp(301) == (3, 400, 6)
    assert fixture.log.offset_for_timestamp(401) is None
    assert fixture.log.max_timestamp_offset() == (3, 400, 6)


def test_lookups_by_time_begin_at_the_logs_start() -> None:
    fixture = LogFixture()
    fixture.append(b"a", b"b", b"c", timestamp=100)
    fixture.log.delete_records(2)
    assert fixture.log.offset_for_timestamp(0) == (2, 100, 0)


def test_an_empty_log_has_no_record_at_any_time() -> None:
    fixture = LogFixture()
    assert fixture.log.offset_for_timestamp(0) is None
    assert fixture.log.max_timestamp_offset() is None


@given(
    times=st.lists(st.integers(1, 300), min_size=1, max_size=60),
    wanted=st.integers(0, 310),
    reopen=st.booleans(),
)
def test_lookups_by_time_agree_with_a_plain_search(times: list[int], wanted: int, reopen: bool) -> None:
    fixture = LogFixture(index_interval_bytes=100, segment_bytes=500, segment_ms=1000)
    for at in times:
        fixture.append(timestamp=at)
    if reopen:
        fixture.close_and_reopen()
    expected = next(((offset, at, 0) for offset, at in enumerate(times) if at >= wanted), None)
    assert fixture.log.offset_for_timestamp(wanted) == expected
    assert fixture.log.max_timestamp_offset() == (times.index(max(times)), max(times), 0)


# -- retention ------------------------------------------------------------------------------------------------


def test_segments_go_when_their_newest_record_is_too_old() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000)
    for age in (3000, 2000, 1500, 500, 100):
        fixture.append(timestamp=NOW_MS - age)
    assert fixture.log.retention_step(NOW_MS) == 1
    assert fixture.log.start_offset == 2
    assert [r.offset for r in records_of(fixture.log)] == [2, 3, 4]
    with pytest.raises(KafkaError) as caught:
        fixture.log.read(1, 100, 5)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_when_everything_is_expired_the_log_goes_on_empty_where_it_was() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000)
    for _ in range(5):
        fixture.append()
    fixture.clock.advance_ms(1001)
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 3
    assert (fixture.log.start_offset, fixture.log.end_offset, fixture.log.size_bytes) == (5, 5, 0)
    assert fixture.append(timestamp=fixture.clock.now_ms()) == 5
    assert fixture.close_and_reopen().start_offset == 5


def test_a_full_disk_does_not_keep_retention_from_freeing_it() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000)
    for _ in range(5):
        fixture.append()
    fixture.clock.advance_ms(1001)
    fixture.faulty.fail("open", error=OSError(errno.ENOSPC, "full"), path_contains="00005.log")
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 2
    assert fixture.log.start_offset == 4
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 1
    assert fixture.log.start_offset == 5


def test_retention_by_size_keeps_at_least_the_bytes_it_promises() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_bytes=5 * SIZE)
    for _ in range(10):
        fixture.append()
    assert fixture.log.retention_step(NOW_MS) == 2
    assert fixture.log.size_bytes == 6 * SIZE
    assert fixture.log.start_offset == 4


@pytest.mark.parametrize("policy", [frozenset({"compact"}), frozenset()])
def test_without_the_delete_policy_nothing_expires(policy: frozenset[str]) -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1, retention_bytes=1, cleanup_policy=policy)
    for _ in range(5):
        fixture.append(key=b"k")
    fixture.clock.advance_ms(10_000)
    assert fixture.log.retention_step(fixture.clock.now_ms()) == 0


def test_retention_leaves_alone_what_is_above_the_high_watermark() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000)
    for _ in range(6):
        fixture.append(timestamp=NOW_MS - 5000)
    fixture.log.high_watermark = 3
    assert fixture.log.retention_step(NOW_MS) == 1


def test_records_without_a_time_go_by_the_files_time() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000)
    fixture.faulty.now_ms = NOW_MS
    for _ in range(5):
        fixture.append(timestamp=-1)
    assert fixture.log.retention_step(NOW_MS + 1000) == 0
    assert fixture.log.retention_step(NOW_MS + 1001) == 3


def test_deleted_segments_stay_on_disk_for_a_while_under_another_name() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_ms=1000, file_delete_delay_ms=60_000)
    for _ in range(5):
        fixture.append(timestamp=NOW_MS - 5000)
    fixture.log.flush()
    fixture.log.retention_step(NOW_MS)
    assert fixture.log.take_doomed(NOW_MS + 59_999) == []
    doomed = fixture.log.take_doomed(NOW_MS + 60_000)
    assert doomed == [f"{DIRECTORY}/{offset:020d}.log.deleted" for offset in (0, 2, 4)]
    assert all(fixture.fs.exists(path) for path in doomed)
    assert fixture.log.take_doomed(NOW_MS + 60_000) == []
    fixture.reopen()
    assert not any(name.endswith(".deleted") for name in fixture.fs.list(DIRECTORY))


def test_a_segment_deleted_while_it_is_flushed_takes_no_harm() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE, retention_bytes=0)
    for _ in range(5):
        fixture.append()
    task = fixture.log.begin_flush()
    assert task is not None
    fixture.log.retention_step(NOW_MS)
    task.run()
    fixture.log.finish_flush(task, None)
    assert fixture.log.failed is None
    fixture.append()
    fixture.log.flush()
    assert fixture.log.flushed_offset == 6


# -- DeleteRecords and truncation -----------------------------------------------------------------------------


def test_delete_records_moves_the_start_and_frees_whole_segments() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE)
    for _ in range(7):
        fixture.append()
    assert fixture.log.delete_records(5) == 5
    assert fixture.log.delete_records(3) == 5  # never back
    with pytest.raises(KafkaError) as caught:
        fixture.log.delete_records(8)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE
    assert fixture.log.retention_step(NOW_MS) == 2
    assert log_files(fixture)[0] == f"{4:020d}.log"
    assert [r.offset for r in records_of(fixture.log)] == [5, 6]
    assert fixture.close_and_reopen().start_offset == 5
    assert fixture.log.delete_records(7) == 7
    assert fixture.log.retention_step(NOW_MS) == 1  # the active segment stays
    assert fixture.append() == 7


def test_truncation_drops_batches_producers_and_epochs_above_it() -> None:
    fixture = LogFixture(segment_bytes=300)
    for number in range(20):
        fixture.log.append(sequenced(1, number), number // 5)
        fixture.log.flush()
    fixture.log.truncate_to(12)
    assert fixture.log.end_offset == 12
    assert fixture.log.flushed_offset <= 12
    assert fixture.log.epoch_end_offset(3) == (-1, -1)
    assert fixture.log.epoch_end_offset(2) == (2, 12)
    assert [r.value for r in records_of(fixture.log)] == [b"%d" % number for number in range(12)]
    assert fixture.log.append(sequenced(1, 12), 9).base_offset == 12
    assert fixture.close_and_reopen().end_offset == 13


def test_truncation_inside_a_batch_drops_all_of_it() -> None:
    fixture = LogFixture()
    fixture.append(b"a", b"b")
    fixture.append(b"c", b"d")
    fixture.log.flush()
    fixture.log.truncate_to(3)
    assert fixture.log.end_offset == 2
    fixture.log.truncate_to(5)
    assert fixture.log.corruption is None
    assert fixture.values() == [b"a", b"b"]


def test_a_log_can_be_restarted_elsewhere() -> None:
    fixture = LogFixture(segment_bytes=2 * SIZE)
    for _ in range(5):
        fixture.append()
    fixture.log.truncate_fully_and_start_at(100)
    assert (fixture.log.start_offset, fixture.log.end_offset) == (100, 100)
    assert fixture.append() == 100
    assert log_files(fixture) == [f"{100:020d}.log"]
    assert fixture.close_and_reopen().end_offset == 101


@given(entry=st.integers(0, 30), byte=st.integers(0, 7), bit=st.integers(0, 7), offset=st.integers(0, 199))
def test_an_index_with_a_wrong_entry_never_misleads_a_read(
    entry: int, byte: int, bit: int, offset: int
) -> None:
    fixture = LogFixture(index_interval_bytes=300)
    for number in range(200):
        fixture.append(b"value %d" % number)
    fixture.log.close()
    path = f"{DIRECTORY}/{0:020d}.index"
    position = entry * 8 + byte
    if position < fixture.fs.size(path):
        fixture.faulty.flip_bit(path, position, bit)
    fixture.reopen(clean=True, checkpoint=fixture.log.checkpoint())
    assert records_of(fixture.log, start=offset, max_bytes=1000)[0].offset == offset
