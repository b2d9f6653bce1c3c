"""Cutting a log back: what a follower does when the leader's history is another than its own.

The tail that is cut off may come back with a power cut, since nothing here waits for the file to be synced. So
nothing is ever written over it: the log goes on in a new segment, and recovery, which finds batches in a segment at
or beyond the next one's base offset, knows them for what they are. Names are another matter: segments and
snapshots that are taken away have their directory synced before anything else happens, or they would return between
batches that came later.
"""

from __future__ import annotations

from collections.abc import Callable

from culver.clock import Clock
from culver.config import TopicConfig
from culver.errors import ErrorCode, KafkaError
from culver.filesystem import FileSystem
from culver.log import names
from culver.log.aborted_search import aborted_index
from culver.log.checkpoint import Checkpoint
from culver.log.compaction import CompactionTask
from culver.log.doomed import DoomedFiles
from culver.log.flush import DISK_FULL, mark_unflushed, unmark_unflushed
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_search import find_producers
from culver.log.producer_snapshot import SnapshotDamaged, decode_snapshot, encode_snapshot
from culver.log.producer_state import ProducerStates
from culver.log.progress import SavedProgress
from culver.log.recovery import empty_log
from culver.log.segment import Segment
from culver.log.transactional_log import TransactionalLog
from culver.logging import get_logger

_log = get_logger("culver.log")


