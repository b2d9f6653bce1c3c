"""One partition's log: appends, reads, flushes and the state that goes with them.

Everything here runs on the broker's one thread. Work that waits for the disk is split in three: begin (here,
takes what is needed), run (on any thread, touches only files and its own data), finish (here again).
"""

from __future__ import annotations

import contextlib
import errno
import struct
import zlib
from collections.abc import Callable
from typing import NamedTuple

from culver.clock import Clock
from culver.config import TopicConfig
from culver.errors import ErrorCode, KafkaError
from culver.filesystem import Buffer, FileSystem
from culver.log import names, timestamps
from culver.log.batches import HEADER, LENGTH_OVERHEAD_BYTES, HeaderFields
from culver.log.checkpoint import Checkpoint
from culver.log.doomed import DoomedFiles
from culver.log.flush import FlushTask, Unflushed
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_snapshot import encode_snapshot
from culver.log.producer_state import Producer
from culver.log.reading import EMPTY_READ, ColdRead, ReadResult, read_batches
from culver.log.recovery import Recovered, Recovery, empty_log
from culver.log.retention import segments_to_delete
from culver.log.segment import NEVER, RELATIVE_OFFSET_MAX, Segment
from culver.log.timestamps import TimestampedOffset
from culver.log.validation import Rules, validate
from culver.logging import get_logger

__all__ = ["AppendResult", "ColdRead", "PartitionLog", "ReadResult", "TimestampedOffset"]

_log = get_logger("culver.log")

_stamp = struct.Struct(">qii").pack_into
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_SNAPSHOTS_KEPT = 2
_TIME_INDEX_ENTRY_BYTES = 12


class AppendResult(NamedTuple):
    """Where a batch is in the log."""

    base_offset: int
    last_offset: int
    # -1 when the records keep the time their producer gave them.
    log_append_time_ms: int
    log_start_offset: int
    # The batch was there already: this is where it is, and nothing was written.
    duplicate: bool


_new_tuple = tuple.__new__  # a third of the time that calling the NamedTuple takes


