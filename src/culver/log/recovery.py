"""Opening a partition's directory: what is there, what of it is sound, and where the log ends.

After a clean stop only names and sizes are looked at. Otherwise every batch above the recovery point is read
and its checksum computed. A batch that is not sound is one of two things:

- a torn write, when no batch with a right checksum stands there or after it in its file, everything that had
  been flushed lies before it, and no later segment holds data or the file is marked as not flushed. Nobody was
  promised these bytes, nor any after them: they are cut off, and the broker's log says how many.
- corruption, in every other case: a disk or a person has changed bytes that had been written. Nothing is
  touched, the log does not serve, and `corruption` says which file, where, and what was expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from culver.config import TopicConfig
from culver.filesystem import FileSystem
from culver.log import names
from culver.log.aborted_search import believe_index, rebuild_index, remove_index_file
from culver.log.batches import CONTROL, BatchWalk, Expectation, Fault, StoredBatchView, find_sound_batch
from culver.log.checkpoint import Checkpoint
from culver.log.leader_epochs import LeaderEpochs
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_snapshot import SnapshotDamaged, decode_snapshot
from culver.log.producer_state import ProducerStates
from culver.log.progress import NO_BOUND, Resumed, resume
from culver.log.replacement import finish_replacements
from culver.log.segment import Segment, SegmentList
from culver.logging import get_logger

_log = get_logger("culver.log")


@dataclass(slots=True)
class Recovered:
    """A log as found on disk."""

    segments: SegmentList
    producers: ProducerStates
    start_offset: int = 0
    end_offset: int = 0
    # Everything below is known to be on disk.
    flushed_offset: int = 0
    # The same as a position in the last segment; 0 when it is in an earlier one.
    flushed_position: int = 0
    epochs: LeaderEpochs = field(default_factory=LeaderEpochs)
    # Offsets of the producer snapshots on disk, ascending.
    snapshots: list[int] = field(default_factory=list)
    # A write that was not whole, or damaged, has been cut off the end; whatever it was, it is not here.
    tail_cut: bool = False
    corruption: str | None = None


class Recovery:
    """One opening of one directory."""

    def __init__(
        self,
        fs: FileSystem,
        files: OpenFiles,
        directory: str,
        config: TopicConfig,
        limits: LogLimits,
        now_ms: int,
    ) -> None:
        self._fs = fs
        self._files = files
        self._directory = directory
        self._limits = limits
        self._interval = config.index_interval_bytes
        self._gaps = "compact" in config.cleanup_policy
        self._now_ms = now_ms
        self._checkpoint: Checkpoint | None = None
        self._high_watermark = -1
        self._names_removed = False
        # Base offsets of segments that were closed and not known to be on disk.
        self._unflushed: set[int] = set()
        # Segments whose index of aborted transactions may be older than they are.
        self._unbelieved: list[Segment] = []
        self._found = Recovered(SegmentList(), ProducerStates(limits.producers_max))

    def run(self, *, clean: bool, checkpoint: Checkpoint | None) -> Recovered:
        """Never raises for what it finds in the files; OSError when the disk itself fails."""
        found = self._found
        listing = finish_replacements(self._fs, self._directory, self._fs.list(self._directory))
        self._find_segments(listing, checkpoint)
        self._unflushed = {
            offset for name in listing if (offset := names.offset_of(name, names.UNFLUSHED)) is not None
        }
        found.snapshots = sorted(
            offset for name in listing if (offset := names.offset_of(name, names.SNAPSHOT)) is not None
        )
        epochs_known = self._load_epochs(listing, checkpoint)
        if clean and checkpoint is not None and checkpoint.trusted and self._take_over(checkpoint):
            believe_index(self._fs, found.segments, checkpoint.aborted, found.end_offset, listing)
            return found
        self._checkpoint = checkpoint
        if checkpoint is not None:
            self._high_watermark = checkpoint.high_watermark
        self._gaps = self._gaps or (checkpoint is not None and checkpoint.gaps)
        self._scan(checkpoint.recovery_point if checkpoint is not None else 0, epochs_known)
        if found.corruption is None:
            for segment in self._unbelieved:
                remove_index_file(self._fs, segment, listing)
            if found.end_offset < found.start_offset:
                self._begin_at_start()
            if found.segments.active.aborted is None:
                found.segments.active.aborted = rebuild_index(found.segments, len(found.segments) - 1)
            if checkpoint is not None and found.end_offset < checkpoint.end_offset:
                self._drop_progress(checkpoint, listing)
            if self._names_removed:
                # Or they would be back after a power cut, and speak of batches that others have replaced by then.
                self._fs.sync_directory(self._directory)
        return found

    def _drop_progress(self, checkpoint: Checkpoint, listing: list[str]) -> None:
        """What was saved of the active segment speaks of batches that are lost, and the checkpoint vouches for it."""
        name = names.segment_name(checkpoint.active_base_offset, names.PROGRESS)
        if name in listing and self._fs.exists(f"{self._directory}/{name}"):
            self._remove(name)

    def _remove(self, name: str) -> None:
        self._fs.remove(f"{self._directory}/{name}")
        self._names_removed = True

    def _begin_at_start(self) -> None:
        """All that is left lies before the log's start, so it counts as deleted: go on empty at the start.

        So it is when records were deleted and a crash took those after them, which had not been flushed.
        """
        found = self._found
        self._drop(list(found.segments.items))
        segment = self._segment(found.start_offset)
        segment.open_file(create=True)
        segment.start_empty()
        found.segments.add(segment)
        found.end_offset = found.flushed_offset = found.start_offset
        found.epochs.clear()
        # What is remembered of a producer may not be its last batch, and would have its next one refused.
        found.producers = ProducerStates(self._limits.producers_max)
        while found.snapshots:
            self._remove(names.segment_name(found.snapshots.pop(), names.SNAPSHOT))

    # -- what is there ---------------------------------------------------------------------------------------

    def _find_segments(self, listing: list[str], checkpoint: Checkpoint | None) -> None:
        found = self._found
        for name in listing:
            base_offset = names.offset_of(name, names.LOG)
            if base_offset is not None:
                segment = self._segment(base_offset)
                segment.size_bytes = self._fs.size(segment.path)
                found.segments.add(segment)
        self._remove_orphans(listing)
        if not found.segments.items:
            segment = self._segment(checkpoint.start_offset if checkpoint is not None else 0)
            segment.open_file(create=True)
            segment.start_empty()
            found.segments.add(segment)
        found.start_offset = found.segments.items[0].base_offset
        if checkpoint is not None:
            found.start_offset = max(found.start_offset, checkpoint.start_offset)

    def _remove_orphans(self, listing: list[str]) -> None:
        # A segment may have been deleted while its indexes were being written.
        bases = {segment.base_offset for segment in self._found.segments.items}
        for name in listing:
            for suffix in (*names.INDEXES, names.PROGRESS, names.UNFLUSHED):
                base_offset = names.offset_of(name, suffix)
                if base_offset is not None and base_offset not in bases:
                    self._fs.remove(f"{self._directory}/{name}")

    def _segment(self, base_offset: int) -> Segment:
        return Segment(self._fs, self._files, self._directory, base_offset, self._now_ms)

    def _load_epochs(self, listing: list[str], checkpoint: Checkpoint | None) -> bool:
        found = self._found
        known = False
        if names.LEADER_EPOCHS in listing:
            path = f"{self._directory}/{names.LEADER_EPOCHS}"
            try:
                found.epochs = LeaderEpochs.load(self._fs, path)
                known = True
            except ValueError as error:
                _log.warning("leader epoch file damaged", path=path, error=str(error))
        if checkpoint is not None and checkpoint.epochs is not None:
            # The file is not synced, and may be older or newer.
            dirty = found.epochs.entries() != checkpoint.epochs
            found.epochs = LeaderEpochs.of(checkpoint.epochs)
            found.epochs.dirty = dirty
            known = True
        return known

    # -- after a clean stop ----------------------------------------------------------------------------------

    def _take_over(self, checkpoint: Checkpoint) -> bool:
        """Believe the checkpoint, if what it says can be seen to be so."""
        found = self._found
        active = found.segments.active
        if (
            active.base_offset != checkpoint.active_base_offset
            or active.size_bytes != checkpoint.active_size_bytes
        ):
            _log.warning(
                "log is not as the clean stop left it, scanning it",
                log=self._directory,
                expected_bytes=checkpoint.active_size_bytes,
                found_bytes=active.size_bytes,
            )
            return False
        if checkpoint.producers and not self._load_snapshot(checkpoint.end_offset):
            return False
        active.first_timestamp_ms = checkpoint.first_timestamp_ms
        active.max_timestamp_ms = checkpoint.max_timestamp_ms
        active.max_timestamp_offset = checkpoint.max_timestamp_offset
        if active.size_bytes == 0:
            active.start_empty()
        found.end_offset = checkpoint.end_offset
        found.flushed_offset = checkpoint.recovery_point
        found.flushed_position = active.size_bytes if found.flushed_offset == found.end_offset else 0
        return True

    # -- after a crash ---------------------------------------------------------------------------------------

    def _scan(self, recovery_point: int, epochs_known: bool) -> None:
        found = self._found
        segments = found.segments.items
        found.end_offset = segments[-1].base_offset
        checked_from = self._first_to_check(recovery_point)
        resumed = self._resume()
        if resumed is not None:
            epochs_known = True
            snapshot_offset = resumed.end_offset
        else:
            snapshot_offset = self._load_latest_snapshot()
        # Of what is read again the epochs are those that the batches say.
        first_read = segments[checked_from].base_offset if resumed is None else resumed.base_offset
        found.epochs.truncate_from_end(first_read)
        for at in range(len(segments)):
            if at == len(segments):
                break  # the last ones have been dropped
            segment_end = found.segments.end_offset_of(at, snapshot_offset + 1)
            check = at >= checked_from
            if not check and epochs_known and segment_end <= snapshot_offset:
                continue
            if not self._scan_segment(at, snapshot_offset, recovery_point, resumed, check=check):
                break
        if found.corruption is None and found.end_offset < recovery_point:
            self._corrupt(
                f"{self._directory}: the log ends at offset {found.end_offset}, but everything up to "
                f"{recovery_point} had been flushed: data is missing"
            )
        found.flushed_offset = min(recovery_point, found.end_offset)
        if found.corruption is None:
            found.epochs.truncate_from_end(found.end_offset)
            self._drop_later_snapshots()
            if snapshot_offset > found.end_offset:
                # The state that was loaded speaks of batches that are gone: once more with an older one.
                found.producers = ProducerStates(self._limits.producers_max)
                self._checkpoint = None
                self._scan(recovery_point, epochs_known)

    def _first_to_check(self, recovery_point: int) -> int:
        # Segments wholly below the recovery point were synced before it was written down. That one was cut shorter
        # since may not be on disk, though.
        segments = self._found.segments
        at = 0
        while (
            at + 1 < len(segments)
            and segments.items[at + 1].base_offset <= recovery_point
            and segments.items[at].base_offset not in self._unflushed
        ):
            at += 1
        return at

    def _scan_segment(
        self, at: int, snapshot_offset: int, recovery_point: int, resumed: Resumed | None, *, check: bool
    ) -> bool:
        """False when the log ends in this segment although others follow."""
        found = self._found
        segment = found.segments.items[at]
        size_bytes = segment.size_bytes
        position, base_offset = 0, segment.base_offset
        if resumed is not None and segment is found.segments.active:
            position, base_offset = resumed.position, resumed.base_offset
            size_bytes = self._fs.size(segment.path)
        else:
            segment.start_empty()
            segment.size_bytes = 0
        if size_bytes == 0:
            found.end_offset = segment.base_offset
            self._judge_gap(at, segment.base_offset, recovery_point)
            return found.corruption is None
        file = segment.open_file()
        # Compaction leaves gaps behind it, but never touches the last segment. A follower copies them, though.
        contiguous = at == len(found.segments) - 1 and not self._gaps
        expected = Expectation(segment.base_offset, contiguous=contiguous, check_crc=check)
        walk = BatchWalk(file, position, size_bytes, base_offset, expected)
        next_base = found.segments.end_offset_of(at, NO_BOUND)
        next_offset = base_offset
        fault: Fault | None = None
        for batch in walk:
            if batch.header[0] >= next_base:
                fault = Fault(batch.position, f"offset {batch.header[0]} belongs to the next segment")
                break
            self._replay(segment, batch, snapshot_offset, resumed)
            next_offset = walk.next_offset
        fault = fault or walk.fault
        found.end_offset = next_offset
        segment.unsynced = check
        if not check:
            segment.size_bytes = size_bytes  # read for its producers only; a fault in it is not looked for
            fault = None
        elif fault is not None and next_offset >= next_base:
            self._cut_undone_truncation(segment, fault, size_bytes)
            fault = None
        elif fault is not None:
            self._judge_fault(at, fault, size_bytes, next_offset, recovery_point)
        else:
            self._judge_gap(at, next_offset, recovery_point)
        segment.close_file()
        if segment is not found.segments.active:
            segment.finish_time_index()
        if check:
            self._unbelieved.append(segment)
        return fault is None and found.corruption is None

    def _resume(self) -> Resumed | None:
        """Take over what was saved of the last segment, if it can be believed."""
        if self._checkpoint is None:
            return None
        resumed = resume(
            self._fs,
            self._found.segments.active,
            self._checkpoint,
            self._limits.producers_max,
            self._now_ms,
        )
        if resumed is not None:
            self._found.epochs = resumed.epochs
            self._found.producers = resumed.producers
        return resumed

    def _replay(
        self, segment: Segment, batch: StoredBatchView, snapshot_offset: int, resumed: Resumed | None
    ) -> None:
        position, header, data = batch
        base_offset = header[0]
        segment.note_batch(base_offset + header[6], position, len(data), header[8], self._interval)
        self._found.epochs.assign(header[2], base_offset)
        if header[9] < 0:
            return
        if base_offset >= snapshot_offset:
            aborted = self._found.producers.note(header, data, self._now_ms, self._high_watermark)
            if aborted is not None and segment.aborted is not None:
                segment.aborted.append(aborted)
        elif header[5] & CONTROL and (resumed is None or segment is not self._found.segments.active):
            segment.aborted = None  # the state that was loaded says no more what this has ended

    # -- torn or corrupt -------------------------------------------------------------------------------------

    def _judge_fault(
        self, at: int, fault: Fault, size_bytes: int, next_offset: int, recovery_point: int
    ) -> None:
        segment = self._found.segments.items[at]
        later = self._found.segments.items[at + 1 :]
        where = f"{segment.path} at byte {fault.position}: {fault.reason} (next offset {next_offset})"
        if next_offset < recovery_point:
            self._corrupt(f"{where}; everything up to offset {recovery_point} had been flushed")
            return
        if self._hold_data(later) and segment.base_offset not in self._unflushed:
            self._corrupt(f"{where}; later segments hold data")
            return
        sound = find_sound_batch(segment.open_file(), fault.position, size_bytes, segment.base_offset)
        if sound is not None:
            self._corrupt(
                f"{where}; the batch at byte {sound} has a right checksum, so this is no torn write"
            )
            return
        _log.warning(
            "cut a torn write off the log's end",
            segment=segment.path,
            position=fault.position,
            cut_bytes=size_bytes - fault.position,
            reason=fault.reason,
            end_offset=next_offset,
        )
        self._found.tail_cut = True
        self._truncate(segment, fault.position)
        self._drop(later)

    def _cut_undone_truncation(self, segment: Segment, fault: Fault, size_bytes: int) -> None:
        """All that belongs into this segment is there. What is behind it had been cut off; a power cut undid that."""
        _log.warning(
            "cut off again what a truncation had cut off",
            segment=segment.path,
            position=fault.position,
            cut_bytes=size_bytes - fault.position,
        )
        self._truncate(segment, fault.position)

    def _truncate(self, segment: Segment, position: int) -> None:
        file = segment.open_file()
        file.truncate(position)
        # At once: what comes next is written there, and must not find the old bytes behind it one day.
        file.sync()

    def _judge_gap(self, at: int, next_offset: int, recovery_point: int) -> None:
        """What begins beyond the end of the segment before it: left over from a crash, or something is missing."""
        segment = self._found.segments.items[at]
        later = self._found.segments.items[at + 1 :]
        if not later or later[0].base_offset == next_offset:
            return
        unflushed = segment.base_offset in self._unflushed
        if unflushed or not self._hold_data(later):
            if self._gaps and not unflushed:
                return
            if next_offset >= recovery_point:
                _log.warning("dropped segments beyond the log's end", log=self._directory, end=next_offset)
                self._drop(later)
                return
        elif self._gaps:
            return
        self._corrupt(
            f"{segment.path} ends at offset {next_offset}, the next segment begins at {later[0].base_offset}: "
            "data is missing"
        )

    def _hold_data(self, segments: list[Segment]) -> bool:
        return any(self._fs.size(segment.path) for segment in segments)

    def _drop(self, segments: list[Segment]) -> None:
        for segment in reversed(segments):
            self._remove(names.segment_name(segment.base_offset, names.LOG))
            self._found.segments.remove(segment)

    def _corrupt(self, explanation: str) -> None:
        _log.error("log is corrupt and will not serve", log=self._directory, explanation=explanation)
        self._found.corruption = explanation

    # -- producer snapshots ----------------------------------------------------------------------------------

    def _load_latest_snapshot(self) -> int:
        """The offset of the newest usable snapshot, whose state is loaded; 0 when there is none."""
        first_offset = self._found.segments.items[0].base_offset
        for offset in reversed(self._found.snapshots):
            # One from before the first segment does not know what was written between, and is deleted by now.
            if offset >= first_offset and self._load_snapshot(offset):
                return offset
        return 0

    def _load_snapshot(self, offset: int) -> bool:
        path = f"{self._directory}/{names.segment_name(offset, names.SNAPSHOT)}"
        try:
            data = self._fs.read(path)
            self._found.producers = decode_snapshot(data, self._limits.producers_max, self._now_ms, offset)
        except (FileNotFoundError, SnapshotDamaged) as error:
            _log.warning("producer snapshot unusable", path=path, error=str(error))
            return False
        return True

    def _drop_later_snapshots(self) -> None:
        # A snapshot beyond the end speaks of batches that are gone.
        found = self._found
        while found.snapshots and found.snapshots[-1] > found.end_offset:
            self._remove(names.segment_name(found.snapshots.pop(), names.SNAPSHOT))


def empty_log(
    fs: FileSystem, files: OpenFiles, directory: str, limits: LogLimits, now_ms: int, base_offset: int
) -> Recovered:
    """The state of a log that is being made, with its first segment on disk."""
    segment = Segment(fs, files, directory, base_offset, now_ms)
    segment.start_empty()
    if segment.open_file(create=True).size():
        segment.close_file()
        raise FileExistsError(f"{segment.path} holds another log's batches")
    segments = SegmentList()
    segments.add(segment)
    return Recovered(
        segments,
        ProducerStates(limits.producers_max),
        start_offset=base_offset,
        end_offset=base_offset,
        flushed_offset=base_offset,
    )
