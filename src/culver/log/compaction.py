"""Compaction: of each key the last record stays, at its offset. Kafka's rules (KIP-58, KIP-354, KIP-534).

Only closed segments are cleaned. A pass first reads the dirty part, what came since the last pass, into a map
of key to last offset, as far as memory allows. Then it writes every segment up to there anew without the
records that a later one replaces. Tombstones, records with a key and no value, stay for `delete.retention.ms`
after the first pass that meets them: that pass writes the moment into the batch (its delete horizon), a pass
after that moment drops them. Small segments are merged. Offsets never change.

Only what is below the last stable offset is cleaned, so that it is known of every record whether it was committed.
Records of aborted transactions go like those that were replaced; see cleaned_transactions for markers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from threading import Lock

from culver.config import TopicConfig
from culver.errors import KafkaError
from culver.filesystem import File, FileSystem
from culver.log import names
from culver.log.aborted_index import AbortedIndex
from culver.log.batches import (
    CHUNK_BYTES,
    CONTROL,
    HEADER,
    RELATIVE_OFFSET_MAX,
    TRANSACTIONAL,
    BatchWalk,
    StoredBatchView,
)
from culver.log.cleaned_transactions import CleanedTransactions
from culver.log.key_map import KeyMap
from culver.log.limits import LogLimits
from culver.log.open_files import OpenFiles
from culver.log.producer_state import Producer
from culver.log.replacement import remove_swap, write_swap
from culver.log.segment import Segment, SegmentList
from culver.log.transactions import AbortedTransaction
from culver.logging import get_logger
from culver.protocol.control_records import decode_end_marker
from culver.protocol.records import BatchHeader, Record, batch_with_records, decode_records, parse_header

_log = get_logger("culver.log")


@dataclass(frozen=True, slots=True)
class Source:
    """A segment to be cleaned, as the task sees it: its object is the log's and not touched."""

    segment: Segment
    path: str
    base_offset: int
    end_offset: int
    size_bytes: int


@dataclass(slots=True)
class Replacement:
    """Originals, and the segment that is to take their place; None when nothing is left of them."""

    originals: list[Segment]
    segment: Segment | None


@dataclass(frozen=True, slots=True)
class LastBatches:
    """What has to stay of producers, empty if need be, so that they are known after a recovery.

    Of what is cleaned the last batch: what comes after it may be cut off one day.
    """

    # Producer id -> last offset of that batch, for the sequence in it.
    offsets: Mapping[int, int]
    # Of those that have none, the epoch: markers with it stay.
    epochs: Mapping[int, int]
    # Of these it is not known which one it is: all of theirs stay for now.
    unknown: Set[int]

    @classmethod
    def of(cls, producers: Iterable[Producer], end_offset: int) -> LastBatches:
        """Before an offset."""
        offsets = {}
        epochs = {}
        unknown = set()
        for producer in producers:
            below = [batch.last_offset for batch in producer.batches if batch.last_offset < end_offset]
            if below:
                offsets[producer.producer_id] = below[-1]
            elif producer.batches or producer.epoch_offset >= end_offset:
                unknown.add(producer.producer_id)
            else:
                epochs[producer.producer_id] = producer.epoch
        return cls(offsets, epochs, unknown)

    def holds(self, header: BatchHeader) -> bool:
        """Whether a producer's batch is such a one."""
        producer_id = header.producer_id
        if header.is_control:
            return producer_id in self.unknown or self.epochs.get(producer_id) == header.producer_epoch
        return producer_id in self.unknown or self.offsets.get(producer_id) == header.last_offset


def cleanable(
    segments: SegmentList, config: TopicConfig, cleaned_offset: int, stable_offset: int, now_ms: int
) -> list[Source] | None:
    """The segments that a pass would clean, or None when it is not worth it yet."""
    sources = []
    for at, segment in enumerate(segments.items[:-1]):
        end_offset = segments.end_offset_of(at, 0)
        if end_offset > stable_offset:
            break
        young = now_ms - segment.largest_timestamp_ms() < config.min_compaction_lag_ms
        if config.min_compaction_lag_ms > 0 and young:
            break
        sources.append(Source(segment, segment.path, segment.base_offset, end_offset, segment.size_bytes))
    dirty = [source for source in sources if source.end_offset > cleaned_offset]
    if not dirty:
        return None
    dirty_bytes = sum(source.size_bytes for source in dirty)
    total_bytes = sum(source.size_bytes for source in sources)
    if total_bytes and dirty_bytes / total_bytes > config.min_cleanable_dirty_ratio:
        return sources
    oldest_dirty_ms = dirty[0].segment.first_timestamp()
    return sources if now_ms - oldest_dirty_ms > config.max_compaction_lag_ms else None


