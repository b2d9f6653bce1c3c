"""Which replica a consumer should read from: one in its own rack, if the leader is in another (KIP-392)."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition

NO_REPLICA = -1


def closest_replica(node: Node, partition: Partition, rack: str, offset: int) -> int:
    """A living in-sync replica in that rack which has the offset; NO_REPLICA: the leader, which is this broker."""
    state = partition.state
    if state is None or not node.config.replica_selector_class:
        return NO_REPLICA
    brokers = node.image.brokers
    here = brokers.get(node.broker_id)
    if (here is not None and here.rack == rack) or offset < partition.log.start_offset:
        return NO_REPLICA
    end_offsets = state.follower_end_offsets()
    found, found_end = NO_REPLICA, offset - 1
    for broker_id in state.isr:
        broker = brokers.get(broker_id)
        if broker is None or broker.rack != rack or broker_id == node.broker_id:
            continue
        end_offset = end_offsets.get(broker_id, -1)
        if end_offset > found_end:  # the one that is furthest
            found, found_end = broker_id, end_offset
    return found
