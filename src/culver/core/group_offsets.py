"""Committed offsets: OffsetCommit, TxnOffsetCommit and OffsetDelete.

OffsetCommit 2-10: until 4 with a retention time of its own; since 6 with leader epochs; since 7 static
members; since 9 GROUP_ID_NOT_FOUND for an unknown group; since 10 topic ids instead of names.
TxnOffsetCommit 0-5: since 2 with leader epochs; since 3 the consumer says who it is, and is fenced.
"""

from __future__ import annotations

from typing import TypeVar

from culver.core.coordinator_effects import (
    Effects,
    ProducerMark,
    Reply,
    RequestContext,
    Token,
    append_error,
)
from culver.core.group import GroupState
from culver.core.group_offset_checks import Committer, check_commit
from culver.core.group_partition import GroupPartition
from culver.core.group_rebalance import Rebalance
from culver.core.group_records import (
    NO_TIMESTAMP,
    ZERO_ID,
    CommittedOffset,
    StateRecord,
    offset_record,
    offset_tombstone,
)
from culver.core.group_settings import Topics
from culver.errors import ErrorCode
from culver.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestTopic,
    OffsetCommitResponse,
    OffsetCommitResponsePartition,
    OffsetCommitResponseTopic,
)
from culver.protocol.messages.offset_delete import (
    OffsetDeleteRequest,
    OffsetDeleteResponse,
    OffsetDeleteResponsePartition,
    OffsetDeleteResponseTopic,
)
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitResponse,
    TxnOffsetCommitResponsePartition,
    TxnOffsetCommitResponseTopic,
)

_MAX_TIMESTAMP_MS = 2**63 - 1
# Offsets with a retention time of their own are kept in an older form, with a 16-bit length in UTF-8.
_MAX_OLD_METADATA_LENGTH = 8_000


