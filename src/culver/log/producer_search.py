"""Finding the last batches of a few producers by reading a log backwards."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field

from culver.log.batches import BatchWalk, Expectation
from culver.log.producer_state import Producer, ProducerStates
from culver.log.segment import Segment, SegmentList
from culver.log.transactions import NO_OFFSET

# Who has not written in so many bytes is forgotten, as if expired: the broker's thread waits for the search.
SEARCH_BYTES_MAX = 16 << 20
_STEP_BYTES = 256 << 10


@dataclass(slots=True)
class Found:
    """Producers as the batches that were read show them; whether those were all that there are."""

    producers: list[Producer] = field(default_factory=list)
    searched_all: bool = False


def find_producers(
    segments: SegmentList,
    down_to_offset: int,
    wanted: set[int],
    precious: Collection[int],
    limit: int,
    now_ms: int,
) -> Found:
    """Look for the wanted producer ids from the log's end down to an offset. Ids that are found leave the set.

    It may take longer while one of the precious ones is among them: those that have a transaction open.
    """
    found = Found()
    left_bytes = SEARCH_BYTES_MAX
    for segment in reversed(segments.items):
        position = segment.size_bytes
        while wanted and position:
            if left_bytes <= 0 and not any(one in precious for one in wanted):
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
            states.note(batch.header, batch.data, now_ms, NO_OFFSET)
    for producer in states.producers.values():
        # What came before this stretch is not known.
        producer.known_from_offset = producer.epoch_offset = NO_OFFSET
        wanted.discard(producer.producer_id)
    return list(states.producers.values())
