"""The end of a transaction in one partition that this broker leads: written, replicated, and only then reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from culver.core.coordinator_effects import Marker
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from culver.broker.node import Node

_COMMIT_TIMEOUT_MS = 5_000


def write_marker(
    node: Node, topic: str, index: int, marker: Marker, done: Callable[[ErrorCode], object]
) -> None:
    """Write a marker as safely as an acks=all record. `done` may be called before this returns."""
    partition = node.partitions.get(topic, index)
    if partition is None or partition.state is None:
        done(node.partition_error(topic, index))
        return
    if not node.lease_holds:
        done(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        return
    if topic == GROUP_OFFSETS_TOPIC:
        # Through the coordinator: offsets that the transaction committed count from its marker on.
        node.groups.write_marker(index, marker, done)
        return
    if partition.state.below_min:
        done(ErrorCode.NOT_ENOUGH_REPLICAS)
        return
    try:
        partition.append_marker(marker)
    except KafkaError as error:
        if partition.log.failed is not None:
            node.replication.log_failed(partition)
        done(error.code)
        return
    if partition.replicated:
        node.replication.appended(partition)
    else:
        node.partitions.changed(partition)
    node.replication.commit(partition, partition.log.end_offset, _COMMIT_TIMEOUT_MS, done)
