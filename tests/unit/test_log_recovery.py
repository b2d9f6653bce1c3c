"""Opening a log after a clean stop, a kill, a power cut, and after somebody has damaged its files."""

from __future__ import annotations

import logging
from unittest.mock import patch

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, LOG_PATH, LogFixture, batch, records_of, sequenced

from culver.errors import ErrorCode, KafkaError
from culver.log import progress
from culver.log.batches import HEADER_BYTES

SECOND_SEGMENT = DIRECTORY + "/00000000000000000002.log"


def filled(count: int = 5, **config: int) -> LogFixture:
    fixture = LogFixture(**config)
    for number in range(count):
        fixture.append(b"value %d" % number)
    return fixture


def assert_refuses_to_serve(fixture: LogFixture) -> str:
    explanation = fixture.log.corruption
    assert explanation is not None
    for attempt in (
        lambda: fixture.log.append(batch(), 0),
        lambda: fixture.log.read(fixture.log.start_offset, 100, 100),
    ):
        with pytest.raises(KafkaError) as caught:
            attempt()
        assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    return explanation


# -- after a clean stop ---------------------------------------------------------------------------------------


def test_a_clean_restart_reads_no_batches() -> None:
    fixture = filled()
    fixture.log.close()
    fixture.faulty.history.clear()
    fixture.reopen(clean=True, checkpoint=fixture.log.checkpoint())
    assert [path for operation, path in fixture.faulty.history if path.endswith(".log")] == []
    assert fixture.values() == [b"value %d" % number for number in range(5)]


def test_appends_go_on_after_a_clean_restart() -> None:
    fixture = filled(300, segment_bytes=10_000)
    fixture.close_and_reopen()
    for number in range(300, 600):
        fixture.append(b"value %d" % number)
    assert fixture.values() == [b"value %d" % number for number in range(600)]
    fixture.close_and_reopen()
    assert fixture.values() == [b"value %d" % number for number in range(600)]


def test_a_clean_mark_is_not_believed_when_the_size_differs() -> None:
    fixture = filled()
    fixture.log.close()
    checkpoint = fixture.log.checkpoint()
    torn = fixture.fs.read(LOG_PATH) + b"rubbish"
    fixture.fs.write_atomic(LOG_PATH, torn)
    fixture.reopen(clean=True, checkpoint=checkpoint)
    assert fixture.log.corruption is None
    assert fixture.log.end_offset == 5
    assert fixture.fs.read(LOG_PATH) == torn[:-7]


@pytest.mark.parametrize("suffix", [".index", ".timeindex"])
@pytest.mark.parametrize("damage", ["missing", "empty", "cut", "rubbish", "of another log"])
def test_missing_and_damaged_indexes_are_rebuilt(suffix: str, damage: str) -> None:
    fixture = filled(200, index_interval_bytes=100)
    fixture.log.close()
    path = DIRECTORY + "/00000000000000000000" + suffix
    content = fixture.fs.read(path)
    match damage:
        case "missing":
            fixture.fs.remove(path)
        case "empty":
            fixture.fs.write_atomic(path, b"")
        case "cut":
            fixture.fs.write_atomic(path, content[:-5])
        case "rubbish":
            fixture.fs.write_atomic(path, b"\xff" * len(content))
        case "of another log":
            fixture.fs.write_atomic(path, bytes(content[:4]) + b"\0\0\0\7" + content[8:])
    fixture.reopen(clean=True, checkpoint=fixture.log.checkpoint())
    for offset in (0, 1, 57, 150, 199):
        assert records_of(fixture.log, start=offset)[0].offset == offset
    fixture.append(b"more")
    assert fixture.values()[-1] == b"more"


def test_an_empty_log_comes_back_empty() -> None:
    fixture = LogFixture()
    assert fixture.reopen().end_offset == 0
    assert fixture.close_and_reopen().end_offset == 0
    assert fixture.append() == 0


# -- torn writes ----------------------------------------------------------------------------------------------


def test_the_last_batch_cut_at_any_byte_is_dropped_and_the_rest_kept() -> None:
    whole = filled(3).fs.read(LOG_PATH)
    kept = len(whole) - len(batch(b"value 2"))
    for size in range(kept, len(whole)):
        fixture = LogFixture()
        fixture.fs.write_atomic(LOG_PATH, whole[:size])
        fixture.reopen()
        assert fixture.log.corruption is None
        assert fixture.values() == [b"value 0", b"value 1"]
        assert fixture.fs.size(LOG_PATH) == kept
        assert fixture.append(b"new") == 2


