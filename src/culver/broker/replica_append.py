"""What a follower does to its log when its leader says so: append, cut off what diverges, start over."""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.partition import Partition
    from culver.protocol.messages.fetch import EpochEndOffset

_log = get_logger("culver.replication")

_BASE_OFFSET = Struct(">q")


def append(partition: Partition, records: memoryview) -> int:
    """Append the whole batches in `records`; how many bytes they are. KafkaError when damaged or out of place."""
    log = partition.log
    if log.start_offset == log.end_offset and len(records) >= _BASE_OFFSET.size:
        (base_offset,) = _BASE_OFFSET.unpack_from(records)
        if 0 <= base_offset < log.end_offset:
            # The leader's log starts in the middle of a batch, and batches are sent whole.
            log.truncate_fully_and_start_at(base_offset)
    appended_bytes = log.append_replica(records)
    if not appended_bytes:
        raise KafkaError(ErrorCode.CORRUPT_MESSAGE, f"{len(records)} bytes without a whole batch")
    return appended_bytes


def diverge(partition: Partition, leader_end: EpochEndOffset, leader_start_offset: int) -> None:
    """Cut off what the leader does not have: from where the epoch that both know ended first (KIP-101, KIP-279).

    If the leader never wrote in our last epoch it names the one before; what we have of that one may be longer or
    shorter than what it has. After the cut the next request asks with our new last epoch, until both agree. The high
    watermark has no say in this: it may lag behind what is committed.
    """
    log = partition.log
    epoch, end_offset = log.epoch_end_offset(leader_end.epoch)
    if epoch < 0:
        end_offset = log.end_offset if leader_end.epoch > log.latest_epoch else log.start_offset
    offset = min(end_offset, leader_end.end_offset)
    if offset >= log.end_offset:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the leader says that epoch {leader_end.epoch} ends at {leader_end.end_offset} and that the logs part "
            f"there, but the log ends at {log.end_offset}",
        )
    if offset <= log.start_offset:
        _restart(partition, leader_start_offset if leader_start_offset >= 0 else max(offset, 0))
    else:
        _truncate(partition, offset)


def start_over(
    partition: Partition, asked_offset: int, leader_start_offset: int, leader_end_offset: int
) -> bool:
    """Nothing is at the offset that was asked for: go to where the leader's log begins. False when that is no help."""
    log = partition.log
    if leader_start_offset < 0 or asked_offset != log.end_offset:
        return False
    if asked_offset < leader_start_offset:
        _restart(partition, leader_start_offset)  # it has deleted what comes next
        return True
    if asked_offset > leader_end_offset:
        # The leader could not say where the logs part: they share no epoch. Nothing here is of any use.
        _restart(partition, leader_start_offset)
        return True
    return False


def _truncate(partition: Partition, offset: int) -> None:
    log = partition.log
    _log.info(
        "cut off what the leader does not have",
        topic=partition.topic,
        partition=partition.index,
        at=offset,
        end=log.end_offset,
        high_watermark=log.high_watermark,
    )
    log.truncate_to(offset)
    _lower_high_watermark(partition)


def _restart(partition: Partition, offset: int) -> None:
    log = partition.log
    _log.warning(
        "starts over with an empty log",
        topic=partition.topic,
        partition=partition.index,
        at=offset,
        was_from=log.start_offset,
        was_to=log.end_offset,
    )
    log.truncate_fully_and_start_at(offset)
    _lower_high_watermark(partition)


def _lower_high_watermark(partition: Partition) -> None:
    log = partition.log
    if log.high_watermark > log.end_offset:
        log.high_watermark = log.end_offset
