"""What a broker itself writes to a partition that it leads: coordinators' records, and the ends of transactions."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from culver.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

# How long whoever waits for it waits at most for the other replicas.
COMMIT_TIMEOUT_MS = 5_000


def write_internally(
    node: Node,
    partition: Partition | None,
    append: Callable[[Partition], object],
    done: Callable[[ErrorCode], object],
) -> None:
    """Append, and call `done` when that is as safe as an acks=all record, or is not to be. Perhaps at once."""
    if partition is None or partition.state is None or not node.lease_holds:
        done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    if partition.state.below_min:
        done(ErrorCode.NOT_ENOUGH_REPLICAS)
        return
    try:
        append(partition)
    except KafkaError as error:
        if partition.log.failed is not None:
            node.replication.log_failed(partition)
        done(error.code)
        return
    if partition.replicated:
        node.replication.appended(partition)
    else:
        node.partitions.changed(partition)
    node.replication.commit(partition, partition.log.end_offset, COMMIT_TIMEOUT_MS, done)
