"""What is saved of the active segment now and then, so that after a crash it need not be read from its start.

Its indexes live in memory, and so do the leader epochs and the producers with their transactions. All of them go
into one file, `X.progress`, and the checkpoint that is written after it holds the file's checksum. Recovery believes
the file only when the checksum fits: after a power cut it may be older than the checkpoint, or torn.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from culver.filesystem import FileSystem
from culver.log import names
from culver.log.aborted_index import AbortedIndex
from culver.log.batches import STEP, STEP_BYTES
from culver.log.checkpoint import Checkpoint
from culver.log.indexes import IndexDamaged, OffsetIndex, TimeIndex
from culver.log.leader_epochs import LeaderEpochs
from culver.log.producer_snapshot import SnapshotDamaged, decode_snapshot, encode_snapshot
from culver.log.producer_state import ProducerStates
from culver.log.segment import Segment
from culver.protocol.checksum import crc32c

# How much a segment grows before it is saved again.
SAVE_EVERY_BYTES = 1 << 20
# So much of what had been flushed is read again all the same: damage from a crash is found near the end.
REREAD_BYTES = 1 << 20
# An index is read here before it is known how much of it counts.
NO_BOUND = 1 << 62


class _File(msgspec.Struct, array_like=True):
    end_offset: int
    offset_index: bytes
    time_index: bytes
    epochs: bytes
    producers: bytes
    aborted: bytes = b""


_encoder = msgspec.msgpack.Encoder()
_decoder = msgspec.msgpack.Decoder(_File)


class SavedProgress:
    """What of the active segment is saved. `checksum` goes into the checkpoint; 0 when nothing is."""

    __slots__ = ("_saved_bytes", "checksum")

    def __init__(self) -> None:
        self._saved_bytes = 0
        self.checksum = 0

    def file(
        self, active: Segment, epochs: LeaderEpochs, producers: ProducerStates, end_offset: int
    ) -> tuple[str, bytes] | None:
        """(path, content) of what is to be written before the next checkpoint is; None when not worth it."""
        if active.size_bytes - self._saved_bytes < SAVE_EVERY_BYTES:
            return None
        offset_index, time_index = active.indexes()
        content = _encoder.encode(
            _File(
                end_offset,
                offset_index.to_bytes(),
                time_index.to_bytes(),
                epochs.encode(),
                encode_snapshot(producers),
                b"" if active.aborted is None else active.aborted.to_bytes(),
            )
        )
        self._saved_bytes = active.size_bytes
        self.checksum = crc32c(content) or 1
        return active.path.removesuffix(names.LOG) + names.PROGRESS, content


class Resumed(NamedTuple):
    """Where recovery may go on reading, and the state up to `end_offset`, which is at or after that."""

    position: int
    base_offset: int
    end_offset: int
    epochs: LeaderEpochs
    producers: ProducerStates


def resume(
    fs: FileSystem, segment: Segment, checkpoint: Checkpoint, producers_max: int, now_ms: int
) -> Resumed | None:
    """Prepare the segment as if it had been read up to the position returned; None: read it from its start.

    Everything before that position had been flushed.
    """
    flushed_position = checkpoint.flushed_position
    if checkpoint.active_base_offset != segment.base_offset or not checkpoint.progress_checksum:
        return None
    if not REREAD_BYTES <= flushed_position <= segment.size_bytes:
        return None
    try:
        content = fs.read(segment.path.removesuffix(names.LOG) + names.PROGRESS)
        if (crc32c(content) or 1) != checkpoint.progress_checksum:
            return None
        file = _decoder.decode(content)
        # Entries beyond what had been flushed speak of bytes that may be others now.
        offset_index = OffsetIndex.from_bytes(file.offset_index, NO_BOUND)
        offset_index.truncate(flushed_position - REREAD_BYTES)
        time_index = TimeIndex.from_bytes(file.time_index)
        aborted = AbortedIndex.from_bytes(file.aborted, segment.base_offset)
        epochs = LeaderEpochs.decode(file.epochs)
        epochs.dirty = True  # their own file may be older
        producers = decode_snapshot(file.producers, producers_max, now_ms, file.end_offset)
    except (FileNotFoundError, msgspec.DecodeError, IndexDamaged, SnapshotDamaged, ValueError):
        return None
    if not len(offset_index):
        return None
    position = offset_index.positions[-1]
    base_offset, _, last_delta = STEP.unpack(segment.open_file().pread(STEP_BYTES, position))
    if base_offset + last_delta - segment.base_offset != offset_index.offsets[-1]:
        return None
    offset_index.truncate(position)
    time_index.truncate(base_offset - segment.base_offset)
    segment.offset_index = offset_index
    segment.time_index = time_index
    segment.aborted = aborted
    segment.size_bytes = position
    segment.first_timestamp_ms = checkpoint.first_timestamp_ms
    segment.max_timestamp_ms = checkpoint.max_timestamp_ms
    segment.max_timestamp_offset = checkpoint.max_timestamp_offset
    return Resumed(position, base_offset, file.end_offset, epochs, producers)
