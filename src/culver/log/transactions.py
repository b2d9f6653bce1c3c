"""Transactions that are open in one partition, and those that ended a moment ago.

A transaction is open from its first batch to its marker. Readers who want only what is committed may read up to the
last stable offset: below it every transaction has ended, and its marker is below the high watermark.

What a marker changed is remembered until the high watermark has passed it: a log is hardly ever cut back further
than that, and then the marker can be undone without reading the log.
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from culver.errors import ErrorCode, KafkaError

if TYPE_CHECKING:
    from culver.log.producer_state import StoredBatch

NO_OFFSET = -1
_MAX_SEQUENCE = 0x7FFF_FFFF
# Ended transactions that are remembered at most, should the high watermark stand still.
HISTORY_MAX = 10_000


class OpenTransaction(NamedTuple):
    """A transaction that has begun in the partition and not ended."""

    producer_id: int
    epoch: int
    first_offset: int
    # When this broker first heard of it.
    started_ms: int
    # Of the producer's last marker here, -1 when it had none.
    coordinator_epoch: int


class AbortedTransaction(NamedTuple):
    """A transaction that was aborted: its batches lie between two offsets, the last of which is the marker's."""

    producer_id: int
    first_offset: int
    last_offset: int
    # Where the log was stable just after the marker: every transaction from before that had ended.
    last_stable_offset: int


class Undo(NamedTuple):
    """A producer as it was before a marker, or None in `epoch` when it was not known."""

    marker_offset: int
    producer_id: int
    first_offset: int
    started_ms: int
    epoch: int | None
    epoch_offset: int
    known_from_offset: int
    coordinator_epoch: int
    sequence_known: bool
    # None when the marker did not touch them.
    batches: list[StoredBatch] | None
    last_timestamp_ms: int


class Guard:
    """Stands for a question to the coordinator: is this producer's transaction known to reach into the partition?

    A marker that comes before the answer takes the guard away, so that a stale yes begins nothing.
    """

    __slots__ = ("begins_at_zero", "epoch", "lowest_sequence")

    def __init__(self, epoch: int, lowest_sequence: int | None, begins_at_zero: bool) -> None:
        self.epoch = epoch
        self.lowest_sequence = lowest_sequence
        # Of a producer of which nothing is known.
        self.begins_at_zero = begins_at_zero

    def note(self, sequence: int | None) -> None:
        """Another batch waits for the same answer."""
        if sequence is not None and (self.lowest_sequence is None or not self.overtakes(sequence)):
            self.lowest_sequence = sequence

    def overtakes(self, sequence: int) -> bool:
        """Whether a batch that should come before the one with this sequence waits for the answer, too."""
        if self.lowest_sequence is None:
            return False
        # They wrap, so what is more than half way round is behind.
        return 0 < (sequence - self.lowest_sequence) & _MAX_SEQUENCE < _MAX_SEQUENCE // 2


_GUARDED_EPOCHS_MAX = 4

# For those who know that the transaction is in order, such as tools and tests.
UNVERIFIED_OK = object()