def test_what_was_cut_is_said(caplog: pytest.LogCaptureFixture) -> None:
    fixture = filled(2)
    fixture.fs.write_atomic(LOG_PATH, fixture.fs.read(LOG_PATH)[:-3])
    with caplog.at_level(logging.WARNING, "culver.log"):
        fixture.reopen()
    assert "cut a torn write" in caplog.text


@pytest.mark.parametrize("tail", [b"\0" * 5, b"\0" * 4096, b"\xff" * 500, b"\x02" * 300])
def test_rubbish_after_the_last_batch_is_a_torn_write(tail: bytes) -> None:
    fixture = filled(2)
    good = fixture.fs.read(LOG_PATH)
    fixture.fs.write_atomic(LOG_PATH, good + tail)
    fixture.reopen()
    assert fixture.log.corruption is None
    assert fixture.fs.read(LOG_PATH) == good


def test_a_torn_write_before_an_empty_new_segment_is_cut_too() -> None:
    fixture = filled(2, segment_bytes=160)
    fixture.log.roll()
    fixture.fs.write_atomic(LOG_PATH, fixture.fs.read(LOG_PATH)[:-3])
    fixture.reopen()
    assert fixture.log.corruption is None
    assert fixture.values() == [b"value 0"]
    assert fixture.append(b"new") == 1


# -- corruption -----------------------------------------------------------------------------------------------


def test_a_flipped_bit_before_the_last_batch_is_corruption_and_nothing_is_touched() -> None:
    fixture = filled()
    size = len(batch(b"value 0"))
    fixture.faulty.flip_bit(LOG_PATH, size + HEADER_BYTES + 3, 2)
    before = fixture.fs.read(LOG_PATH)
    fixture.reopen()
    explanation = assert_refuses_to_serve(fixture)
    assert LOG_PATH in explanation
    assert f"at byte {size}" in explanation
    assert "CRC-32C" in explanation
    assert fixture.log.end_offset == 1
    fixture.log.close()
    assert fixture.fs.read(LOG_PATH) == before
    assert not fixture.log.checkpoint().trusted


def test_a_damaged_last_batch_below_the_recovery_point_is_corruption() -> None:
    fixture = filled()
    fixture.log.flush()
    checkpoint = fixture.log.checkpoint()
    assert checkpoint.recovery_point == 5
    fixture.faulty.flip_bit(LOG_PATH, fixture.log.size_bytes - 1)
    fixture.reopen(checkpoint=checkpoint)
    assert "had been flushed" in assert_refuses_to_serve(fixture)


def test_a_log_that_lost_flushed_batches_is_corrupt() -> None:
    fixture = filled()
    fixture.log.flush()
    checkpoint = fixture.log.checkpoint()
    fixture.fs.write_atomic(LOG_PATH, fixture.fs.read(LOG_PATH)[: 2 * len(batch(b"value 0"))])
    fixture.reopen(checkpoint=checkpoint)
    assert "data is missing" in assert_refuses_to_serve(fixture)


def test_a_bad_batch_in_a_segment_before_the_last_is_corruption() -> None:
    fixture = filled(5, segment_bytes=160)
    assert fixture.fs.exists(SECOND_SEGMENT)
    fixture.log.flush()
    fixture.fs.write_atomic(LOG_PATH, fixture.fs.read(LOG_PATH)[:-3])
    fixture.reopen()
    assert "later segments hold data" in assert_refuses_to_serve(fixture)


def test_a_closed_segment_that_was_not_flushed_may_be_torn_though_the_next_one_holds_data() -> None:
    """Nothing says that the kernel writes files back in the order of their segments."""
    fixture = filled(5, segment_bytes=160)
    assert fixture.fs.size(SECOND_SEGMENT)
    fixture.fs.write_atomic(LOG_PATH, fixture.fs.read(LOG_PATH)[:-3])
    fixture.reopen()
    assert fixture.log.corruption is None
    assert fixture.values() == [b"value 0"]
    assert not fixture.fs.exists(SECOND_SEGMENT)


def test_a_segment_that_is_missing_is_corruption() -> None:
    fixture = filled(7, segment_bytes=160)
    fixture.log.flush()
    fixture.fs.remove(SECOND_SEGMENT)
    fixture.reopen()
    assert "data is missing" in assert_refuses_to_serve(fixture)


def test_a_length_field_that_lies_is_corruption_when_batches_follow() -> None:
    fixture = filled()
    fixture.faulty.flip_bit(LOG_PATH, len(batch(b"value 0")) + 8, 6)
    fixture.reopen()
    assert "no torn write" in assert_refuses_to_serve(fixture)


