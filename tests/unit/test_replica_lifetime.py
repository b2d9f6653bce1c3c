"""A follower's log in any order of events, against histories that are plain tuples of batches."""

from __future__ import annotations

import contextlib
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from log_batches import LogFixture
from replica_model import Batch, History, check, cut, encode, end_of, next_batch, stored

from culver.log import producer_search, progress
from culver.log.checkpoint import Checkpoint
from culver.log.flush import FlushTask

STEPS = [
    *["fetch"] * 8,
    *["truncate"] * 3,
    *["begin flush"] * 2,
    *["finish flush"] * 2,
    "flush",
    "lead",
    "start over",
    "leader deletes",
    "retention",
    "checkpoint",
    "kill",
    *["power cut"] * 2,
    "restart",
    "new epoch",
    "remove",
]


class Life:
    """A replica, its history, and the histories that a power cut could bring back."""

    def __init__(self, data: st.DataObject) -> None:
        self.data = data
        self.fixture = LogFixture(
            index_interval_bytes=200,
            segment_bytes=data.draw(st.sampled_from([400, 900, 1 << 20])),
            file_delete_delay_ms=0,
            retention_ms=-1,
        )
        self.fixture.log.flush()
        self.history: History = ()
        self.past: list[History] = []
        self.epoch = 1
        self.branch = 0
        self.checkpoint: Checkpoint | None = None
        self.flushing: FlushTask | None = None
        self._listen()

    @property
    def log(self):  # type: ignore[no-untyped-def]
        return self.fixture.log

    def _listen(self) -> None:
        self.log.on_checkpoint_outdated = lambda _: self._write_checkpoint()
        self.log.high_watermark = min(self.log.saved_high_watermark, self.log.end_offset)

    def step(self, name: str) -> None:
        getattr(self, "do_" + name.replace(" ", "_"))()
        check(self.log, self.history)
        assert self.log.start_offset <= self.log.high_watermark <= self.log.end_offset

    # -- what a leader does to it --------------------------------------------------------------------------

    def do_fetch(self) -> None:
        start = self.log.end_offset
        batches: History = ()
        for _ in range(self.data.draw(st.integers(1, 6))):
            producer_id = self.data.draw(st.integers(-1, 3))
            count = self.data.draw(st.integers(1, 3))
            one = next_batch(self.history + batches, self.epoch, producer_id, count, f"b{self.branch}", start)
            if producer_id >= 0 and self.data.draw(st.integers(0, 9)) == 0:
                one = Batch(
                    one.base_offset, count, self.epoch, producer_id, one.producer_epoch + 1, 0, one.label
                )
            batches += (one,)
        self.log.append_replica(encode(batches), fetched_from=start)
        self.history += batches
        self.log.high_watermark = self.data.draw(st.integers(self.log.high_watermark, self.log.end_offset))

    def do_truncate(self) -> None:
        before = self.log.start_offset
        offset = self.data.draw(st.integers(max(before - 1, 0), self.log.end_offset))
        self.past.append(self.history)
        self.log.truncate_to(offset)
        assert self.log.end_offset <= offset
        self.history = cut(self.history, self.log.end_offset)
        self.branch += 1
        self.epoch += 1

    def do_start_over(self) -> None:
        offset = self.data.draw(st.integers(0, self.log.end_offset + 5))
        self.past.append(self.history)
        self.log.truncate_fully_and_start_at(offset)
        assert (self.log.start_offset, self.log.end_offset) == (offset, offset)
        self.history = ()
        self.branch += 1
        self.epoch += 1

    def do_leader_deletes(self) -> None:
        offset = self.data.draw(st.integers(0, self.log.end_offset + 2))
        beyond = offset > self.log.end_offset
        if beyond:
            self.past.append(self.history)
        self.log.start_at(offset)
        if beyond:
            self.history = ()
            self.branch += 1

    def do_lead(self) -> None:
        """It leads for a while, without a record being written, and follows again."""
        self.log.begin_epoch(self.epoch + 1)
        assert self.log.epoch_end_offset(self.epoch + 1) == (self.epoch + 1, self.log.end_offset)
        self.log.truncate_to(self.log.end_offset)

    def do_new_epoch(self) -> None:
        self.epoch += 1

    # -- what the broker does ------------------------------------------------------------------------------

    def do_begin_flush(self) -> None:
        if self.flushing is None:
            self.flushing = self.log.begin_flush()

    def do_finish_flush(self) -> None:
        if self.flushing is not None:
            self.log.extend_flush(self.flushing)
            self.flushing.run()
            self.log.finish_flush(self.flushing, None)
            self.flushing = None

    def do_flush(self) -> None:
        self.do_finish_flush()
        self.log.flush()
        assert self.log.flushed_offset == self.log.end_offset
        self.past.clear()

    def do_retention(self) -> None:
        self.log.retention_step(self.fixture.clock.now_ms())

    def do_checkpoint(self) -> None:
        self._write_checkpoint()

    def _write_checkpoint(self) -> None:
        saved = self.log.progress_file()
        if saved is not None:
            self.fixture.fs.write_atomic(*saved, sync=False)
        self.checkpoint = self.log.checkpoint()

    def do_remove(self) -> None:
        for path in self.log.take_doomed(self.fixture.clock.now_ms()):
            with contextlib.suppress(FileNotFoundError):
                self.fixture.fs.remove(path)

    # -- ends ----------------------------------------------------------------------------------------------

    def do_kill(self) -> None:
        end_offset = self.log.end_offset
        self.fixture.faulty.crash()
        self._reopen(clean=False)
        assert self.log.end_offset == end_offset, "a killed process loses nothing"

    def do_restart(self) -> None:
        self.do_finish_flush()
        start_offset, high_watermark = self.log.start_offset, self.log.high_watermark
        self.log.close()
        self.checkpoint = self.log.checkpoint()
        self.past.clear()
        self._reopen(clean=True)
        assert (self.log.start_offset, self.log.high_watermark) == (start_offset, high_watermark)

    def do_power_cut(self) -> None:
        flushed = self.log.flushed_offset
        self.fixture.faulty.crash(
            power_cut=True,
            seed=self.data.draw(st.integers(0, 1000)),
            lose_names=self.data.draw(st.sampled_from([True, False, None])),
        )
        self._reopen(clean=False)
        assert self.log.corruption is None
        assert self.log.end_offset >= flushed
        for history in (self.history, *reversed(self.past)):
            kept = cut(history, self.log.end_offset)
            visible = tuple(one for one in kept if one.end_offset > self.log.start_offset)
            if (
                stored(self.log) == encode(visible)
                and end_of(visible, self.log.start_offset) == self.log.end_offset
            ):
                # All of it may be gone although the log starts further on: nothing is remembered then, either.
                self.history = kept if end_of(kept) >= self.log.start_offset else ()
                break
        else:
            raise AssertionError("the log is a mixture of histories")
        self.past.clear()
        self.branch += 1
        self.epoch += 1

    def _reopen(self, *, clean: bool) -> None:
        self.flushing = None
        self.fixture.reopen(clean=clean, checkpoint=self.checkpoint)
        self._listen()


@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=50),
    data=st.data(),
    save_every=st.sampled_from([1, 500, 1 << 20]),
)
def test_a_replica_is_what_its_leaders_made_it(
    steps: list[str], data: st.DataObject, save_every: int
) -> None:
    with (
        patch.multiple(progress, SAVE_EVERY_BYTES=save_every, REREAD_BYTES=150),
        patch.object(producer_search, "_STEP_BYTES", 200),
    ):
        life = Life(data)
        for step in steps:
            life.step(step)
        life.step("flush")
        life.step("power cut")
