"""Compaction keeps the last record of every key at its offset, and loses nothing when it is interrupted."""

from __future__ import annotations

from typing import Any

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, NOW_MS, LogFixture, batch, records_of, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log.compaction import CompactionTask
from culver.log.key_map import KeyMap
from culver.log.limits import LogLimits
from culver.log.partition_log import PartitionLog
from culver.protocol.compression import Codec
from culver.protocol.records import Record, encode_batch, parse_header

DAY_MS = 86_400_000
COMPACT = frozenset({"compact"})


class CompactedLog(LogFixture):
    def __init__(self, **config: Any) -> None:
        defaults: dict[str, Any] = {
            "cleanup_policy": COMPACT,
            "segment_bytes": 300,
            "min_cleanable_dirty_ratio": 0.0,
        }
        super().__init__(**(defaults | config))

    def put(self, *pairs: tuple[bytes, bytes | None], **fields: Any) -> None:
        records = [Record(at, self.clock.now_ms(), key, value, ()) for at, (key, value) in enumerate(pairs)]
        self.log.append(memoryview(encode_batch(records, **fields)), 0)

    def roll(self) -> None:
        if self.log._active.size_bytes:
            self.log.roll()

    def compact(self) -> CompactionTask | None:
        task = self.log.begin_compaction()
        if task is not None:
            task.run()
            self.log.finish_compaction(task, None)
        return task

    def contents(self) -> list[tuple[int, bytes | None, bytes | None]]:
        return [(stored.offset, stored.key, stored.value) for stored in records_of(self.log)]


def test_the_last_value_of_each_key_stays_at_its_offset() -> None:
    fixture = CompactedLog()
    for number in range(10):
        fixture.put((b"k%d" % (number % 3), b"%d" % number))
    fixture.roll()
    assert fixture.compact() is not None
    assert fixture.contents() == [(7, b"k1", b"7"), (8, b"k2", b"8"), (9, b"k0", b"9")]
    assert fixture.log.end_offset == 10
    assert fixture.compact() is None  # nothing new


def test_the_active_segment_is_not_touched() -> None:
    fixture = CompactedLog(segment_bytes=1 << 20)
    for number in range(5):
        fixture.put((b"k", b"%d" % number))
    assert fixture.compact() is None
    fixture.roll()
    fixture.put((b"k", b"5"))
    fixture.compact()
    assert fixture.contents() == [(4, b"k", b"4"), (5, b"k", b"5")]


def test_records_within_a_batch_are_removed_one_by_one() -> None:
    fixture = CompactedLog()
    fixture.put((b"a", b"1"), (b"b", b"1"), (b"a", b"2"), compression=Codec.LZ4)
    fixture.put((b"b", b"2"))
    fixture.roll()
    fixture.compact()
    assert fixture.contents() == [(2, b"a", b"2"), (3, b"b", b"2")]
    header = parse_header(fixture.fs.read(f"{DIRECTORY}/{0:020d}.log"))
    assert (header.base_offset, header.last_offset, header.record_count) == (0, 2, 1)
    assert header.compression == Codec.LZ4


def test_small_segments_are_merged() -> None:
    fixture = CompactedLog(segment_bytes=6 * len(batch(b"value", key=b"key 00")))
    for number in range(12):
        fixture.put((b"key %02d" % number, b"value"))
        fixture.roll()
    assert fixture.log.segment_count == 13
    fixture.compact()
    assert fixture.log.segment_count == 3
    assert [offset for offset, _, _ in fixture.contents()] == list(range(12))


def test_a_tombstone_stays_for_its_time_after_the_first_pass() -> None:
    fixture = CompactedLog(delete_retention_ms=DAY_MS, max_compaction_lag_ms=1)
    fixture.put((b"a", b"1"))
    fixture.put((b"a", None))
    fixture.roll()
    fixture.clock.advance_ms(5 * DAY_MS)  # its age before the first pass does not count
    fixture.compact()
    assert fixture.contents() == [(1, b"a", None)]
    horizon = parse_header(fixture.fs.read(f"{DIRECTORY}/{0:020d}.log")).delete_horizon_ms
    assert horizon == NOW_MS + 6 * DAY_MS
    fixture.clock.advance_ms(DAY_MS - 1)
    fixture.put((b"b", b"1"))
    fixture.roll()
    fixture.compact()
    assert fixture.contents() == [(1, b"a", None), (2, b"b", b"1")]
    fixture.clock.advance_ms(1)
    fixture.put((b"c", b"1"))
    fixture.roll()
    fixture.compact()
    assert fixture.contents() == [(2, b"b", b"1"), (3, b"c", b"1")]


