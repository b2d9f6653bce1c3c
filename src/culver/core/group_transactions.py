"""Offsets that were committed in transactions which have not ended: pending until their producer's marker."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from culver.core.group_records import CommittedOffset, OffsetChange

Key: TypeAlias = tuple[str, str, int]
"""Group id, topic and partition: what an offset is committed for."""


class PendingOffsets:
    """The pending offsets of the groups of one partition of the offsets topic.

    Of all commits for a key the newest counts, in the order of their records, not of the markers: compaction keeps
    just the newest record. So a pending offset that is older than one which counts already will never count; its
    place is kept, since the transaction is still open.
    """

    def __init__(self) -> None:
        # Group id -> topic and partition -> producer id -> offset, in the log's order; None once something newer
        # counts. No empty dictionaries inside.
        self._by_group: dict[str, dict[tuple[str, int], dict[int, CommittedOffset | None]]] = {}
        # Producer id -> keys, in the order in which they came; a dictionary for want of an ordered set.
        self._by_producer: dict[int, dict[Key, None]] = {}

    def __bool__(self) -> bool:
        return bool(self._by_producer)

    # --- queries ---

    def has_group(self, group_id: str) -> bool:
        return group_id in self._by_group

    def contains(self, group_id: str, topic: str, partition: int) -> bool:
        keys = self._by_group.get(group_id)
        return keys is not None and (topic, partition) in keys

    def of_group(self, group_id: str) -> list[tuple[str, int]]:
        """The topics and partitions for which the group has pending offsets."""
        return list(self._by_group.get(group_id, ()))

    def all_keys(self) -> Iterator[Key]:
        """Everything for which there are pending offsets."""
        for group_id, keys in self._by_group.items():
            for topic, partition in keys:
                yield group_id, topic, partition

    # --- changes, each of them a record of the log ---

    def add(self, producer_id: int, change: OffsetChange) -> None:
        """A commit as part of a transaction."""
        group_id, topic, partition, committed = change
        by_producer = self._by_group.setdefault(group_id, {}).setdefault((topic, partition), {})
        # A second commit in the same transaction is as new as itself, not as the first one.
        by_producer.pop(producer_id, None)
        by_producer[producer_id] = committed
        self._by_producer.setdefault(producer_id, {})[group_id, topic, partition] = None

    def supersede(self, group_id: str, topic: str, partition: int) -> None:
        """Something newer than all of these counts now."""
        by_producer = self._by_group.get(group_id, {}).get((topic, partition), {})
        for producer_id in by_producer:
            by_producer[producer_id] = None

    def drop(self, group_id: str, topic: str, partition: int) -> None:
        """The offset has been removed, and with it what was pending."""
        keys = self._by_group.get(group_id)
        by_producer = None if keys is None else keys.pop((topic, partition), None)
        if keys is None or by_producer is None:
            return
        if not keys:
            del self._by_group[group_id]
        for producer_id in by_producer:
            of_producer = self._by_producer[producer_id]
            del of_producer[group_id, topic, partition]
            if not of_producer:
                del self._by_producer[producer_id]

    def end(self, producer_id: int, committed: bool) -> list[OffsetChange]:
        """A producer's transaction has ended: the offsets that count from now on."""
        changes: list[OffsetChange] = []
        for group_id, topic, partition in self._by_producer.pop(producer_id, ()):
            keys = self._by_group[group_id]
            by_producer = keys[topic, partition]
            if committed and by_producer[producer_id] is not None:
                changes.append(OffsetChange(group_id, topic, partition, by_producer[producer_id]))
                for older in by_producer:
                    if older == producer_id:
                        break
                    by_producer[older] = None
            del by_producer[producer_id]
            if not by_producer:
                del keys[topic, partition]
                if not keys:
                    del self._by_group[group_id]
        return changes