class PartitionLog:
    """One partition's directory. Open it with `open` or `create`, leave it with `close` or `abandon`."""

    def __init__(
        self,
        fs: FileSystem,
        files: OpenFiles,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        limits: LogLimits,
    ) -> None:
        self._fs = fs
        self._files = files
        self._clock = clock
        self._limits = limits
        self.directory = directory
        self.config = config
        self._high_watermark: int | None = None
        # The write or sync that failed, or None. There is no way back but a restart.
        self.failed: OSError | None = None
        self._closed = False
        # Called after a roll: the closed segment wants to be flushed soon.
        self.on_roll: Callable[[PartitionLog], object] | None = None
        # Called before flushed batches are cut off: the checkpoint on disk must not promise them any more.
        self.before_truncation: Callable[[PartitionLog], object] | None = None
        self._flush_running: FlushTask | None = None
        self._doomed = DoomedFiles(fs)

    def _adopt(self, found: Recovered) -> None:
        """Take over what recovery has found."""
        self._segments = found.segments
        self._active = found.segments.active
        self._producers = found.producers
        self._epochs = found.epochs
        self._latest_epoch = found.epochs.latest
        self._snapshots = found.snapshots
        self.start_offset = found.start_offset
        self._end_offset = found.end_offset
        self.flushed_offset = found.flushed_offset
        # Why the log may not serve, or None.
        self.corruption = found.corruption
        self._unflushed = Unflushed([segment for segment in found.segments.items[:-1] if segment.unsynced])
        self.update_config(self.config)

    @classmethod
    def open(
        cls,
        fs: FileSystem,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        *,
        clean: bool,
        checkpoint: Checkpoint | None,
        limits: LogLimits | None = None,
        files: OpenFiles | None = None,
    ) -> PartitionLog:
        """Recover what the directory holds. Corruption raises nothing: see `corruption`."""
        limits = limits or LogLimits()
        files = files or OpenFiles(fs, limits.open_files_max)
        log = cls(fs, files, clock, directory, config, limits)
        recovery = Recovery(fs, files, directory, config, limits, clock.now_ms())
        log._adopt(recovery.run(clean=clean, checkpoint=checkpoint))
        return log

    @classmethod
    def create(
        cls,
        fs: FileSystem,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        *,
        limits: LogLimits | None = None,
        files: OpenFiles | None = None,
        base_offset: int = 0,
    ) -> PartitionLog:
        """A new, empty log. The directory is made; it must not hold a log."""
        limits = limits or LogLimits()
        files = files or OpenFiles(fs, limits.open_files_max)
        fs.make_directory(directory)
        log = cls(fs, files, clock, directory, config, limits)
        log._adopt(empty_log(fs, files, directory, limits, clock.now_ms(), base_offset))
        parent, _, _ = directory.rpartition("/")
        log._unflushed.directories = [directory, parent]
        return log

    # -- what it is ------------------------------------------------------------------------------------------

    @property
    def end_offset(self) -> int:
        """The offset that the next record gets (LEO)."""
        return self._end_offset

    @property
    def high_watermark(self) -> int:
        """Follows the end offset until it is set: with one replica they are the same."""
        high_watermark = self._high_watermark
        return self._end_offset if high_watermark is None else high_watermark

    @high_watermark.setter
    def high_watermark(self, offset: int | None) -> None:
        self._high_watermark = offset

    @property
    def size_bytes(self) -> int:
        return sum(segment.size_bytes for segment in self._segments.items)

    @property
    def segment_count(self) -> int:
        return len(self._segments)

    @property
    def last_timestamp_ms(self) -> int:
        """The largest timestamp in the active segment, -1 when there is none."""
        return self._active.max_timestamp_ms

    @property
    def latest_epoch(self) -> int:
        return self._latest_epoch

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch known up to `epoch`; (-1, -1) when there is none."""
        return self._epochs.end_offset(epoch, self._end_offset)

    def epoch_at(self, offset: int) -> int:
        """The leader epoch in which an offset was written, -1 when not known."""
        return self._epochs.epoch_at(offset)

    def producers(self) -> list[Producer]:
        """The idempotent producers that the log remembers."""
        return list(self._producers.producers.values())

    def offset_for_timestamp(self, timestamp_ms: int) -> TimestampedOffset | None:
        """The first record at or after a moment. May wait for the disk."""
        self._check_serving()
        return timestamps.offset_for_timestamp(
            self._segments, timestamp_ms, self.start_offset, self._limits.max_decompressed_bytes
        )

    def max_timestamp_offset(self) -> TimestampedOffset | None:
        """The first record among those with the largest timestamp. May wait for the disk."""
        self._check_serving()
        return timestamps.max_timestamp_offset(self._segments, self._limits.max_decompressed_bytes)

    def update_config(self, config: TopicConfig) -> None:
        """Work by other settings from now on."""
        self.config = config
        self._rules = Rules.of(config, self._limits)
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._index_entries_max = max(config.segment_index_bytes // _TIME_INDEX_ENTRY_BYTES, 1)
        self._plan_roll()

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, records: Buffer, leader_epoch: int) -> AppendResult:
        """Hot. Check a client's batch, give it offsets and write it; or raise KafkaError and do nothing.

        `records` should be writable: base offset and leader epoch are put into it rather than into a copy.
        """
        now_ms = self._clock.now_ms()
        batch, fields = validate(records, self._rules, now_ms)
        if fields[9] >= 0:
            stored = self._producers.check(fields[9], fields[10], fields[11], fields[12])
            if stored is not None:
                return AppendResult(
                    stored.first_offset, stored.last_offset, stored.timestamp_ms, self.start_offset, True
                )
        return self._write(batch, fields, leader_epoch, now_ms)

    def append_internal(self, batch: Buffer, leader_epoch: int) -> AppendResult:
        """Append one batch that the broker itself has made: trusted, and not checked again."""
        fields: HeaderFields = HEADER.unpack_from(batch)
        return self._write(batch, fields, leader_epoch, self._clock.now_ms())

    def _write(self, batch: Buffer, fields: HeaderFields, leader_epoch: int, now_ms: int) -> AppendResult:
        size = len(batch)
        segment = self._active
        position = segment.size_bytes
        base_offset = self._end_offset
        last_offset = base_offset + fields[6]
        max_timestamp_ms = fields[8]
        if (
            position + size > self._roll_at_bytes
            or max_timestamp_ms > self._roll_above_timestamp_ms
            or last_offset > self._roll_above_offset
        ):
            segment = self._make_room(size)
            position = segment.size_bytes
        file = segment.file
        if file is None or self.failed is not None or self.corruption is not None or self._closed:
            self._check_serving()
            file = segment.open_file()
        try:
            _stamp(batch, 0, base_offset, size - LENGTH_OVERHEAD_BYTES, leader_epoch)
        except (TypeError, BufferError):  # not writable
            batch = bytearray(batch)
            _stamp(batch, 0, base_offset, size - LENGTH_OVERHEAD_BYTES, leader_epoch)
        try:
            file.pwrite(batch, position)
        except OSError as error:
            raise self._write_failed(error, position) from error
        segment.size_bytes = position + size
        segment.unsynced = True
        self._end_offset = last_offset + 1
        if max_timestamp_ms > segment.max_timestamp_ms:
            segment.max_timestamp_ms = max_timestamp_ms
            segment.max_timestamp_offset = last_offset
        since = segment.bytes_since_index_entry
        if since > self._index_interval_bytes:
            segment.add_index_entry(last_offset, position)
            self._plan_roll()
            since = 0
        segment.bytes_since_index_entry = since + size
        if position == 0:
            segment.first_timestamp_ms = max_timestamp_ms
            self._plan_roll()
        if leader_epoch != self._latest_epoch:
            self._epochs.assign(leader_epoch, base_offset)
            self._latest_epoch = self._epochs.latest
        if fields[9] >= 0:
            self._note_producer(fields, base_offset, now_ms)
        append_time_ms = max_timestamp_ms if fields[5] & 8 else -1
        return _new_tuple(AppendResult, (base_offset, last_offset, append_time_ms, self.start_offset, False))

    def _note_producer(self, fields: HeaderFields, base_offset: int, now_ms: int) -> None:
        if fields[11] >= 0:
            self._producers.record(
                fields[9], fields[10], fields[11], fields[6] + 1, base_offset, fields[8], now_ms
            )
        else:
            self._producers.bump_epoch(fields[9], fields[10], fields[8], now_ms)

    def _check_serving(self) -> None:
        if self.failed is not None:
            raise KafkaError(
                ErrorCode.KAFKA_STORAGE_ERROR,
                f"{self.directory} has failed, restart the broker to recover it: {self.failed}",
            )
        if self.corruption is not None:
            raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"the log is corrupt: {self.corruption}")
        if self._closed:
            raise KafkaError(ErrorCode.NOT_LEADER_OR_FOLLOWER, f"{self.directory} is closed")

    def _write_failed(self, error: OSError, position: int) -> KafkaError:
        """A write did not go through: bring the file back to its old size, or give the log up."""
        if error.errno in _DISK_FULL:
            try:
                self._active.open_file().truncate(position)
            except OSError as second:
                error = second
            else:
                return self._disk_full()
        return self._fail(error)

    def _disk_full(self) -> KafkaError:
        _log.warning("disk full, append refused", log=self.directory)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"no space left on the disk of {self.directory}")

    def _fail(self, error: OSError) -> KafkaError:
        """Give the log up: what a failed write or sync has left on disk only recovery can find out."""
        if self.failed is None:
            self.failed = error
            _log.error("log failed", log=self.directory, error=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} failed: {error}")

    # -- rolling ---------------------------------------------------------------------------------------------

    def _plan_roll(self) -> None:
        """Where the active segment ends, for every append to look at."""
        segment = self._active
        self._roll_at_bytes = self._segment_bytes
        if segment.offset_index is not None and len(segment.offset_index) >= self._index_entries_max:
            self._roll_at_bytes = 0
        self._roll_above_offset = segment.base_offset + RELATIVE_OFFSET_MAX
        self._roll_above_timestamp_ms = NEVER
        if segment.first_timestamp_ms != NEVER:
            jitter_max_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
            # Spread by name rather than by chance: the same log always behaves the same way.
            jitter_ms = zlib.crc32(segment.path.encode()) % jitter_max_ms if jitter_max_ms else 0
            self._roll_above_timestamp_ms = segment.first_timestamp_ms + self.config.segment_ms - jitter_ms

    def _make_room(self, size: int) -> Segment:
        """The segment that a batch of `size` goes to, now that the active one is full or old."""
        self._check_serving()
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch has {size} bytes, segment.bytes allows {self._segment_bytes}",
            )
        return self.roll() if self._active.size_bytes else self._active

    def roll(self) -> Segment:
        """Close the active segment, which must not be empty, and start another at the end offset."""
        closing = self._active
        assert closing.size_bytes
        segment = Segment(self._fs, self._files, self.directory, self._end_offset, self._clock.now_ms())
        segment.start_empty()
        try:
            closing.finish_time_index()
            segment.open_file(create=True)
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise self._disk_full() from error
            raise self._fail(error) from error
        self._unflushed.closed_segments.append(closing)
        self._unflushed.snapshots.append((self._end_offset, encode_snapshot(self._producers)))
        self._unflushed.note_new_names(self.directory)
        self._segments.add(segment)
        self._active = segment
        self._plan_roll()
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    # -- reading ---------------------------------------------------------------------------------------------

    def read(
        self,
        offset: int,
        max_bytes: int,
        up_to_offset: int,
        *,
        at_least_one: bool = True,
        wait: bool = False,
    ) -> ReadResult | ColdRead:
        """Hot. Batches from the one that holds `offset`, below `up_to_offset`, of about `max_bytes`.

        With `at_least_one` the first batch is returned whole however large it is; without, nothing is
        returned when it does not fit. Never waits for the disk unless told to: a ColdRead says what to load
        first.
        """
        end_offset = self._end_offset
        if offset < self.start_offset or offset > end_offset:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} is not within [{self.start_offset}, {end_offset}]",
            )
        if self.corruption is not None or self._closed:
            self._check_serving()
        if up_to_offset > end_offset:
            up_to_offset = end_offset
        if offset >= up_to_offset:
            return EMPTY_READ
        return read_batches(
            self._fs, self._segments, end_offset, offset, max_bytes, up_to_offset, at_least_one, wait
        )

    # -- flushing --------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushTask | None:
        """What to do so that everything appended so far survives a power cut.

        None when there is nothing to do, or while another flush runs: ask again when that one has finished.
        """
        if self._flush_running is not None or self._closed or self.failed or self.corruption is not None:
            return None
        self._snapshots += [offset for offset, _ in self._unflushed.snapshots]
        try:
            task = self._unflushed.take(
                self._fs, self.directory, self._active, self._end_offset, self._epochs
            )
        except OSError as error:
            raise self._fail(error) from error
        self._flush_running = task
        return task

    def finish_flush(self, task: FlushTask, error: BaseException | None) -> None:
        """Take note of how a flush went."""
        self._flush_running = None
        for segment in task.segments:
            segment.unpin()
        if self._closed:
            return
        if error is not None:
            self._fail(error if isinstance(error, OSError) else OSError(errno.EIO, str(error)))
            return
        self.flushed_offset = max(self.flushed_offset, min(task.up_to_offset, self._end_offset))
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._remove_if_there(names.segment_name(self._snapshots.pop(0), names.SNAPSHOT))

    def flush(self) -> None:
        """All three steps at once, for those who may wait."""
        task = self.begin_flush()
        if task is None:
            return
        try:
            task.run()
        except OSError as error:
            self.finish_flush(task, error)
            raise
        self.finish_flush(task, None)

    # -- removing --------------------------------------------------------------------------------------------

    def delete_records(self, before_offset: int) -> int:
        """Let the log start at `before_offset`; returns where it starts now. Files go with retention."""
        self._check_serving()
        if not 0 <= before_offset <= self.high_watermark:
            raise KafkaError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"cannot delete before {before_offset}: the high watermark is {self.high_watermark}",
            )
        self._start_at(before_offset)
        return self.start_offset

    def _start_at(self, offset: int) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self._epochs.truncate_from_start(offset)

    def retention_step(self, now_ms: int) -> int:
        """Delete the segments that retention no longer allows, and forget silent producers.

        Returns how many segments went. Looks at indexes of old segments, which may be on disk.
        """
        if self.failed is not None or self.corruption is not None or self._closed:
            return 0
        self._producers.expire(now_ms, self._limits.producer_id_expiration_ms)
        due = segments_to_delete(
            self._fs,
            self._segments,
            self.config,
            self.start_offset,
            self.high_watermark,
            self._end_offset,
            now_ms,
        )
        if due == len(self._segments):
            self.roll()  # everything is expired: the log goes on in an empty segment
        for segment in self._segments.items[:due]:
            self._delete_segment(segment, now_ms)
        if due:
            self._start_at(self._segments.items[0].base_offset)
        return due

    def _delete_segment(self, segment: Segment, now_ms: int) -> None:
        self._doomed.add(segment, now_ms + self.config.file_delete_delay_ms)
        self._segments.remove(segment)
        if segment in self._unflushed.closed_segments:
            self._unflushed.closed_segments.remove(segment)
        segment.close_file()

    def take_doomed(self, now_ms: int) -> list[str]:
        """Paths of files that were deleted long enough ago; the caller removes them, on any thread."""
        return self._doomed.take(now_ms)

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from the batch that holds `offset` on. Waits for the disk."""
        self._check_serving()
        if offset >= self._end_offset:
            return
        if offset < self._segments.items[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        at = self._segments.index_of(offset)
        segment = self._segments.items[at]
        position = segment.position_of(offset, True)
        now_ms = self._clock.now_ms()
        self._take_back_promise(segment.base_offset)
        try:
            for later in reversed(self._segments.items[at + 1 :]):
                self._delete_segment(later, now_ms)
            segment.open_file().truncate(position)
            for suffix in (names.OFFSET_INDEX, names.TIME_INDEX):
                self._remove_if_there(names.segment_name(segment.base_offset, suffix))
            segment.close_file()
            # What is left is read again: indexes, epochs and producers then are those of the batches.
            recovery = Recovery(self._fs, self._files, self.directory, self.config, self._limits, now_ms)
            self._adopt(recovery.run(clean=False, checkpoint=self.checkpoint()))
        except OSError as error:
            raise self._fail(error) from error

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything and go on with an empty log at `offset`."""
        self._check_serving()
        now_ms = self._clock.now_ms()
        self._take_back_promise(min(offset, self.start_offset))
        try:
            for segment in reversed(self._segments.items):
                self._delete_segment(segment, now_ms)
            for snapshot in self._snapshots:
                self._remove_if_there(names.segment_name(snapshot, names.SNAPSHOT))
            self._remove_if_there(names.LEADER_EPOCHS)
            self._adopt(empty_log(self._fs, self._files, self.directory, self._limits, now_ms, offset))
        except OSError as error:
            raise self._fail(error) from error
        self._unflushed.note_new_names(self.directory)

    def _take_back_promise(self, offset: int) -> None:
        # A checkpoint on disk that promises more than there will be would make the next start see a loss.
        if self.flushed_offset > offset:
            self.flushed_offset = offset
            if self.before_truncation is not None:
                self.before_truncation(self)

    def _remove_if_there(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(f"{self.directory}/{name}")

    # -- ending ----------------------------------------------------------------------------------------------

    def checkpoint(self) -> Checkpoint:
        """What the next start should know."""
        active = self._active
        return Checkpoint(
            start_offset=self.start_offset,
            recovery_point=self.flushed_offset,
            end_offset=self._end_offset,
            active_base_offset=active.base_offset,
            active_size_bytes=active.size_bytes,
            first_timestamp_ms=active.first_timestamp_ms,
            max_timestamp_ms=active.max_timestamp_ms,
            max_timestamp_offset=active.max_timestamp_offset,
            producers=len(self._producers),
            trusted=self.corruption is None and self.failed is None,
        )

    def close(self) -> None:
        """Sync everything, so that the next start need not read it. A failed log is only closed."""
        if not self._closed and self.failed is None and self.corruption is None:
            try:
                self._save_all()
            except OSError as error:
                self._fail(error)
        self.abandon()

    def _save_all(self) -> None:
        if self._producers.producers and self._end_offset not in self._snapshots:
            self._unflushed.snapshots.append((self._end_offset, encode_snapshot(self._producers)))
        active = self._active
        if active.offset_index is not None and active.size_bytes > self._index_interval_bytes:
            active.finish_time_index()
            active.save_indexes(self._fs)
        self.flush()

    def abandon(self) -> None:
        """Let go of the files and write nothing more, as before deleting the directory."""
        self._closed = True
        for segment in self._segments.items:
            segment.close_file()
