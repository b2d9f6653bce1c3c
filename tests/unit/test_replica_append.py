"""Appending as a follower: the leader's batches, with its offsets and epochs, or nothing."""

from __future__ import annotations

import errno
import struct
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import LOG_PATH, NOW_MS, LogFixture, batch, records_of, sequenced, whole_batches

from culver.errors import ErrorCode, KafkaError
from culver.log.batches import RELATIVE_OFFSET_MAX
from culver.log.partition_log import PartitionLog, ReadResult


def stored(log: PartitionLog, start: int | None = None, max_bytes: int = 1 << 30) -> bytes:
    """What a follower's fetch gets."""
    offset = log.start_offset if start is None else start
    content = b""
    while offset < log.end_offset:
        result = log.read(offset, max_bytes, log.end_offset, wait=True)
        assert isinstance(result, ReadResult)
        got = b"".join(bytes(buffer) for buffer in result.buffers)  # type: ignore[arg-type]
        for whole, next_offset in whole_batches(got):
            content += whole
            offset = next_offset
    return content


def at_offset(data: memoryview | bytes, base_offset: int, epoch: int = 0) -> bytes:
    """A batch as a leader would have stored it there."""
    copy = bytearray(data)
    struct.pack_into(">q", copy, 0, base_offset)
    struct.pack_into(">i", copy, 12, epoch)
    return bytes(copy)


def leader(count: int = 20, **config: Any) -> LogFixture:
    fixture = LogFixture(directory="/data/leader-0", **config)
    for number in range(count):
        fixture.log.append(sequenced(number % 3, number // 3, timestamp=NOW_MS + number), number // 6)
    return fixture


def test_a_replica_is_the_same_byte_for_byte() -> None:
    content = stored(leader().log)
    fixture = LogFixture(index_interval_bytes=200)
    assert fixture.log.append_replica(content) == len(content)
    assert fixture.fs.read(LOG_PATH) == content
    assert (fixture.log.end_offset, fixture.log.latest_epoch) == (20, 3)
    assert fixture.log.epoch_end_offset(1) == (1, 12)
    assert fixture.log.last_timestamp_ms == NOW_MS + 19
    assert [fixture.log.epoch_at(offset) for offset in (0, 5, 6, 19)] == [0, 0, 1, 3]


def test_batches_that_go_into_one_segment_are_one_write() -> None:
    content = stored(leader().log)
    fixture = LogFixture()
    fixture.faulty.history.clear()
    fixture.log.append_replica(memoryview(content))
    assert [operation for operation, _ in fixture.faulty.history] == ["write"]


def test_a_replica_knows_what_its_leader_knows_of_producers() -> None:
    leading = leader().log
    fixture = LogFixture()
    fixture.log.append_replica(stored(leading))

    def known(log: PartitionLog) -> dict[int, Any]:
        return {one.producer_id: (one.epoch, one.batches) for one in log.producers()}

    assert known(fixture.log) == known(leading)
    duplicate = fixture.log.append(sequenced(1, 6), 4)
    assert (duplicate.duplicate, duplicate.base_offset) == (True, 19)
    with pytest.raises(KafkaError, match="sequence 9 after 6"):
        fixture.log.append(sequenced(1, 9), 4)


def test_a_batch_that_is_cut_off_at_the_end_is_ignored() -> None:
    content = stored(leader().log)
    size = len(content) // 20
    fixture = LogFixture()
    assert fixture.log.append_replica(content[: 3 * size + 65]) == 3 * size
    assert fixture.log.end_offset == 3
    assert fixture.log.append_replica(content[3 * size : 3 * size + 40]) == 0
    assert fixture.log.append_replica(b"") == 0
    assert fixture.log.append_replica(content[3 * size :]) == 17 * size
    assert stored(fixture.log) == content


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_no_flipped_bit_enters_the_log(position: int, bit: int) -> None:
    content = bytearray(stored(leader(8).log))
    size = len(content) // 8
    position %= len(content)
    content[position] ^= 1 << bit
    fixture = LogFixture()
    try:
        appended = fixture.log.append_replica(content)
    except KafkaError:
        assert fixture.log.end_offset == 0
        assert fixture.fs.read(LOG_PATH) == b""
        assert not fixture.log.producers()
        assert fixture.log.latest_epoch == -1
        return
    in_header = position % size
    if in_header < 8:
        # The base offset is outside the checksum; what is behind the last batch cannot tell that it is wrong.
        assert position // size == 7
    elif in_header < 12:
        assert appended == position // size * size  # a length that is too long looks like a cut-off batch
    else:
        assert 12 <= in_header < 16  # so is the leader epoch


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda one: at_offset(one, 6, epoch=1), "base offset is 6, expected 5"),
        (lambda one: at_offset(one, 4, epoch=1), "base offset is 4, expected 5"),
        (lambda one: at_offset(one, 5, epoch=0), "leader epoch is 0, after 1"),
        (lambda one: at_offset(one, 5, epoch=1)[:-1] + b"x", "does not match its checksum"),
        (lambda one: b"\0" * 16 + b"\1" + bytes(one)[17:], "magic byte is 1"),
        (lambda one: at_offset(one, 5, epoch=1)[:8] + bytes(4) + bytes(one)[12:], "length field is 0"),
    ],
)
def test_what_does_not_belong_there_is_refused_and_nothing_of_it_is_written(
    damage: Any, message: str
) -> None:
    fixture = LogFixture()
    for _ in range(4):
        fixture.log.append(batch(), 1)
    before = stored(fixture.log)
    sound = at_offset(batch(b"sound", producer_id=5, producer_epoch=0, base_sequence=0), 4, epoch=1)
    with pytest.raises(KafkaError, match=message) as caught:
        fixture.log.append_replica(sound + damage(batch(b"damaged")))
    assert caught.value.code == ErrorCode.CORRUPT_MESSAGE
    assert stored(fixture.log) == before
    assert fixture.log.end_offset == 4
    assert not fixture.log.producers()
    assert fixture.log.append_replica(sound) == len(sound)


