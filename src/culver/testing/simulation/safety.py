"""Which disasters a simulation may bring about without asking for more than was promised.

With `culver.flush=replicated` an acknowledged record is in the memory of every in-sync replica, and not yet on any
disk. It survives power cuts as long as one of them keeps its memory; so the last one that does may not be unplugged.

A dead broker is in sync by name until it is found out. When as many as `min.insync.replicas` are, the others may be
dropped from the in-sync replicas meanwhile, and only dead ones remain: failures at the same time, as in Kafka more
than is promised. So such a power cut comes in calm weather, and nothing else happens until it has been noticed. With
fewer of them, whoever is dropped stays eligible to lead, and anything goes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from culver.core import entries
from culver.testing.simulation.store_server import StoreServer


@dataclass(frozen=True)
class _Partition:
    path: str
    entry: entries.PartitionEntry
    # With fewer in-sync replicas those who have left them stay eligible.
    min_insync: int

    @property
    def members(self) -> set[int]:
        return {*self.entry.isr, *self.entry.elr}


class Safety:
    """Follows the partitions' entries: for each, which members may have lost bytes since they came to be in it."""

    def __init__(
        self,
        store: StoreServer,
        *,
        flush_always: bool,
        default_min_insync: int,
        failing_disks: Callable[[], set[int]],
    ) -> None:
        self._store = store
        # Brokers whose disks have been told to fail and have yet to do so.
        self._failing_disks = failing_disks
        self.flush_always = flush_always
        self._default_min_insync = default_min_insync
        self._seen = 0
        # partition's path -> brokers that are members by name only
        self._hollow: dict[str, set[int]] = {}

    def may_lose_bytes(self, broker: int, *, calm: bool) -> bool:
        """Whether this broker's machine may be unplugged now; `calm` means that all the others are well."""
        self._follow()
        if self.flush_always:
            return True
        failing = self._failing_disks()
        for partition in self._partitions():
            if broker not in partition.members or len(partition.entry.replicas) == 1:
                continue  # it has nothing, or everything acknowledged is on its disk
            hollow = {broker} | (partition.members & (failing | self._hollow.get(partition.path, set())))
            if not partition.members - hollow:
                return False
            if len(hollow) >= partition.min_insync and not (calm and set(partition.entry.isr) - hollow):
                return False
        return True

    def loses_bytes(self, broker: int) -> None:
        """This broker's machine is being unplugged."""
        self._follow()
        for partition in self._partitions():
            if broker in partition.members:
                self._hollow.setdefault(partition.path, set()).add(broker)

    def at_stake(self) -> bool:
        """Whether a power cut has yet to be noticed where nothing else may happen until it is."""
        self._follow()
        return not self.flush_always and any(
            len(self._hollow.get(partition.path, ())) >= partition.min_insync
            for partition in self._partitions()
            if len(partition.entry.replicas) > 1
        )

    def _partitions(self) -> Iterator[_Partition]:
        for path, entry in list(self._store.entries.items()):
            if not path.startswith(entries.TOPICS):
                continue
            topic = entries.decode(entry.value, entries.TopicEntry)
            min_insync = int(topic.config.get("min.insync.replicas", self._default_min_insync))
            for index in range(topic.partitions):
                where = f"{entries.PARTITIONS}{topic.id}-{index}"
                found = self._store.entries.get(where)
                if found is not None:
                    partition = entries.decode(found.value, entries.PartitionEntry)
                    kept = len(partition.replicas) - len(partition.adding)
                    yield _Partition(where, partition, min(min_insync, kept))

    def _follow(self) -> None:
        """Whoever leaves a partition's in-sync replicas and comes back has everything again."""
        events = self._store.events
        for path, entry in events[self._seen :]:
            hollow = self._hollow.get(path)
            if hollow and entry is not None:
                partition = entries.decode(entry.value, entries.PartitionEntry)
                hollow &= {*partition.isr, *partition.elr}
        self._seen = len(events)
