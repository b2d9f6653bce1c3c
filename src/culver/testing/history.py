"""What clients did and saw, and what the replicas hold in the end: the input of the checker.

Every operation ends in one of three ways. `ok`: the cluster said so. `failed`: it certainly did not happen. `unknown`:
it may have happened, or may still: a time-out, a broken connection, a client that was stopped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeAlias

from culver.protocol.records import decode_records, iterate_headers

ACKS_ALL = -1
_DECOMPRESSED_MAX_BYTES = 100 << 20

Partition: TypeAlias = tuple[str, int]


class Outcome(Enum):
    OK = "ok"
    FAILED = "failed"
    UNKNOWN = "unknown"


@dataclass(slots=True)
class Send:
    """One record that a producer sent. Values are unique in a history."""

    producer: str
    partition: Partition
    value: bytes
    # The producer's own count of what it sent to this partition: the order that an idempotent one is promised.
    number: int
    acks: int = ACKS_ALL
    idempotent: bool = True
    invoked_ms: float = 0.0
    completed_ms: float | None = None
    outcome: Outcome = Outcome.UNKNOWN
    # Where the broker said it is; None when it did not say.
    offset: int | None = None


@dataclass(slots=True, eq=False)
class Transaction:
    """Records and offsets that count together or not at all.

    `failed` from the start: as long as nobody has asked for its commit it must never be committed. From the moment
    somebody asks it is `unknown`, and `ok` when the coordinator has said so.
    """

    producer: str
    transactional_id: str
    number: int
    sends: list[Send] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    outcome: Outcome = Outcome.FAILED

    @property
    def name(self) -> str:
        return f"transaction {self.number} of {self.producer} ({self.transactional_id})"

    def commit_asked(self) -> None:
        """It is about to be committed, for all that anyone knows."""
        self._is(Outcome.UNKNOWN)

    def committed(self, now_ms: float) -> None:
        self._is(Outcome.OK)
        for commit in self.commits:
            commit.completed_ms = now_ms

    def aborted(self) -> None:
        """The coordinator has certainly not committed it, and will not."""
        self._is(Outcome.FAILED)

    def _is(self, outcome: Outcome) -> None:
        self.outcome = outcome
        for commit in self.commits:
            commit.outcome = outcome


@dataclass(frozen=True, slots=True)
class Copying:
    """A pipeline: for every committed record of `sources` one in `targets`, whose value ends with `|` and the original.

    What stands before it tells attempts apart.
    """

    group: str
    sources: tuple[Partition, ...]
    targets: tuple[Partition, ...]


@dataclass(slots=True)
class Poll:
    """What one fetch of one partition gave a consumer that asked for `position`."""

    consumer: str
    partition: Partition
    position: int
    records: list[tuple[int, bytes]]
    at_ms: float = 0.0
    group: str | None = None
    # A consumer's polls of a partition follow on each other until it is assigned the partition anew.
    assignment: int = 0
    # With isolation: records of transactions that were committed, and no others.
    committed_only: bool = False
    # The position that it led to, if that is not just behind the last record: markers and aborted records are passed.
    up_to: int = -1

    @property
    def next_position(self) -> int:
        return max(self.up_to, self.records[-1][0] + 1 if self.records else self.position)


@dataclass(slots=True)
class Commit:
    """A group member's commit of the offset it would read next."""

    group: str
    member: str
    partition: Partition
    offset: int
    invoked_ms: float = 0.0
    completed_ms: float | None = None
    outcome: Outcome = Outcome.UNKNOWN


@dataclass(slots=True)
class CommittedRead:
    """An answer to the question how far a group has committed; -1 is nothing at all."""

    group: str
    partition: Partition
    offset: int
    invoked_ms: float
    completed_ms: float


@dataclass(slots=True)
class Replica:
    """One broker's copy of a partition: whole batches as they are in its log."""

    broker: int
    start_offset: int
    end_offset: int
    high_watermark: int
    data: bytes
    leader: bool = False

    def batches(self) -> Iterator[tuple[int, int, bytes]]:
        """(first offset, last offset, bytes) of each."""
        for position, header in iterate_headers(self.data):
            yield header.base_offset, header.last_offset, self.data[position : position + header.size_bytes]

    def values(self) -> dict[int, bytes]:
        """The records' values by offset, without control records."""
        found = {}
        for position, header in iterate_headers(self.data):
            if not header.is_control:
                for record in decode_records(self.data, _DECOMPRESSED_MAX_BYTES, position):
                    found[record.offset] = record.value or b""
        return found


@dataclass
class History:
    """Everything that is judged together."""

    sends: list[Send] = field(default_factory=list)
    polls: list[Poll] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
    committed_reads: list[CommittedRead] = field(default_factory=list)
    # What a consumer could read of each partition from its start to its end after everything had healed.
    final: dict[Partition, list[tuple[int, bytes]]] = field(default_factory=dict)
    # The same for a consumer with isolation; only where there were transactions.
    final_committed: dict[Partition, list[tuple[int, bytes]]] = field(default_factory=dict)
    transactions: list[Transaction] = field(default_factory=list)
    copyings: list[Copying] = field(default_factory=list)
    # By how much a record changes its account, by value: the sum over all that are committed is 0.
    transfers: dict[bytes, int] = field(default_factory=dict)
    # What each replica holds after everything had healed; empty where nobody can look into the logs.
    replicas: dict[Partition, list[Replica]] = field(default_factory=dict)
    # Partitions whose only disk has failed or lost power: what was shown and not acknowledged may be gone.
    forgetful: set[Partition] = field(default_factory=set)
    # What clients were told that cannot be right, in their own words.
    complaints: list[str] = field(default_factory=list)
