"""Which partition of an internal topic holds a group or a transactional id."""

from __future__ import annotations

from functools import lru_cache, partial

# Hashing a name takes longer than answering a heartbeat.
_REMEMBERED_NAMES = 16_384
_REMEMBERED_LENGTH_MAX = 255


def partition_for_name(name: str, partition_count: int) -> int:
    """Java's String.hashCode of the name, as every Kafka broker computes it."""
    units = name.encode("utf-16-be", "surrogatepass")
    code = 0
    for i in range(0, len(units), 2):
        code = (31 * code + (units[i] << 8 | units[i + 1])) & 0xFFFFFFFF
    if code >= 0x80000000:
        code = 0x100000000 - code
    # The smallest int has no positive counterpart in Java; Kafka takes 0 for it.
    return 0 if code == 0x80000000 else code % partition_count


class PartitionsByName:
    """The partitions of one internal topic, found by name. Hot."""

    __slots__ = ("_count", "_remembered")

    def __init__(self, count: int) -> None:
        self._count = count
        self._remembered = lru_cache(maxsize=_REMEMBERED_NAMES)(
            partial(partition_for_name, partition_count=count)
        )

    def __call__(self, name: str) -> int:
        if len(name) > _REMEMBERED_LENGTH_MAX:
            # Nobody's real name; kept out of the cache, which must stay small.
            return partition_for_name(name, self._count)
        return self._remembered(name)
