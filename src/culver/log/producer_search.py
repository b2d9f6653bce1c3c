"""Finding the last batches of a few producers by reading a log backwards."""

from __future__ import annotations

from dataclasses import dataclass, field

from culver.log.batches import CONTROL, BatchWalk, Expectation, HeaderFields
from culver.log.producer_state import NO_OFFSET, Producer, ProducerStates
from culver.log.segment import Segment, SegmentList

# Who has not written in so many bytes is forgotten, as if expired: the broker's thread waits for the search.
SEARCH_BYTES_MAX = 16 << 20
_STEP_BYTES = 256 << 10


@dataclass(slots=True)
class Found:
    """Producers as the batches that were read show them; whether those were all that there are."""

    producers: list[Producer] = field(default_factory=list)
    searched_all: bool = False


def find_producers(
    segments: SegmentList, down_to_offset: int, wanted: set[int], limit: int, now_ms: int
) -> Found:
    """Look for the wanted producer ids from the log's end down to an offset. Ids that are found leave the set."""
    found = Found()
    left_bytes = SEARCH_BYTES_MAX
    for segment in reversed(segments.items):
        position = segment.size_bytes
        while wanted and position:
            if left_bytes <= 0:
                return found
            start = _step_back(segment, position)
            found.producers += _read(segment, start, position, wanted, limit, now_ms)
            left_bytes -= position - start
            position = start
        if not wanted or segment.base_offset <= down_to_offset:
            break
    found.searched_all = True
    return found


def _step_back(segment: Segment, position: int) -> int:
    """Where a batch begins, a step before `position`, as far as the index knows."""
    index, _ = segment.indexes()
    entry = index.before_position(position - _STEP_BYTES)
    return index.positions[entry - 1] if entry else 0


def _read(
    segment: Segment, start: int, end: int, wanted: set[int], limit: int, now_ms: int
) -> list[Producer]:
    states = ProducerStates(limit)
    expected = Expectation(segment.base_offset, check_crc=False)
    for batch in BatchWalk(segment.open_file(), start, end, segment.base_offset, expected):
        if batch.header[9] in wanted:
            replay(states, batch.header, now_ms)
    for producer in states.producers.values():
        # What came before this stretch is not known.
        producer.known_from_offset = producer.epoch_offset = NO_OFFSET
        wanted.discard(producer.producer_id)
    return list(states.producers.values())


def replay(states: ProducerStates, header: HeaderFields, now_ms: int) -> None:
    """Note a batch with a producer id that is in the log."""
    base_offset, last_delta, timestamp_ms, producer_id = header[0], header[6], header[8], header[9]
    if header[5] & CONTROL:
        states.bump_epoch(producer_id, header[10], base_offset, timestamp_ms, now_ms)
    else:
        states.record(producer_id, header[10], header[11], last_delta + 1, base_offset, timestamp_ms, now_ms)
