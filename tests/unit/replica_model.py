"""What a replica's log should be: histories of batches, and every property that follows from them."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from functools import cache
from typing import Any

from log_batches import NOW_MS, whole_batches

from culver.log.partition_log import PartitionLog, ReadResult
from culver.log.producer_state import REMEMBERED_BATCHES
from culver.protocol.records import Record, encode_batch


@dataclass(frozen=True)
class Batch:
    """One batch as a leader stored it."""

    base_offset: int
    count: int
    epoch: int
    producer_id: int
    producer_epoch: int
    sequence: int
    label: str = ""

    @property
    def end_offset(self) -> int:
        return self.base_offset + self.count

    @cache  # noqa: B019 - batches are few, and the same ones are compared again and again
    def encode(self) -> bytes:
        records = [
            Record(
                index,
                NOW_MS + self.base_offset,
                b"key",
                f"{self.label}:{self.base_offset + index}".encode(),
                (),
            )
            for index in range(self.count)
        ]
        fields: dict[str, Any] = {}
        if self.producer_id >= 0:
            fields = {
                "producer_id": self.producer_id,
                "producer_epoch": self.producer_epoch,
                "base_sequence": self.sequence,
            }
        data = bytearray(encode_batch(records, **fields))
        struct.pack_into(">q", data, 0, self.base_offset)
        struct.pack_into(">i", data, 12, self.epoch)
        return bytes(data)


History = tuple[Batch, ...]


def end_of(history: History, otherwise: int = 0) -> int:
    return history[-1].end_offset if history else otherwise


def encode(history: History) -> bytes:
    return b"".join(one.encode() for one in history)


def next_batch(
    history: History, epoch: int, producer_id: int, count: int, label: str, start: int = 0
) -> Batch:
    """What a leader with this history would append; a producer goes on where its last batch ended."""
    producer_epoch, sequence = 0, 0
    for one in history:
        if one.producer_id == producer_id >= 0:
            producer_epoch, sequence = one.producer_epoch, one.sequence + one.count
    return Batch(max(end_of(history), start), count, epoch, producer_id, producer_epoch, sequence, label)


def cut(history: History, offset: int) -> History:
    """Without the batch that holds `offset` and all after it."""
    return tuple(one for one in history if one.end_offset <= offset)


def stored(log: PartitionLog, max_bytes: int = 1 << 30) -> bytes:
    """Every batch that a follower's fetches would get."""
    offset = log.start_offset
    content = b""
    while offset < log.end_offset:
        result = log.read(offset, max_bytes, log.end_offset, wait=True)
        assert isinstance(result, ReadResult)
        data = b"".join(bytes(buffer) for buffer in result.buffers)  # type: ignore[arg-type]
        whole = whole_batches(data)
        assert whole, f"nothing at {offset}"
        content += b"".join(one for one, _ in whole)
        offset = whole[-1][1]
    return content


def check(log: PartitionLog, history: History) -> None:
    """The log holds this history from its start on, and knows the epochs and producers of it and of no other."""
    assert log.corruption is None
    assert log.failed is None
    assert log.flushed_offset <= log.end_offset
    assert log.start_offset <= log.end_offset
    visible = tuple(one for one in history if one.end_offset > log.start_offset)
    assert log.end_offset == end_of(visible, log.start_offset)
    assert stored(log) == encode(visible)
    check_epochs(log, visible)
    check_producers(log, history, visible)


def check_epochs(log: PartitionLog, visible: History) -> None:
    assert log.latest_epoch == (visible[-1].epoch if visible else log.latest_epoch)
    for one in visible:
        for offset in range(max(one.base_offset, log.start_offset), one.end_offset):
            assert log.epoch_at(offset) == one.epoch


def check_producers(log: PartitionLog, history: History, visible: History) -> None:
    known = {producer.producer_id: producer for producer in log.producers()}
    ever = {(one.producer_id, one.base_offset): one for one in history}
    for producer in known.values():
        for batch in producer.batches:
            one = ever.get((producer.producer_id, batch.first_offset))
            assert one is not None, f"remembers {batch}, which is not in the log"
            assert (batch.first_sequence, batch.last_offset) == (one.sequence, one.end_offset - 1)
    for producer_id in {one.producer_id for one in visible if one.producer_id >= 0}:
        theirs = [one for one in history if one.producer_id == producer_id]
        last = theirs[-1]
        assert producer_id in known, f"has forgotten producer {producer_id}"
        producer = known[producer_id]
        assert producer.epoch == last.producer_epoch
        in_epoch = [one.base_offset for one in theirs if one.producer_epoch == last.producer_epoch]
        remembered = [batch.first_offset for batch in producer.batches]
        assert remembered == in_epoch[-len(remembered) :]
        assert 1 <= len(remembered) <= REMEMBERED_BATCHES
