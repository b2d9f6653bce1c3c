"""Offsets of groups, read from and written to their coordinators."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

from culver.errors import ErrorCode, KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition, refusal
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
)
from culver.protocol.schema import ZERO_UUID
from culver.wire_client import Unreachable

T = TypeVar("T")

# What a coordinator answers that has moved, or is not ready yet: another try finds the right one.
ELSEWHERE = frozenset(
    (
        ErrorCode.NOT_COORDINATOR,
        ErrorCode.COORDINATOR_NOT_AVAILABLE,
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.REQUEST_TIMED_OUT,
    )
)
# Versions from which member epochs, or several groups in a request, are known; and the last that names topics.
_MEMBER_EPOCHS_SINCE_VERSION = 9
_SEVERAL_GROUPS_SINCE_VERSION = 8
_BY_NAME_VERSION = 9
_NO_OFFSET = -1
# One attempt. Commits are small, and may be made twice: a coordinator that is stuck is asked again, or its successor.
_COMMIT_MAX_MS = 5_000.0
_FIRST_PAUSE_S = 0.05
_LONGEST_PAUSE_S = 1.0


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """How far a group has come in a partition: the offset it reads next."""

    offset: int
    leader_epoch: int = -1
    metadata: str = ""


async def coordinated(
    cluster: Cluster,
    group: str,
    attempt: Callable[[], Awaitable[T]],
    *,
    patience_ms: Callable[[], float] | None = None,
) -> T:
    """What `attempt` returns once it meets the group's coordinator, ready to answer; tried for a while.

    `patience_ms` says for how long, and may lose it while the attempts are made.
    """
    began = time.monotonic()

    def is_late() -> bool:
        limit_ms = cluster.timeout_ms if patience_ms is None else patience_ms()
        return time.monotonic() + pause_s > began + limit_ms / 1000

    pause_s = _FIRST_PAUSE_S
    while True:
        try:
            return await attempt()
        except Unreachable:
            if is_late():
                raise
        except KafkaError as error:
            transient = error.code in ELSEWHERE or error.code is ErrorCode.UNSTABLE_OFFSET_COMMIT
            if not transient or is_late():
                raise
        cluster.forget_coordinator(group)
        await asyncio.sleep(pause_s)
        pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)


async def commit_offsets(
    cluster: Cluster,
    group: str,
    offsets: Mapping[TopicPartition, int],
    *,
    member_id: str = "",
    member_epoch: int = -1,
    topic_ids: Mapping[str, bytes] | None = None,
    patience_ms: Callable[[], float] | None = None,
) -> None:
    """Store offsets, as a member, or for a group that has none. KafkaError for the first that is refused.

    With `topic_ids` they are stored for these topics, where the coordinator can tell, and not for others that have
    been made with the same names since.
    """
    ids = topic_ids or {}
    topics: dict[str, list[OffsetCommitRequestPartition]] = {}
    for place, offset in offsets.items():
        entry = OffsetCommitRequestPartition(
            partition_index=place.partition, committed_offset=offset, committed_metadata=""
        )
        topics.setdefault(place.topic, []).append(entry)
    request = OffsetCommitRequest(
        group_id=group,
        generation_id_or_member_epoch=member_epoch,
        member_id=member_id,
        topics=[
            OffsetCommitRequestTopic(name=name, topic_id=ids.get(name, ZERO_UUID), partitions=entries)
            for name, entries in topics.items()
        ],
    )
    names = {topic_id: name for name, topic_id in ids.items()}
    by_id = all(name in ids for name in topics)

    async def attempt() -> None:
        answer = await cluster.ask_coordinator(
            group,
            request,
            OffsetCommitResponse,
            least_version=_MEMBER_EPOCHS_SINCE_VERSION if member_id else 0,
            newest_version=None if by_id else _BY_NAME_VERSION,
            timeout_ms=min(cluster.timeout_ms, _COMMIT_MAX_MS),
        )
        for topic in answer.topics:
            for part in topic.partitions:
                if part.error_code:
                    name = topic.name or names.get(topic.topic_id, "")
                    what = f"offset of {name}-{part.partition_index} for group {group}"
                    raise refusal(part.error_code, what)

    await coordinated(cluster, group, attempt, patience_ms=patience_ms)


async def stable_offsets(
    cluster: Cluster, group: str, places: Sequence[TopicPartition]
) -> dict[TopicPartition, int | None]:
    """The committed offset of each partition, None where there is none; waits for transactions that commit some."""
    topics: dict[str, list[int]] = {}
    for place in places:
        topics.setdefault(place.topic, []).append(place.partition)
    entries = [OffsetFetchRequestTopics(name=name, partition_indexes=some) for name, some in topics.items()]
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=entries)], require_stable=True
    )

    async def attempt() -> dict[TopicPartition, CommittedOffset]:
        answer = await cluster.ask_coordinator(
            group,
            request,
            OffsetFetchResponse,
            least_version=_SEVERAL_GROUPS_SINCE_VERSION,
            newest_version=_BY_NAME_VERSION,
        )
        if not answer.groups:
            raise Unreachable(f"the coordinator of group {group} answered with nothing")
        return offsets_of(answer.groups[0])

    found = await coordinated(cluster, group, attempt)
    return {place: found[place].offset if place in found else None for place in places}


async def all_offsets(
    cluster: Cluster, coordinator: int, groups: Sequence[str]
) -> dict[str, dict[TopicPartition, CommittedOffset] | KafkaError]:
    """All offsets of several groups that one broker coordinates. Raises Unreachable."""
    request = OffsetFetchRequest(
        groups=[OffsetFetchRequestGroup(group_id=group, topics=None) for group in groups]
    )
    answer = await cluster.ask(
        request,
        OffsetFetchResponse,
        broker_id=coordinator,
        least_version=_SEVERAL_GROUPS_SINCE_VERSION,
        newest_version=_BY_NAME_VERSION,
    )
    found: dict[str, dict[TopicPartition, CommittedOffset] | KafkaError] = {}
    for group in answer.groups:
        try:
            found[group.group_id] = offsets_of(group)
        except KafkaError as error:
            found[group.group_id] = error
    return found


def offsets_of(group: OffsetFetchResponseGroup) -> dict[TopicPartition, CommittedOffset]:
    """The offsets in an answer, those that there are. KafkaError for the first that could not be had."""
    if group.error_code:
        raise refusal(group.error_code, f"offsets of group {group.group_id}")
    found = {}
    for topic in group.topics:
        for part in topic.partitions:
            place = TopicPartition(topic.name, part.partition_index)
            if part.error_code:
                raise refusal(part.error_code, f"offset of {place} for group {group.group_id}")
            if part.committed_offset != _NO_OFFSET:
                found[place] = CommittedOffset(
                    part.committed_offset, part.committed_leader_epoch, part.metadata or ""
                )
    return found
