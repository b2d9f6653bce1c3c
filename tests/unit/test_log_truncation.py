"""Truncation, as followers rely on it: what is cut off stays cut off, whatever runs or fails meanwhile."""

from __future__ import annotations

import errno
from dataclasses import replace
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, LOG_PATH, NOW_MS, LogFixture, batch, records_of, sequenced
from replica_model import Batch, History, check, cut, encode, end_of, next_batch, stored

from culver.errors import KafkaError
from culver.log import producer_search
from culver.log.checkpoint import Checkpoint
from culver.log.partition_log import PartitionLog
from culver.testing.faults import FaultyFileSystem


@cache
def history_of(
    count: int, label: str = "old", base: History = (), producers: int = 3, epoch: int = 1
) -> History:
    history = base
    for number in range(count):
        history += (next_batch(history, epoch + number // 7, number % producers, 1 + number % 2, label),)
    return history


class Replica(LogFixture):
    """A follower's log with a history, and the checkpoint that is on its disk."""

    def __init__(self, history: History = (), fs: FaultyFileSystem | None = None, **config: Any) -> None:
        super().__init__(**{"index_interval_bytes": 150, **config})
        if fs is not None:
            self.faulty = self.fs = fs
            self.log = PartitionLog.create(self.fs, self.clock, self.directory, self.config)
        self.saved: Checkpoint | None = None
        self.checkpoints = 0
        self._listen()
        if history:
            self.log.append_replica(encode(history))

    def _listen(self) -> None:
        self.log.on_checkpoint_outdated = lambda _: self.save_checkpoint()

    def save_checkpoint(self) -> None:
        saved = self.log.progress_file()
        if saved is not None:
            self.fs.write_atomic(*saved, sync=False)
        # As the store's: written atomically, synced, and a step at which a power cut may come.
        self.fs.write_atomic("/data/checkpoint", b"")
        self.saved = self.log.checkpoint()
        self.checkpoints += 1

    def recover(self) -> PartitionLog:
        self.reopen(checkpoint=self.saved)
        self._listen()
        return self.log


# -- what is left ---------------------------------------------------------------------------------------------


@given(data=st.data(), segment_bytes=st.sampled_from([300, 1000, 1 << 20]))
def test_any_truncation_leaves_the_log_of_the_batches_before_it(
    data: st.DataObject, segment_bytes: int
) -> None:
    history = history_of(30)
    replica = Replica(history, segment_bytes=segment_bytes)
    for _ in range(3):
        offset = data.draw(st.integers(0, end_of(history) + 1))
        replica.log.truncate_to(offset)
        history = cut(history, offset)
        check(replica.log, history)
        history = history_of(data.draw(st.integers(0, 5)), "new", history, epoch=20)
        missing = tuple(one for one in history if one.base_offset >= replica.log.end_offset)
        if missing:
            replica.log.append_replica(encode(missing))
        check(replica.log, history)
    replica.faulty.crash()
    check(replica.recover(), history)


def test_the_log_goes_on_in_a_new_segment_so_that_bytes_once_written_never_change() -> None:
    replica = Replica(history_of(10))
    before = replica.fs.read(LOG_PATH)
    end_offset = replica.log.end_offset - 3
    replica.log.truncate_to(end_offset)
    assert before.startswith(replica.fs.read(LOG_PATH))
    assert replica.log._active.base_offset == replica.log.end_offset
    assert replica.log._active.size_bytes == 0


def test_truncation_at_the_end_only_forgets_epochs_that_were_never_written_in() -> None:
    replica = Replica(history_of(3))
    segments = replica.log.segment_count
    replica.log.begin_epoch(30)
    assert replica.log.latest_epoch == 30
    replica.log.truncate_to(replica.log.end_offset)
    assert (replica.log.latest_epoch, replica.log.segment_count) == (1, segments)


def test_the_high_watermark_is_never_beyond_the_end() -> None:
    replica = Replica(history_of(10))
    replica.log.high_watermark = replica.log.end_offset
    replica.log.truncate_to(4)
    assert replica.log.high_watermark == replica.log.end_offset
    replica.log.truncate_fully_and_start_at(50)
    assert replica.log.high_watermark == 50
    replica.log.high_watermark = None
    assert replica.log.high_watermark == replica.log.end_offset


def test_timestamps_are_those_of_what_is_left() -> None:
    replica = Replica(history_of(20))
    replica.log.truncate_to(7)
    last = cut(history_of(20), 7)[-1]
    found = replica.log.max_timestamp_offset()
    assert found is not None
    assert found.timestamp_ms == NOW_MS + last.base_offset
    assert replica.log.offset_for_timestamp(NOW_MS + last.base_offset + 1) is None


def test_truncation_below_the_start_starts_over() -> None:
    replica = Replica(history_of(30), segment_bytes=300)
    replica.log.start_at(20)
    replica.log.high_watermark = 30
    replica.log.retention_step(NOW_MS)
    assert replica.log._segments.items[0].base_offset > 3
    replica.log.truncate_to(3)
    assert (replica.log.start_offset, replica.log.end_offset) == (3, 3)


# -- producers ------------------------------------------------------------------------------------------------


def test_a_producer_that_first_wrote_in_what_was_cut_off_is_unknown() -> None:
    history = history_of(6, producers=1)
    tail = (*history, Batch(end_of(history), 1, 1, 9, 0, 5, "tail"))
    replica = Replica(tail)
    replica.log.truncate_to(end_of(history))
    assert [one.producer_id for one in replica.log.producers()] == [0]


def test_a_producer_is_found_again_when_all_that_was_remembered_of_it_is_cut_off() -> None:
    history = history_of(30, producers=2)
    replica = Replica(history, segment_bytes=500)
    check(replica.log, history)
    replica.log.truncate_to(8)
    check(replica.log, cut(history, 8))


def test_a_producers_older_epoch_comes_back() -> None:
    history = history_of(4, producers=1)
    bumped = replace(next_batch(history, 1, 0, 1, "bumped"), producer_epoch=1, sequence=0)
    replica = Replica((*history, bumped))
    (producer,) = replica.log.producers()
    assert producer.epoch == 1
    replica.log.truncate_to(bumped.base_offset)
    check(replica.log, history)


def test_a_producer_out_of_reach_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Better to know nothing than to hold up the broker; it may go on with any sequence then."""
    monkeypatch.setattr(producer_search, "SEARCH_BYTES_MAX", 100)
    monkeypatch.setattr(producer_search, "_STEP_BYTES", 50)
    history: History = (Batch(0, 1, 1, 7, 0, 0, "first"),)
    for _ in range(20):
        history += (next_batch(history, 1, 1, 1, "other"),)
    tail = history
    for _ in range(5):
        tail += (next_batch(tail, 1, 7, 1, "tail"),)
    replica = Replica(tail)
    replica.log.truncate_to(end_of(history))
    assert [one.producer_id for one in replica.log.producers()] == [1]
    assert replica.log.append(sequenced(7, 40), 5).base_offset == end_of(history)


def test_a_snapshot_answers_for_what_was_before_it() -> None:
    replica = Replica((Batch(0, 1, 1, 7, 0, 3, "first"),))
    replica.log.roll()
    history: History = (Batch(0, 1, 1, 7, 0, 3, "first"), Batch(1, 1, 1, 8, 0, 0, "x"))
    tail = history
    for _ in range(6):
        tail += (next_batch(tail, 1, 7, 1, "tail"),)
    replica.log.append_replica(encode(tail[1:]))
    replica.log.flush()
    replica.log.truncate_to(2)
    check(replica.log, history)


def test_a_snapshot_of_what_was_cut_off_is_gone_for_good() -> None:
    """The new history is longer than the old one when the power fails: nothing may speak of the old one then."""
    old = history_of(12)
    replica = Replica(old, segment_bytes=400)
    replica.log.flush()
    replica.log.truncate_to(2)
    new = history_of(20, "new", cut(old, 2), producers=2, epoch=40)
    replica.log.append_replica(encode(tuple(one for one in new if one.label == "new")))
    task = replica.log.begin_flush()
    assert task is not None
    for file in task.files:  # the records are durable, and nothing else that the flush would have done
        file.sync()
    replica.faulty.crash(power_cut=True, lose_names=False)
    check(replica.recover(), new)


# -- what runs meanwhile --------------------------------------------------------------------------------------


def test_a_flush_that_began_before_promises_nothing_about_what_came_after() -> None:
    replica = Replica(history_of(20))
    task = replica.log.begin_flush()
    assert task is not None
    replica.log.truncate_to(5)
    new = history_of(30, "new", cut(history_of(20), 5), epoch=40)
    replica.log.append_replica(encode(tuple(one for one in new if one.label == "new")))
    replica.log.extend_flush(task)
    task.run()
    replica.log.finish_flush(task, None)
    assert replica.log.flushed_offset <= 5
    replica.log.flush()
    assert replica.log.flushed_offset == end_of(new)
    replica.faulty.crash(power_cut=True)
    check(replica.recover(), new)


def test_a_flush_that_began_before_writes_no_side_files_afterwards() -> None:
    replica = Replica(history_of(30), segment_bytes=400)
    task = replica.log.begin_flush()
    assert task is not None
    replica.log.truncate_to(4)
    before = replica.fs.list(DIRECTORY)
    task.run()
    assert replica.fs.list(DIRECTORY) == before
    replica.log.finish_flush(task, None)
    replica.log.flush()
    check(replica.log, cut(history_of(30), 4))


def test_a_flush_that_fails_after_a_truncation_still_fails_the_log() -> None:
    replica = Replica(history_of(20))
    task = replica.log.begin_flush()
    assert task is not None
    replica.log.truncate_to(5)
    replica.log.finish_flush(task, OSError(errno.EIO, "disk"))
    assert replica.log.failed is not None


def compacted() -> Replica:
    replica = Replica(cleanup_policy=("compact",), segment_bytes=300, min_cleanable_dirty_ratio=0.0)
    history: History = ()
    for _ in range(20):
        history += (next_batch(history, 1, -1, 1, "same"),)
    replica.log.append_replica(encode(history))
    replica.log.flush()
    return replica


@pytest.mark.parametrize("ran", ["before", "after"])
def test_a_compaction_of_what_is_cut_off_comes_to_nothing(ran: str) -> None:
    replica = compacted()
    task = replica.log.begin_compaction()
    assert task is not None
    if ran == "before":
        task.run()
    replica.log.truncate_to(5)
    error: OSError | None = None
    if ran == "after":
        with pytest.raises(OSError) as caught:
            task.run()
        error = caught.value
    names = replica.fs.list(DIRECTORY)
    assert not [name for name in names if name.endswith(".swap")], "a crash now would put it in place"
    replica.log.finish_compaction(task, error)
    assert [record.offset for record in records_of(replica.log)] == list(range(5))
    replica.faulty.crash()
    assert [record.offset for record in records_of(replica.recover())] == list(range(5))


def test_a_compaction_below_the_cut_goes_on() -> None:
    replica = compacted()
    task = replica.log.begin_compaction()
    assert task is not None
    replica.log.truncate_to(19)
    task.run()
    replica.log.finish_compaction(task, None)
    assert len(records_of(replica.log)) < 19
    assert replica.log.end_offset == 19


# -- the checkpoint's promise ---------------------------------------------------------------------------------


def test_a_checkpoint_is_written_only_when_the_one_on_disk_speaks_of_what_goes() -> None:
    replica = Replica(history_of(10))
    replica.log.flush()
    replica.save_checkpoint()
    promised = replica.log.end_offset
    more = history_of(5, "more", history_of(10), epoch=9)
    replica.log.append_replica(encode(more[10:]))
    replica.log.flush()
    replica.log.truncate_to(promised)
    assert replica.checkpoints == 1
    replica.log.truncate_to(promised - 1)
    assert replica.checkpoints == 2


def test_no_checkpoint_no_truncation_and_the_log_lives_on() -> None:
    replica = Replica(history_of(10))
    replica.log.flush()
    replica.save_checkpoint()
    replica.faulty.fail("write", error=OSError(errno.ENOSPC, "full"), path_contains="checkpoint")
    with pytest.raises(KafkaError, match="no checkpoint could be written"):
        replica.log.truncate_to(3)
    check(replica.log, history_of(10))
    replica.log.truncate_to(3)
    check(replica.log, cut(history_of(10), 3))


def test_without_room_for_a_new_segment_the_old_one_goes_on_once_it_is_synced() -> None:
    replica = Replica(history_of(10))
    replica.log.flush()
    replica.faulty.fail("open", error=OSError(errno.ENOSPC, "full"), path_contains=".log")
    replica.faulty.history.clear()
    replica.log.truncate_to(5)
    assert replica.log.segment_count == 1
    assert ("sync", LOG_PATH) in replica.faulty.history
    new = history_of(5, "new", cut(history_of(10), 5), epoch=30)
    replica.log.append_replica(encode(tuple(one for one in new if one.label == "new")))
    check(replica.log, new)
    replica.log.flush()
    replica.faulty.crash(power_cut=True)
    check(replica.recover(), new)


def test_a_log_that_starts_below_its_old_start_keeps_its_records_through_a_crash() -> None:
    replica = Replica(history_of(20))
    replica.log.start_at(15)
    replica.log.flush()
    replica.save_checkpoint()
    replica.log.truncate_fully_and_start_at(4)
    replica.log.append_replica(encode((Batch(4, 2, 30, 1, 0, 0, "new"),)))
    replica.faulty.crash()
    log = replica.recover()
    assert (log.start_offset, log.end_offset) == (4, 6)


def test_the_high_watermark_outlives_the_process_but_not_the_records() -> None:
    replica = Replica(history_of(10))
    replica.log.flush()
    replica.log.high_watermark = 9
    assert replica.log.checkpoint().high_watermark == 9
    replica.save_checkpoint()
    replica.faulty.crash()
    log = replica.recover()
    assert log.saved_high_watermark == 9
    assert log.checkpoint().high_watermark == 9, "also when nobody has set it yet"
    log.truncate_to(4)
    assert log.saved_high_watermark == log.end_offset
    log.truncate_fully_and_start_at(40)
    assert log.saved_high_watermark == 40


# -- a power cut at every step --------------------------------------------------------------------------------


class PowerCut(BaseException):
    """The machine is off."""


class CrashingFileSystem(FaultyFileSystem):
    """Stops for good at the nth operation."""

    def __init__(self) -> None:
        super().__init__()
        self.steps_left: int | None = None

    def _occurs(self, operation: str, path: str) -> None:
        if self.steps_left is not None:
            if self.steps_left == 0:
                raise PowerCut
            self.steps_left -= 1
        super()._occurs(operation, path)


def prepared(case: str) -> tuple[Replica, History, History, int]:
    """A replica, its history, the history it is about to get, and where they part."""
    old = history_of(24)
    replica = Replica(old, CrashingFileSystem(), segment_bytes=300 if "segments" in case else 1 << 20)
    replica.log.flush()
    if "checkpoint" in case:
        replica.save_checkpoint()
    more = history_of(3, "old", old, epoch=12)
    replica.log.append_replica(encode(more[24:]))
    offset = end_of(more) - 2 if "short" in case else 7
    new = history_of(30, "new", cut(more, offset), producers=2, epoch=40)
    return replica, more, new, offset


def replace_history(replica: Replica, new: History, offset: int) -> None:
    replica.log.truncate_to(offset)
    tail = tuple(one for one in new if one.label == "new")
    replica.log.append_replica(encode(tail[:10]))
    replica.log.flush()
    replica.save_checkpoint()
    replica.log.append_replica(encode(tail[10:]))
    replica.log.flush()


CASES = [
    f"{size} {segments} {saved}"
    for size in ("short", "long")
    for segments in ("one", "segments")
    for saved in ("checkpoint", "none")
]


@pytest.mark.parametrize("lose_names", [True, False, None])
@pytest.mark.parametrize("case", CASES)
def test_a_power_cut_at_any_step_leaves_one_history_or_the_other(case: str, lose_names: bool | None) -> None:
    step = 0
    while True:
        replica, old, new, offset = prepared(case)
        fs = replica.faulty
        assert isinstance(fs, CrashingFileSystem)
        flushed = min(replica.log.flushed_offset, end_of(cut(old, offset)))
        fs.steps_left = step
        try:
            replace_history(replica, new, offset)
        except PowerCut:
            done = False
        else:
            done = True
        fs.steps_left = None
        fs.crash(power_cut=True, seed=step, lose_names=lose_names)
        log = replica.recover()
        assert log.corruption is None, f"step {step}"
        assert log.end_offset >= flushed
        for history in (old, new):
            if stored(log) == encode(cut(history, log.end_offset)):
                check(log, cut(history, log.end_offset))
                break
        else:
            pytest.fail(f"step {step}: a mixture of both histories")
        if done:
            check(log, new)
            return
        # And it can be cut and go on again, through another power cut.
        log.truncate_to(min(offset, log.end_offset))
        base = cut(new, log.end_offset)
        assert stored(log) == encode(base)
        log.append_replica(encode(new[len(base) :]))
        check(log, new)
        log.flush()
        fs.crash(power_cut=True, seed=step + 1, lose_names=lose_names)
        check(replica.recover(), new)
        step += 1


def test_batches_of_a_client_survive_next_to_those_of_a_leader() -> None:
    """A broker leads, follows and leads again: the two ways to append leave one log."""
    fixture = Replica(segment_bytes=400)
    for number in range(6):
        fixture.log.append(batch(b"%d" % number), 1)
    fixture.log.truncate_to(4)
    fixture.log.append_replica(encode((Batch(4, 2, 2, -1, 0, 0, "replica"),)))
    fixture.log.begin_epoch(3)
    assert fixture.log.append(batch(b"own"), 3).base_offset == 6
    assert [fixture.log.epoch_at(offset) for offset in range(7)] == [1, 1, 1, 1, 2, 2, 3]
    fixture.faulty.crash()
    log = fixture.recover()
    assert [fixture.log.epoch_at(offset) for offset in range(7)] == [1, 1, 1, 1, 2, 2, 3]
    assert len(records_of(log)) == 7
