"""Looking at log files offline: every batch with its place, its header, and what is wrong with it in words.

Nothing here changes a file or needs a broker. `inspect_segment` goes through one file and does not stop at
damage: it says what it is and looks for the next batch behind it. `inspect_partition` also compares a
partition's segments and indexes with each other. `inspect_aborted` and `inspect_snapshot` show what is in the files
that are about transactions.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from culver.errors import KafkaError
from culver.filesystem import File, FileSystem
from culver.log import names
from culver.log.aborted_index import AbortedIndex
from culver.log.batches import (
    HEADER_BYTES,
    LENGTH_OVERHEAD_BYTES,
    RELATIVE_OFFSET_MAX,
    find_sound_batch,
    judge_crc,
)
from culver.log.indexes import IndexDamaged, OffsetIndex, TimeIndex
from culver.log.producer_snapshot import SnapshotDamaged, decode_snapshot
from culver.log.transactions import AbortedTransaction
from culver.protocol.records import MAGIC, BatchHeader, Record, decode_records, parse_header

_DEFAULT_DECOMPRESSED_BYTES = 128 * 1024 * 1024
_PRODUCERS_MAX = 1 << 31


@dataclass(frozen=True, slots=True)
class BatchVerdict:
    """What stands at one position of a segment file."""

    position: int
    size_bytes: int
    # None when there are not even the bytes of a header.
    header: BatchHeader | None
    crc_ok: bool
    # None when not asked for, or when they cannot be decoded.
    records: list[Record] | None = None
    # What cannot be so in a sound log.
    faults: list[str] = field(default_factory=list)
    # What is remarkable and may be right, such as the gaps that compaction leaves.
    notes: list[str] = field(default_factory=list)

    @property
    def is_sound(self) -> bool:
        return not self.faults


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to say about a file of a partition."""

    path: str
    position: int
    text: str
    # Damage, rather than something remarkable.
    is_fault: bool


def inspect_segment(
    fs: FileSystem,
    path: str,
    *,
    decode: bool = True,
    max_decompressed_bytes: int = _DEFAULT_DECOMPRESSED_BYTES,
) -> Iterator[BatchVerdict]:
    """Every batch of a segment file, in order, and every stretch of bytes that is none."""
    name = path.rpartition("/")[2]
    base_offset = names.offset_of(name, names.LOG)
    file = fs.open(path)
    try:
        yield from _Inspection(file, base_offset or 0, decode, max_decompressed_bytes).batches()
    finally:
        file.close()