def test_an_answer_that_comes_after_the_log_has_changed_is_refused() -> None:
    fixture = LogFixture(cleanup_policy=("compact",))
    fixture.log.append_replica(at_offset(batch(key=b"k"), 0), fetched_from=0)
    with pytest.raises(KafkaError, match="ends at 1 by now") as caught:
        fixture.log.append_replica(at_offset(batch(key=b"k"), 3), fetched_from=3)
    assert caught.value.code == ErrorCode.OFFSET_OUT_OF_RANGE


def test_gaps_of_a_compacted_leader_are_copied() -> None:
    fixture = LogFixture(cleanup_policy=("compact",))
    fixture.log.append_replica(at_offset(batch(b"a", b"b"), 10) + at_offset(batch(b"c"), 20))
    assert fixture.log.end_offset == 21
    assert [record.offset for record in records_of(fixture.log)] == [10, 11, 20]
    fixture.faulty.crash()
    fixture.reopen()
    assert fixture.log.corruption is None
    assert [record.offset for record in records_of(fixture.log)] == [10, 11, 20]


def test_gaps_outlive_the_policy_that_made_them() -> None:
    """The topic is not compacted any more, but what its leader has still is."""
    fixture = LogFixture()
    saved = []
    fixture.log.on_checkpoint_outdated = lambda log: saved.append(log.checkpoint())
    with pytest.raises(KafkaError, match="base offset is 10, expected 0"):
        fixture.log.append_replica(at_offset(batch(), 10))
    fixture.log.append_replica(at_offset(batch(), 10), fetched_from=0)
    fixture.log.append_replica(at_offset(batch(), 20), fetched_from=11)
    fixture.faulty.crash()
    assert len(saved) == 1
    fixture.reopen(checkpoint=saved[0])
    assert fixture.log.corruption is None
    assert [record.offset for record in records_of(fixture.log)] == [10, 20]


def test_a_gap_too_wide_for_one_segment_begins_another() -> None:
    far = RELATIVE_OFFSET_MAX + 100
    fixture = LogFixture(cleanup_policy=("compact",), index_interval_bytes=0)
    fixture.log.append_replica(at_offset(batch(b"far"), far) + at_offset(batch(b"farther"), 2 * far))
    assert [record.offset for record in records_of(fixture.log)] == [far, 2 * far]
    fixture.faulty.crash()
    fixture.reopen()
    assert [record.offset for record in records_of(fixture.log)] == [far, 2 * far]


def test_a_log_may_begin_inside_the_first_batch() -> None:
    """Records were deleted up to the middle of a batch on the leader; the follower starts there, too."""
    fixture = LogFixture()
    fixture.log.truncate_fully_and_start_at(101)
    first = at_offset(batch(b"a", b"b", b"c"), 100)
    fixture.log.append_replica(first)
    assert (fixture.log.start_offset, fixture.log.end_offset) == (101, 103)
    assert [record.value for record in records_of(fixture.log)] == [b"b", b"c"]
    with pytest.raises(KafkaError, match="base offset is 100, expected 103"):
        fixture.log.append_replica(first)


