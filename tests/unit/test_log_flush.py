"""Durability: what a flush covers, and what a failing or full disk does to a log."""

from __future__ import annotations

import errno
import os

import pytest
from log_batches import DIRECTORY, LOG_PATH, LogFixture, batch

from culver.errors import ErrorCode, KafkaError

EIO = OSError(errno.EIO, os.strerror(errno.EIO))


def storage_error(fixture: LogFixture, records: memoryview | None = None) -> KafkaError:
    with pytest.raises(KafkaError) as caught:
        fixture.log.append(records or batch(), 0)
    assert caught.value.code == ErrorCode.KAFKA_STORAGE_ERROR
    return caught.value


def test_a_flush_covers_what_was_appended_before_it_began() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    task = fixture.log.begin_flush()
    assert task is not None
    fixture.append(b"b")
    assert fixture.log.begin_flush() is None  # one at a time
    task.run()
    assert fixture.log.flushed_offset == 0
    fixture.log.finish_flush(task, None)
    assert fixture.log.flushed_offset == 1
    fixture.log.flush()
    assert fixture.log.flushed_offset == 2
    assert fixture.log.begin_flush() is None


def test_the_first_flush_makes_the_new_names_durable_too() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    fixture.log.flush()
    assert ("sync_directory", DIRECTORY) in fixture.faulty.history
    assert ("sync_directory", "/data") in fixture.faulty.history
    fixture.faulty.crash(power_cut=True)
    fixture.reopen()
    assert fixture.values() == [b"a"]


def test_a_flush_after_rolls_syncs_every_segment_and_saves_the_indexes() -> None:
    fixture = LogFixture(segment_bytes=200)
    rolled = []
    fixture.log.on_roll = rolled.append
    for number in range(10):
        fixture.append(b"value %d" % number)
    assert rolled == [fixture.log] * (fixture.log.segment_count - 1)
    fixture.log.flush()
    fixture.faulty.crash(power_cut=True, seed=1)
    fixture.reopen()
    assert fixture.values() == [b"value %d" % number for number in range(10)]
    assert fixture.log.corruption is None


def test_a_failed_sync_fails_the_log_for_good() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    fixture.faulty.fail("sync")
    task = fixture.log.begin_flush()
    assert task is not None
    with pytest.raises(OSError) as caught:
        task.run()
    fixture.log.finish_flush(task, caught.value)
    assert fixture.log.failed is caught.value
    assert fixture.log.flushed_offset == 0
    storage_error(fixture)
    assert fixture.log.begin_flush() is None
    assert not fixture.log.checkpoint().trusted
    # Reads go on: what is in memory is what was written.
    assert fixture.values() == [b"a"]


def test_a_failed_write_fails_the_log_for_good_and_recovery_finds_what_was_there() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    fixture.faulty.fail("write")
    storage_error(fixture)
    assert isinstance(fixture.log.failed, OSError)
    storage_error(fixture)
    fixture.log.close()
    fixture.reopen()
    assert fixture.values() == [b"a"]
    fixture.append(b"b")
    assert fixture.values() == [b"a", b"b"]


def test_a_full_disk_refuses_appends_and_heals_when_space_returns() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    fixture.faulty.space_bytes = fixture.log.size_bytes + 30
    for _ in range(3):
        assert "no space left" in storage_error(fixture).message
        assert fixture.fs.size(LOG_PATH) == fixture.log.size_bytes
    assert fixture.log.failed is None
    assert fixture.values() == [b"a"]
    fixture.faulty.heal()
    assert fixture.append(b"b") == 1
    assert fixture.values() == [b"a", b"b"]
    assert fixture.reopen().end_offset == 2


def test_a_full_disk_that_cannot_be_cleaned_up_fails_the_log() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    fixture.faulty.space_bytes = fixture.log.size_bytes + 30
    fixture.faulty.fail("truncate")
    storage_error(fixture)
    assert fixture.log.failed is not None


def test_a_disk_too_full_for_a_new_segment_heals_as_well() -> None:
    fixture = LogFixture(segment_bytes=100)
    fixture.append(b"a")
    fixture.faulty.fail("open", error=OSError(errno.ENOSPC, "full"))
    storage_error(fixture)
    assert fixture.log.failed is None
    assert fixture.append(b"b") == 1
    assert fixture.values() == [b"a", b"b"]


def test_indexes_and_snapshots_that_cannot_be_written_do_not_fail_a_flush() -> None:
    fixture = LogFixture(segment_bytes=100)
    fixture.append(b"a")
    fixture.append(b"b")
    fixture.faulty.fail("write", sticky=True, path_contains="index")
    fixture.log.flush()
    assert fixture.log.failed is None
    assert fixture.log.flushed_offset == 2
    fixture.faulty.heal()
    fixture.reopen(checkpoint=fixture.log.checkpoint())
    assert fixture.values() == [b"a", b"b"]


def test_a_log_closed_while_it_is_flushed_takes_no_harm() -> None:
    fixture = LogFixture()
    fixture.append(b"a")
    task = fixture.log.begin_flush()
    assert task is not None
    fixture.log.abandon()
    task.run()  # its file is still open
    fixture.log.finish_flush(task, None)
    assert fixture.log.failed is None
    with pytest.raises(KafkaError) as caught:
        fixture.log.append(batch(), 0)
    assert caught.value.code == ErrorCode.NOT_LEADER_OR_FOLLOWER


def test_a_clean_close_does_not_rely_on_a_flush_that_nobody_finished() -> None:
    fixture = LogFixture(segment_bytes=200)
    for number in range(7):
        fixture.append(b"value %d" % number)
    task = fixture.log.begin_flush()
    assert task is not None
    fixture.log.close()  # the flush never ran
    assert fixture.log.checkpoint().recovery_point == 7
    fixture.faulty.crash(power_cut=True, seed=3)
    fixture.reopen(clean=True, checkpoint=fixture.log.checkpoint())
    assert fixture.values() == [b"value %d" % number for number in range(7)]


def test_a_flush_that_has_nothing_of_the_active_segment_is_not_extended_to_it() -> None:
    """Right after a roll, say: only the closed segment and the names are to be synced."""
    fixture = LogFixture()
    task = fixture.log.begin_flush()
    assert task is not None
    fixture.append()
    fixture.log.extend_flush(task)
    task.run()
    fixture.log.finish_flush(task, None)
    assert fixture.log.flushed_offset == 0
    fixture.log.flush()
    assert fixture.log.flushed_offset == 1
