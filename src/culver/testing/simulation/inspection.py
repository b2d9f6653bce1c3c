"""Looks into a simulated cluster from outside: what its store says, and what its brokers' logs hold."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import cast

from culver.broker.partition import Partition as BrokerPartition
from culver.core import entries
from culver.log.partition_log import ColdRead
from culver.protocol.records import iterate_headers
from culver.testing.history import Partition, Replica
from culver.testing.simulation.cluster import SimulatedBroker, SimulatedCluster

_READ_BYTES = 1 << 20


class Inspection:
    """Questions about a cluster that no client could answer."""

    def __init__(self, cluster: SimulatedCluster) -> None:
        self._cluster = cluster

    def partition_entries(self) -> dict[Partition, entries.PartitionEntry]:
        store = self._cluster.store.entries
        found = {}
        for path, entry in store.items():
            if path.startswith(entries.TOPICS):
                topic = entries.decode(entry.value, entries.TopicEntry)
                for index in range(topic.partitions):
                    value = store.get(f"{entries.PARTITIONS}{topic.id}-{index}")
                    if value is not None:
                        found[path.removeprefix(entries.TOPICS), index] = entries.decode(
                            value.value, entries.PartitionEntry
                        )
        return found

    def all_in_sync(self) -> bool:
        """Every replica is in sync and has all that its leader has."""
        for (topic, index), entry in self.partition_entries().items():
            if (
                set(entry.isr) != set(entry.replicas)
                or entry.leader not in entry.isr
                or entry.adding
                or entry.removing
            ):
                return False
            ends = set()
            for number in entry.replicas:
                node = self._cluster.brokers[number].node
                partition = None if node is None else node.partitions.get(topic, index)
                if partition is None:
                    return False
                ends.add(partition.log.end_offset)
                if number == entry.leader:
                    ends.add(partition.log.high_watermark)
            if len(ends) > 1:
                return False
        return True

    def not_in_sync(self) -> str:
        parts = []
        for (topic, index), entry in self.partition_entries().items():
            logs = []
            for number in entry.replicas:
                node = self._cluster.brokers[number].node
                partition = None if node is None else node.partitions.get(topic, index)
                logs.append(
                    f"{number}: none"
                    if partition is None
                    else f"{number}: end {partition.log.end_offset} hw {partition.log.high_watermark} {partition!r}"
                )
            parts.append(f"{topic}-{index} {entry} [{'; '.join(logs)}]")
        return " | ".join(parts)

    def unstable(self) -> list[str]:
        """Partitions with a transaction that has not ended."""
        found = []
        for (topic, index), entry in self.partition_entries().items():
            partition = self._led(topic, index, entry)
            if partition is None:
                found.append(f"{topic}-{index} has no leader")
            elif partition.log.last_stable_offset < partition.log.high_watermark:
                found.append(
                    f"{topic}-{index} is stable up to {partition.log.last_stable_offset} of "
                    f"{partition.log.high_watermark}: {partition.log.open_transactions()}"
                )
        return found

    def has_copied(self, topic: str, copied: Mapping[Partition, int]) -> bool:
        """Whether everything in a topic has been copied, `copied` being how far that has come."""
        for (name, index), entry in self.partition_entries().items():
            if name == topic:
                partition = self._led(name, index, entry)
                if partition is None or copied.get((name, index), 0) < partition.log.high_watermark:
                    return False
        return True

    def _led(self, topic: str, index: int, entry: entries.PartitionEntry) -> BrokerPartition | None:
        """A partition as its leader has it."""
        broker = self._cluster.brokers.get(entry.leader)
        return None if broker is None or broker.node is None else broker.node.partitions.get(topic, index)

    def replicas(self, wanted: Container[Partition]) -> dict[Partition, list[Replica]]:
        """What all brokers hold of these partitions."""
        return {
            key: [
                replica
                for number in entry.replicas
                if (replica := _replica(self._cluster.brokers[number], key, entry.leader)) is not None
            ]
            for key, entry in self.partition_entries().items()
            if key in wanted
        }


def _replica(broker: SimulatedBroker, key: Partition, leader: int) -> Replica | None:
    partition = None if broker.node is None else broker.node.partitions.get(*key)
    if partition is None:
        return None
    log = partition.log
    data = bytearray()
    offset = log.start_offset
    while offset < log.end_offset:
        result = log.read(offset, _READ_BYTES, log.end_offset, wait=True)
        assert not isinstance(result, ColdRead)
        piece = b"".join(cast("list[bytes]", result.buffers))
        last = offset
        for _, header in iterate_headers(piece):
            last = header.last_offset
        if not piece:
            break
        data += piece
        offset = last + 1
    return Replica(
        broker.id, log.start_offset, log.end_offset, log.high_watermark, bytes(data), broker.id == leader
    )
