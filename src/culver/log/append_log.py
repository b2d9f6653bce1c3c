"""The hot half of a partition's log: appends, rolls, reads and flushes.

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
from culver.log import names
from culver.log.batches import (
    CONTROL,
    HEADER,
    LENGTH_OVERHEAD_BYTES,
    RELATIVE_OFFSET_MAX,
    TRANSACTIONAL,
    HeaderFields,
)
from culver.log.flush import DISK_FULL, FlushTask, Unflushed, mark_unflushed
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_snapshot import encode_snapshot
from culver.log.progress import SavedProgress
from culver.log.reading import EMPTY_READ, ColdRead, ReadResult, read_batches
from culver.log.recovery import Recovered
from culver.log.segment import NEVER, Segment
from culver.log.transactions import UNVERIFIED_OK
from culver.log.validation import Rules, validate
from culver.logging import get_logger

_log = get_logger("culver.log")

_stamp = struct.Struct(">qii").pack_into
_TIME_INDEX_ENTRY_BYTES = 12
# Of a producer's batch: more than the next of its records.
UNUSUAL = TRANSACTIONAL | CONTROL


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


class AppendLog:
    """What a log does all day. PartitionLog opens, cleans and closes it."""

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
        # Called once, when a write or sync has failed.
        self.on_failure: Callable[[AppendLog], object] | None = None
        # Called after a roll: the closed segment wants to be flushed soon.
        self.on_roll: Callable[[AppendLog], object] | None = None
        self._flush_running: FlushTask | None = None

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
        # The same as a position in the active segment; 0 when it is in an earlier one.
        self._flushed_position = found.flushed_position
        self._progress = SavedProgress()
        # Whether recovery cut something off the end. It was never acknowledged if a crash had left it unfinished; but
        # a bit that changed in the last batch looks just like that.
        self.tail_cut = found.tail_cut
        # Why the log may not serve, or None.
        self.corruption = found.corruption
        # From this offset on there is no aborted transaction, as far as has been looked.
        self._nothing_aborted_from = NEVER
        self._unflushed = Unflushed([segment for segment in found.segments.items[:-1] if segment.unsynced])
        self.update_config(self.config)

    def update_config(self, config: TopicConfig) -> None:
        """Work by other settings from now on."""
        self.config = config
        self._rules = Rules.of(config, self._limits)
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._index_entries_max = max(config.segment_index_bytes // _TIME_INDEX_ENTRY_BYTES, 1)
        self._plan_roll()

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

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, records: Buffer, leader_epoch: int, guard: object | None = None) -> AppendResult:
        """Hot. Check a client's batch, give it offsets and write it; or raise KafkaError and do nothing.

        `records` should be writable: base offset and leader epoch are put into it rather than into a copy.
        A batch that begins a transaction needs the guard of `begin_verification`.
        """
        now_ms = self._clock.now_ms()
        batch, fields = validate(records, self._rules, now_ms)
        if fields[9] >= 0:
            producers = self._producers
            if fields[5] & TRANSACTIONAL:
                stored = producers.check_transactional(fields[9], fields[10], fields[11], fields[12], guard)
            else:
                stored = producers.check(fields[9], fields[10], fields[11], fields[12])
                if stored is None and producers.transactions.open:
                    producers.check_outside(fields[9])
            if stored is not None:
                return AppendResult(
                    stored.first_offset, stored.last_offset, stored.timestamp_ms, self.start_offset, True
                )
        return self._write(batch, fields, leader_epoch, now_ms)

    def append_internal(
        self, batch: Buffer, leader_epoch: int, guard: object | None = UNVERIFIED_OK
    ) -> AppendResult:
        """Append one batch that the broker itself has made: trusted, and not checked again.

        Unless it is part of a transaction: then the producer's epoch must be right, and the guard if there is one.
        """
        fields: HeaderFields = HEADER.unpack_from(batch)
        if fields[5] & TRANSACTIONAL and fields[9] >= 0:
            self._producers.check_beginning(fields[9], fields[10], guard)
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
            if fields[5] & UNUSUAL or fields[11] < 0:
                self._note_unusual(HEADER.unpack_from(batch), batch, now_ms)
            else:
                self._producers.record(
                    fields[9], fields[10], fields[11], fields[6] + 1, base_offset, fields[8], now_ms
                )
        append_time_ms = max_timestamp_ms if fields[5] & 8 else -1
        return _new_tuple(AppendResult, (base_offset, last_offset, append_time_ms, self.start_offset, False))

    def _note_unusual(self, header: HeaderFields, batch: Buffer, now_ms: int) -> None:
        """What a batch in the log that is more than a producer's next says about the producer."""
        aborted = self._producers.note(header, batch, now_ms, self.high_watermark)
        if aborted is not None:
            index = self._active.aborted
            assert index is not None
            index.append(aborted)
            self._nothing_aborted_from = NEVER

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
        if error.errno in DISK_FULL:
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
            if self.on_failure is not None:
                self.on_failure(self)
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} failed: {error}")

    # -- rolling ---------------------------------------------------------------------------------------------

    def _plan_roll(self) -> None:
        """Where the active segment ends, for every append to look at."""
        segment = self._active
        self._roll_at_bytes = self._segment_bytes
        if segment.offset_index is not None and len(segment.offset_index) >= self._index_entries_max:
            self._roll_at_bytes = 0
        self._roll_above_offset = segment.base_offset + RELATIVE_OFFSET_MAX
        self._roll_above_timestamp_ms = self._timestamp_limit(segment, segment.first_timestamp_ms)

    def _timestamp_limit(self, segment: Segment, first_timestamp_ms: int) -> int:
        """A segment that begins with this timestamp takes none above the limit."""
        if first_timestamp_ms == NEVER:
            return NEVER
        segment_ms = self.config.segment_ms
        if "compact" in self.config.cleanup_policy:
            # Only closed segments are compacted: one may not stay open beyond the lag that is allowed.
            segment_ms = min(segment_ms, self.config.max_compaction_lag_ms)
        jitter_max_ms = min(self.config.segment_jitter_ms, segment_ms)
        # Spread by name rather than by chance: the same log always behaves the same way.
        jitter_ms = zlib.crc32(segment.path.encode()) % jitter_max_ms if jitter_max_ms else 0
        return first_timestamp_ms + segment_ms - jitter_ms

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
            mark_unflushed(self._fs, closing)
            segment.open_file(create=True)
        except OSError as error:
            if error.errno in DISK_FULL:
                raise self._disk_full() from error
            raise self._fail(error) from error
        self._unflushed.closed_segments.append(closing)
        self._unflushed.add_snapshot(self._end_offset, encode_snapshot(self._producers))
        self._unflushed.note_new_names(self.directory)
        self._segments.add(segment)
        self._active = segment
        self._flushed_position = 0
        self._progress = SavedProgress()
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
        ranges: bool = False,
    ) -> ReadResult | ColdRead:
        """Hot. Batches from the one that holds `offset`, below `up_to_offset`, of about `max_bytes`.

        With `at_least_one` the first batch is returned whole however large it is; without, nothing is
        returned when it does not fit. Never waits for the disk unless told to: a ColdRead says what to load
        first. With `ranges` many bytes may come as a range of the file, to be sent by the kernel.
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
            self._fs, self._segments, end_offset, offset, max_bytes, up_to_offset, at_least_one, wait, ranges
        )

    # -- flushing --------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushTask | None:
        """What to do so that everything appended so far survives a power cut.

        None when there is nothing to do, when the log has failed, or while another flush runs: ask again when
        that one has finished.
        """
        if self._flush_running is not None or self._closed or self.failed or self.corruption is not None:
            return None
        if self._unflushed.snapshots:
            # Each once: finish_flush takes a second mention for an older one.
            self._snapshots = sorted({*self._snapshots, *(offset for offset, _ in self._unflushed.snapshots)})
        try:
            task = self._unflushed.take(
                self._fs, self.directory, self._active, self._end_offset, self._epochs
            )
        except OSError as error:
            self._fail(error)
            return None
        self._flush_running = task
        return task

    def extend_flush(self, task: FlushTask) -> None:
        """Let a flush that has not begun to sync cover what was appended since. On any thread.

        Safe without a lock: the end offset moves only after the bytes below it are in the file, and it is read
        before the segment. So whatever it says is in that segment if no other has taken its place by then.
        """
        end_offset = self._end_offset
        if self._active is task.active and task.syncs_active and task is self._flush_running:
            task.up_to_offset = end_offset

    def finish_flush(self, task: FlushTask, error: BaseException | None) -> None:
        """Take note of how a flush went."""
        for segment in task.segments:
            segment.unpin()
        if self._closed:
            return
        if error is not None:
            # Also when what it flushed has been cut off since: pages of what is left may have been dropped.
            self._fail(error if isinstance(error, OSError) else OSError(errno.EIO, str(error)))
        if self._flush_running is not task:
            return
        self._flush_running = None
        if error is not None:
            return
        self._unflushed.new_file = self._unflushed.new_file or task.new_file
        self.flushed_offset = max(self.flushed_offset, min(task.up_to_offset, self._end_offset))
        if task.active is self._active:
            self._flushed_position = task.active_bytes
        # One snapshot of flushed batches is enough to recover; those of later ones may turn out to be ahead of the log.
        # One more segment is covered so that a log that is cut back need not be read from its start.
        segments = self._segments.items
        covered = min(self.flushed_offset, segments[-2 if len(segments) > 1 else -1].base_offset)
        while len(self._snapshots) > 1 and self._snapshots[1] <= covered:
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

    def _remove_if_there(self, name: str) -> None:
        with contextlib.suppress(FileNotFoundError):
            self._fs.remove(f"{self.directory}/{name}")