class TruncatingLog(TransactionalLog):
    """A log whose ends can be moved."""

    def __init__(
        self,
        fs: FileSystem,
        files: OpenFiles,
        clock: Clock,
        directory: str,
        config: TopicConfig,
        limits: LogLimits,
    ) -> None:
        super().__init__(fs, files, clock, directory, config, limits)
        # Called when the checkpoint on disk must be this log's present one before it may go on, as when batches are
        # to be cut off that the old one promises. Raises OSError when it cannot be written.
        self.on_checkpoint_outdated: Callable[[TruncatingLog], object] | None = None
        self._doomed = DoomedFiles(fs)
        self._compaction_running: CompactionTask | None = None
        self._cleaned_offset = 0
        # The topic that the directory was made for; None when it does not say.
        self.topic_id: bytes | None = None
        # The high watermark that the last checkpoint knew; the log's start when it knew none.
        self.saved_high_watermark = 0
        # Offsets may be missing: what once was compacted has gaps for good.
        self._gaps = False
        # No checkpoint that may be on disk speaks of batches from here on.
        self._checkpointed_end = 0

    def update_config(self, config: TopicConfig) -> None:
        """Work by other settings from now on."""
        super().update_config(config)
        self._gaps = self._gaps or "compact" in config.cleanup_policy

    # -- the start -------------------------------------------------------------------------------------------

    def _start_at(self, offset: int) -> None:
        if offset > self.start_offset:
            self.start_offset = offset
            self._epochs.truncate_from_start(offset)
            self.saved_high_watermark = max(self.saved_high_watermark, offset)
            if self._high_watermark is not None and self._high_watermark < offset:
                self._high_watermark = offset

    def _delete_segment(self, segment: Segment, now_ms: int) -> None:
        self._doomed.add(segment, now_ms + self.config.file_delete_delay_ms)
        self._segments.remove(segment)
        if segment in self._unflushed.closed_segments:
            self._unflushed.closed_segments.remove(segment)
        segment.retired = True
        segment.close_file()

    # -- the end ---------------------------------------------------------------------------------------------

    def truncate_to(self, offset: int) -> None:
        """Cut off everything from the batch that holds `offset` on. Waits for the disk."""
        self._check_serving()
        if offset >= self._end_offset:
            self._forget_epochs(self._end_offset)
            return
        if offset < self._segments.items[0].base_offset:
            self.truncate_fully_and_start_at(offset)
            return
        at = self._segments.index_of(offset)
        segment = self._segments.items[at]
        try:
            position = segment.position_of(offset, True)
            end_offset = segment.end_offset_at(position)
        except OSError as error:
            raise self._fail(error) from error
        self._take_back_promise(end_offset, min(self.start_offset, end_offset))
        self._stop_tasks(end_offset)
        now_ms = self._clock.now_ms()
        try:
            self._lower_end(end_offset)
            self._drop_names(at if position == 0 else at + 1, end_offset, now_ms)
            if position:
                # From its file, which goes.
                aborted_index(self._fs, self._segments, at, end_offset)
                self._cut(segment, position, end_offset)
            self._restore_producers(end_offset, now_ms)
            self._go_on(end_offset)
            if len(self._segments) == 1:
                self._fs.sync_directory(self.directory)  # its name may be all that says where the log is
        except OSError as error:
            raise self._fail(error) from error

    def _lower_end(self, end_offset: int) -> None:
        self._end_offset = end_offset
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._flushed_position = 0
        self.start_offset = min(self.start_offset, end_offset)
        self.saved_high_watermark = min(self.saved_high_watermark, end_offset)
        if self._high_watermark is not None:
            self._high_watermark = min(self._high_watermark, end_offset)
        self._cleaned_offset = min(self._cleaned_offset, end_offset)
        self._forget_epochs(end_offset)

    def _forget_epochs(self, end_offset: int) -> None:
        # Also those that this broker began as a leader and never wrote in.
        self._epochs.truncate_from_end(end_offset)
        self._latest_epoch = self._epochs.latest

    def _drop_names(self, from_segment: int, end_offset: int, now_ms: int) -> None:
        """Take whole segments away, the last one first so that a crash leaves no hole, and what speaks of them."""
        doomed = self._segments.items[from_segment:]
        for segment in reversed(doomed):
            self._delete_segment(segment, now_ms)
        snapshots = [offset for offset in self._snapshots if offset > end_offset]
        for offset in snapshots:
            self._remove_if_there(names.segment_name(offset, names.SNAPSHOT))
        if doomed or snapshots:
            self._fs.sync_directory(self.directory)
        self._snapshots = [offset for offset in self._snapshots if offset <= end_offset]
        waiting = self._unflushed.snapshots
        self._unflushed.snapshots = [(offset, content) for offset, content in waiting if offset <= end_offset]

    def _cut(self, segment: Segment, position: int, end_offset: int) -> None:
        """Shorten the segment that stays; it is a closed one from now on."""
        if position < segment.size_bytes:
            segment.open_file().truncate(position)
            segment.truncate(position, end_offset)
            for suffix in (*names.INDEXES, names.PROGRESS):
                self._remove_if_there(names.segment_name(segment.base_offset, suffix))
            segment.unsynced = True
        segment.finish_time_index()
        if segment not in self._unflushed.closed_segments:
            self._unflushed.closed_segments.append(segment)

    def _restore_producers(self, end_offset: int, now_ms: int) -> None:
        """Producers as they were at the new end. Mostly what is remembered of each of them says that."""
        states = self._producers
        if states.transactions.forgotten_offset >= end_offset:
            self._producers = self._replayed_producers(now_ms)
            return
        lost = states.truncate(end_offset)
        if not lost:
            return
        snapshot_offset, older = self._last_snapshot(now_ms)
        wanted = set(lost)
        found = find_producers(
            self._segments,
            snapshot_offset,
            wanted,
            states.transactions.open.keys(),
            self._limits.producers_max,
            now_ms,
        )
        if found.searched_all:
            found.producers += [older.producers[one] for one in wanted if one in older.producers]
        elif wanted:
            _log.info("producers forgotten by a truncation", log=self.directory, producers=len(wanted))
        states.replace(lost, found.producers)

    def _replayed_producers(self, now_ms: int) -> ProducerStates:
        """The same from the last snapshot on, when markers were cut off of which nobody knows what they ended."""
        snapshot_offset, states = self._last_snapshot(now_ms)
        for segment in self._segments.items[self._segments.index_of(snapshot_offset) :]:
            for _, header, data in segment.walk(segment.position_of(snapshot_offset, True)):
                if header[9] >= 0:
                    states.note(header, data, now_ms, self.high_watermark)
        return states

    def _last_snapshot(self, now_ms: int) -> tuple[int, ProducerStates]:
        """The newest state that was saved, and its offset."""
        try:
            if self._unflushed.snapshots:
                offset, content = self._unflushed.snapshots[-1]
            elif self._snapshots:
                offset = self._snapshots[-1]
                content = self._fs.read(f"{self.directory}/{names.segment_name(offset, names.SNAPSHOT)}")
            else:
                return 0, ProducerStates(self._limits.producers_max)
            return offset, decode_snapshot(content, self._limits.producers_max, now_ms, offset)
        except (FileNotFoundError, SnapshotDamaged):
            return 0, ProducerStates(self._limits.producers_max)

    def _go_on(self, end_offset: int) -> None:
        if self._segments.items:
            self._active = self._segments.active
        try:
            self._go_on_in_new_segment(end_offset)
        except OSError as error:
            if error.errno not in DISK_FULL or not self._segments.items:
                raise
            # No room even for an empty file. The old one will do, once its tail cannot come back.
            self._active.open_file().sync()
            unmark_unflushed(self._fs, self._active)
            if self._active in self._unflushed.closed_segments:
                self._unflushed.closed_segments.remove(self._active)
            aborted_index(self._fs, self._segments, len(self._segments) - 1, end_offset)
            self._remove_if_there(names.segment_name(self._active.base_offset, names.ABORTED_INDEX))
            self._fs.sync_directory(self.directory)
            self._plan_roll()

    def _go_on_in_new_segment(self, base_offset: int, *, mark: bool = True) -> None:
        segment = Segment(self._fs, self._files, self.directory, base_offset, self._clock.now_ms())
        segment.start_empty()
        if mark and self._segments.items and self._segments.active.unsynced:
            mark_unflushed(self._fs, self._segments.active)
        segment.open_file(create=True)
        self._segments.add(segment)
        self._active = segment
        self._flushed_position = 0
        self._progress = SavedProgress()
        self._unflushed.add_snapshot(base_offset, encode_snapshot(self._producers))
        self._unflushed.note_new_names(self.directory)
        self._plan_roll()
        if self.on_roll is not None:
            self.on_roll(self)

    def truncate_fully_and_start_at(self, offset: int) -> None:
        """Delete everything and go on with an empty log at `offset`. Waits for the disk."""
        self._check_serving()
        start_offset = min(offset, self.start_offset)
        self._take_back_promise(start_offset, start_offset)
        self._stop_tasks(-1)
        now_ms = self._clock.now_ms()
        before = self._unflushed
        try:
            for segment in reversed(self._segments.items):
                self._delete_segment(segment, now_ms)
            for snapshot in self._snapshots:
                self._remove_if_there(names.segment_name(snapshot, names.SNAPSHOT))
            self._remove_if_there(names.LEADER_EPOCHS)
            self._adopt(empty_log(self._fs, self._files, self.directory, self._limits, now_ms, offset))
            self._fs.sync_directory(self.directory)
        except OSError as error:
            raise self._fail(error) from error
        self._unflushed.directories = before.directories
        self._unflushed.new_file = before.new_file
        self._cleaned_offset = 0
        self.saved_high_watermark = offset
        if self._high_watermark is not None:
            self._high_watermark = offset

    # -- what others know or do ------------------------------------------------------------------------------

    def _take_back_promise(self, end_offset: int, start_offset: int) -> None:
        """Have no checkpoint on disk that speaks of what is about to go: the next start would miss it."""
        if self._checkpointed_end <= end_offset:
            return
        self.flushed_offset = min(self.flushed_offset, end_offset)
        self._flushed_position = 0
        self._progress = SavedProgress()
        before, self.start_offset = self.start_offset, start_offset
        try:
            self._save_checkpoint("truncated")
        except KafkaError:
            self.start_offset = before
            raise
        self._checkpointed_end = end_offset

    def _save_checkpoint(self, purpose: str) -> None:
        if self.on_checkpoint_outdated is not None:
            try:
                self.on_checkpoint_outdated(self)
            except OSError as error:
                raise KafkaError(
                    ErrorCode.KAFKA_STORAGE_ERROR,
                    f"{self.directory} cannot be {purpose} now, no checkpoint could be written: {error}",
                ) from error

    def _stop_tasks(self, end_offset: int) -> None:
        """Whatever runs on other threads must not write down what was true before."""
        flush = self._flush_running
        if flush is not None:
            self._flush_running = None
            flush.cut_loose()
            self._unflushed.give_back(flush)
            self._epochs.dirty = True
        compaction = self._compaction_running
        if compaction is not None and compaction.reaches_beyond(end_offset):
            compaction.call_off()

    def checkpoint(self) -> Checkpoint:
        """What the next start should know."""
        active = self._active
        self._checkpointed_end = max(self._checkpointed_end, self._end_offset)
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
            cleaned_offset=self._cleaned_offset,
            flushed_position=self._flushed_position,
            progress_checksum=self._progress.checksum,
            high_watermark=(
                self.saved_high_watermark if self._high_watermark is None else self._high_watermark
            ),
            epochs=self._epochs.entries(),
            gaps=self._gaps,
            aborted=0 if active.aborted is None else len(active.aborted),
        )