def test_the_dirty_ratio_and_the_lags_decide_when_a_pass_is_due() -> None:
    fixture = CompactedLog(
        min_cleanable_dirty_ratio=0.5, min_compaction_lag_ms=1000, max_compaction_lag_ms=50_000
    )
    for number in range(8):
        fixture.put((b"k%d" % number, b"x" * 50))
    fixture.roll()
    assert fixture.compact() is None  # too young
    fixture.clock.advance_ms(1000)
    assert fixture.compact() is not None
    fixture.put((b"k1", b"x" * 50))
    fixture.roll()
    fixture.clock.advance_ms(1000)
    assert fixture.compact() is None  # too little is new
    fixture.clock.advance_ms(50_000)
    assert fixture.compact() is not None  # it has waited long enough


def test_nothing_above_the_high_watermark_is_cleaned() -> None:
    fixture = CompactedLog()
    for number in range(10):
        fixture.put((b"k", b"%d" % number))
        fixture.roll()
    fixture.log.high_watermark = 5
    fixture.compact()
    assert [offset for offset, _, _ in fixture.contents()] == [4, 5, 6, 7, 8, 9]


def test_only_topics_that_ask_for_it_are_compacted() -> None:
    fixture = CompactedLog(cleanup_policy=frozenset({"delete"}))
    fixture.put((b"k", b"1"))
    fixture.roll()
    assert fixture.compact() is None


def test_the_last_batch_of_a_producer_stays_even_when_empty() -> None:
    fixture = CompactedLog()
    fixture.log.append(sequenced(1, 0, key=b"k"), 0)
    fixture.log.append(sequenced(1, 1, key=b"k"), 0)
    fixture.log.append(batch(b"newest", key=b"k"), 0)
    fixture.roll()
    fixture.log.flush()
    fixture.compact()
    assert fixture.contents() == [(2, b"k", b"newest")]
    for name in fixture.fs.list(DIRECTORY):
        if name.endswith(".snapshot"):
            fixture.fs.remove(f"{DIRECTORY}/{name}")
    fixture.faulty.crash()
    fixture.reopen()
    assert fixture.log.append(sequenced(1, 1, key=b"k"), 0).duplicate
    with pytest.raises(KafkaError) as caught:
        fixture.log.append(sequenced(1, 3, key=b"k"), 0)
    assert caught.value.code == ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER


def test_control_batches_stay() -> None:
    fixture = CompactedLog()
    control = encode_batch(
        [Record(0, NOW_MS, b"\0\0\0\1", b"", ())], is_control=True, producer_id=3, producer_epoch=1
    )
    fixture.log.append_internal(control, 0)
    fixture.put((b"k", b"1"))
    fixture.put((b"k", b"2"))
    fixture.roll()
    fixture.compact()
    assert [offset for offset, _, _ in fixture.contents()] == [0, 2]


def test_a_batch_that_cannot_be_decoded_is_left_alone() -> None:
    fixture = CompactedLog(cleanup_policy=frozenset({"delete"}))
    broken = bytearray(batch(b"x" * 20, key=b"k"))
    broken[61] = 0x7F  # the record's length
    broken[17:21] = crc32c(memoryview(broken)[21:]).to_bytes(4, "big")
    fixture.log.append(memoryview(broken), 0)
    stored = bytes(broken)
    fixture.log.update_config(fixture.config.replace(cleanup_policy=COMPACT))
    fixture.put((b"k", b"1"))
    fixture.put((b"k", b"2"))
    fixture.roll()
    fixture.compact()
    data = fixture.fs.read(f"{DIRECTORY}/{0:020d}.log")
    assert data.startswith(stored)
    assert len(data) == len(stored) + len(batch(b"2", key=b"k"))


def test_a_key_map_too_small_for_all_cleans_a_part_at_a_time() -> None:
    fixture = CompactedLog(segment_bytes=1000)
    fixture.log = PartitionLog.open(
        fixture.fs,
        fixture.clock,
        DIRECTORY,
        fixture.config,
        clean=False,
        checkpoint=None,
        limits=LogLimits(dedupe_buffer_bytes=200 * 5),
    )
    for number in range(60):
        fixture.put((b"k%d" % (number % 20), b"%d" % number))
    fixture.roll()
    passes = 0
    while fixture.compact() is not None:
        passes += 1
        kept = {key: value for _, key, value in fixture.contents()}
        assert kept == {b"k%d" % (number % 20): b"%d" % number for number in range(60)}
    assert passes > 3
    assert len(fixture.contents()) == 20


def test_segments_that_retention_took_meanwhile_do_not_come_back() -> None:
    fixture = CompactedLog(cleanup_policy=frozenset({"compact", "delete"}), retention_bytes=400)
    for number in range(20):
        fixture.put((b"k%d" % (number % 9), b"%d" % number))
    task = fixture.log.begin_compaction()
    assert task is not None
    assert fixture.log.begin_compaction() is None  # one at a time
    task.run()
    fixture.log.retention_step(NOW_MS)
    start = fixture.log.start_offset
    assert start > 0
    fixture.log.finish_compaction(task, None)
    assert min(offset for offset, _, _ in fixture.contents()) >= start
    assert not [name for name in fixture.fs.list(DIRECTORY) if name.endswith((".swap", ".cleaned"))]


