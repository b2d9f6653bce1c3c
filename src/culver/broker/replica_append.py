"""What a follower does to its log when its leader says so: append, cut off what diverges, start over."""

from __future__ import annotations

from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.partition import Partition
    from culver.protocol.messages.fetch import EpochEndOffset

_log = get_logger("culver.replication")


def append(partition: Partition, records: memoryview, fetched_from: int) -> int:
    """Append the whole batches in `records`; how many bytes they are. KafkaError when damaged or out of place."""
    appended_bytes = partition.log.append_replica(records, fetched_from)
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
    before = (log.end_offset, log.latest_epoch)
    epoch, end_offset = log.epoch_end_offset(leader_end.epoch)
    if epoch < 0:
        # Nothing is known here of that epoch or an earlier one; or all that is here is of earlier ones.
        end_offset = log.start_offset if leader_end.epoch < log.latest_epoch else log.end_offset
    offset = min(end_offset, leader_end.end_offset)
    if offset <= log.start_offset < log.end_offset:
        _restart(partition, leader_start_offset if leader_start_offset >= 0 else max(offset, 0))
    else:
        if offset < log.end_offset:
            _log.info(
                "cuts off what the leader does not have",
                topic=partition.topic,
                partition=partition.index,
                at=offset,
                end=log.end_offset,
                high_watermark=log.high_watermark,
            )
        # At the very end this forgets an epoch in which this broker led and never wrote.
        log.truncate_to(offset)
    if (log.end_offset, log.latest_epoch) == before:
        raise KafkaError(
            ErrorCode.CORRUPT_MESSAGE,
            f"the leader says that epoch {leader_end.epoch} ends at {leader_end.end_offset} and that the logs part "
            f"there, but this one ends at {before[0]} in epoch {before[1]}",
        )


def start_over(
    partition: Partition, asked_offset: int, leader_start_offset: int, leader_end_offset: int
) -> bool:
    """Nothing is at the offset that was asked for: go to where the leader's log begins. False when that is no help."""
    if leader_start_offset < 0 or asked_offset != partition.log.end_offset:
        return False
    # Below its start: it has deleted what comes next. Beyond its end: it could not say where the logs part, since
    # they share no epoch, and nothing here is of any use.
    if leader_start_offset <= asked_offset <= leader_end_offset:
        return False
    _restart(partition, leader_start_offset)
    return True


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