class Transactions:
    """What is open in one partition, in the order in which it began."""

    __slots__ = (
        "_guards",
        "_limit",
        "_unstable",
        "first_offset",
        "forgotten_offset",
        "history",
        "loaded_offset",
        "open",
    )

    def __init__(self, limit: int) -> None:
        self._limit = limit
        # Producer id -> first offset. They begin in the order of their offsets, and a dict keeps that order.
        self.open: dict[int, int] = {}
        # Of the oldest open one.
        self.first_offset = NO_OFFSET
        # (marker, first offset) of ended ones whose marker is not known to be below the high watermark. One that
        # begins before another and ends after it says all that there is to say of both: so both ascend.
        self._unstable: deque[tuple[int, int]] = deque()
        # What markers changed, in their order, and the last marker of which that is not known any more.
        self.history: deque[Undo] = deque()
        self.forgotten_offset = NO_OFFSET
        # The same when the state was loaded.
        self.loaded_offset = NO_OFFSET
        # Producer id -> epoch -> guard. An epoch is the client's claim until its coordinator has answered, so that one
        # who lies about it must not be in the way of one who does not.
        self._guards: dict[int, dict[int, Guard]] = {}

    # -- what readers may see --------------------------------------------------------------------------------

    @property
    def settled(self) -> bool:
        """Hot. Nothing holds the last stable offset back."""
        return self.first_offset < 0 and not self._unstable

    def stable_below(self, high_watermark: int) -> int:
        """The last stable offset, as far as transactions go. The high watermark may only rise."""
        unstable = self._unstable
        while unstable and unstable[0][0] < high_watermark:
            unstable.popleft()
        bound = high_watermark
        if 0 <= self.first_offset < bound:
            bound = self.first_offset
        if unstable and unstable[0][1] < bound:
            bound = unstable[0][1]
        return bound

    def cleanable_below(self, high_watermark: int) -> int:
        """Where what is too old or replaced may be removed: nothing of a transaction whose marker may be cut off.

        After a recovery it takes until the high watermark has passed the state that was loaded, which does not say
        what had just ended.
        """
        return NO_OFFSET if high_watermark <= self.loaded_offset else self.stable_below(high_watermark)

    # -- beginning and ending --------------------------------------------------------------------------------

    def begin(self, producer_id: int, first_offset: int) -> None:
        """A batch that is the first of a transaction is in the log."""
        self.open[producer_id] = first_offset
        if self.first_offset < 0:
            self.first_offset = first_offset
        if self._guards:
            self._guards.pop(producer_id, None)

    def end(self, producer_id: int, marker_offset: int, high_watermark: int) -> int:
        """A marker is in the log; returns where what it ended had begun, or NO_OFFSET."""
        first_offset = self.open.pop(producer_id, NO_OFFSET)
        if first_offset < 0:
            return NO_OFFSET
        if first_offset == self.first_offset:
            self.first_offset = next(iter(self.open.values()), NO_OFFSET)
        unstable = self._unstable
        while unstable and unstable[0][0] < high_watermark:
            unstable.popleft()
        while unstable and unstable[-1][1] >= first_offset:
            unstable.pop()
        unstable.append((marker_offset, first_offset))
        if len(unstable) > HISTORY_MAX:
            unstable.popleft()
        return first_offset

    def remember(self, undo: Undo, high_watermark: int) -> None:
        """How to take a marker back, should it be cut off."""
        history = self.history
        history.append(undo)
        while history[0].marker_offset < high_watermark or len(history) > HISTORY_MAX:
            self.forgotten_offset = history.popleft().marker_offset
            if not history:
                break

    def cut(self, end_offset: int) -> None:
        """Forget what began or ended from `end_offset` on."""
        while self._unstable and self._unstable[-1][0] >= end_offset:
            self._unstable.pop()
        self.sort({one: first for one, first in self.open.items() if first < end_offset})
        self._guards.clear()

    def sort(self, transactions: dict[int, int]) -> None:
        """These are open, whatever was before."""
        self.open = dict(sorted(transactions.items(), key=lambda one: one[1]))
        self.first_offset = next(iter(self.open.values()), NO_OFFSET)

    def check_room(self) -> None:
        """Raise when so many are open that another would be one too many."""
        if len(self.open) >= self._limit:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"{len(self.open)} transactions are open in the partition, no other can begin",
            )

    # -- guards ----------------------------------------------------------------------------------------------

    def guard(self, producer_id: int, epoch: int, sequence: int | None, begins_at_zero: bool) -> Guard:
        """The guard of a producer that asks to begin, the same until it begins or a marker comes."""
        guards = self._guards.get(producer_id)
        if guards is None:
            if len(self._guards) >= self._limit:
                # The oldest has waited longest for its answer: its producer will have to ask again.
                del self._guards[next(iter(self._guards))]
            guards = self._guards[producer_id] = {}
        guard = guards.get(epoch)
        if guard is None:
            if len(guards) >= _GUARDED_EPOCHS_MAX:
                del guards[next(iter(guards))]
            guard = guards[epoch] = Guard(epoch, sequence, begins_at_zero)
        else:
            guard.note(sequence)
        return guard

    def drop_guards(self) -> None:
        """Another leads the partition: what was asked before may be answered too late."""
        self._guards.clear()

    def end_guards(self, producer_id: int, epoch: int, transaction_version: int) -> None:
        """A marker is written here: what was asked before it about the transaction that it ends holds no longer.

        From version 2 on a marker carries the epoch that the producer's next transaction has, and may come after the
        first question about that.
        """
        guards = self._guards.get(producer_id)
        if guards is None:
            return
        for guarded in list(guards):
            if guarded < epoch or (guarded == epoch and transaction_version < 2):
                del guards[guarded]
        if not guards:
            del self._guards[producer_id]

    def verify(self, producer_id: int, guard: object | None) -> Guard | None:
        """Whether a transaction may begin with this guard; raises when not."""
        if guard is UNVERIFIED_OK:
            return None
        if not isinstance(guard, Guard) or self._guards.get(producer_id, {}).get(guard.epoch) is not guard:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} has no transaction in this partition that its coordinator knows of",
            )
        return guard
