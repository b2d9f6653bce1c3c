"""Batches and logs for the tests of the log layer."""

from __future__ import annotations

from typing import Any

from culver.clock import ManualClock
from culver.config import TopicConfig
from culver.filesystem import FileSystem
from culver.log.checkpoint import Checkpoint
from culver.log.partition_log import PartitionLog, ReadResult
from culver.protocol.records import Record, decode_records, encode_batch, iterate_headers
from culver.testing.faults import FaultyFileSystem

NOW_MS = 1_700_000_000_000
DIRECTORY = "/data/orders-0"
LOG_PATH = DIRECTORY + "/00000000000000000000.log"


def record(
    value: bytes = b"value", key: bytes | None = None, timestamp: int = NOW_MS, offset: int = 0
) -> Record:
    return Record(offset, timestamp, key, value, ())


def batch(*values: bytes, timestamp: int = NOW_MS, key: bytes | None = None, **fields: Any) -> memoryview:
    """A produce request's batch, as it comes off the wire."""
    records = [Record(index, timestamp, key, value, ()) for index, value in enumerate(values or (b"value",))]
    return memoryview(encode_batch(records, **fields))


def sequenced(
    producer_id: int, sequence: int, count: int = 1, epoch: int = 0, padding: int = 0, **fields: Any
) -> memoryview:
    """A batch of an idempotent producer."""
    values = [b"%d" % (sequence + index) + bytes(padding) for index in range(count)]
    return batch(*values, producer_id=producer_id, producer_epoch=epoch, base_sequence=sequence, **fields)


class LogFixture:
    """A filesystem, a clock and the one log on them, which can be closed, crashed and opened again."""

    def __init__(self, fs: FileSystem | None = None, directory: str = DIRECTORY, **config: Any) -> None:
        self.faulty = FaultyFileSystem()
        self.fs: FileSystem = fs or self.faulty
        self.clock = ManualClock(NOW_MS)
        self.directory = directory
        self.config = TopicConfig(**config)
        self.log = PartitionLog.create(self.fs, self.clock, directory, self.config)

    def reopen(self, *, clean: bool = False, checkpoint: Checkpoint | None = None) -> PartitionLog:
        self.log = PartitionLog.open(
            self.fs, self.clock, self.directory, self.config, clean=clean, checkpoint=checkpoint
        )
        return self.log

    def close_and_reopen(self) -> PartitionLog:
        self.log.close()
        return self.reopen(clean=True, checkpoint=self.log.checkpoint())

    def append(self, *values: bytes, **fields: Any) -> int:
        """The offset that a batch with these values got."""
        return self.log.append(batch(*values, **fields), 0).base_offset

    def values(self, **options: Any) -> list[bytes | None]:
        return [stored.value for stored in records_of(self.log, **options)]


def records_of(log: PartitionLog, start: int | None = None, max_bytes: int = 1 << 20) -> list[Record]:
    """Everything a consumer would get, fetch by fetch."""
    offset = log.start_offset if start is None else start
    records: list[Record] = []
    while offset < log.end_offset:
        result = log.read(offset, max_bytes, log.end_offset, wait=True)
        assert isinstance(result, ReadResult)
        if not result.size:
            break
        for whole, next_offset in whole_batches(bytes(result.buffers[0])):
            records += [r for r in decode_records(whole, 1 << 20) if r.offset >= offset]
            offset = next_offset
    return records


def whole_batches(data: bytes) -> list[tuple[bytes, int]]:
    """(batch, the offset after it) for each batch that is not cut off."""
    found = []
    at = 0
    while at + 61 <= len(data):
        size = int.from_bytes(data[at + 8 : at + 12], "big") + 12
        if at + size > len(data):
            break
        whole = data[at : at + size]
        ((_, header),) = iterate_headers(whole)
        found.append((whole, header.last_offset + 1))
        at += size
    return found
