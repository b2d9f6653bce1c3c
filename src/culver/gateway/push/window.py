"""What one subscriber has been sent and has not acknowledged: credits, redeliveries, and what may be committed.

Pure: it knows neither sockets nor clocks. For every partition

    committed <= acknowledged through <= position

where `position` is the offset that is sent next, and everything below "acknowledged through" has been acknowledged.
That is the offset of the first record without an acknowledgement, or the position when there is none, and the only
one that may be committed: acknowledgements come in any order, and a commit must never step over a record that the
subscriber has not done with. A record that was sent is in one of these states:

    in hand  --acknowledge-->  gone
       |  ^
    refuse |
       v  send again
    waiting, until its delay is over

Every record sent takes a credit. Acknowledging or refusing one gives its credit back; `grant` adds more. When
acknowledgements are not asked for, records are gone as soon as they are sent and credits come from `grant` alone.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable, Mapping

from culver.gateway.cluster.view import TopicPartition

# Without credits the connection's own flow control is the only bound.
UNLIMITED = 2**62
# What a subscriber may leave unacknowledged at most, whatever its credits: each one is remembered.
UNACKNOWLEDGED_MAX = 100_000


class _Partition:
    """One partition of the window."""

    __slots__ = ("committed", "position", "unacknowledged")

    def __init__(self, position: int, committed: int | None) -> None:
        self.position = position
        self.committed = committed
        # Offset to how often it was sent. Offsets only grow, so the first one is the least.
        self.unacknowledged: OrderedDict[int, int] = OrderedDict()

    @property
    def acknowledged_through(self) -> int:
        return next(iter(self.unacknowledged), self.position)


class Window:
    """The records between what was sent to a subscriber and what it has acknowledged."""

    def __init__(self, credits: int | None = None, *, acknowledged_by_hand: bool = True) -> None:
        self._credits = UNLIMITED if credits is None else credits
        self._by_hand = acknowledged_by_hand
        self._partitions: dict[TopicPartition, _Partition] = {}
        # Counts the changes of positions that are not the last sender's going on.
        self.moves = 0
        self._last_sent: TopicPartition | None = None
        # In the order of sending, over all partitions.
        self._in_hand: OrderedDict[tuple[TopicPartition, int], None] = OrderedDict()
        # Refused ones by the time at which they are due. An entry is stale unless `_due` says the same time.
        self._waiting: list[tuple[float, TopicPartition, int]] = []
        self._due: dict[tuple[TopicPartition, int], float] = {}

    # --- partitions ---

    def assign(self, partition: TopicPartition, position: int, committed: int | None = None) -> None:
        """Begin with a partition at a position; `committed` is what the group has stored, if anything."""
        assert partition not in self._partitions
        self._partitions[partition] = _Partition(position, committed)
        self.moves += 1

    def revoke(self, partition: TopicPartition) -> None:
        """Forget a partition. What it had in hand gives its credits back: others will send it."""
        if self._partitions.pop(partition, None) is not None:
            self._forget(partition)
            self.moves += 1

    def seek(self, partition: TopicPartition, position: int) -> None:
        """Go on from another position; what was sent before is no longer waited for."""
        state = self._partitions[partition]
        self._forget(partition)
        state.unacknowledged.clear()
        state.position = position
        self.moves += 1

    def _forget(self, partition: TopicPartition) -> None:
        for sent in [sent for sent in self._in_hand if sent[0] == partition]:
            del self._in_hand[sent]
            self._credits += 1
        for waiting in [waiting for waiting in self._due if waiting[0] == partition]:
            del self._due[waiting]

    def __contains__(self, partition: TopicPartition) -> bool:
        return partition in self._partitions

    @property
    def positions(self) -> dict[TopicPartition, int]:
        """The offset that is sent next, for every partition."""
        return {partition: state.position for partition, state in self._partitions.items()}

    # --- sending ---

    @property
    def room(self) -> int:
        """How many new records may be sent now."""
        return min(self._credits, UNACKNOWLEDGED_MAX - len(self._in_hand) - len(self._due))

    @property
    def credits(self) -> int:
        """How many records may be sent, new ones or again."""
        return self._credits

    @property
    def in_hand(self) -> int:
        """How many records the subscriber has and has not acknowledged."""
        return len(self._in_hand)

    def grant(self, credits: int) -> None:
        """The subscriber takes so many more."""
        self._credits = min(self._credits + credits, UNLIMITED)

    def sent(self, partition: TopicPartition, offsets: Iterable[int], position: int) -> None:
        """Records went out, in order; the partition goes on at `position`."""
        state = self._partitions[partition]
        if partition != self._last_sent:
            self._last_sent = partition
            self.moves += 1
        for offset in offsets:
            assert offset >= state.position, (
                "a record is sent once, and in order; `sent_again` is for the rest"
            )
            state.position = offset + 1
            self._credits -= 1
            if self._by_hand:
                state.unacknowledged[offset] = 1
                self._in_hand[(partition, offset)] = None
        state.position = max(state.position, position)

    # --- acknowledging ---

    def acknowledge(self, partition: TopicPartition, offset: int) -> bool:
        """The subscriber has done with a record. False when it was not waiting for it: that changes nothing."""
        state = self._partitions.get(partition)
        if state is None or state.unacknowledged.pop(offset, None) is None:
            return False
        if (partition, offset) in self._in_hand:
            del self._in_hand[(partition, offset)]
            self._credits += 1
        else:  # refused before; it thought better of it
            del self._due[(partition, offset)]
        return True

    def acknowledge_up_to(self, partition: TopicPartition, offset: int) -> int:
        """Acknowledge a record and all that were sent before it, of whatever partition; how many these were."""
        if (partition, offset) not in self._in_hand:
            return 0
        count = 0
        while True:
            oldest = next(iter(self._in_hand))
            self.acknowledge(*oldest)
            count += 1
            if oldest == (partition, offset):
                return count

    def acknowledge_below(self, positions: Mapping[TopicPartition, int]) -> int:
        """Acknowledge all that was sent below these positions; how many records these were."""
        count = 0
        for partition, position in positions.items():
            state = self._partitions.get(partition)
            while state and (offset := next(iter(state.unacknowledged), position)) < position:
                count += self.acknowledge(partition, offset)
        return count

    # --- sending again ---

    def refuse(self, partition: TopicPartition, offset: int, due_ms: float) -> bool:
        """The subscriber wants a record again at that time. False when it does not have it."""
        if (partition, offset) not in self._in_hand:
            return False
        del self._in_hand[(partition, offset)]
        self._credits += 1
        self._due[(partition, offset)] = due_ms
        heapq.heappush(self._waiting, (due_ms, partition, offset))
        if len(self._waiting) > 2 * len(self._due) + 64:  # mostly stale
            self._waiting = [(due_ms, *refused) for refused, due_ms in self._due.items()]
            heapq.heapify(self._waiting)
        return True

    @property
    def next_due_ms(self) -> float | None:
        """When the next refused record is to be sent again."""
        waiting = self._waiting
        while waiting and self._due.get(waiting[0][1:]) != waiting[0][0]:
            heapq.heappop(waiting)
        return waiting[0][0] if waiting else None

    def due(self, now_ms: float) -> tuple[TopicPartition, int] | None:
        """A refused record whose time has come, if there is a credit for it."""
        due_ms = self.next_due_ms
        if due_ms is None or due_ms > now_ms or self._credits <= 0:
            return None
        _, partition, offset = self._waiting[0]
        return partition, offset

    def sent_again(self, partition: TopicPartition, offset: int) -> int:
        """A refused record goes out again; how often it was sent, this time included."""
        del self._due[(partition, offset)]
        self._in_hand[(partition, offset)] = None
        self._credits -= 1
        unacknowledged = self._partitions[partition].unacknowledged
        unacknowledged[offset] += 1
        return unacknowledged[offset]

    # --- committing ---

    def to_commit(self) -> dict[TopicPartition, int]:
        """The offsets to store: where everything before has been acknowledged, and it is not stored yet."""
        return {
            partition: state.acknowledged_through
            for partition, state in self._partitions.items()
            if state.acknowledged_through != state.committed
        }

    def committed(self, offsets: Mapping[TopicPartition, int]) -> None:
        """These offsets have been stored."""
        for partition, offset in offsets.items():
            if (state := self._partitions.get(partition)) is not None:
                state.committed = offset