class _Inspection:
    """One walk through one file that steps over damage."""

    def __init__(self, file: File, base_offset: int, decode: bool, max_decompressed_bytes: int) -> None:
        self._file = file
        self._end = file.size()
        self._base_offset = base_offset
        self._decode = decode
        self._max_decompressed_bytes = max_decompressed_bytes
        self._next_offset = base_offset

    def batches(self) -> Iterator[BatchVerdict]:
        position = 0
        while position < self._end:
            verdict = self._verdict(position)
            yield verdict
            position += verdict.size_bytes

    def _verdict(self, position: int) -> BatchVerdict:
        remain = self._end - position
        if remain < HEADER_BYTES:
            text = (
                f"only {remain} bytes are left, a batch header has {HEADER_BYTES}: a write that was cut off"
            )
            return BatchVerdict(position, remain, None, False, faults=[text])
        header = parse_header(self._file.pread(HEADER_BYTES, position))
        size = header.batch_length + LENGTH_OVERHEAD_BYTES
        if header.magic != MAGIC:
            return self._not_a_batch(position, header, f"magic byte is {header.magic}, expected {MAGIC}")
        if size < HEADER_BYTES:
            return self._not_a_batch(position, header, f"length field is {header.batch_length}, too small")
        if size > remain:
            text = (
                f"length field is {header.batch_length}, but the file ends {size - remain} bytes before that"
            )
            return self._not_a_batch(position, header, text)
        data = memoryview(self._file.pread(size, position))
        crc_fault = judge_crc(data, header.crc)
        if crc_fault is not None:
            # The length may be what is damaged: believe it only if it leads to another batch or to the end.
            follower = find_sound_batch(self._file, position + 1, self._end, self._base_offset)
            if follower is not None and follower < position + size:
                size = follower - position
        faults = [crc_fault] if crc_fault is not None else []
        notes: list[str] = []
        self._compare_offsets(header, faults, notes)
        records = self._records(data, faults) if crc_fault is None else None
        return BatchVerdict(position, size, header, crc_fault is None, records, faults, notes)

    def _not_a_batch(self, position: int, header: BatchHeader, text: str) -> BatchVerdict:
        follower = find_sound_batch(self._file, position + 1, self._end, self._base_offset)
        if follower is None:
            size = self._end - position
            text += f"; no sound batch in the {size} bytes that follow: a write that was cut off"
        else:
            size = follower - position
            text += f"; the next sound batch is {size} bytes further on: damage"
        return BatchVerdict(position, size, header, False, faults=[text])

    def _compare_offsets(self, header: BatchHeader, faults: list[str], notes: list[str]) -> None:
        base_offset = header.base_offset
        if base_offset < self._next_offset:
            faults.append(
                f"base offset {base_offset} overlaps what came before, which ends at {self._next_offset - 1}"
            )
            return
        if base_offset - self._base_offset > RELATIVE_OFFSET_MAX:
            faults.append(f"base offset {base_offset} is too far above the segment's {self._base_offset}")
            return
        if base_offset > self._next_offset:
            missing = base_offset - self._next_offset
            notes.append(
                f"{missing} offsets from {self._next_offset} on are left out: compacted away, or lost"
            )
        if header.last_offset_delta < 0:
            faults.append(f"last offset delta is {header.last_offset_delta}")
            return
        self._next_offset = header.last_offset + 1

    def _records(self, data: memoryview, faults: list[str]) -> list[Record] | None:
        if not self._decode:
            return None
        try:
            return decode_records(data, self._max_decompressed_bytes)
        except KafkaError as error:
            faults.append(f"the records cannot be decoded: {error.message}")
            return None


def inspect_partition(fs: FileSystem, directory: str, *, decode: bool = True) -> Iterator[Finding]:
    """Everything there is to say about a partition's files; no finding that is a fault means it is sound."""
    listing = fs.list(directory)
    next_offset: int | None = None
    for name in listing:
        path = f"{directory}/{name}"
        base_offset = names.offset_of(name, names.LOG)
        if base_offset is not None:
            if next_offset is not None and base_offset != next_offset:
                yield _between_segments(path, next_offset, base_offset)
            ends: dict[int, int] = {}
            markers: dict[int, int] = {}
            next_offset = base_offset
            for verdict in inspect_segment(fs, path, decode=decode):
                for text in verdict.faults:
                    yield Finding(path, verdict.position, text, True)
                for text in verdict.notes:
                    yield Finding(path, verdict.position, text, False)
                if verdict.header is not None and verdict.crc_ok:
                    ends[verdict.position] = verdict.header.last_offset
                    if verdict.header.is_control:
                        markers[verdict.header.base_offset] = verdict.header.producer_id
                    next_offset = max(next_offset, verdict.header.last_offset + 1)
            yield from _inspect_indexes(fs, directory, base_offset, ends)
            yield from _inspect_aborted(fs, directory, base_offset, markers)
        elif name.endswith(names.SNAPSHOT):
            yield from _inspect_snapshot(fs, path)
        elif name.endswith((names.DELETED, names.CLEANED, names.SWAP, names.TEMPORARY)):
            yield Finding(path, 0, "left over from an interrupted deletion or compaction", False)


def _between_segments(path: str, next_offset: int, base_offset: int) -> Finding:
    if base_offset < next_offset:
        return Finding(
            path, 0, f"begins at offset {base_offset}, the segment before ends at {next_offset - 1}", True
        )
    text = f"begins at offset {base_offset}, {base_offset - next_offset} after the segment before it ends"
    return Finding(path, 0, f"{text}: compacted away, or lost", False)