class CompactionTask:
    """One pass over one log. Made and finished by the log; `run` belongs on another thread."""

    def __init__(
        self,
        fs: FileSystem,
        files: OpenFiles,
        directory: str,
        config: TopicConfig,
        limits: LogLimits,
        sources: list[Source],
        cleaned_offset: int,
        last_batches: LastBatches,
        aborted: Sequence[AbortedTransaction],
        now_ms: int,
    ) -> None:
        self._fs = fs
        self._files = files
        self._directory = directory
        self._config = config
        self._limits = limits
        self._sources = sources
        self._cleaned_offset = cleaned_offset
        self._last = last_batches
        self._transactions = CleanedTransactions(aborted)
        self._now_ms = now_ms
        self.replacements: list[Replacement] = []
        # Everything below has been cleaned when the task is done.
        self.end_offset = cleaned_offset
        self.bytes_before = 0
        self.bytes_after = 0
        self._committing = Lock()
        self.called_off = False

    def reaches_beyond(self, offset: int) -> bool:
        """Whether it works on batches from there on."""
        return any(source.end_offset > offset for source in self._sources)

    def call_off(self) -> None:
        """What it reads is being cut off: nothing that it has written may take its place, now or after a crash."""
        with self._committing:
            self.called_off = True
            for replacement in self.replacements:
                if replacement.segment is not None:
                    remove_swap(self._fs, replacement.segment)
            if self.replacements:
                self._fs.sync_directory(self._directory)
            self.replacements = []

    def run(self) -> None:
        """Read, decide, write the new segments and make them durable under their `.swap` names."""
        keys = self._map_keys()
        for group in self._groups(keys.end_offset):
            self._clean_group(group, keys)
        if self.replacements:
            self._fs.sync_directory(self._directory)
        self.end_offset = keys.end_offset

    # -- which record is the last of its key -----------------------------------------------------------------

    def _map_keys(self) -> KeyMap:
        keys = KeyMap(self._limits.dedupe_buffer_bytes)
        for source in self._sources:
            if source.end_offset <= self._cleaned_offset:
                continue
            for batch in self._batches(source):
                if batch.header[0] + batch.header[6] < self._cleaned_offset:
                    continue
                if not keys.has_room_for(batch.header[12]):
                    keys.end_offset = batch.header[0]
                    _log.info("key map full, compacting a part", log=self._directory, keys=len(keys))
                    return keys
                self._map_batch(batch, keys)
            keys.end_offset = source.end_offset
        return keys

    def _map_batch(self, batch: StoredBatchView, keys: KeyMap) -> None:
        header = batch.header
        if header[5] & CONTROL:
            return
        if header[5] & TRANSACTIONAL and self._transactions.find(header[9], header[0]) is not None:
            return
        for record in self._decode(batch) or ():
            if record.key is not None:
                keys.put(record.key, record.offset)

    def _decode(self, batch: StoredBatchView) -> list[Record] | None:
        """None for a batch that cannot be decoded: it is left as it is, and its keys do not count."""
        try:
            return decode_records(batch.data, self._limits.max_decompressed_bytes)
        except KafkaError as error:
            _log.warning(
                "batch cannot be decoded", log=self._directory, offset=batch.header[0], error=error.message
            )
            return None

    def _batches(self, source: Source) -> Iterator[StoredBatchView]:
        file = self._fs.open(source.path)
        try:
            walk = BatchWalk(file, 0, source.size_bytes, source.base_offset)
            yield from walk
            if walk.fault is not None:
                # Never write anew what cannot be read: the error ends the pass, the originals stay.
                raise OSError(f"{source.path} at byte {walk.fault.position}: {walk.fault.reason}")
        finally:
            file.close()

    # -- writing anew ----------------------------------------------------------------------------------------

    def _groups(self, end_offset: int) -> list[list[Source]]:
        """Neighbours that fit into one segment together."""
        groups: list[list[Source]] = []
        size_bytes = 0
        for source in self._sources:
            if source.base_offset >= end_offset:
                break
            if (
                groups
                and size_bytes + source.size_bytes <= self._config.segment_bytes
                and source.end_offset - groups[-1][0].base_offset <= RELATIVE_OFFSET_MAX
            ):
                groups[-1].append(source)
                size_bytes += source.size_bytes
            else:
                groups.append([source])
                size_bytes = source.size_bytes
        return groups

    def _clean_group(self, group: list[Source], keys: KeyMap) -> None:
        base_offset = group[0].base_offset
        segment = Segment(self._fs, self._files, self._directory, base_offset, self._now_ms)
        segment.start_empty()
        cleaned = segment.path + names.CLEANED
        file = self._fs.open(cleaned, create=True)
        try:
            file.truncate(0)
            changed = self._write_cleaned(group, keys, segment, file) or len(group) > 1
            segment.aborted = AbortedIndex.of(self._transactions.take_kept())
            if changed and segment.size_bytes:
                file.sync()
        finally:
            file.close()
        self.bytes_before += sum(source.size_bytes for source in group)
        self.bytes_after += segment.size_bytes
        if not changed or not segment.size_bytes:
            self._fs.remove(cleaned)
        if not changed:
            return
        with self._committing:
            if self.called_off:
                raise OSError("the log has been cut back meanwhile")
            originals = [source.segment for source in group]
            if segment.size_bytes:
                segment.finish_time_index()
                write_swap(self._fs, segment, cleaned)
            self.replacements.append(Replacement(originals, segment if segment.size_bytes else None))

    def _write_cleaned(self, group: list[Source], keys: KeyMap, segment: Segment, file: File) -> bool:
        """Whether anything differs from the originals."""
        changed = False
        pending: list[bytes | bytearray | memoryview] = []
        pending_bytes = 0
        for source in group:
            for batch in self._batches(source):
                kept = self._clean_batch(batch, keys)
                if kept is not batch.data:
                    changed = True
                if kept is None:
                    continue
                fields = HEADER.unpack_from(kept)
                segment.note_batch(
                    fields[0] + fields[6],
                    segment.size_bytes,
                    len(kept),
                    fields[8],
                    self._config.index_interval_bytes,
                )
                pending.append(kept)
                pending_bytes += len(kept)
                if pending_bytes >= CHUNK_BYTES:
                    file.pwritev(pending, segment.size_bytes - pending_bytes)
                    pending, pending_bytes = [], 0
        if pending:
            file.pwritev(pending, segment.size_bytes - pending_bytes)
        return changed

    def _clean_batch(self, batch: StoredBatchView, keys: KeyMap) -> bytearray | memoryview | None:
        """The batch as it stays: the same bytes, a new batch with fewer records, or None."""
        header = parse_header(batch.data)
        if header.is_control:
            return self._clean_marker(batch, header, keys)
        if header.is_transactional and header.producer_id >= 0:
            self._transactions.meet(header.producer_id)
        if header.base_offset >= keys.end_offset:
            return batch.data
        if (
            header.is_transactional
            and self._transactions.find(header.producer_id, header.base_offset) is not None
        ):
            return self._emptied(batch, header)
        records = self._decode(batch)
        if records is None:
            return batch.data
        horizon_ms = header.delete_horizon_ms
        drop_tombstones = horizon_ms is not None and horizon_ms <= self._now_ms
        kept = []
        tombstones = False
        for record in records:
            if record.offset < keys.end_offset:
                if record.key is None or not keys.is_last(record.key, record.offset):
                    continue
                if record.value is None:
                    if drop_tombstones:
                        continue
                    tombstones = True
            kept.append(record)
        if not kept:
            return self._emptied(batch, header)
        if tombstones and horizon_ms is None:
            horizon_ms = self._now_ms + self._config.delete_retention_ms
            return batch_with_records(header, kept, delete_horizon_ms=horizon_ms)
        if len(kept) == len(records):
            return batch.data
        return batch_with_records(header, kept)

    def _emptied(self, batch: StoredBatchView, header: BatchHeader) -> bytearray | memoryview | None:
        """What is left of a batch without its records."""
        if header.producer_id < 0 or not self._last.holds(header):
            return None
        return batch_with_records(header, ()) if header.record_count else batch.data

    def _clean_marker(
        self, batch: StoredBatchView, header: BatchHeader, keys: KeyMap
    ) -> bytearray | memoryview | None:
        marker = decode_end_marker(batch.data)
        if marker is None and header.record_count:
            return batch.data  # of some other kind
        if self._transactions.meet_marker(header.producer_id, header.base_offset):
            return batch.data
        if header.base_offset >= keys.end_offset or self._last.holds(header):
            return batch.data
        horizon_ms = header.delete_horizon_ms
        if marker is None or (horizon_ms is not None and horizon_ms <= self._now_ms):
            return None
        if horizon_ms is not None:
            return batch.data
        horizon_ms = self._now_ms + self._config.delete_retention_ms
        records = decode_records(batch.data, self._limits.max_decompressed_bytes)
        return batch_with_records(header, records, delete_horizon_ms=horizon_ms)
