"""The state of one transactional id, and the steps by which it changes; each step makes a new value."""

from __future__ import annotations

from enum import IntEnum
from typing import Any, NamedTuple, TypeAlias

NO_PRODUCER_ID = -1
NO_PRODUCER_EPOCH = -1
NOT_STARTED = -1
MAX_EPOCH = 32_767
# From here on no epoch is given to a client: the last one is kept, so that a producer can always be fenced.
EXHAUSTED_EPOCH = MAX_EPOCH - 1
# The generation of the protocol in which every end of a transaction raises the epoch (KIP-890).
EPOCH_BUMP_VERSION = 2
# A timeout that means none, for transactions that another system coordinates (KIP-939).
NO_TIMEOUT_MS = 2**31 - 1

TopicPartition: TypeAlias = tuple[str, int]


class TransactionState(IntEnum):
    """Where a transactional id stands; the numbers are those in the log.

    `PREPARE_EPOCH_FENCE` and `DEAD` are never in the log: Kafka passes through them in memory. Here they are just
    names that a client may filter by.
    """

    EMPTY = 0
    ONGOING = 1
    PREPARE_COMMIT = 2
    PREPARE_ABORT = 3
    COMPLETE_COMMIT = 4
    COMPLETE_ABORT = 5
    DEAD = 6
    PREPARE_EPOCH_FENCE = 7

    @property
    def label(self) -> str:
        """The name that clients see."""
        return _LABELS[self]


_LABELS = {state: state.name.title().replace("_", "") for state in TransactionState}
STATE_BY_LABEL = {label: state for state, label in _LABELS.items()}

# What may come before each state.
VALID_PREVIOUS_STATES: dict[TransactionState, frozenset[TransactionState]] = {
    TransactionState.EMPTY: frozenset(
        {TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT}
    ),
    TransactionState.ONGOING: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }
    ),
    TransactionState.PREPARE_COMMIT: frozenset({TransactionState.ONGOING}),
    # From the states without a transaction, too: who has produced nothing that was noted may abort all the same.
    TransactionState.PREPARE_ABORT: frozenset(
        {
            TransactionState.ONGOING,
            TransactionState.EMPTY,
            TransactionState.COMPLETE_COMMIT,
            TransactionState.COMPLETE_ABORT,
        }
    ),
    TransactionState.COMPLETE_COMMIT: frozenset({TransactionState.PREPARE_COMMIT}),
    TransactionState.COMPLETE_ABORT: frozenset({TransactionState.PREPARE_ABORT}),
}