def _inspect_indexes(
    fs: FileSystem, directory: str, base_offset: int, ends: dict[int, int]
) -> Iterator[Finding]:
    """`ends` is position -> last offset of every sound batch."""
    log_path = f"{directory}/{names.segment_name(base_offset, names.LOG)}"
    path = f"{directory}/{names.segment_name(base_offset, names.OFFSET_INDEX)}"
    if fs.exists(path):
        try:
            index = OffsetIndex.from_bytes(fs.read(path), fs.size(log_path))
            index.verify()
        except IndexDamaged as damage:
            yield Finding(path, 0, f"{damage}; it will be rebuilt", True)
        else:
            for relative_offset, position in zip(index.offsets, index.positions, strict=True):
                offset = base_offset + relative_offset
                if ends.get(position) != offset:
                    text = f"says that a batch at {position} ends at offset {offset}; there is none"
                    yield Finding(path, 0, text, True)
                    break
    path = f"{directory}/{names.segment_name(base_offset, names.TIME_INDEX)}"
    if fs.exists(path):
        try:
            TimeIndex.from_bytes(fs.read(path)).verify()
        except IndexDamaged as damage:
            yield Finding(path, 0, f"{damage}; it will be rebuilt", True)


def _inspect_aborted(
    fs: FileSystem, directory: str, base_offset: int, markers: dict[int, int]
) -> Iterator[Finding]:
    """`markers` is offset -> producer id of every sound control batch."""
    path = f"{directory}/{names.segment_name(base_offset, names.ABORTED_INDEX)}"
    if not fs.exists(path):
        return
    try:
        entries = inspect_aborted(fs, path)
    except IndexDamaged as damage:
        yield Finding(path, 0, f"{damage}; it will be rebuilt", True)
        return
    for entry in entries:
        if markers.get(entry.last_offset) != entry.producer_id:
            text = f"says that producer {entry.producer_id} has a marker at offset {entry.last_offset}; there is none"
            yield Finding(path, 0, text, True)
            return


def inspect_aborted(fs: FileSystem, path: str) -> list[AbortedTransaction]:
    """What a file with aborted transactions says; raises IndexDamaged."""
    base_offset = names.offset_of(path.rpartition("/")[2], names.ABORTED_INDEX)
    return AbortedIndex.from_bytes(fs.read(path), base_offset or 0).entries()


@dataclass(frozen=True, slots=True)
class SnapshotProducer:
    """A producer in a snapshot. Sequence and offset are -1 when nothing of it but a marker was known."""

    producer_id: int
    epoch: int
    last_sequence: int
    last_offset: int
    last_timestamp_ms: int
    coordinator_epoch: int
    # Of the transaction that was open; None when there was none.
    transaction_first_offset: int | None


def inspect_snapshot(fs: FileSystem, path: str) -> list[SnapshotProducer]:
    """The producers in a snapshot file; raises SnapshotDamaged."""
    states = decode_snapshot(fs.read(path), _PRODUCERS_MAX, 0, 0)
    return [
        SnapshotProducer(
            producer.producer_id,
            producer.epoch,
            producer.last_sequence,
            producer.batches[-1].last_offset if producer.batches else -1,
            producer.last_timestamp_ms,
            producer.coordinator_epoch,
            states.transactions.open.get(producer.producer_id),
        )
        for producer in states.producers.values()
    ]


def _inspect_snapshot(fs: FileSystem, path: str) -> Iterator[Finding]:
    try:
        producers = inspect_snapshot(fs, path)
    except SnapshotDamaged as damage:
        yield Finding(path, 0, f"producer snapshot: {damage}; an older one will be used", True)
        return
    for one in producers:
        if one.transaction_first_offset is not None:
            text = (
                f"producer {one.producer_id} (epoch {one.epoch}) had a transaction open that began at offset "
                f"{one.transaction_first_offset}"
            )
            yield Finding(path, 0, text, False)
