"""Offsets by time, earliest and latest, looked up at the leaders of partitions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.parts import in_parts
from culver.gateway.cluster.view import ClusterView, TopicPartition, refusal
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartition,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopic,
)
from culver.wire_client import Unreachable

if TYPE_CHECKING:
    from culver.gateway.cluster.cluster import Cluster

LATEST = -1
EARLIEST = -2

_CONSUMER = -1  # the replica id of those who are no replica
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
# A topic that was made just now takes a moment to reach every broker; one that does not exist never does.
_UNKNOWN_RETRY_S = 0.3
# A broker answers nobody else while it looks all of these up.
_PARTITIONS_PER_REQUEST = 500

Wanted = Mapping[TopicPartition, int]


@dataclass(frozen=True, slots=True)
class OffsetAt:
    """Where a lookup by time ended: -1 and -1 when every record is older."""

    offset: int
    timestamp_ms: int = -1
    leader_epoch: int = -1


Found = dict[TopicPartition, OffsetAt | KafkaError]


async def list_offsets(cluster: Cluster, wanted: Wanted, *, committed: bool, retry_ms: float) -> Found:
    """See `Cluster.list_offsets`."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    found: Found = {}
    left = dict(wanted)
    pause_s = _FIRST_PAUSE_S
    while left:
        found |= await _ask_leaders(cluster, left, committed)
        waited_s = loop.time() + pause_s - began
        left = {place: left[place] for place in left if _worth_a_retry(found[place], waited_s, retry_ms)}
        if left:
            cluster.forget_view()
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)
    return {place: found[place] for place in wanted}


def _worth_a_retry(result: OffsetAt | KafkaError, waited_s: float, retry_ms: float) -> bool:
    if not isinstance(result, KafkaError) or not result.retriable:
        return False
    unknown = result.code is ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    return waited_s < (min(_UNKNOWN_RETRY_S, retry_ms / 1000) if unknown else retry_ms / 1000)


async def _ask_leaders(cluster: Cluster, wanted: Wanted, committed: bool) -> Found:
    view = await cluster.view()
    found: Found = {}
    by_leader: dict[int, list[TopicPartition]] = {}
    for place in wanted:
        try:
            by_leader.setdefault(view.leader(place).leader, []).append(place)
        except KafkaError as error:
            found[place] = error
    questions = [
        _ask_leader(cluster, view, leader, {place: wanted[place] for place in some}, committed)
        for leader, places in by_leader.items()
        for some in in_parts(places, _PARTITIONS_PER_REQUEST)
    ]
    for answer in await asyncio.gather(*questions):
        found |= answer
    return found


async def _ask_leader(
    cluster: Cluster, view: ClusterView, leader: int, wanted: Wanted, committed: bool
) -> Found:
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for place, timestamp in wanted.items():
        entry = ListOffsetsPartition(
            partition_index=place.partition,
            current_leader_epoch=view.partition(place).leader_epoch,
            timestamp=timestamp,
        )
        topics.setdefault(place.topic, []).append(entry)
    request = ListOffsetsRequest(
        replica_id=_CONSUMER,
        isolation_level=int(committed),
        topics=[ListOffsetsTopic(name=name, partitions=entries) for name, entries in topics.items()],
        timeout_ms=int(cluster.timeout_ms),
    )
    try:
        answer = await cluster.ask(
            request, ListOffsetsResponse, broker_id=leader, least_version=2 if committed else 0
        )
    except Unreachable as error:
        return dict.fromkeys(wanted, KafkaError(ErrorCode.LEADER_NOT_AVAILABLE, str(error)))
    found: Found = {}
    for topic in answer.topics:
        for part in topic.partitions:
            place = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                found[place] = refusal(part.error_code, f"offsets of {place}")
            else:
                found[place] = OffsetAt(part.offset, part.timestamp, part.leader_epoch)
    missing = KafkaError(
        ErrorCode.UNKNOWN_SERVER_ERROR, f"broker {leader} left out a partition in its answer"
    )
    return {place: found.get(place, missing) for place in wanted}
