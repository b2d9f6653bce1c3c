"""What a data directory knows about its logs without reading them: one small file for all partitions."""

from __future__ import annotations

import msgspec

from culver.filesystem import FileSystem
from culver.logging import get_logger

_log = get_logger("culver.log")

CHECKPOINT_FILE = "log-checkpoint"
_VERSION = 1


class Checkpoint(msgspec.Struct, frozen=True, array_like=True):
    """One partition's log, as it was when the checkpoint was taken.

    `recovery_point` is the promise that matters: everything below it had been synced. A log that has less is
    corrupt; above it, recovery reads and decides. The fields after it only spare a clean start the reading.
    """

    start_offset: int
    recovery_point: int
    end_offset: int
    active_base_offset: int
    active_size_bytes: int
    first_timestamp_ms: int
    max_timestamp_ms: int
    max_timestamp_offset: int
    producers: int
    # False for a log that was failed or corrupt when the broker stopped: it is to be recovered all the same.
    trusted: bool
    # Compaction has been over everything below.
    cleaned_offset: int = 0
    # Where in the active segment the recovery point is, and a checksum of what is saved of it: see progress.py.
    flushed_position: int = 0
    progress_checksum: int = 0
    # -1: not known.
    high_watermark: int = -1
    # (leader epoch, first offset in it), so that recovery has them for what it need not read.
    epochs: list[tuple[int, int]] | None = None
    # Offsets may be missing from it: it is or was compacted, or copied from one that was.
    gaps: bool = False
    # Aborted transactions that end in the active segment: its index, which a clean stop saves, has so many entries.
    aborted: int = 0


class _File(msgspec.Struct):
    version: int
    logs: dict[str, Checkpoint]


_decoder = msgspec.json.Decoder(_File)


def encode_checkpoints(logs: dict[str, Checkpoint]) -> bytes:
    """By directory name."""
    return msgspec.json.encode(_File(_VERSION, logs))


def load_checkpoints(fs: FileSystem, path: str) -> dict[str, Checkpoint]:
    """By directory name; empty when the file is missing or unusable, which only makes recovery read more."""
    try:
        data = fs.read(path)
    except FileNotFoundError:
        return {}
    try:
        file = _decoder.decode(data)
        if file.version != _VERSION:
            raise msgspec.ValidationError(f"version {file.version}")
    except msgspec.DecodeError as error:
        _log.warning("checkpoint file unusable, logs are scanned in full", path=path, error=str(error))
        return {}
    return file.logs
