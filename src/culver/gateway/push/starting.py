"""Where a subscriber begins to read: at offsets it names, at a time, at the beginning or at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster, OffsetAt
from culver.gateway.cluster.view import TopicPartition

LATEST = -1
EARLIEST = -2


@dataclass(frozen=True, slots=True)
class Start:
    """Where partitions begin: at a named position, and all others at a time in ms, LATEST or EARLIEST."""

    timestamp: int = LATEST
    positions: Mapping[TopicPartition, int] = field(default_factory=dict)


async def start_positions(
    cluster: Cluster, partitions: Iterable[TopicPartition], start: Start
) -> dict[TopicPartition, int]:
    """The offset at which each partition begins. KafkaError when the cluster does not know one of them now."""
    found = {place: start.positions[place] for place in partitions if place in start.positions}
    asked = {place: start.timestamp for place in partitions if place not in found}
    for timestamp in (start.timestamp, LATEST):  # the end, where every record is older than the time
        if asked:
            answers = await cluster.list_offsets(dict.fromkeys(asked, timestamp), committed=True)
            found |= {place: _offset(answer) for place, answer in answers.items()}
            asked = {place: timestamp for place in asked if found[place] < 0}
    return found


def _offset(answer: OffsetAt | KafkaError) -> int:
    if isinstance(answer, KafkaError):
        raise answer
    return answer.offset
