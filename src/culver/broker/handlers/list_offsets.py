"""ListOffsets: offsets by position or by time. Serves versions 1 to 11.

2: isolation level; who wants only ended transactions hears of nothing beyond them. 4: leader epochs.
7: the record with the largest timestamp. 8: earliest local. 9: latest tiered. 10: a time limit.
11: earliest pending upload.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsRequest,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)

if TYPE_CHECKING:
    from culver.broker.exchange import Exchange
    from culver.broker.node import Node
    from culver.broker.partition import Partition

READ_UNCOMMITTED, READ_COMMITTED = 0, 1
LATEST = -1
EARLIEST = -2
MAX_TIMESTAMP = -3
EARLIEST_LOCAL = -4
LATEST_TIERED = -5
EARLIEST_PENDING_UPLOAD = -6
_NEVER_THERE = (LATEST_TIERED, EARLIEST_PENDING_UPLOAD)
# Which special timestamps a version may use; before 7 a negative number is just a timestamp nobody has.
_SINCE_VERSION = {
    LATEST: 1,
    EARLIEST: 1,
    MAX_TIMESTAMP: 7,
    EARLIEST_LOCAL: 8,
    LATEST_TIERED: 9,
    EARLIEST_PENDING_UPLOAD: 11,
}


def handle(node: Node, exchange: Exchange, request: ListOffsetsRequest) -> ListOffsetsResponse:
    times_asked = Counter(
        (topic.name, asked.partition_index) for topic in request.topics for asked in topic.partitions
    )
    valid = request.isolation_level in (READ_UNCOMMITTED, READ_COMMITTED)
    committed_only = request.isolation_level == READ_COMMITTED
    topics = []
    for topic in request.topics:
        answers = []
        for asked in {asked.partition_index: asked for asked in topic.partitions}.values():
            answer = ListOffsetsPartitionResponse(
                partition_index=asked.partition_index, timestamp=-1, offset=-1
            )
            answers.append(answer)
            if times_asked[topic.name, asked.partition_index] > 1 or not valid:
                answer.error_code = ErrorCode.INVALID_REQUEST
                continue
            partition = node.partitions.get(topic.name, asked.partition_index)
            if partition is None or not partition.leading:
                answer.error_code = node.partition_error(topic.name, asked.partition_index)
                continue
            answer.error_code = partition.epoch_error(asked.current_leader_epoch)
            if partition.log.corruption is not None:
                # What its files say is not to be believed, not even where they end.
                answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
            if answer.error_code:
                continue
            end_offset = partition.log.last_stable_offset if committed_only else partition.log.high_watermark
            if not _by_position(partition, asked.timestamp, end_offset, exchange.version, answer):
                _by_time(partition, asked.timestamp, end_offset, answer)
            if answer.offset < 0 and not answer.error_code and asked.timestamp not in _NEVER_THERE:
                answer.error_code = _not_known_yet(partition, exchange.version)
        topics.append(ListOffsetsTopicResponse(name=topic.name, partitions=answers))
    return ListOffsetsResponse(topics=topics)


def _by_position(
    partition: Partition, timestamp: int, end_offset: int, version: int, answer: ListOffsetsPartitionResponse
) -> bool:
    log = partition.log
    if timestamp < 0 and version < _SINCE_VERSION.get(timestamp, 1 << 15):
        answer.error_code = ErrorCode.UNSUPPORTED_VERSION
    elif timestamp in (EARLIEST, EARLIEST_LOCAL):
        answer.offset = log.start_offset
        answer.leader_epoch = partition.epoch_at(log.start_offset)
    elif timestamp == LATEST:
        answer.error_code = _not_known_yet(partition, version)
        if not answer.error_code:
            answer.offset, answer.leader_epoch = end_offset, partition.leader_epoch
    elif timestamp in _NEVER_THERE:
        pass  # nothing is ever tiered: no offset
    else:
        return False
    return True


def _not_known_yet(partition: Partition, version: int) -> ErrorCode:
    """Whether a new leader does not know yet how far its replicas had come: the end that it sees may be too low."""
    state = partition.state
    if state is None or partition.log.high_watermark >= state.epoch_start_offset:
        return ErrorCode.NONE
    return ErrorCode.OFFSET_NOT_AVAILABLE if version >= 5 else ErrorCode.LEADER_NOT_AVAILABLE


def _by_time(
    partition: Partition, timestamp: int, end_offset: int, answer: ListOffsetsPartitionResponse
) -> None:
    log = partition.log
    try:
        found = (
            log.max_timestamp_offset() if timestamp == MAX_TIMESTAMP else log.offset_for_timestamp(timestamp)
        )
    except KafkaError as error:
        answer.error_code = error.code
        return
    except OSError:
        answer.error_code = ErrorCode.KAFKA_STORAGE_ERROR
        return
    if found is not None and found[0] < end_offset:
        answer.offset, answer.timestamp, answer.leader_epoch = found
