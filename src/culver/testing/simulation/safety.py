"""Which disasters a simulation may bring about without asking for more than was promised.

With `culver.flush=replicated` an acknowledged record is in the memory of every in-sync replica, and not yet on any
disk. It survives power cuts as long as one of them keeps its memory; so the last one that does may not be unplugged.
"""

from __future__ import annotations

from culver.core import entries
from culver.testing.simulation.store_server import StoreServer


class Safety:
    """Follows the partitions' entries: for each, which members may have lost bytes since they came to be in it."""

    def __init__(self, store: StoreServer, *, flush_always: bool) -> None:
        self._store = store
        self._flush_always = flush_always
        self._seen = 0
        # partition's path -> brokers that are members by name only
        self._hollow: dict[str, set[int]] = {}

    def may_lose_bytes(self, broker: int) -> bool:
        """Whether this broker's machine may be unplugged now."""
        self._follow()
        if self._flush_always:
            return True
        for path, entry in self._store.entries.items():
            if not path.startswith(entries.PARTITIONS):
                continue
            partition = entries.decode(entry.value, entries.PartitionEntry)
            if len(partition.replicas) == 1:
                continue  # everything acknowledged is on its disk
            members = {*partition.isr, *partition.elr}
            if broker in members and not members - {broker} - self._hollow.get(path, set()):
                return False
        return True

    def loses_bytes(self, broker: int) -> None:
        """This broker's machine is being unplugged."""
        self._follow()
        for path, entry in self._store.entries.items():
            if path.startswith(entries.PARTITIONS):
                partition = entries.decode(entry.value, entries.PartitionEntry)
                if broker in (*partition.isr, *partition.elr):
                    self._hollow.setdefault(path, set()).add(broker)

    def _follow(self) -> None:
        """Whoever leaves a partition's in-sync replicas and comes back has everything again."""
        events = self._store.events
        for path, entry in events[self._seen :]:
            hollow = self._hollow.get(path)
            if hollow and entry is not None:
                partition = entries.decode(entry.value, entries.PartitionEntry)
                hollow &= {*partition.isr, *partition.elr}
        self._seen = len(events)