class OffsetRequests:
    """Commits and deletes offsets of the groups of one partition."""

    def __init__(self, rebalance: Rebalance, topics: Topics) -> None:
        self._rebalance = rebalance
        self._partition: GroupPartition = rebalance.partition
        self._settings = rebalance.settings
        self._topics = topics

    # --- OffsetCommit ---

    def commit(
        self, request: OffsetCommitRequest, context: RequestContext, token: Token, now_ms: float, out: Effects
    ) -> None:
        """Write offsets; the answer comes once they are durable. Hot."""
        known, response = self._sort_out_topics(request, context.api_version)
        if not known:
            out.append(Reply(token, response))
            return
        by_id = context.api_version >= 10
        group_id = request.group_id
        who = Committer(
            request.member_id,
            request.group_instance_id,
            request.generation_id_or_member_epoch,
            context.api_version,
            False,
        )
        targets = (
            (topic.topic_id if by_id else self._topics.topic_id(name) or ZERO_ID, asked.partition_index)
            for name, topic, _ in known
            for asked in topic.partitions
        )
        error = check_commit(self._partition, group_id, who, targets)
        if error is not ErrorCode.NONE:
            out.append(Reply(token, _with_error(response, error)))
            return
        group = self._partition.groups.get(group_id)
        if group is not None and (
            group.state is GroupState.STABLE or group.state is GroupState.PREPARING_REBALANCE
        ):
            self._rebalance.renew_session(group, group.members[request.member_id], now_ms)

        wall_ms = self._rebalance.wall_clock_ms()
        expire_ms = NO_TIMESTAMP
        max_metadata = self._settings.offset_metadata_max_bytes
        if request.retention_time_ms != -1:
            expire_ms = min(max(wall_ms + request.retention_time_ms, 0), _MAX_TIMESTAMP_MS)
            max_metadata = min(max_metadata, _MAX_OLD_METADATA_LENGTH)
        records: list[StateRecord] = []
        for name, topic, answer in known:
            # Kept with the offset: it does not hold for another topic of the same name.
            topic_id = topic.topic_id if by_id else self._topics.topic_id(name) or ZERO_ID
            for index, asked in enumerate(topic.partitions):
                partition_answer = answer.partitions[index]
                if partition_answer.error_code:
                    continue
                metadata = asked.committed_metadata or ""
                if _is_too_long(metadata, max_metadata):
                    partition_answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                    continue
                records.append(
                    offset_record(
                        group_id,
                        name,
                        asked.partition_index,
                        CommittedOffset(
                            asked.committed_offset,
                            asked.committed_leader_epoch,
                            metadata,
                            wall_ms,
                            expire_ms,
                            topic_id,
                        ),
                    )
                )
        if not records:
            out.append(Reply(token, response))
            return

        def finish(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            if error is not ErrorCode.NONE:
                _with_error(response, append_error(error))
            out.append(Reply(token, response))

        self._partition.append(records, finish, out)

    def _sort_out_topics(
        self, request: OffsetCommitRequest, api_version: int
    ) -> tuple[list[tuple[str, OffsetCommitRequestTopic, OffsetCommitResponseTopic]], OffsetCommitResponse]:
        """Which topics are known, by name, and an answer that says so for each partition."""
        exists = self._topics.partition_exists
        known: list[tuple[str, OffsetCommitRequestTopic, OffsetCommitResponseTopic]] = []
        answers: list[OffsetCommitResponseTopic] = []
        for topic in request.topics:
            name: str | None = topic.name
            unknown = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            if api_version >= 10:
                name = self._topics.topic_name(topic.topic_id)
                if name is None:
                    unknown = ErrorCode.UNKNOWN_TOPIC_ID
            partitions = []
            any_known = False
            for asked in topic.partitions:
                index = asked.partition_index
                if name is not None and exists(name, index):
                    any_known = True
                    partitions.append(OffsetCommitResponsePartition(partition_index=index, error_code=0))
                else:
                    partitions.append(
                        OffsetCommitResponsePartition(partition_index=index, error_code=unknown)
                    )
            answer = OffsetCommitResponseTopic(
                name=topic.name, topic_id=topic.topic_id, partitions=partitions
            )
            answers.append(answer)
            if any_known and name is not None:
                known.append((name, topic, answer))
        return known, OffsetCommitResponse(topics=answers)

    # --- TxnOffsetCommit ---

    def commit_in_transaction(
        self, request: TxnOffsetCommitRequest, api_version: int, token: Token, out: Effects
    ) -> None:
        """Write offsets as part of the producer's transaction; they are pending until its marker is written."""
        response = txn_commit_error(request, ErrorCode.NONE)
        if request.producer_id < 0 or request.producer_epoch < 0:
            out.append(Reply(token, txn_commit_error(request, ErrorCode.INVALID_PRODUCER_ID_MAPPING)))
            return
        group_id = request.group_id
        targets = (
            (self._topics.topic_id(topic.name) or ZERO_ID, asked.partition_index)
            for topic in request.topics
            for asked in topic.partitions
        )
        who = Committer(
            request.member_id, request.group_instance_id, request.generation_id, api_version, True
        )
        error = check_commit(self._partition, group_id, who, targets)
        wall_ms = self._rebalance.wall_clock_ms()
        records: list[StateRecord] = []
        for topic, answer in zip(request.topics, response.topics, strict=True):
            topic_id = self._topics.topic_id(topic.name) or ZERO_ID
            for asked, partition_answer in zip(topic.partitions, answer.partitions, strict=True):
                index = asked.partition_index
                metadata = asked.committed_metadata or ""
                if not self._topics.partition_exists(topic.name, index):
                    partition_answer.error_code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif error is not ErrorCode.NONE:
                    partition_answer.error_code = error
                elif _is_too_long(metadata, self._settings.offset_metadata_max_bytes):
                    partition_answer.error_code = ErrorCode.OFFSET_METADATA_TOO_LARGE
                else:
                    committed = CommittedOffset(
                        asked.committed_offset,
                        asked.committed_leader_epoch,
                        metadata,
                        wall_ms,
                        topic_id=topic_id,
                    )
                    records.append(offset_record(group_id, topic.name, index, committed))
        if not records:
            out.append(Reply(token, response))
            return

        def finish(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            if error is not ErrorCode.NONE:
                _with_error(response, append_error(error))
            out.append(Reply(token, response))

        mark = ProducerMark(request.producer_id, request.producer_epoch)
        self._partition.append(records, finish, out, producer=mark)

    # --- OffsetDelete ---

    def delete(self, request: OffsetDeleteRequest, token: Token, now_ms: float, out: Effects) -> None:
        """Remove offsets of topics that the group does not read any more."""
        self._partition.after_in_flight(lambda _now_ms, out: self._delete(request, token, out), now_ms, out)

    def _delete(self, request: OffsetDeleteRequest, token: Token, out: Effects) -> None:
        classic = self._partition.groups.get(request.group_id)
        group = classic or self._partition.consumer_groups.get(request.group_id)
        error = ErrorCode.NONE
        if self._partition.closed:
            error = ErrorCode.NOT_COORDINATOR
        elif group is None:
            error = ErrorCode.GROUP_ID_NOT_FOUND
        elif (
            classic is not None
            and classic.state is not GroupState.EMPTY
            and not classic.uses_consumer_protocol
        ):
            error = ErrorCode.NON_EMPTY_GROUP
        if group is None or error is not ErrorCode.NONE:
            out.append(Reply(token, OffsetDeleteResponse(error_code=error, topics=[])))
            return
        records: list[StateRecord] = []
        answers = []
        for topic in request.topics:
            partitions = []
            for asked in topic.partitions:
                index = asked.partition_index
                code = ErrorCode.NONE
                if not self._topics.partition_exists(topic.name, index):
                    code = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
                elif group.is_subscribed_to(topic.name):
                    code = ErrorCode.GROUP_SUBSCRIBED_TO_TOPIC
                elif self._partition.has_offset(group.group_id, topic.name, index):
                    records.append(offset_tombstone(group.group_id, topic.name, index))
                partitions.append(OffsetDeleteResponsePartition(partition_index=index, error_code=code))
            answers.append(OffsetDeleteResponseTopic(name=topic.name, partitions=partitions))
        response = OffsetDeleteResponse(error_code=ErrorCode.NONE, topics=answers)
        if not records:
            out.append(Reply(token, response))
            return

        def finish(error: ErrorCode, _now_ms: float, out: Effects) -> None:
            if error is ErrorCode.NONE:
                out.append(Reply(token, response))
            else:
                out.append(Reply(token, OffsetDeleteResponse(error_code=append_error(error), topics=[])))

        self._partition.append(records, finish, out)


_Response = TypeVar("_Response", OffsetCommitResponse, TxnOffsetCommitResponse)


def _with_error(response: _Response, error: ErrorCode) -> _Response:
    """The same error for every partition that has none of its own."""
    for topic in response.topics:
        for partition in topic.partitions:
            if not partition.error_code:
                partition.error_code = error
    return response


def commit_error(request: OffsetCommitRequest, error: ErrorCode) -> OffsetCommitResponse:
    """The same error for every partition of a request."""
    return OffsetCommitResponse(
        topics=[
            OffsetCommitResponseTopic(
                name=topic.name,
                topic_id=topic.topic_id,
                partitions=[
                    OffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def txn_commit_error(request: TxnOffsetCommitRequest, error: ErrorCode) -> TxnOffsetCommitResponse:
    """The same error, or none, for every partition of a request."""
    return TxnOffsetCommitResponse(
        topics=[
            TxnOffsetCommitResponseTopic(
                name=topic.name,
                partitions=[
                    TxnOffsetCommitResponsePartition(partition_index=asked.partition_index, error_code=error)
                    for asked in topic.partitions
                ],
            )
            for topic in request.topics
        ]
    )


def _is_too_long(metadata: str, limit: int) -> bool:
    """As clients count: in UTF-16 units, of which a character has one or two."""
    return len(metadata) * 2 > limit and len(metadata.encode("utf-16-le")) // 2 > limit
