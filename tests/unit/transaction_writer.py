"""Writes transactions to a leader of `replica_world`, past coordinators and their verification."""

from __future__ import annotations

from collections.abc import Callable

from log_batches import NOW_MS, batch
from replica_world import ReplicaNode, ReplicaWorld

from culver.core.coordinator_effects import Marker
from culver.log.partition_log import UNVERIFIED_OK


def lone_node() -> ReplicaNode:
    """A broker that has the only replica: what is appended is committed."""
    world = ReplicaWorld(1)
    world.make_topic()
    partition = world[1].partition()
    partition.replicated = False
    partition.log.high_watermark = None
    return world[1]


class Writer:
    """Writes to a leader's partition 0, in transactions and without."""

    def __init__(self, node: ReplicaNode) -> None:
        self.node = node
        self._sequences: dict[int, int] = {}

    def plain(self, *contents: bytes, timestamp: int = NOW_MS) -> None:
        self._written(lambda: self.node.partition().append(batch(*contents, timestamp=timestamp)))

    def write(self, producer_id: int, *contents: bytes, timestamp: int = NOW_MS) -> None:
        sequence = self._sequences.get(producer_id, 0)
        self._sequences[producer_id] = sequence + len(contents)
        records = batch(
            *contents,
            timestamp=timestamp,
            producer_id=producer_id,
            producer_epoch=0,
            base_sequence=sequence,
            is_transactional=True,
        )
        self._written(lambda: self.node.partition().append(records, UNVERIFIED_OK))

    def commit(self, producer_id: int, coordinator_epoch: int = 0) -> None:
        self._end(producer_id, coordinator_epoch, committed=True)

    def abort(self, producer_id: int, coordinator_epoch: int = 0) -> None:
        self._end(producer_id, coordinator_epoch, committed=False)

    def _end(self, producer_id: int, coordinator_epoch: int, *, committed: bool) -> None:
        partition = self.node.partition()
        self._written(
            lambda: partition.append_marker(Marker(producer_id, 0, committed, coordinator_epoch, 1))
        )

    def _written(self, append: Callable[[], object]) -> None:
        node = self.node
        partition = node.partition()
        append()
        if partition.replicated:
            node.replication.advance(partition)
            node.partitions.appended(partition)
        else:
            node.partitions.changed(partition)
        node.after_requests()
