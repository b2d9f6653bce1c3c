"""Walking over the batches of a segment file, and judging each of them."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from culver.filesystem import Buffer, File
from culver.protocol.checksum import crc32c

# base offset, length, leader epoch, magic, crc, attributes, last offset delta, base timestamp, max timestamp,
# producer id, producer epoch, base sequence, record count
HEADER = struct.Struct(">qiibIhiqqqhii")
HEADER_BYTES = HEADER.size
# base offset, length, last offset delta: what it takes to step from batch to batch
STEP = struct.Struct(">qi11xi")
STEP_BYTES = STEP.size
# The length field counts what follows it.
LENGTH_OVERHEAD_BYTES = 12
CRC_START = 21
MAGIC = 2
MAGIC_POSITION = 16
TRANSACTIONAL = 0x10
CONTROL = 0x20
DELETE_HORIZON = 0x40
CHUNK_BYTES = 1 << 20
# Index entries are relative to the segment's base offset and int32, as Kafka's.
RELATIVE_OFFSET_MAX = 0x7FFF_FFFF

HeaderFields = tuple[int, int, int, int, int, int, int, int, int, int, int, int, int]


class Fault(NamedTuple):
    """Why the bytes at a position are not a batch that belongs there."""

    position: int
    reason: str


class StoredBatchView(NamedTuple):
    """One batch in a file: where it is, its header, and all its bytes."""

    position: int
    header: HeaderFields
    data: memoryview


@dataclass(frozen=True, slots=True)
class Expectation:
    """What can be known about a batch before it is read."""

    # Offsets in a segment are at most this far above its base offset, which is the least they can be.
    segment_base_offset: int = 0
    # No offset is left out: so it is where compaction has never been.
    contiguous: bool = False
    check_crc: bool = True


def judge(data: memoryview, header: HeaderFields, next_offset: int, expected: Expectation) -> str | None:
    """What is wrong with a whole batch, in words; None when it is sound.

    `next_offset` is the smallest base offset that may follow what came before.
    """
    base_offset, _length, _, magic, crc, _, last_delta, *_ = header
    if magic != MAGIC:
        return f"magic byte is {magic}, expected {MAGIC}"
    if base_offset < next_offset or (expected.contiguous and base_offset != next_offset):
        more = "" if expected.contiguous else " or more"
        return f"base offset is {base_offset}, expected {next_offset}{more}"
    if base_offset - expected.segment_base_offset > RELATIVE_OFFSET_MAX:
        return f"base offset is {base_offset}, too far above the segment's {expected.segment_base_offset}"
    if last_delta < 0:
        return f"last offset delta is {last_delta}, expected 0 or more"
    if expected.check_crc:
        return judge_crc(data, crc)
    return None


def judge_crc(data: memoryview, crc: int) -> str | None:
    """What is wrong with a batch's checksum; None when it fits."""
    computed = crc32c(data[CRC_START:])
    if computed != crc:
        return f"CRC-32C of the content is {computed:#010x}, the header says {crc:#010x}"
    return None


class BatchWalk:
    """Iterates over sound batches from `position` to `end`; stops at the first fault.

    Afterwards `position` is where the sound part ends, `next_offset` what would come next, and `fault` says
    why the walk stopped before `end`, if it did.
    """

    def __init__(
        self, file: File, position: int, end: int, next_offset: int, expected: Expectation | None = None
    ) -> None:
        self._file = file
        self._end = end
        self._expected = expected or Expectation(next_offset)
        self.position = position
        self.next_offset = next_offset
        self.fault: Fault | None = None

    def __iter__(self) -> Iterator[StoredBatchView]:
        end = self._end
        expected = self._expected
        want = CHUNK_BYTES
        while self.position < end:
            start = self.position
            view = memoryview(self._file.pread(min(want, end - start), start))
            available = len(view)
            at = 0
            want = CHUNK_BYTES
            while at < available:
                if available - at < HEADER_BYTES:
                    break
                header: HeaderFields = HEADER.unpack_from(view, at)
                size = header[1] + LENGTH_OVERHEAD_BYTES
                if size < HEADER_BYTES:
                    self.fault = Fault(start + at, f"length field is {header[1]}, too small for a batch")
                    return
                if size > end - start - at:
                    self.fault = Fault(
                        start + at,
                        f"length field is {header[1]}, which ends {size - (end - start - at)} bytes "
                        "beyond the end of the file",
                    )
                    return
                if size > available - at:
                    want = max(CHUNK_BYTES, size)
                    break
                data = view[at : at + size]
                reason = judge(data, header, self.next_offset, expected)
                if reason is not None:
                    self.fault = Fault(start + at, reason)
                    return
                self.position = start + at + size
                self.next_offset = header[0] + header[6] + 1
                yield StoredBatchView(start + at, header, data)
                at += size
            if at == 0 and available < HEADER_BYTES:
                self.fault = Fault(
                    start, f"only {available} bytes are left, a batch header is {HEADER_BYTES}"
                )
                return


def find_sound_batch(file: File, position: int, end: int, segment_base_offset: int) -> int | None:
    """The position of the first batch from `position` on whose checksum is right, or None.

    This is what tells corruption from a torn write: nothing sound can stand in or behind a write that was cut
    off. Candidates are found by their magic byte and filtered by length and offset before the checksum is
    computed, so that a long stretch of rubbish or zeros costs little.
    """
    magic = bytes([MAGIC])
    start = position
    while start < end:
        chunk = file.pread(min(CHUNK_BYTES + HEADER_BYTES, end - start), start)
        if not chunk:
            return None
        found = chunk.find(magic, MAGIC_POSITION)
        while found >= 0:
            at = found - MAGIC_POSITION
            if at + HEADER_BYTES <= len(chunk) and _is_sound(
                file, chunk, at, start, end, segment_base_offset
            ):
                return start + at
            found = chunk.find(magic, found + 1)
        start += CHUNK_BYTES
    return None


def _is_sound(file: File, chunk: Buffer, at: int, start: int, end: int, segment_base_offset: int) -> bool:
    base_offset, length, last_delta = STEP.unpack_from(chunk, at)
    size = length + LENGTH_OVERHEAD_BYTES
    if size < HEADER_BYTES or start + at + size > end or last_delta < 0:
        return False
    if not 0 <= base_offset - segment_base_offset <= RELATIVE_OFFSET_MAX:
        return False
    view = memoryview(file.pread(size, start + at))
    return judge_crc(view, HEADER.unpack_from(view)[4]) is None