def test_an_offset_that_goes_back_is_corruption() -> None:
    fixture = filled()
    fixture.faulty.flip_bit(LOG_PATH, 2 * len(batch(b"value 0")) + 7, 1)  # offset 2 becomes 0
    fixture.reopen()
    assert "base offset is 0, expected 2" in assert_refuses_to_serve(fixture)


@given(position=st.integers(0), bit=st.integers(0, 7))
def test_no_flipped_bit_is_ever_served(position: int, bit: int) -> None:
    """Whatever bit flips, what is served afterwards is a prefix of what was written, byte for byte."""
    fixture = filled()
    whole = fixture.fs.read(LOG_PATH)
    # The leader epoch is outside the checksum, and nothing can be said about it. So is the base offset, but
    # there is only one that fits.
    position %= len(whole)
    in_header = position % len(batch(b"value 0"))
    fixture.faulty.flip_bit(LOG_PATH, position, bit)
    fixture.reopen()
    if fixture.log.corruption is not None:
        assert_refuses_to_serve(fixture)
        return
    values = fixture.values()
    if 12 <= in_header < 16:
        assert len(values) == 5
        return
    assert values == [b"value %d" % number for number in range(len(values))]
    assert len(values) == 4  # the last batch was hit: a torn write


# -- crashes --------------------------------------------------------------------------------------------------