# The outcome is in the log, but not yet in all the partitions.
ENDING = frozenset({TransactionState.PREPARE_COMMIT, TransactionState.PREPARE_ABORT})
# No transaction: the id may expire.
IDLE = frozenset({TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


class TransactionMetadata(NamedTuple):
    """All that is known of a transactional id.

    The way it goes, by the methods below:

        (nothing)                                --created-->          Empty
        Empty, CompleteCommit, CompleteAbort     --with_epoch-->       Empty             InitProducerId
        Empty, CompleteCommit, CompleteAbort     --with_partitions-->  Ongoing           AddPartitionsToTxn,
        Ongoing                                  --with_partitions-->  Ongoing             AddOffsetsToTxn
        Ongoing                                  --ending-->           PrepareCommit     EndTxn
        Ongoing                                  --ending-->           PrepareAbort      EndTxn, InitProducerId, timeout
        Empty, CompleteCommit, CompleteAbort     --ending-->           PrepareAbort      EndTxn 5 only
        PrepareCommit                            --completed-->        CompleteCommit    all markers are written
        PrepareAbort                             --completed-->        CompleteAbort     all markers are written
        Empty, CompleteCommit, CompleteAbort     --(tombstone)-->      (nothing)         the id has expired
    """

    producer_id: int
    producer_epoch: int
    timeout_ms: int
    state: TransactionState
    updated_ms: int
    started_ms: int = NOT_STARTED
    partitions: frozenset[TopicPartition] = frozenset()
    # The epoch before this one, while a client may still ask with it: it is not in the log.
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    # The id before the last change; the same one mostly.
    previous_producer_id: int = NO_PRODUCER_ID
    # The id to go on with once the markers are written, when there is no epoch left.
    next_producer_id: int = NO_PRODUCER_ID
    client_version: int = 0

    @classmethod
    def created(cls, producer_id: int, timeout_ms: int, now_ms: int) -> TransactionMetadata:
        """A transactional id that nobody has used before."""
        return cls(
            producer_id=producer_id,
            producer_epoch=0,
            timeout_ms=timeout_ms,
            state=TransactionState.EMPTY,
            updated_ms=now_ms,
            previous_producer_id=producer_id,
        )

    @property
    def exhausted(self) -> bool:
        """There is no epoch left for a client."""
        return self.producer_epoch >= EXHAUSTED_EPOCH

    @property
    def committing(self) -> bool:
        return self.state is TransactionState.PREPARE_COMMIT

    def with_epoch(
        self, epoch: int, last_epoch: int, timeout_ms: int, now_ms: int, producer_id: int | None = None
    ) -> TransactionMetadata:
        """A producer begins, or begins anew: `epoch` is its own from now on, and `producer_id` too if given."""
        return self._to(
            TransactionState.EMPTY,
            now_ms,
            producer_id=self.producer_id if producer_id is None else producer_id,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            timeout_ms=timeout_ms,
            partitions=frozenset(),
            started_ms=NOT_STARTED,
        )

    def with_partitions(
        self, added: frozenset[TopicPartition], client_version: int, now_ms: int
    ) -> TransactionMetadata:
        """The transaction, a new one if there was none, reaches into these partitions."""
        return self._to(
            TransactionState.ONGOING,
            now_ms,
            partitions=self.partitions | added,
            started_ms=self.started_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=client_version,
        )

    def ending(
        self, committed: bool, client_version: int, next_producer_id: int, now_ms: int
    ) -> TransactionMetadata:
        """The outcome is decided. In the newer protocol the epoch is raised: whatever comes late is too old."""
        epoch, last_epoch = self.producer_epoch, self.last_producer_epoch
        if client_version >= EPOCH_BUMP_VERSION:
            epoch, last_epoch = min(epoch + 1, MAX_EPOCH), epoch
        return self._to(
            TransactionState.PREPARE_COMMIT if committed else TransactionState.PREPARE_ABORT,
            now_ms,
            producer_epoch=epoch,
            last_producer_epoch=last_epoch,
            next_producer_id=next_producer_id,
            started_ms=self.started_ms if self.state is TransactionState.ONGOING else now_ms,
            client_version=client_version,
        )

    def completed(self, now_ms: int) -> TransactionMetadata:
        """Every partition has its marker. A new producer id counts from here on, with the first of its epochs."""
        producer_id, epoch = self.producer_id, self.producer_epoch
        if self.client_version >= EPOCH_BUMP_VERSION and self.next_producer_id != NO_PRODUCER_ID:
            producer_id, epoch = self.next_producer_id, 0
        return self._to(
            TransactionState.COMPLETE_COMMIT if self.committing else TransactionState.COMPLETE_ABORT,
            now_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
            next_producer_id=NO_PRODUCER_ID,
            partitions=frozenset(),
        )

    def _to(self, state: TransactionState, now_ms: int, **changes: Any) -> TransactionMetadata:
        assert self.state in VALID_PREVIOUS_STATES[state], (
            f"{self.state.label} does not lead to {state.label}"
        )
        # A clock that was set back does not make an id older.
        updated_ms = max(now_ms, self.updated_ms)
        previous_id = self.producer_id
        return self._replace(state=state, updated_ms=updated_ms, previous_producer_id=previous_id, **changes)
