"""One partition's log: the directory it lives in, what is known about it, and what keeps it in shape.

Appends, reads and flushes are inherited. Like those, all of this runs on the broker's one thread; what may
take long has a begin, a run for another thread and a finish.
"""

from __future__ import annotations

import contextlib

from culver.clock import Clock
from culver.config import TopicConfig
from culver.errors import ErrorCode, KafkaError
from culver.filesystem import FileSystem
from culver.log import names, timestamps
from culver.log.aborted_search import collect_aborted
from culver.log.append_log import AppendResult
from culver.log.checkpoint import Checkpoint
from culver.log.compaction import CompactionTask, LastBatches, Replacement, cleanable
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_snapshot import encode_snapshot
from culver.log.producer_state import Producer
from culver.log.progress import SavedProgress
from culver.log.reading import ColdRead, ReadResult
from culver.log.recovery import Recovery, empty_log
from culver.log.replacement import put_in_place, remove_swap
from culver.log.replica_log import ReplicaLog
from culver.log.retention import segments_to_delete
from culver.log.timestamps import TimestampedOffset
from culver.log.topic_identity import topic_id_file
from culver.log.transactions import UNVERIFIED_OK, OpenTransaction
from culver.logging import get_logger

__all__ = [
    "UNVERIFIED_OK",
    "AppendResult",
    "ColdRead",
    "OpenTransaction",
    "PartitionLog",
    "ReadResult",
    "TimestampedOffset",
]

_log = get_logger("culver.log")


