"""Walk the record batches of a fetch answer: which of them a reader may see, and where the next fetch begins.

A fetch answer may begin with a batch that holds records before the offset asked for, and may end in the middle of a
batch: the caller drops the former, and the latter is fetched again.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from culver.errors import ErrorCode, KafkaError
from culver.protocol.aborted_transactions import HiddenBatches
from culver.protocol.compression import Buffer
from culver.protocol.records import (
    BATCH_OVERHEAD_BYTES,
    LOG_OVERHEAD_BYTES,
    MAGIC,
    BatchHeader,
    parse_header,
    verify_crc,
)

_OFFSET_AND_LENGTH = struct.Struct(">qi")
_LAST_OFFSET_DELTA = struct.Struct(">i")
_LAST_OFFSET_DELTA_POSITION = 23


class Aborted(NamedTuple):
    """A transaction that came to nothing: its records lie between this offset and its marker."""

    producer_id: int
    first_offset: int


def offset_after(raw: Buffer) -> int | None:
    """The offset after the last whole batch; None when there is none. Quick: nothing else is read."""
    size = len(raw)
    position = 0
    found = None
    while size - position >= BATCH_OVERHEAD_BYTES:
        base_offset, length = _OFFSET_AND_LENGTH.unpack_from(raw, position)
        after = position + length + LOG_OVERHEAD_BYTES
        if not position + BATCH_OVERHEAD_BYTES <= after <= size:
            break
        found = (
            base_offset + _LAST_OFFSET_DELTA.unpack_from(raw, position + _LAST_OFFSET_DELTA_POSITION)[0] + 1
        )
        position = after
    return found


def visible_batches(
    raw: memoryview, start_offset: int, end_offset: int, aborted: Iterable[Aborted]
) -> Iterator[tuple[int, BatchHeader]]:
    """(position, header) of each batch with records in the range for a reader, its checksum verified.

    Control batches are none of the reader's business, nor are batches of the `aborted` transactions, which the
    broker names when asked for committed records only. Raises KafkaError(CORRUPT_MESSAGE).
    """
    hidden = HiddenBatches(aborted)
    for position, header in _whole_batches(raw):
        if header.base_offset >= end_offset:
            return
        if hidden.hides(raw, position, header):
            continue
        if header.last_offset < start_offset or not header.record_count:
            continue
        if not verify_crc(raw, header, position):
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} does not match its checksum",
            )
        yield position, header


def _whole_batches(raw: memoryview) -> Iterator[tuple[int, BatchHeader]]:
    position = 0
    size = len(raw)
    while size - position >= BATCH_OVERHEAD_BYTES:
        header = parse_header(raw, position)
        if header.magic != MAGIC:
            raise KafkaError(
                ErrorCode.INVALID_RECORD,
                f"records in format {header.magic} cannot be read, only format {MAGIC}",
            )
        if header.size_bytes < BATCH_OVERHEAD_BYTES:
            raise KafkaError(
                ErrorCode.CORRUPT_MESSAGE,
                f"the batch at offset {header.base_offset} claims {header.size_bytes} bytes",
            )
        if header.size_bytes > size - position:
            return
        yield position, header
        position += header.size_bytes
