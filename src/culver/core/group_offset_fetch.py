"""OffsetFetch: what a group has committed.

Versions 1-10. Since 2 no topic list means all; since 7 a reader may insist on stable offsets; since 8 several
groups in one request; since 10 topic ids instead of names. Versions before 8 are turned into the later form
and back, so that there is one way through.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from culver.core.coordinator_effects import Effects, Gather
from culver.core.group_offset_checks import check_fetch
from culver.core.group_partition import GroupPartition
from culver.core.group_records import ZERO_ID, CommittedOffset
from culver.core.group_settings import Topics
from culver.errors import ErrorCode
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartition,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopic,
    OffsetFetchResponseTopics,
)

NO_OFFSET = -1


def _requested_groups(request: OffsetFetchRequest, api_version: int) -> list[OffsetFetchRequestGroup]:
    """The groups that are asked for, in the form of version 8."""
    if api_version >= 8:
        return request.groups
    topics = None
    if request.topics is not None:
        topics = [
            OffsetFetchRequestTopics(name=topic.name, partition_indexes=topic.partition_indexes)
            for topic in request.topics
        ]
    return [OffsetFetchRequestGroup(group_id=request.group_id, topics=topics)]


def _fetch_response(
    request: OffsetFetchRequest, groups: list[OffsetFetchResponseGroup], api_version: int
) -> OffsetFetchResponse:
    """The answer in the form of the request's version."""
    if api_version >= 8:
        return OffsetFetchResponse(groups=groups)
    (group,) = groups
    topics = [
        OffsetFetchResponseTopic(
            name=topic.name,
            partitions=[
                OffsetFetchResponsePartition(
                    partition_index=partition.partition_index,
                    committed_offset=partition.committed_offset,
                    committed_leader_epoch=partition.committed_leader_epoch,
                    metadata=partition.metadata,
                    error_code=partition.error_code,
                )
                for partition in topic.partitions
            ],
        )
        for topic in group.topics
    ]
    if api_version >= 2:
        return OffsetFetchResponse(topics=topics, error_code=group.error_code)
    if group.error_code != ErrorCode.NONE:
        # Version 1 has no place for an error of the whole group.
        topics = [
            OffsetFetchResponseTopic(
                name=topic.name,
                partitions=[
                    OffsetFetchResponsePartition(
                        partition_index=index,
                        committed_offset=NO_OFFSET,
                        metadata="",
                        error_code=group.error_code,
                    )
                    for index in topic.partition_indexes
                ],
            )
            for topic in request.topics or ()
        ]
    return OffsetFetchResponse(topics=topics)


def _group_error(group_id: str, error: ErrorCode) -> OffsetFetchResponseGroup:
    """The answer for a group that cannot be asked."""
    return OffsetFetchResponseGroup(group_id=group_id, topics=[], error_code=error)


def fetch_offsets(
    request: OffsetFetchRequest,
    api_version: int,
    topics: Topics,
    find: Callable[[str], tuple[GroupPartition | None, ErrorCode]],
    done: Callable[[OffsetFetchResponse, Effects], None],
    now_ms: float,
    out: Effects,
) -> None:
    """The offsets of several groups; `find` says where each of them lives, `done` gets the answer."""
    asked = _requested_groups(request, api_version)
    answers: list[OffsetFetchResponseGroup | None] = [None] * len(asked)

    def all_there(out: Effects) -> None:
        groups = [answer for answer in answers if answer is not None]
        done(_fetch_response(request, groups, api_version), out)

    gather = Gather(all_there)

    def fetch_one(
        position: int, group: OffsetFetchRequestGroup, partition: GroupPartition, _now_ms: float, out: Effects
    ) -> None:
        error = check_fetch(partition, group.group_id, group.member_id, group.member_epoch)
        if partition.closed:
            answers[position] = _group_error(group.group_id, ErrorCode.NOT_COORDINATOR)
        elif error is not ErrorCode.NONE:
            answers[position] = _group_error(group.group_id, error)
        else:
            answers[position] = _fetch_group(partition, group, topics, api_version, request.require_stable)
        gather.close(out)

    for position, group in enumerate(asked):
        partition, error = find(group.group_id)
        if partition is None:
            answers[position] = _group_error(group.group_id, error)
            continue
        gather.add()
        if request.require_stable:
            # What is on its way to the log counts as committed for someone who insists.
            partition.after_in_flight(partial(fetch_one, position, group, partition), now_ms, out)
        else:
            fetch_one(position, group, partition, now_ms, out)
    gather.close(out)


def _fetch_group(
    partition: GroupPartition,
    asked: OffsetFetchRequestGroup,
    topics: Topics,
    api_version: int,
    require_stable: bool,
) -> OffsetFetchResponseGroup:
    """The offsets of one group; a group or offset that is not there is not an error.

    One that a transaction may be about to change is, for someone who wants stable ones: whoever went on from it
    would do again what that transaction has done.
    """
    by_id = api_version >= 10
    committed = partition.offsets.get(asked.group_id, {})
    unstable = partition.unstable(asked.group_id) if require_stable else ()
    answers: list[OffsetFetchResponseTopics] = []
    if asked.topics is None:
        for name, offsets in committed.items():
            topic_id = (topics.topic_id(name) if by_id else None) or ZERO_ID
            if by_id and topic_id == ZERO_ID:
                continue
            partitions = [
                _unstable_answer(index)
                if (name, index) in unstable
                else _partition_answer(index, offset, topic_id)
                for index, offset in offsets.items()
                if not _is_of_other_topic(offset, topic_id)
            ]
            answers.append(OffsetFetchResponseTopics(name=name, topic_id=topic_id, partitions=partitions))
    else:
        for topic in asked.topics:
            topic_name = topics.topic_name(topic.topic_id) if by_id else topic.name
            if topic_name is None:
                partitions = [
                    _partition_answer(index, None, ZERO_ID, ErrorCode.UNKNOWN_TOPIC_ID)
                    for index in topic.partition_indexes
                ]
            else:
                of_topic = committed.get(topic_name, {})
                partitions = [
                    _unstable_answer(index)
                    if (topic_name, index) in unstable
                    else _partition_answer(index, of_topic.get(index), topic.topic_id)
                    for index in topic.partition_indexes
                ]
            answers.append(
                OffsetFetchResponseTopics(name=topic.name, topic_id=topic.topic_id, partitions=partitions)
            )
    return OffsetFetchResponseGroup(group_id=asked.group_id, topics=answers)


def _partition_answer(
    index: int, committed: CommittedOffset | None, topic_id: bytes, error: ErrorCode = ErrorCode.NONE
) -> OffsetFetchResponsePartitions:
    if committed is None or _is_of_other_topic(committed, topic_id):
        return OffsetFetchResponsePartitions(
            partition_index=index, committed_offset=NO_OFFSET, metadata="", error_code=error
        )
    return OffsetFetchResponsePartitions(
        partition_index=index,
        committed_offset=committed.offset,
        committed_leader_epoch=committed.leader_epoch,
        metadata=committed.metadata,
        error_code=error,
    )


def _unstable_answer(index: int) -> OffsetFetchResponsePartitions:
    return _partition_answer(index, None, ZERO_ID, ErrorCode.UNSTABLE_OFFSET_COMMIT)


def _is_of_other_topic(committed: CommittedOffset, topic_id: bytes) -> bool:
    """Whether the offset was committed for an earlier topic of the same name."""
    return committed.topic_id != ZERO_ID and topic_id not in (ZERO_ID, committed.topic_id)