class PartitionLog(ReplicaLog):
    """One partition's directory. Open it with `open` or `create`, leave it with `close` or `abandon`."""

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
        if not clean:
            # The process before may have made segments and died before it made their names durable.
            log._unflushed.note_new_names(directory)
        if checkpoint is not None:
            log._cleaned_offset = checkpoint.cleaned_offset
            log._checkpointed_end = checkpoint.end_offset
            log._gaps = log._gaps or checkpoint.gaps
            log.saved_high_watermark = checkpoint.high_watermark
        # What the log's start and end allow; the start is always known to be agreed on.
        log.saved_high_watermark = min(max(log.saved_high_watermark, log.start_offset), log._end_offset)
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
        topic_id: bytes | None = None,
    ) -> PartitionLog:
        """A new, empty log. The directory is made; it must not hold a log."""
        limits = limits or LogLimits()
        files = files or OpenFiles(fs, limits.open_files_max)
        fs.make_directory(directory)
        log = cls(fs, files, clock, directory, config, limits)
        log._adopt(empty_log(fs, files, directory, limits, clock.now_ms(), base_offset))
        parent, _, _ = directory.rpartition("/")
        log._unflushed.directories = [directory, parent]
        log.saved_high_watermark = base_offset
        if topic_id is not None:
            log.note_topic_id(topic_id)
        return log

    def note_topic_id(self, topic_id: bytes) -> None:
        """Have the next flush write down the topic that the directory belongs to."""
        self.topic_id = topic_id
        self._unflushed.new_file = topic_id_file(self.directory, topic_id)
        self._unflushed.note_new_names(self.directory)

    # -- what it is ------------------------------------------------------------------------------------------

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

    def expire_producers(self, now_ms: int) -> int:
        """Forget producers that have been silent for too long; returns how many."""
        return self._producers.expire(now_ms, self._limits.producer_id_expiration_ms)

    def retention_step(self, now_ms: int) -> int:
        """Delete the segments that retention no longer allows; returns how many.

        Looks at indexes of old segments, which may be on disk.
        """
        if self.failed is not None or self.corruption is not None or self._closed:
            return 0
        due = segments_to_delete(
            self._fs,
            self._segments,
            self.config,
            self.start_offset,
            self.high_watermark,
            self._producers.transactions.cleanable_below(self.high_watermark),
            self._end_offset,
            now_ms,
        )
        if due == len(self._segments):
            try:
                self.roll()  # everything is expired: the log goes on in an empty segment
            except KafkaError:
                due -= 1  # no room for one: delete the others first
        for segment in self._segments.items[:due]:
            self._delete_segment(segment, now_ms)
        if due:
            self._start_at(self._segments.items[0].base_offset)
        return due

    def take_doomed(self, now_ms: int) -> list[str]:
        """Paths of files that were deleted long enough ago; the caller removes them, on any thread."""
        return self._doomed.take(now_ms)

    # -- compacting ------------------------------------------------------------------------------------------

    def begin_compaction(self) -> CompactionTask | None:
        """A pass over the log's closed segments, or None when none is due."""
        if "compact" not in self.config.cleanup_policy or self._compaction_running is not None:
            return None
        if self.failed is not None or self.corruption is not None or self._closed:
            return None
        now_ms = self._clock.now_ms()
        stable_offset = self._producers.transactions.cleanable_below(self.high_watermark)
        sources = cleanable(self._segments, self.config, self._cleaned_offset, stable_offset, now_ms)
        if sources is None:
            return None
        aborted, _ = collect_aborted(
            self._fs, self._segments, sources[0].base_offset, sources[-1].end_offset, self._end_offset
        )
        task = self._compaction_running = CompactionTask(
            self._fs,
            self._files,
            self.directory,
            self.config,
            self._limits,
            sources,
            self._cleaned_offset,
            LastBatches.of(self._producers.producers.values(), sources[-1].end_offset),
            aborted,
            now_ms,
        )
        return task

    def finish_compaction(self, task: CompactionTask, error: BaseException | None) -> None:
        """Put what the pass has written in the place of the originals."""
        self._compaction_running = None
        if error is not None and not task.called_off:
            _log.error("compaction failed, the log stays as it is", log=self.directory, error=str(error))
        if self._closed:
            return
        present = set(self._segments.items)
        try:
            for replacement in task.replacements:
                # Retention or a truncation may have taken originals away meanwhile: then nothing is replaced.
                wanted = error is None and present.issuperset(replacement.originals)
                self._replace(replacement, wanted=wanted)
        except OSError as failure:
            self._fail(failure)
            return
        if error is None and not task.called_off:
            self._cleaned_offset = task.end_offset

    def _replace(self, replacement: Replacement, *, wanted: bool) -> None:
        segment = replacement.segment
        if not wanted:
            if segment is not None:
                remove_swap(self._fs, segment)
            return
        now_ms = self._clock.now_ms()
        for original in replacement.originals:
            self._delete_segment(original, now_ms)
        if segment is not None:
            put_in_place(self._fs, segment)
            self._segments.add(segment)
            self._unflushed.closed_segments.append(segment)
            self._unflushed.note_new_names(self.directory)

    # -- ending ----------------------------------------------------------------------------------------------

    def progress_file(self) -> tuple[str, bytes] | None:
        """(path, content) of what should be on disk before the next `checkpoint` is; mostly None."""
        if self.failed is not None or self.corruption is not None or self._closed:
            return None
        return self._progress.file(self._active, self._epochs, self._producers, self._end_offset)

    def close(self) -> None:
        """Sync everything, so that the next start need not read it. A failed log is only closed."""
        if not self._closed and self.failed is None and self.corruption is None:
            try:
                self._save_all()
            except OSError as error:
                self._fail(error)
        self.abandon()

    def _save_all(self) -> None:
        if self._flush_running is not None:
            self._unflushed.give_back(self._flush_running)
            self._flush_running = None
        # A roll just before has made one already: twice in the list, it would be dropped as outdated by itself.
        known = [*self._snapshots, *(offset for offset, _ in self._unflushed.snapshots)]
        if self._producers.producers and self._end_offset not in known:
            self._unflushed.add_snapshot(self._end_offset, encode_snapshot(self._producers))
        self.flush()
        active = self._active
        with contextlib.suppress(OSError):  # missing ones are rebuilt
            if active.aborted:
                active.save_aborted(self._fs)
            if active.offset_index is not None and active.size_bytes > self._index_interval_bytes:
                active.finish_time_index()
                active.save_indexes(self._fs)
        if self._progress.checksum:
            self._progress = SavedProgress()
            self._remove_if_there(names.segment_name(active.base_offset, names.PROGRESS))

    def abandon(self) -> None:
        """Let go of the files and write nothing more, as before deleting the directory."""
        self._closed = True
        for segment in self._segments.items:
            segment.close_file()
