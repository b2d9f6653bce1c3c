"""The order of an idempotent producer's batches on one connection, kept where one of them was refused.

A producer has several requests under way. If the first is refused because this broker does not lead the partition yet,
and it begins to lead before the second is read, the second has a gap before it; or, from a producer that nobody knows,
is taken for its first. Either way the producer's order is lost: librdkafka, told of a gap, begins a new epoch and sends
again what may be there already. So what follows a refused batch is refused as well, until that batch comes again or
everything that was under way with it must have been read. It may also have been sent to another broker since.
"""

from __future__ import annotations

from struct import Struct
from typing import TypeAlias

from culver.errors import ErrorCode
from culver.protocol.messages.produce import TopicProduceData
from culver.protocol.records import MAGIC

# Of a batch: producer id, its epoch, the first record's sequence.
_PRODUCER = Struct(">qhi")
_PRODUCER_POSITION = 43
_MAGIC_POSITION = 16
_REMEMBERED_MAX = 10_000
_UNDER_WAY_MAX_MS = 1_000.0
# Refusals of the moment: the same batch may be taken when it comes again.
_PASSING = frozenset({ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS})

_Key: TypeAlias = tuple[str, bytes, int, int, int]


class RefusedBatches:
    """Of each producer and partition the first batch that was refused, and when."""

    __slots__ = ("_first",)

    def __init__(self) -> None:
        self._first: dict[_Key, tuple[int, float]] = {}

    def note(
        self, topic: TopicProduceData, index: int, records: memoryview | None, code: int, now_ms: float
    ) -> None:
        """A batch was refused before anything of it was written."""
        found = _producer(topic, index, records) if code in _PASSING else None
        if found is None:
            return
        key, sequence = found
        known = self._first.get(key)
        if known is not None and known[0] < sequence and now_ms < known[1] + _UNDER_WAY_MAX_MS:
            return  # refused like this one, and before it
        if len(self._first) >= _REMEMBERED_MAX:
            self._first.clear()
        self._first[key] = sequence, now_ms

    def follows_one(
        self, topic: TopicProduceData, index: int, records: memoryview | None, now_ms: float
    ) -> bool:
        """Whether a batch before this one was refused a moment ago and has not been sent again since."""
        found = _producer(topic, index, records) if self._first else None
        if found is None:
            return False
        key, sequence = found
        first, refused_ms = self._first.get(key, (sequence, now_ms))
        if sequence > first and now_ms < refused_ms + _UNDER_WAY_MAX_MS:
            return True
        self._first.pop(key, None)
        return False


def _producer(topic: TopicProduceData, index: int, records: memoryview | None) -> tuple[_Key, int] | None:
    if records is None or len(records) < _PRODUCER_POSITION + _PRODUCER.size:
        return None
    if records[_MAGIC_POSITION] != MAGIC:
        return None
    producer_id, epoch, sequence = _PRODUCER.unpack_from(records, _PRODUCER_POSITION)
    if producer_id < 0:
        return None
    return (topic.name, bytes(topic.topic_id), index, producer_id, epoch), sequence
