"""A log full of transactions, through everything that can happen to a log, against a simple model."""

from __future__ import annotations

import contextlib
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from log_batches import LogFixture
from log_transaction_model import Entry, TransactionModel

from culver.log.checkpoint import Checkpoint
from culver.log.limits import LogLimits
from culver.log.partition_log import PartitionLog, ReadResult
from culver.log.segment import NEVER
from culver.log.transactions import UNVERIFIED_OK
from culver.protocol.control_records import decode_end_marker
from culver.protocol.records import Record, decode_records, encode_batch, iterate_headers

# Whether a marker raises the epoch is the producer's version of the protocol.
RAISING = {1: False, 2: False, 3: True, 4: True}
TRANSACTIONAL = st.sampled_from(sorted(RAISING))
IDEMPOTENT = st.sampled_from([1, 3, 11, 12])
KEYS = st.sampled_from([b"a", b"b", b"c"])


class LogOfTransactions(RuleBasedStateMachine):
    """`compacted` logs are compared by what readers see; others in every detail."""

    compacted = False

    @initialize()
    def create(self) -> None:
        policy = frozenset({"compact" if self.compacted else "delete"})
        self.fixture = LogFixture(
            cleanup_policy=policy,
            min_cleanable_dirty_ratio=0.0,
            delete_retention_ms=1000,
            index_interval_bytes=100,
            retention_ms=10_000,
        )
        self.model = TransactionModel()
        self.saved: Checkpoint | None = None
        # What a marker ended is not known of those before: they hold nothing back any more.
        self.waits_from = 0
        # Where the log was cut off since the last flush: a power cut may bring back what there was.
        self.cut_at = NEVER

    @property
    def log(self) -> PartitionLog:
        return self.fixture.log

    # -- writing ---------------------------------------------------------------------------------------------

    def _batch(self, entry: Entry) -> memoryview:
        records = [
            Record(at, self.fixture.clock.now_ms(), key, value, ())
            for at, (_, key, value) in enumerate(entry.values())
        ]
        return memoryview(
            encode_batch(
                records,
                producer_id=entry.producer_id,
                producer_epoch=entry.epoch,
                base_sequence=entry.sequence,
                is_transactional=entry.transactional,
            )
        )

    def _append(self, **fields: Any) -> None:
        entry = Entry(self.log.end_offset, **fields)
        assert self.log.append(self._batch(entry), 0, UNVERIFIED_OK).base_offset == entry.offset
        self.model.entries.append(entry)

    @rule(count=st.integers(1, 3), key=KEYS)
    def append(self, count: int, key: bytes) -> None:
        self._append(count=count, key=key)

    @rule(producer_id=IDEMPOTENT, count=st.integers(1, 3), key=KEYS)
    def append_idempotent(self, producer_id: int, count: int, key: bytes) -> None:
        if producer_id not in self.model.transactions()[0]:
            epoch, sequence = self.model.producer(producer_id)
            self._append(producer_id=producer_id, epoch=epoch, sequence=sequence, count=count, key=key)

    @rule(producer_id=TRANSACTIONAL, count=st.integers(1, 3), key=KEYS)
    def append_in_transaction(self, producer_id: int, count: int, key: bytes) -> None:
        epoch, sequence = self.model.producer(producer_id)
        self._append(
            producer_id=producer_id, epoch=epoch, sequence=sequence, count=count, transactional=True, key=key
        )

    @rule(producer_id=TRANSACTIONAL, committed=st.booleans())
    def end_transaction(self, producer_id: int, committed: bool) -> None:
        epoch, _ = self.model.producer(producer_id)
        version = 2 if RAISING[producer_id] else 1
        entry = Entry(self.log.end_offset, 1, producer_id, epoch + version - 1, committed=committed)
        written = self.log.append_marker(producer_id, entry.epoch, committed, 0, version, 0)
        assert written.base_offset == entry.offset
        self.model.entries.append(entry)

    # -- what becomes of it ----------------------------------------------------------------------------------

    @rule(share=st.integers(0, 4))
    def raise_high_watermark(self, share: int) -> None:
        now = self.log.high_watermark
        self.log.high_watermark = self._batch_at(now + (self.log.end_offset - now) * share // 4)

    def _batch_at(self, offset: int) -> int:
        """Where the batch that holds an offset begins, or would."""
        log = self.log
        if offset >= log.end_offset:
            return log.end_offset
        return max([log.start_offset, *(one.offset for one in self.model.entries if one.offset <= offset)])

    @rule()
    def roll(self) -> None:
        if self.log._active.size_bytes:
            self.log.roll()

    @rule()
    def flush(self) -> None:
        self.log.flush()
        self.cut_at = NEVER

    @rule()
    def save_checkpoint(self) -> None:
        self.saved = self.log.checkpoint()

    def _opened(self, high_watermark: int) -> None:
        log = self.log
        assert log.corruption is None
        self.model.truncate(log.end_offset)
        if log.start_offset == log.end_offset > self.model.end_offset:
            # All that came after what was deleted is lost.
            self.model = TransactionModel([], log.start_offset)
        self._learn()
        self.saved = None if self.saved is None else log.checkpoint()
        self.waits_from = log.end_offset
        log.high_watermark = max(min(high_watermark, log.end_offset), log.start_offset)

    def _learn(self) -> None:
        log = self.log
        while self.model.end_offset < log.end_offset and log.start_offset <= self.model.end_offset:
            read = log.read(self.model.end_offset, 1 << 20, log.end_offset, wait=True)
            assert isinstance(read, ReadResult)
            for header, batch in whole_batches(bytes(read.buffers[0])):  # type: ignore[arg-type]
                marker = decode_end_marker(batch) if header.is_control else None
                records = decode_records(batch, 1 << 20)
                self.model.entries.append(
                    Entry(
                        header.base_offset,
                        header.last_offset_delta + 1,
                        header.producer_id,
                        header.producer_epoch,
                        header.base_sequence,
                        header.is_transactional and not header.is_control,
                        marker.committed if marker is not None else None,
                        (records[0].key if records else None) or b"",
                    )
                )

    @rule(unknown=st.booleans())
    def crash(self, unknown: bool) -> None:
        high_watermark = self.log.high_watermark
        self.fixture.faulty.crash()
        self.fixture.reopen(checkpoint=None if unknown and not self.compacted else self.saved)
        assert self.log.end_offset == self.model.end_offset
        self._opened(high_watermark)

    @rule(seed=st.integers(0, 9), lose_names=st.sampled_from([True, False, None]))
    def cut_power(self, seed: int, lose_names: bool | None) -> None:
        high_watermark, flushed_offset = self.log.high_watermark, self.log.flushed_offset
        self.fixture.faulty.crash(power_cut=True, seed=seed, lose_names=lose_names)
        self.fixture.reopen(checkpoint=self.saved)
        assert self.log.end_offset >= flushed_offset
        self.model.truncate(self.cut_at)
        self.cut_at = NEVER
        self._opened(high_watermark)

    @rule()
    def restart(self) -> None:
        high_watermark = self.log.high_watermark
        self.fixture.close_and_reopen()
        self.cut_at = NEVER
        self.saved = self.log.checkpoint()
        self._opened(high_watermark)

    @rule(share=st.integers(0, 3), unclean=st.booleans())
    def truncate(self, share: int, unclean: bool) -> None:
        log = self.log
        unclean = unclean and not self.compacted  # what was there before is gone
        lowest = log.start_offset if unclean else log.high_watermark
        log.on_checkpoint_outdated = lambda log: setattr(self, "saved", log.checkpoint())
        log.truncate_to(lowest + (log.end_offset - lowest) * share // 4)
        self.model.truncate(log.end_offset)
        self.cut_at = min(self.cut_at, log.end_offset)
        if unclean:
            self.waits_from = log.end_offset

    @rule(share=st.integers(0, 3))
    def delete_records(self, share: int) -> None:
        log = self.log
        log.delete_records(log.start_offset + (log.last_stable_offset - log.start_offset) * share // 4)

    @rule(later_ms=st.sampled_from([10, 1500, 20_000]))
    def clean_up(self, later_ms: int) -> None:
        fixture = self.fixture
        fixture.clock.advance_ms(later_ms)
        firsts = [one.first_offset for one in self.log.open_transactions()]
        first_open = max(min(firsts, default=self.log.end_offset), self.log.start_offset)
        kept = [one for one in self.log._segments.items if one.base_offset >= first_open]
        self.log.retention_step(fixture.clock.now_ms())
        assert set(kept) <= set(self.log._segments.items)
        for path in self.log.take_doomed(fixture.clock.now_ms()):
            with contextlib.suppress(FileNotFoundError):
                fixture.fs.remove(path)

    @precondition(lambda self: self.compacted)
    @rule(
        later_ms=st.sampled_from([10, 1500]),
        keys_max=st.sampled_from([1000, 2]),
        interrupted=st.sampled_from(["", "", "crash", "power cut"]),
        seed=st.integers(0, 9),
    )
    def compact(self, later_ms: int, keys_max: int, interrupted: str, seed: int) -> None:
        self.fixture.clock.advance_ms(later_ms)
        self.flush()  # markers that are lost would leave transactions open of which it has dropped the beginning
        task = self.log.begin_compaction()
        if task is None:
            return
        assert task._sources[-1].end_offset <= self.log.last_stable_offset
        task._limits = LogLimits(dedupe_buffer_bytes=200 * keys_max)
        task.run()
        if interrupted == "crash":
            self.crash(False)
        elif interrupted:
            self.cut_power(seed, None)
        else:
            self.log.finish_compaction(task, None)

    # -- what must hold --------------------------------------------------------------------------------------

    @invariant()
    def open_transactions_are_known(self) -> None:
        begun, _ = self.model.transactions()
        found = {one.producer_id: one.first_offset for one in self.log.open_transactions()}
        for producer_id, first_offset in list(begun.items()):
            if first_offset < self.log.start_offset and found.get(producer_id) != first_offset:
                # Its beginning was deleted: after a recovery all of that may be forgotten.
                begun.pop(producer_id)
                assert found.pop(producer_id, first_offset) >= first_offset
        assert found == begun
        assert list(found.values()) == sorted(found.values())
        for producer_id in RAISING:
            epoch, _ = self.model.producer(producer_id)
            assert self.log.transaction_open(producer_id, epoch) or producer_id not in begun

    @invariant()
    def the_last_stable_offset_is_right(self) -> None:
        high_watermark, start_offset = self.log.high_watermark, self.log.start_offset
        expected = max(self.model.last_stable_offset(high_watermark), start_offset)
        found = self.log.last_stable_offset
        if self.model.last_stable_offset(high_watermark) < start_offset:
            # After a recovery it may not be known what was open there.
            assert expected <= found <= high_watermark
        elif high_watermark < self.waits_from:
            highest = self.model.last_stable_offset(high_watermark, waiting=False)
            assert expected <= found <= max(highest, start_offset)
        else:
            assert found == expected

    @rule(share=st.integers(0, 4))
    def read_committed(self, share: int) -> None:
        log = self.log
        stable = log.last_stable_offset
        start = log.start_offset + (stable - log.start_offset) * share // 4
        visible = read_committed(log, start, stable)
        expected = self.model.committed(start, stable)
        if not self.compacted:
            assert visible == expected
            if log.start_offset == 0:
                middle = (start + stable) // 2
                assert log.aborted_transactions(start, middle) == (
                    self.model.aborted(start, middle) if start < middle else []
                )
            return
        assert set(visible) <= set(expected)
        assert {key: value for _, key, value in visible} == {key: value for _, key, value in expected}

    def teardown(self) -> None:
        if hasattr(self, "fixture") and not self.compacted and self.log.start_offset == 0:
            self.read_committed(0)
            self._follower_agrees()

    def _follower_agrees(self) -> None:
        follower = LogFixture(directory="/data/follower-0").log
        while follower.end_offset < self.log.end_offset:
            read = self.log.read(follower.end_offset, 400, self.log.end_offset, wait=True)
            assert isinstance(read, ReadResult)
            follower.append_replica(read.buffers[0])  # type: ignore[arg-type]
        assert [one[:3] for one in follower.open_transactions()] == [
            one[:3] for one in self.log.open_transactions()
        ]
        end_offset = follower.end_offset
        assert follower.aborted_transactions(0, end_offset) == self.model.aborted(0, end_offset)


def read_committed(log: PartitionLog, offset: int, up_to_offset: int) -> list[tuple[int, bytes, bytes]]:
    """What Kafka's consumer would return, fetch by fetch."""
    found = []
    while offset < up_to_offset:
        read = log.read(offset, 500, up_to_offset, wait=True)
        assert isinstance(read, ReadResult)
        if not read.size:
            break
        waiting = log.aborted_transactions(offset, up_to_offset)
        aborting: set[int] = set()
        data = bytes(read.buffers[0])  # type: ignore[arg-type]
        before = offset
        for header, batch in whole_batches(data):
            while waiting and waiting[0][1] <= header.last_offset:
                aborting.add(waiting.pop(0)[0])
            if header.is_control:
                marker = decode_end_marker(batch)
                if marker is not None and not marker.committed:
                    aborting.discard(header.producer_id)
            elif not (header.is_transactional and header.producer_id in aborting):
                found += [
                    (one.offset, one.key or b"", one.value or b"")
                    for one in decode_records(batch, 1 << 20)
                    if offset <= one.offset < up_to_offset
                ]
            before = header.last_offset + 1
        assert before > offset
        offset = before
    return found


def whole_batches(data: bytes) -> list[tuple[Any, bytes]]:
    found = []
    at = 0
    while at + 61 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        if at + size > len(data):
            break
        batch = data[at : at + size]
        ((_, header),) = iterate_headers(batch)
        found.append((header, batch))
        at += size
    return found


class CompactedLogOfTransactions(LogOfTransactions):
    compacted = True


TestLogOfTransactions = LogOfTransactions.TestCase
TestLogOfTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCompactedLogOfTransactions = CompactedLogOfTransactions.TestCase
TestCompactedLogOfTransactions.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