def test_a_pass_that_fails_leaves_the_log_as_it_was() -> None:
    fixture = CompactedLog()
    for number in range(10):
        fixture.put((b"k", b"%d" % number))
    before = fixture.contents()
    task = fixture.log.begin_compaction()
    assert task is not None
    fixture.faulty.fail("write", path_contains=".cleaned")
    with pytest.raises(OSError) as caught:
        task.run()
    fixture.log.finish_compaction(task, caught.value)
    assert fixture.contents() == before
    assert fixture.log.failed is None
    assert fixture.compact() is not None
    assert fixture.contents() != before


def test_a_damaged_segment_is_not_written_anew() -> None:
    fixture = CompactedLog()
    for number in range(10):
        fixture.put((b"k", b"%d" % number))
    fixture.faulty.flip_bit(f"{DIRECTORY}/{0:020d}.log", 65)
    task = fixture.log.begin_compaction()
    assert task is not None
    with pytest.raises(OSError, match="CRC-32C"):
        task.run()


@pytest.mark.parametrize("power_cut", [False, True])
def test_a_crash_at_any_step_loses_no_key(power_cut: bool) -> None:
    """Every operation of the pass and of its finish fails once, as if the machine died there."""
    for step in range(1, 200):
        fixture = CompactedLog(segment_bytes=400)
        for number in range(30):
            fixture.put((b"k%d" % (number % 7), b"%d" % number))
        fixture.log.flush()
        checkpoint = fixture.log.checkpoint()
        expected = {key: value for _, key, value in fixture.contents()}
        fixture.faulty.history.clear()
        done = _compact_until(fixture, step)
        fixture.faulty.crash(power_cut=power_cut, seed=step)
        fixture.reopen(checkpoint=checkpoint)
        assert fixture.log.corruption is None
        assert fixture.log.end_offset == 30
        assert {key: value for _, key, value in fixture.contents()} == expected
        offsets = [offset for offset, _, _ in fixture.contents()]
        assert offsets == sorted(set(offsets))
        leftovers = [n for n in fixture.fs.list(DIRECTORY) if n.endswith((".swap", ".cleaned", ".deleted"))]
        assert leftovers == []
        if done:
            break
    else:
        pytest.fail("the pass never ran to its end")
    assert step > 10


def _compact_until(fixture: CompactedLog, step: int) -> bool:
    """Run a pass that dies at its nth operation on files; True when it got to its end."""

    class Died(Exception):
        pass

    occurs = fixture.faulty._occurs
    left = step

    def count(operation: str, path: str) -> None:
        nonlocal left
        left -= 1
        if left <= 0:
            raise Died
        occurs(operation, path)

    fixture.faulty._occurs = count  # type: ignore[method-assign]
    try:
        assert fixture.compact() is not None
    except Died:
        return False
    finally:
        fixture.faulty._occurs = occurs  # type: ignore[method-assign]
    return True


@given(
    steps=st.lists(
        st.one_of(
            st.tuples(
                st.sampled_from([b"a", b"b", b"c", b"d" * 40, b"e" * 40]), st.none() | st.binary(max_size=5)
            ),
            st.sampled_from(["roll", "compact", "reopen", "wait"]),
        ),
        max_size=60,
    )
)
def test_compaction_never_changes_what_a_reader_of_the_whole_log_ends_up_with(steps: list[Any]) -> None:
    fixture = CompactedLog(delete_retention_ms=100, segment_bytes=500)
    table: dict[bytes, bytes] = {}
    written = 0
    for step in steps:
        if step == "roll":
            fixture.roll()
        elif step == "compact":
            fixture.compact()
        elif step == "reopen":
            fixture.close_and_reopen()
        elif step == "wait":
            fixture.clock.advance_ms(60)
        else:
            key, value = step
            fixture.put((key, value))
            written += 1
            table.pop(key, None)
            if value is not None:
                table[key] = value
        found: dict[bytes, bytes] = {}
        for _, key, value in fixture.contents():
            assert key is not None
            found.pop(key, None)
            if value is not None:
                found[key] = value
        assert found == table
        assert fixture.log.end_offset == written


def test_the_key_map_tells_keys_apart_by_hash_and_counts_its_room() -> None:
    keys = KeyMap(200 * 3)
    for offset, key in enumerate([b"", b"short", b"long" * 100]):
        assert keys.has_room_for(1)
        keys.put(key, offset)
    assert not keys.has_room_for(1)
    keys.put(b"short", 9)
    assert not keys.is_last(b"short", 1)
    assert keys.is_last(b"short", 9)
    assert keys.is_last(b"long" * 100, 2)
    assert keys.is_last(b"unknown", 0)
