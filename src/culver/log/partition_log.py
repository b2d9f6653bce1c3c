"""One partition's log: appends, reads, flushes and the state that goes with them.

Everything here runs on the broker's one thread. Work that waits for the disk is split in three: begin (here,
takes what is needed), run (on any thread, touches only files and its own data), finish (here again).
"""

from __future__ import annotations

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
from culver.log.batches import HEADER, HEADER_BYTES, LENGTH_OVERHEAD_BYTES, STEP, HeaderFields
from culver.log.checkpoint import Checkpoint
from culver.log.flush import FlushTask
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_snapshot import encode_snapshot
from culver.log.producer_state import Producer
from culver.log.recovery import Recovered, Recovery, empty_log
from culver.log.segment import NEVER, RELATIVE_OFFSET_MAX, NotCached, Segment
from culver.log.validation import Rules, validate
from culver.logging import get_logger

_log = get_logger("culver.log")

_STAMP = struct.Struct(">qii")
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
_SNAPSHOTS_KEPT = 2


class AppendResult(NamedTuple):
    """Where a batch is in the log."""

    base_offset: int
    last_offset: int
    # -1 when the records keep the time their producer gave them.
    log_append_time_ms: int
    log_start_offset: int
    # The batch was there already: this is where it is, and nothing was written.
    duplicate: bool


class ReadResult(NamedTuple):
    """Batches as they are in the file. The last one may be cut off; the first never is."""

    buffers: list[bytes | bytearray]
    size: int


EMPTY_READ = ReadResult([], 0)


class ColdRead:
    """The bytes are not in memory. `load()` on another thread brings them there; then read again."""

    __slots__ = ("_fs", "path", "position", "size_bytes")

    def __init__(self, fs: FileSystem, path: str, position: int, size_bytes: int) -> None:
        self._fs = fs
        self.path = path
        self.position = position
        self.size_bytes = size_bytes

    def load(self) -> None:
        """Raises OSError when the disk cannot read them. A segment deleted meanwhile is no error."""
        try:
            file = self._fs.open(self.path)
        except FileNotFoundError:
            return
        try:
            file.pread(self.size_bytes, self.position)
        finally:
            file.close()


