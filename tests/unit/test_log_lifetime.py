"""A log's whole life in any order: everything that can happen to it, against a model that is a plain list."""

from __future__ import annotations

import contextlib
from typing import Any
from unittest.mock import patch

from hypothesis import given
from hypothesis import strategies as st
from log_batches import DIRECTORY, NOW_MS, LogFixture, records_of, sequenced

from culver.log import progress
from culver.log.checkpoint import Checkpoint

STEPS = [
    *["append"] * 8,
    *["flush"] * 2,
    "roll",
    "checkpoint",
    "kill",
    "power cut",
    "restart",
    "retention",
    "delete records",
    "truncate",
    "wait",
    "remove",
]


class Life:
    """A log and what should be in it: values[offset] for every offset that was ever given out."""

    def __init__(self, data: st.DataObject) -> None:
        self.fixture = LogFixture(
            index_interval_bytes=200,
            segment_bytes=700,
            retention_ms=10_000,
            segment_ms=20_000,
            file_delete_delay_ms=0,
        )
        self.data = data
        self.values: list[bytes] = []
        self.checkpoint: Checkpoint | None = None
        self.start_offset = 0
        self.fixture.log.flush()
        self.fixture.log.on_checkpoint_outdated = self._promise_less

    def step(self, name: str) -> None:
        getattr(self, name.replace(" ", "_"))()
        log = self.fixture.log
        assert log.corruption is None
        assert log.failed is None
        assert log.end_offset == len(self.values)
        assert log.start_offset >= self.start_offset
        assert log.flushed_offset <= log.end_offset
        stored = records_of(log, max_bytes=self.data.draw(st.integers(1, 1000)))
        assert [(r.offset, r.value) for r in stored] == list(enumerate(self.values))[log.start_offset :]

    def append(self) -> None:
        number = len(self.values)
        count = self.data.draw(st.integers(1, 3))
        now_ms = self.fixture.clock.now_ms()
        result = self.fixture.log.append(sequenced(1, number, count, timestamp=now_ms), number // 7)
        assert (result.base_offset, result.duplicate) == (number, False)
        self.values += [b"%d" % (number + index) for index in range(count)]

    def flush(self) -> None:
        self.fixture.log.flush()

    def roll(self) -> None:
        if self.fixture.log._active.size_bytes:
            self.fixture.log.roll()
            self.fixture.log.flush()

    def save_checkpoint(self) -> None:
        saved = self.fixture.log.progress_file()
        if saved is not None:
            self.fixture.fs.write_atomic(*saved, sync=False)
        self.checkpoint = self.fixture.log.checkpoint()

    def _promise_less(self, _log: Any) -> None:
        self.checkpoint = self.fixture.log.checkpoint()

    def kill(self) -> None:
        self.fixture.faulty.crash()
        self._reopen(clean=False)

    def power_cut(self) -> None:
        flushed = self.fixture.log.flushed_offset
        self.fixture.faulty.crash(power_cut=True, seed=self.data.draw(st.integers(0, 1000)))
        self._reopen(clean=False)
        end_offset = self.fixture.log.end_offset
        assert end_offset >= flushed
        del self.values[end_offset:]
        # Below the start the log may go on at offsets whose records never reached the disk.
        self.values += [b"gone"] * (end_offset - len(self.values))

    def restart(self) -> None:
        self.fixture.log.close()
        self.checkpoint = self.fixture.log.checkpoint()
        self._reopen(clean=True)
        assert self.fixture.log.start_offset == self.start_offset

    def _reopen(self, *, clean: bool) -> None:
        self.fixture.reopen(clean=clean, checkpoint=self.checkpoint)
        self.fixture.log.on_checkpoint_outdated = self._promise_less
        # A start that moved after the last checkpoint may have to move again.
        self.start_offset = self.fixture.log.start_offset

    def retention(self) -> None:
        self.fixture.log.retention_step(self.fixture.clock.now_ms())
        self.fixture.log.flush()
        self.start_offset = self.fixture.log.start_offset

    def delete_records(self) -> None:
        offset = self.data.draw(st.integers(0, len(self.values)))
        self.fixture.log.delete_records(offset)
        self.start_offset = max(self.start_offset, offset)
        assert self.fixture.log.start_offset == self.start_offset

    def truncate(self) -> None:
        log = self.fixture.log
        offset = self.data.draw(st.integers(log.start_offset, len(self.values)))
        log.truncate_to(offset)
        assert log.end_offset <= offset or offset == len(self.values)
        del self.values[log.end_offset :]
        self.start_offset = log.start_offset
        log.flush()

    def wait(self) -> None:
        self.fixture.clock.advance_ms(3000)

    def remove(self) -> None:
        for path in self.fixture.log.take_doomed(self.fixture.clock.now_ms()):
            with contextlib.suppress(FileNotFoundError):  # a restart may have been faster
                self.fixture.fs.remove(path)


@given(
    steps=st.lists(st.sampled_from(STEPS), max_size=60),
    data=st.data(),
    save_every=st.sampled_from([1, 500, 1 << 20]),
)
def test_a_log_is_what_was_appended_and_not_taken_away(
    steps: list[str], data: st.DataObject, save_every: int
) -> None:
    with patch.multiple(progress, SAVE_EVERY_BYTES=save_every, REREAD_BYTES=150):
        life = Life(data)
        for step in steps:
            life.step("save checkpoint" if step == "checkpoint" else step)
        life.restart()
        names = life.fixture.fs.list(DIRECTORY)
        assert not [name for name in names if name.endswith((".new", ".swap", ".cleaned"))]
        assert life.fixture.clock.now_ms() >= NOW_MS