def test_an_epoch_that_was_begun_and_never_written_in_is_no_obstacle() -> None:
    fixture = LogFixture()
    fixture.log.append(batch(), 1)
    fixture.log.begin_epoch(5)
    assert fixture.log.epoch_end_offset(3) == (1, 1)
    fixture.log.append_replica(at_offset(batch(), 1, epoch=2))
    assert (fixture.log.latest_epoch, fixture.log.end_offset) == (2, 2)


def test_control_batches_and_transactions_pass() -> None:
    fixture = LogFixture()
    transactional = batch(b"x", producer_id=7, producer_epoch=1, base_sequence=0, is_transactional=True)
    control = batch(
        b"\0\0\0\0\0\0", key=b"\0\0\0\1", producer_id=7, producer_epoch=2, base_sequence=-1, is_control=True
    )
    content = at_offset(transactional, 0) + at_offset(control, 1)
    fixture.log.append_replica(content)
    assert stored(fixture.log) == content
    (producer,) = fixture.log.producers()
    assert (producer.epoch, producer.batches) == (2, [])


# -- rolls ----------------------------------------------------------------------------------------------------


@given(
    limits=st.sampled_from(
        [
            {"segment_bytes": 400},
            {"segment_bytes": 60},
            {"segment_ms": 4},
            {"index_interval_bytes": 0, "segment_index_bytes": 36},
            {"index_interval_bytes": 200, "segment_index_bytes": 24},
        ]
    ),
    cuts=st.lists(st.integers(0, 40), max_size=5),
)
def test_a_follower_rolls_where_its_leader_does(limits: dict[str, int], cuts: list[int]) -> None:
    leading = LogFixture(directory="/data/leader-0", **{**limits, "segment_bytes": 1 << 20})
    if limits.get("segment_bytes") != 60:  # a leader would refuse batches that are larger than a segment
        leading = LogFixture(directory="/data/leader-0", **limits)
    for number in range(40):
        leading.log.append(sequenced(number % 2, number // 2, timestamp=NOW_MS + number), number // 7)
    fixture = LogFixture(**limits)
    for cut in [*sorted(cuts), 40]:
        if cut > fixture.log.end_offset:
            answer = stored(leading.log, fixture.log.end_offset)
            count = cut - fixture.log.end_offset
            fixture.log.append_replica(b"".join(whole for whole, _ in whole_batches(answer)[:count]))
    assert stored(fixture.log) == stored(leading.log)
    bases = [segment.base_offset for segment in fixture.log._segments.items]
    if limits.get("segment_bytes") == 60:
        assert bases == list(range(40))
    else:
        assert bases == [segment.base_offset for segment in leading.log._segments.items]
    for ours, theirs in zip(fixture.log._segments.items, leading.log._segments.items, strict=False):
        if len(bases) < 40:
            assert ours.indexes()[0].to_bytes() == theirs.indexes()[0].to_bytes()
            assert ours.indexes()[1].to_bytes() == theirs.indexes()[1].to_bytes()
    fixture.faulty.crash()
    assert stored(fixture.reopen()) == stored(leading.log)


# -- a disk that refuses --------------------------------------------------------------------------------------


def test_a_full_disk_leaves_the_log_as_it_was_and_heals() -> None:
    content = stored(leader().log)
    fixture = LogFixture()
    fixture.faulty.space_bytes = len(content) // 2
    with pytest.raises(KafkaError, match="no space left"):
        fixture.log.append_replica(content)
    assert fixture.log.end_offset == 0
    assert not fixture.log.producers()
    assert fixture.log.failed is None
    fixture.faulty.heal()
    fixture.log.append_replica(content)
    assert stored(fixture.log) == content


def test_a_full_disk_at_a_roll_keeps_what_is_in_the_first_segment() -> None:
    content = stored(leader().log)
    size = len(content) // 20
    fixture = LogFixture(segment_bytes=5 * size)
    fixture.faulty.fail("open", error=OSError(errno.ENOSPC, "full"), path_contains=f"{10:020d}.log")
    with pytest.raises(KafkaError, match="no space left"):
        fixture.log.append_replica(content)
    assert fixture.log.end_offset == 10
    fixture.log.append_replica(content[10 * size :])
    assert stored(fixture.log) == content


def test_a_failed_write_fails_the_log() -> None:
    fixture = LogFixture()
    fixture.faulty.fail("write")
    with pytest.raises(KafkaError, match="failed"):
        fixture.log.append_replica(at_offset(batch(), 0))
    with pytest.raises(KafkaError, match="restart the broker"):
        fixture.log.append_replica(at_offset(batch(), 0))
    assert fixture.log.end_offset == 0