class PartitionLog:
    """One partition's directory. Open it with `open`."""

    def __init__(
        self,
        fs: FileSystem,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        limits: LogLimits,
        found: Recovered,
    ) -> None:
        self._fs = fs
        self._clock = clock
        self._limits = limits
        self.directory = directory
        self._segments = found.segments
        self._active = found.segments.active
        self._producers = found.producers
        self._epochs = found.epochs
        self._latest_epoch = found.epochs.latest
        self._snapshots = found.snapshots
        self.start_offset = found.start_offset
        self._end_offset = found.end_offset
        self._high_watermark: int | None = None
        self.flushed_offset = found.flushed_offset
        # Why the log may not serve, or None.
        self.corruption: str | None = found.corruption
        # The write or sync that failed, or None. There is no way back but a restart.
        self.failed: OSError | None = None
        self._closed = False
        # Called after a roll: the closed segment wants to be flushed soon.
        self.on_roll: Callable[[PartitionLog], object] | None = None
        # What the next flush has to do beside syncing the active segment.
        self._closed_unsynced = [segment for segment in found.segments.items[:-1] if segment.unsynced]
        self._unsynced_directories: list[str] = []
        self._unsaved_snapshots: list[tuple[int, bytes]] = []
        self._flush_running: FlushTask | None = None
        # (when, path) of files that are deleted but not yet removed.
        self._doomed: list[tuple[int, str]] = []
        self.update_config(config)

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
        recovery = Recovery(fs, files, directory, config, limits, clock.now_ms())
        return cls(fs, clock, directory, config, limits, recovery.run(clean=clean, checkpoint=checkpoint))

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
    ) -> PartitionLog:
        """A new, empty log. The directory must not exist; it is made."""
        limits = limits or LogLimits()
        files = files or OpenFiles(fs, limits.open_files_max)
        fs.make_directory(directory)
        log = cls(
            fs, clock, directory, config, limits, empty_log(fs, files, directory, limits, clock.now_ms())
        )
        parent, _, _ = directory.rpartition("/")
        log._unsynced_directories = [directory, parent]
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
        """The largest timestamp in the active segment, -1 when it is empty."""
        return self._active.max_timestamp_ms

    @property
    def latest_epoch(self) -> int:
        return self._latest_epoch

    def epoch_end_offset(self, epoch: int) -> tuple[int, int]:
        """(epoch, end offset) of the largest epoch known up to `epoch`; (-1, -1) when there is none."""
        return self._epochs.end_offset(epoch, self._end_offset)

    def epoch_at(self, offset: int) -> int:
        return self._epochs.epoch_at(offset)

    def producers(self) -> list[Producer]:
        return list(self._producers.producers.values())

    def update_config(self, config: TopicConfig) -> None:
        self.config = config
        self._rules = Rules.of(config, self._limits)
        self._segment_bytes = config.segment_bytes
        self._index_interval_bytes = config.index_interval_bytes
        self._index_entries_max = max(config.segment_index_bytes // 12, 1)
        self._plan_roll()

    def _plan_roll(self) -> None:
        """When the active segment is to be followed by another; looked at by every append."""
        segment = self._active
        self._roll_at_bytes = self._segment_bytes
        if segment.offset_index is not None and len(segment.offset_index) >= self._index_entries_max:
            self._roll_at_bytes = 0
        self._roll_above_offset = segment.base_offset + RELATIVE_OFFSET_MAX
        if segment.first_timestamp_ms == NEVER:
            self._roll_above_timestamp_ms = NEVER
        else:
            jitter_max_ms = min(self.config.segment_jitter_ms, self.config.segment_ms)
            # Spread by name rather than by chance: the same log always behaves the same way.
            jitter_ms = zlib.crc32(segment.path.encode()) % jitter_max_ms if jitter_max_ms else 0
            self._roll_above_timestamp_ms = segment.first_timestamp_ms + self.config.segment_ms - jitter_ms

    # -- appending -------------------------------------------------------------------------------------------

    def append(self, records: Buffer, leader_epoch: int) -> AppendResult:
        """Hot. Check a client's batch, give it offsets in place and write it, or raise KafkaError and do nothing.

        `records` should be writable: the base offset and leader epoch are put into it.
        """
        now_ms = self._clock.now_ms()
        batch, fields = validate(records, self._rules, now_ms)
        producer_id = fields[9]
        if producer_id >= 0:
            stored = self._producers.check(producer_id, fields[10], fields[11], fields[12])
            if stored is not None:
                return AppendResult(
                    stored.first_offset, stored.last_offset, stored.timestamp_ms, self.start_offset, True
                )
        return self._write(batch, fields, leader_epoch, now_ms)

    def append_internal(self, batch: Buffer, leader_epoch: int) -> AppendResult:
        """Append one batch that the broker itself has made: trusted, and without a producer's sequence."""
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
            _STAMP.pack_into(batch, 0, base_offset, size - LENGTH_OVERHEAD_BYTES, leader_epoch)
        except (TypeError, BufferError, ValueError):  # not writable
            batch = bytearray(batch)
            _STAMP.pack_into(batch, 0, base_offset, size - LENGTH_OVERHEAD_BYTES, leader_epoch)
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
        if segment.bytes_since_index_entry > self._index_interval_bytes:
            segment.add_index_entry(last_offset, position)
            assert segment.offset_index is not None
            if len(segment.offset_index) >= self._index_entries_max:
                self._roll_at_bytes = 0
        segment.bytes_since_index_entry += size
        if position == 0:
            segment.first_timestamp_ms = max_timestamp_ms
            self._plan_roll()
        if leader_epoch != self._latest_epoch:
            self._epochs.assign(leader_epoch, base_offset)
            self._latest_epoch = self._epochs.latest
        if fields[9] >= 0:
            self._note_producer(fields, base_offset, now_ms)
        append_time_ms = max_timestamp_ms if fields[5] & 8 else -1
        return AppendResult(base_offset, last_offset, append_time_ms, self.start_offset, False)

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
                f"{self.directory} failed and needs a restart of the broker: {self.failed}",
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
                _log.warning("disk full, append refused", log=self.directory)
                return KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR, f"no space left on the disk of {self.directory}"
                )
        return self._fail(error)

    def _fail(self, error: OSError) -> KafkaError:
        """Give the log up: what a failed write or sync has left on disk can only be found out by recovery."""
        if self.failed is None:
            self.failed = error
            _log.error("log failed", log=self.directory, error=str(error))
        return KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, f"{self.directory} failed: {error}")

    # -- rolling ---------------------------------------------------------------------------------------------

    def _make_room(self, size: int) -> Segment:
        """The segment that a batch of `size` goes to, now that the active one is full or old."""
        if size > self._segment_bytes:
            raise KafkaError(
                ErrorCode.RECORD_LIST_TOO_LARGE,
                f"the batch has {size} bytes, segment.bytes allows {self._segment_bytes}",
            )
        self._check_serving()
        return self.roll() if self._active.size_bytes else self._active

    def roll(self) -> Segment:
        """Close the active segment and start another at the end offset."""
        closing = self._active
        assert closing.size_bytes
        segment = Segment(self._fs, closing._files, self.directory, self._end_offset, self._clock.now_ms())
        segment.start_empty()
        try:
            segment.open_file(create=True)
            closing.finish_time_index()
        except OSError as error:
            if error.errno in _DISK_FULL:
                raise KafkaError(ErrorCode.KAFKA_STORAGE_ERROR, "no space left on the disk") from error
            raise self._fail(error) from error
        self._closed_unsynced.append(closing)
        self._unsaved_snapshots.append((self._end_offset, encode_snapshot(self._producers)))
        self._note_new_names()
        self._segments.add(segment)
        self._active = segment
        self._plan_roll()
        if self.on_roll is not None:
            self.on_roll(self)
        return segment

    def _note_new_names(self) -> None:
        if self.directory not in self._unsynced_directories:
            self._unsynced_directories.append(self.directory)

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

        With `at_least_one` the first batch is returned whole however large it is; without, nothing is returned
        when it does not fit. Never waits for the disk unless told to: a ColdRead says what to load first.
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
        segment = self._active
        segment_end = end_offset
        try:
            if offset >= segment.base_offset:
                position = segment.position_of(offset, wait=wait)
            else:
                segment, segment_end, position = self._find_in_closed(offset, up_to_offset, wait=wait)
            if up_to_offset >= segment_end:
                limit = segment.size_bytes
            else:
                limit = segment.position_of(up_to_offset, wait=wait)
            if position >= limit:
                return EMPTY_READ
            size = limit - position
            if size > max_bytes:
                size = max(max_bytes, HEADER_BYTES)
            file = segment.file or segment.open_file()
            data = file.pread(size, position) if wait else file.pread_cached(size, position)
            if data is None:
                return ColdRead(self._fs, segment.path, position, size)
            if position + size == limit:
                # The next fetch begins where this one ends.
                segment.remember(min(up_to_offset, segment_end), limit)
                return ReadResult([data], size)
            first_size = STEP.unpack_from(data)[1] + LENGTH_OVERHEAD_BYTES
            if first_size <= size <= max_bytes:
                segment.remember_end(data, position)
                return ReadResult([data], size)
            if not at_least_one:
                return EMPTY_READ
            data = file.pread(first_size, position) if wait else file.pread_cached(first_size, position)
            if data is None:
                return ColdRead(self._fs, segment.path, position, first_size)
            segment.remember_end(data, position)
            return ReadResult([data], first_size)
        except NotCached as cold:
            return ColdRead(self._fs, cold.path, cold.position, cold.size_bytes)

    def _find_in_closed(self, offset: int, up_to_offset: int, *, wait: bool) -> tuple[Segment, int, int]:
        """(segment, its end offset, position) of the first batch at or after `offset`.

        Compaction may have left nothing of a segment's later offsets: then it is in one of the next.
        """
        segments = self._segments
        at = segments.index_of(offset)
        while True:
            segment = segments.items[at]
            segment_end = segments.end_offset_of(at, self._end_offset)
            position = segment.position_of(offset, wait=wait)
            if position < segment.size_bytes or segment_end >= up_to_offset or segment is self._active:
                return segment, segment_end, position
            at += 1

    # -- flushing --------------------------------------------------------------------------------------------

    def begin_flush(self) -> FlushTask | None:
        """What to do so that everything appended so far survives a power cut.

        None when there is nothing to do, or while another flush runs: ask again when that one has finished.
        """
        active = self._active
        if self._flush_running is not None or self.failed is not None or self.corruption is not None:
            return None
        if not (active.unsynced or self._closed_unsynced or self._unsynced_directories or self._epochs.dirty):
            return None
        task = FlushTask(self._fs, self._end_offset)
        task.rolled = self._closed_unsynced
        task.segments = [*self._closed_unsynced, active] if active.unsynced else list(self._closed_unsynced)
        for segment in task.segments:
            segment.pins += 1
            segment.unsynced = False  # an append during the flush sets it again
            task.files.append(segment.open_file())
        task.directories = self._unsynced_directories
        self._closed_unsynced = []
        self._unsynced_directories = []
        self._collect_side_files(task)
        self._flush_running = task
        return task

    def _collect_side_files(self, task: FlushTask) -> None:
        for offset, content in self._unsaved_snapshots:
            task.side_files.append((self._path(names.segment_name(offset, names.SNAPSHOT)), content))
            self._snapshots.append(offset)
        self._unsaved_snapshots = []
        if self._epochs.dirty:
            task.side_files.append((self._path(names.LEADER_EPOCHS), self._epochs.encode()))
            self._epochs.dirty = False

    def finish_flush(self, task: FlushTask, error: BaseException | None) -> None:
        """Take note of how a flush went."""
        self._flush_running = None
        for segment in task.segments:
            segment.unpin()
        if self._closed:
            return
        if error is None:
            self.flushed_offset = max(self.flushed_offset, min(task.up_to_offset, self._end_offset))
            self._drop_old_snapshots()
        else:
            self._fail(error if isinstance(error, OSError) else OSError(errno.EIO, str(error)))

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

    def _drop_old_snapshots(self) -> None:
        while len(self._snapshots) > _SNAPSHOTS_KEPT:
            self._remove_if_there(names.segment_name(self._snapshots.pop(0), names.SNAPSHOT))

    def _remove_if_there(self, name: str) -> None:
        try:
            self._fs.remove(self._path(name))
        except FileNotFoundError:
            pass

    def _path(self, name: str) -> str:
        return f"{self.directory}/{name}"

    # -- removing --------------------------------------------------------------------------------------------

    def take_doomed(self, now_ms: int) -> list[str]:
        """Paths of files that were deleted long enough ago to be removed; the caller removes them."""
        due = [path for due_ms, path in self._doomed if due_ms <= now_ms]
        if due:
            self._doomed = [entry for entry in self._doomed if entry[0] > now_ms]
        return due

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
        """Sync everything and leave it so that the next start need not read it. A failed log is only closed."""
        if self._closed:
            return
        if self.failed is None and self.corruption is None:
            try:
                self._save_all()
            except OSError as error:
                self._fail(error)
        self._closed = True
        self._close_files()

    def _save_all(self) -> None:
        if len(self._producers) and self._end_offset not in self._snapshots[-1:]:
            self._unsaved_snapshots.append((self._end_offset, encode_snapshot(self._producers)))
        active = self._active
        if active.offset_index is not None and active.size_bytes > self._index_interval_bytes:
            active.finish_time_index()
            active.save_indexes(self._fs)
        self.flush()
        for offset, content in self._unsaved_snapshots:
            self._fs.write_atomic(self._path(names.segment_name(offset, names.SNAPSHOT)), content, sync=False)

    def abandon(self) -> None:
        """Let go of the files and write nothing, as before deleting the directory."""
        self._closed = True
        self._close_files()

    def _close_files(self) -> None:
        for segment in self._segments.items:
            segment.close_file()
