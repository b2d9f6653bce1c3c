"""Fetches of one partition for those who are not at its end: at the leader, wherever that is, a few at a time."""

from __future__ import annotations

import asyncio
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import ClusterView, TopicPartition, refusal
from culver.gateway.reading.chunks import Chunk
from culver.gateway.reading.visible_records import visible_records
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from culver.wire_client import Unreachable

# The last version that names topics, rather than giving their ids. A topic that is deleted and made again has the same
# name and another id: asked for by name, an offset of the one would be read from the other.
_BY_NAME_VERSION = 12
_PURPOSE = "reading"
_AT_ONCE_PER_BROKER = 8
# Less than the cluster gives other questions: a leader that is stuck has a successor before long.
_ANSWER_MAX_MS = 3_000.0
_FIRST_PAUSE_S = 0.02
_LONGEST_PAUSE_S = 0.5
_VIEW_MAX_AGE_MS = 60_000.0
# A topic that is unknown for so long does not exist: brokers that start, or hear of it late, take less.
_UNKNOWN_FOR_SURE_S = 3.0
_BATCH_MAX_BYTES = 100 << 20
_UNKNOWN = frozenset((ErrorCode.UNKNOWN_TOPIC_OR_PARTITION, ErrorCode.UNKNOWN_TOPIC_ID))


class Fetched(NamedTuple):
    """What was found, which may be nothing, the broker that leads the partition, and the topic it belongs to."""

    chunk: Chunk
    leader: int
    topic_id: bytes


class Fetching:
    """Fetches from all brokers. Each broker is asked a few things at a time, first come, first served."""

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self._slots: dict[int, asyncio.Semaphore] = defaultdict(
            lambda: asyncio.Semaphore(_AT_ONCE_PER_BROKER)
        )

    async def fetch(
        self,
        place: TopicPartition,
        offset: int,
        *,
        bytes_max: int,
        committed: bool,
        patience_ms: float | None = None,
    ) -> Fetched:
        """Records from `offset` on; none at the end of the partition. Leaders are followed, for `patience_ms` if given.

        Raises KafkaError when it is no use to go on: OFFSET_OUT_OF_RANGE, an unknown topic, damaged records.
        """
        pause_s = _FIRST_PAUSE_S
        began = time.monotonic()
        known_at = began
        while True:
            problem: KafkaError | Unreachable
            view = None
            try:
                view = await self._cluster.view(max_age_ms=_VIEW_MAX_AGE_MS)
                return await self._attempt(place, view, offset, bytes_max, committed)
            except Unreachable as error:
                problem = error
                known_at = time.monotonic()  # nobody has said anything about the topic
            except KafkaError as error:
                if not error.retriable or error.code is ErrorCode.CORRUPT_MESSAGE:
                    raise
                if error.code not in _UNKNOWN:
                    known_at = time.monotonic()
                elif time.monotonic() - known_at > _UNKNOWN_FOR_SURE_S:
                    raise
                problem = error
            if patience_ms is not None and (time.monotonic() - began) * 1000 > patience_ms:
                raise problem
            if view is not None:
                self._cluster.forget_view(view)
            await asyncio.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    async def _attempt(
        self, place: TopicPartition, view: ClusterView, offset: int, bytes_max: int, committed: bool
    ) -> Fetched:
        leader = view.leader(place)
        topic_id = view.topics[place.topic].topic_id
        async with self._slots[leader.leader]:
            while True:
                entry = FetchPartition(
                    partition=place.partition,
                    current_leader_epoch=leader.leader_epoch,
                    fetch_offset=offset,
                    partition_max_bytes=bytes_max,
                )
                topic = FetchTopic(topic=place.topic, topic_id=topic_id, partitions=[entry])
                answer = await self._cluster.ask(
                    fetch_request([topic], bytes_max=bytes_max, committed=committed),
                    FetchResponse,
                    broker_id=leader.leader,
                    newest_version=newest_version([topic_id]),
                    timeout_ms=_ANSWER_MAX_MS,
                    purpose=_PURPOSE,
                )
                found = answers_by_partition(answer, {topic_id: place.topic}).get(place)
                if found is None:
                    raise Unreachable(f"broker {leader.leader} answered a fetch of {place} with nothing")
                if found.error_code:
                    raise refusal(found.error_code, f"records of {place} from offset {offset} on")
                chunk, fetched_bytes = decode_chunk(place, offset, found)
                if chunk.next_offset > offset or not fetched_bytes:
                    return Fetched(chunk, leader.leader, topic_id)
                # A broker may cut a batch off at the limit. It has to be had whole.
                if bytes_max >= _BATCH_MAX_BYTES:
                    raise KafkaError(
                        ErrorCode.INVALID_RECORD, f"what is at offset {offset} of {place} cannot be read"
                    )
                bytes_max = min(4 * bytes_max, _BATCH_MAX_BYTES)


def fetch_request(
    topics: list[FetchTopic], *, bytes_max: int, committed: bool, max_wait_ms: int = 0
) -> FetchRequest:
    """A fetch that waits until there is anything, or `max_wait_ms` have passed."""
    return FetchRequest(
        max_wait_ms=max_wait_ms,
        min_bytes=1,
        max_bytes=bytes_max,
        isolation_level=int(committed),
        topics=topics,
    )


def newest_version(topic_ids: Iterable[bytes]) -> int | None:
    """The newest version for a fetch of these topics: clusters of long ago have topics without ids."""
    return None if all(map(any, topic_ids)) else _BY_NAME_VERSION


def answers_by_partition(
    answer: FetchResponse, names: Mapping[bytes, str]
) -> dict[TopicPartition, PartitionData]:
    """What a broker answered for each partition; `names` are those of the topics by their ids.

    KafkaError when it refuses the fetch as a whole.
    """
    if answer.error_code:
        raise refusal(answer.error_code, "a fetch")
    return {
        TopicPartition(topic.topic or names.get(topic.topic_id, ""), part.partition_index): part
        for topic in answer.responses
        for part in topic.partitions
    }


def decode_chunk(place: TopicPartition, offset: int, found: PartitionData) -> tuple[Chunk, int]:
    """(what was found from `offset` on, bytes that were fetched). KafkaError for damaged records."""
    raw = found.records
    if not raw:
        return Chunk(offset, offset, []), 0
    assert isinstance(raw, bytes | memoryview)
    fetched = bytes(raw)
    records, next_offset = visible_records(place, fetched, offset, found.aborted_transactions or ())
    return Chunk(offset, next_offset, records), len(fetched)