@given(
    steps=st.lists(
        st.sampled_from(["append", "append", "append", "flush", "roll", "checkpoint", "crash", "power cut"]),
        max_size=50,
    ),
    seed=st.integers(0, 1 << 32),
    save_every=st.sampled_from([1, 300, 1 << 20]),
)
def test_after_any_crash_the_log_is_a_prefix_with_everything_flushed(
    steps: list[str], seed: int, save_every: int
) -> None:
    with patch.multiple(progress, SAVE_EVERY_BYTES=save_every, REREAD_BYTES=100):
        fixture = LogFixture(index_interval_bytes=150)
        fixture.log.flush()
        checkpoint = None
        written: list[bytes | None] = []
        for step in [*steps, "power cut"]:
            log = fixture.log
            if step == "append":
                log.append(sequenced(1, len(written), timestamp=seed + len(written)), len(written) // 4)
                written.append(b"%d" % len(written))
            elif step == "flush":
                log.flush()
            elif step == "roll" and log._active.size_bytes:
                log.flush()  # a roll asks for one at once; that it does not come is a test of its own
                log.roll()
                log.flush()
            elif step == "checkpoint":
                saved = log.progress_file()
                if saved is not None:
                    fixture.fs.write_atomic(*saved, sync=False)
                checkpoint = log.checkpoint()
            elif step in ("crash", "power cut"):
                flushed, end = log.flushed_offset, log.end_offset
                fixture.faulty.crash(power_cut=step == "power cut", seed=seed)
                log = fixture.reopen(checkpoint=checkpoint)
                assert log.corruption is None
                values = fixture.values()
                assert values == written[: len(values)]
                assert len(values) >= (flushed if step == "power cut" else end)
                del written[len(values) :]
                assert_state_is_that_of_the_batches(fixture, len(values), seed)


def assert_state_is_that_of_the_batches(fixture: LogFixture, count: int, seed: int) -> None:
    log = fixture.log
    for epoch in range(count // 4 + 2):
        end = min((epoch + 1) * 4, count)
        assert log.epoch_end_offset(epoch) == ((epoch, end) if epoch * 4 < count else (-1, -1))
    for offset in range(count):
        assert log.offset_for_timestamp(seed + offset) == (offset, seed + offset, offset // 4)
    if count:
        with pytest.raises(KafkaError):
            log.append(sequenced(1, count + 1, timestamp=seed), 0)
        for number in range(max(0, count - 5), count):
            assert log.append(sequenced(1, number, timestamp=seed), 0).base_offset == number


def test_a_kill_between_roll_and_flush_loses_nothing() -> None:
    fixture = filled(20, segment_bytes=200)
    assert fixture.log.segment_count > 5
    fixture.faulty.crash()
    fixture.reopen()
    assert fixture.values() == [b"value %d" % number for number in range(20)]
    assert fixture.log.flushed_offset == 0
    fixture.log.flush()
    assert fixture.log.flushed_offset == 20


def test_only_what_is_above_the_recovery_point_is_scanned() -> None:
    fixture = filled(19, segment_bytes=200)
    fixture.log.flush()
    checkpoint = fixture.log.checkpoint()
    fixture.append(b"new")
    fixture.faulty.crash()
    fixture.faulty.history.clear()
    fixture.reopen(checkpoint=checkpoint)
    scanned = {
        path for operation, path in fixture.faulty.history if operation == "open" and path.endswith(".log")
    }
    assert len(scanned) == 1
    assert fixture.log.end_offset == 20


def large(batches: int = 60) -> LogFixture:
    """Three megabytes, flushed and saved, and a little more that is not."""
    fixture = LogFixture()
    for number in range(batches):
        fixture.log.append(sequenced(1, number, padding=50_000), 0)
    fixture.log.flush()
    saved = fixture.log.progress_file()
    assert saved is not None
    fixture.fs.write_atomic(*saved, sync=False)
    return fixture


def test_a_large_segment_is_not_read_from_its_start() -> None:
    fixture = large()
    checkpoint = fixture.log.checkpoint()
    fixture.log.append(sequenced(1, 60), 0)
    fixture.faulty.crash()
    fixture.faulty.flip_bit(LOG_PATH, 100)  # nobody looks there
    fixture.reopen(checkpoint=checkpoint)
    assert fixture.log.corruption is None
    assert fixture.log.end_offset == 61
    assert [r.offset for r in records_of(fixture.log, start=1)] == list(range(1, 61))
    assert fixture.log.append(sequenced(1, 57, padding=50_000), 0).duplicate
    assert fixture.log.append(sequenced(1, 61), 0).base_offset == 61


@pytest.mark.parametrize("damage", ["missing", "torn", "older"])
def test_without_what_was_saved_of_it_a_segment_is_read_from_its_start(damage: str) -> None:
    fixture = large()
    path = LOG_PATH.replace(".log", ".progress")
    saved = fixture.fs.read(path)
    if damage == "older":
        for number in range(60, 90):
            fixture.log.append(sequenced(1, number, padding=50_000), 0)
        fixture.log.flush()
        assert fixture.log.progress_file() is not None
    checkpoint = fixture.log.checkpoint()
    if damage == "missing":
        fixture.fs.remove(path)
    elif damage == "torn":
        fixture.fs.write_atomic(path, saved[:-1] + b"x")
    fixture.faulty.crash()
    fixture.faulty.flip_bit(LOG_PATH, 100)
    fixture.reopen(checkpoint=checkpoint)
    assert "at byte 0: CRC-32C" in assert_refuses_to_serve(fixture)


def test_the_end_of_what_was_flushed_is_read_again() -> None:
    fixture = large()
    fixture.faulty.flip_bit(LOG_PATH, fixture.log.size_bytes - 200_000)
    fixture.faulty.crash()
    fixture.reopen(checkpoint=fixture.log.checkpoint())
    assert_refuses_to_serve(fixture)


def test_leftovers_of_deletions_and_compactions_are_dropped() -> None:
    fixture = filled()
    leftovers = [
        "00000000000000000000.log.cleaned",
        "00000000000000000007.log.deleted",
        "00000000000000000007.index",
        "00000000000000000007.timeindex",
        "00000000000000000007.progress",
        "x.snapshot.new",
    ]
    for name in leftovers:
        fixture.fs.write_atomic(f"{DIRECTORY}/{name}", b"x")
    fixture.reopen()
    assert fixture.fs.list(DIRECTORY) == ["00000000000000000000.log"]


# -- leader epochs --------------------------------------------------------------------------------------------


def test_leader_epochs_are_rebuilt_from_the_batches() -> None:
    fixture = LogFixture()
    for epoch in (0, 0, 3, 3, 7):
        fixture.log.append(batch(), epoch)
    expected = {0: (0, 2), 1: (0, 2), 3: (3, 4), 5: (3, 4), 7: (7, 5), 8: (-1, -1), -1: (-1, -1)}
    assert {epoch: fixture.log.epoch_end_offset(epoch) for epoch in expected} == expected
    fixture.faulty.crash()
    fixture.reopen()
    assert {epoch: fixture.log.epoch_end_offset(epoch) for epoch in expected} == expected
    fixture.close_and_reopen()
    assert {epoch: fixture.log.epoch_end_offset(epoch) for epoch in expected} == expected
    assert fixture.log.latest_epoch == 7
    fixture.log.close()
    fixture.fs.write_atomic(f"{DIRECTORY}/leader-epoch-checkpoint", b"0\nrubbish")
    fixture.reopen()
    assert {epoch: fixture.log.epoch_end_offset(epoch) for epoch in expected} == expected
