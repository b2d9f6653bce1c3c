"""The last offset of every key in the dirty part of a log: what compaction decides by, in bounded memory."""

from __future__ import annotations

from hashlib import blake2b

# Keys up to this length stand for themselves; longer ones are hashed to one byte more, so that the two kinds
# never meet. The hash is a cryptographic one: a client that could make two keys collide could make compaction
# drop another's records.
_SHORT_KEY_BYTES = 15
_HASH_BYTES = 16
# What an entry costs in a dict: the key's bytes object, the offset's int, the slot and the slack.
_ENTRY_BYTES = 200


class KeyMap:
    """Key -> last offset, up to the capacity that a number of bytes allows."""

    __slots__ = ("_offsets", "capacity", "end_offset")

    def __init__(self, memory_bytes: int) -> None:
        self.capacity = max(memory_bytes // _ENTRY_BYTES, 1)
        # Records below are accounted for; those from here on are left alone.
        self.end_offset = 0
        self._offsets: dict[bytes, int] = {}

    def __len__(self) -> int:
        return len(self._offsets)

    def put(self, key: bytes, offset: int) -> None:
        """Offsets must come in order."""
        self._offsets[_digest(key)] = offset

    def has_room_for(self, keys: int) -> bool:
        """Never false for the first batch: a compaction that cannot begin would never end."""
        return not self._offsets or len(self._offsets) + keys <= self.capacity

    def is_last(self, key: bytes, offset: int) -> bool:
        """Whether no later record in the map has this key."""
        return self._offsets.get(_digest(key), -1) <= offset


def _digest(key: bytes) -> bytes:
    if len(key) <= _SHORT_KEY_BYTES:
        return bytes(key)
    return blake2b(key, digest_size=_HASH_BYTES).digest()
