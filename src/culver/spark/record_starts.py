"""Find where each record of a batch begins, the one step that cannot be done for all records at once.

A record says its length and nothing else says where the next one is, so they have to be walked. The walk is the
dearest part of reading a topic, and is kept to one table look-up a record; records of equal length, which many
topics have, are found by comparing their length bytes all at once.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from culver.errors import ErrorCode, KafkaError
from culver.protocol.record_codec import RECORD_BYTES_MIN

Positions = npt.NDArray[np.int64]
Bytes = npt.NDArray[np.uint8]

_VARINT_BYTES_MAX = 5
# Fewer records of one length than this are walked: comparing them costs as much.
_RUN_MIN = 32
# How many records are walked before the next look for a run; doubled each time that there is none.
_FIRST_WALK = 16


def _jump_table() -> tuple[tuple[int, ...], ...]:
    """By the first two bytes of a record: how far the next record is. 0 stands for anything unusual."""
    rows: list[tuple[int, ...]] = [(0 if first & 1 else 1 + (first >> 1),) * 256 for first in range(0x80)]
    for first in range(0x80, 0x100):
        low = first & 0x7F
        jumps = [0 if low & 1 else 2 + ((second << 7 | low) >> 1) for second in range(0x80)]
        rows.append((*jumps, *(0,) * 0x80))
    return tuple(rows)


_JUMPS = _jump_table()


def record_starts(
    payload: memoryview, column: Bytes, position: int, end: int, count: int
) -> Positions | list[int]:
    """The positions of `count` records, which must fill `payload` from `position` to `end` exactly.

    `column` is the same memory as `payload`. Raises KafkaError(INVALID_RECORD).
    """
    if not 0 <= count <= (end - position) // RECORD_BYTES_MIN:
        raise invalid(f"{count} records cannot be in {end - position} bytes")
    try:
        if count < _RUN_MIN:
            starts, position = _walk(payload, position, count)
            found: Positions | list[int] = starts
        else:
            found, position = _walk_and_run(payload, column, position, end, count)
    except IndexError:
        raise invalid("the batch ends inside a record") from None
    # Every jump is forwards, so a last record that ends where it should leaves none before it that does not.
    if position != end:
        raise invalid(f"the records of a batch end at {position}, not at {end}")
    return found


def _walk(payload: memoryview, position: int, count: int) -> tuple[list[int], int]:
    """Hot: a record costs two look-ups in the payload and two in the table."""
    starts: list[int] = []
    append = starts.append
    jumps = _JUMPS
    for _ in range(count):
        append(position)
        position += jumps[payload[position]][payload[position + 1]] or _unusual_jump(payload, position)
    return starts, position


def _walk_and_run(
    payload: memoryview, column: Bytes, position: int, end: int, count: int
) -> tuple[Positions, int]:
    pieces: list[Any] = []
    walk = _FIRST_WALK
    while count:
        run, stride = _run(payload, column, position, end, count) if count >= _RUN_MIN else (0, 0)
        if run >= _RUN_MIN:
            pieces.append(np.arange(position, position + run * stride, stride, dtype=np.int64))
            position += run * stride
            count -= run
            walk = _FIRST_WALK
        else:
            steps = min(count, walk)
            starts, position = _walk(payload, position, steps)
            pieces.append(starts)
            count -= steps
            walk *= 2
    return (np.concatenate(pieces) if len(pieces) > 1 else np.asarray(pieces[0], dtype=np.int64)), position


def _run(payload: memoryview, column: Bytes, position: int, end: int, count: int) -> tuple[int, int]:
    """How many records from `position` on are as long as the first, and how long that is."""
    first, second = payload[position], payload[position + 1]
    stride = _JUMPS[first][second]
    if not stride:
        return 0, 0
    possible = min(count, (end - position) // stride)
    if possible < _RUN_MIN:
        return 0, 0
    stop = position + possible * stride
    # If the record here is as long as the one before, then the next one begins a stride further on: equal
    # length bytes at every stride are proof, not a guess.
    same = column[position:stop:stride] == first
    if first >= 0x80:
        same &= column[position + 1 : stop + 1 : stride] == second
    run = int(same.argmin())
    return (possible if same[run] else run), stride


def _unusual_jump(payload: memoryview, position: int) -> int:
    """The jump over a record of 8 KB or more. One that claims a negative length is refused."""
    zigzag = 0
    for index in range(_VARINT_BYTES_MAX):
        byte = payload[position + index]
        zigzag |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            if zigzag & 1:
                raise invalid("a record claims a negative length")
            return index + 1 + (zigzag >> 1)
    raise invalid(f"a varint takes more than {_VARINT_BYTES_MAX} bytes")


def invalid(why: str) -> KafkaError:
    return KafkaError(ErrorCode.INVALID_RECORD, why)
