"""The end of a transaction in one partition that this broker leads: written, replicated, and only then reported."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from culver.broker.internal_writing import write_internally
from culver.core.coordinator_effects import Marker
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.errors import ErrorCode

if TYPE_CHECKING:
    from culver.broker.node import Node


def write_marker(
    node: Node, topic: str, index: int, marker: Marker, done: Callable[[ErrorCode], object]
) -> None:
    """Write a marker as safely as an acks=all record. `done` may be called before this returns."""
    partition = node.partitions.get(topic, index)
    if partition is None or partition.state is None:
        done(node.partition_error(topic, index))
    elif topic == GROUP_OFFSETS_TOPIC and node.lease_holds:
        # Through the coordinator: offsets that the transaction committed count from its marker on.
        node.groups.write_marker(index, marker, done)
    else:
        write_internally(node, partition, lambda partition: partition.append_marker(marker), done)
