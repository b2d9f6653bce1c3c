"""What the log remembers of idempotent producers: enough to refuse gaps and to answer retries.

For every producer id the last five batches are kept. A batch that repeats one of them is a retry whose first
answer was lost: it is answered with the original offsets. Anything else must continue the sequence exactly.
An unknown producer id may start with any sequence, as in Kafka: its history may have been expired.
"""

from __future__ import annotations

from typing import NamedTuple

from culver.errors import ErrorCode, KafkaError

REMEMBERED_BATCHES = 5
MAX_SEQUENCE = 0x7FFF_FFFF
NO_EPOCH = -1
NO_OFFSET = -1


class StoredBatch(NamedTuple):
    """A batch that is in the log."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class Producer:
    """One producer id."""

    __slots__ = (
        "batches",
        "coordinator_epoch",
        "epoch",
        "epoch_offset",
        "known_from_offset",
        "last_seen_ms",
        "last_timestamp_ms",
        "producer_id",
        "transaction_first_offset",
    )

    def __init__(self, producer_id: int, epoch: int, offset: int = NO_OFFSET) -> None:
        self.producer_id = producer_id
        self.epoch = epoch
        # Where it was first met, and where in this epoch. NO_OFFSET: long ago, before a snapshot was made.
        self.known_from_offset = offset
        self.epoch_offset = offset
        self.batches: list[StoredBatch] = []
        self.last_timestamp_ms = -1
        # When this broker last heard from it. Record timestamps are the client's claim and may be years old.
        self.last_seen_ms = 0
        # Kept in snapshots for transactions; nothing sets them yet.
        self.coordinator_epoch = -1
        self.transaction_first_offset = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStates:
    """All producer ids of one partition."""

    __slots__ = ("_limit", "producers")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.producers: dict[int, Producer] = {}

    def __len__(self) -> int:
        return len(self.producers)

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> StoredBatch | None:
        """Hot. None when the batch may be appended; the stored batch when it repeats one; else raises."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            if not batches:
                return None
            if first_sequence == (batches[-1].last_sequence + 1) & MAX_SEQUENCE:
                return None
            last_sequence = (first_sequence + count - 1) & MAX_SEQUENCE
            for batch in batches:
                if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
                    return batch
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} (epoch {epoch}) sent sequence {first_sequence} "
                f"after {batches[-1].last_sequence}",
            )
        if epoch < producer.epoch:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"producer {producer_id} wrote with epoch {epoch}, but epoch {producer.epoch} has been seen",
            )
        if first_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} began epoch {epoch} with sequence {first_sequence} instead of 0",
            )
        return None

    def record(
        self,
        producer_id: int,
        epoch: int,
        first_sequence: int,
        count: int,
        first_offset: int,
        timestamp_ms: int,
        seen_ms: int,
    ) -> None:
        """Hot. Remember a batch that is in the log now; also used to replay the log."""
        producer = self.producers.get(producer_id)
        if producer is None:
            if len(self.producers) >= self._limit:
                self._shed()
            producer = self.producers[producer_id] = Producer(producer_id, epoch, first_offset)
        elif epoch != producer.epoch:
            producer.epoch = epoch
            producer.epoch_offset = first_offset
            producer.batches = []
        batches = producer.batches
        if len(batches) == REMEMBERED_BATCHES:
            del batches[0]
        last_sequence = (first_sequence + count - 1) & MAX_SEQUENCE
        last_offset = first_offset + count - 1
        batches.append(
            tuple.__new__(
                StoredBatch, (first_sequence, last_sequence, first_offset, last_offset, timestamp_ms)
            )
        )
        producer.last_timestamp_ms = timestamp_ms
        producer.last_seen_ms = seen_ms

    def bump_epoch(self, producer_id: int, epoch: int, offset: int, timestamp_ms: int, seen_ms: int) -> None:
        """A batch without a sequence (a control batch) was written with this epoch."""
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self.producers[producer_id] = Producer(producer_id, epoch, offset)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.epoch_offset = offset
            producer.batches = []
        producer.last_timestamp_ms = timestamp_ms
        producer.last_seen_ms = seen_ms

    def truncate(self, end_offset: int) -> set[int]:
        """Forget all batches from `end_offset` on. Returns the ids of producers of which that left nothing although
        the log has batches of theirs further down: they are gone here, and to be looked for there."""
        lost = set()
        for producer in list(self.producers.values()):
            batches = producer.batches
            if producer.known_from_offset >= end_offset:
                del self.producers[producer.producer_id]
            elif producer.epoch_offset >= end_offset or (batches and batches[0].first_offset >= end_offset):
                del self.producers[producer.producer_id]
                lost.add(producer.producer_id)
            else:
                while batches and batches[-1].first_offset >= end_offset:
                    batches.pop()
                if batches:
                    producer.last_timestamp_ms = batches[-1].timestamp_ms
        return lost

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been silent for so long; returns how many."""
        silent = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now_ms - producer.last_seen_ms >= expiration_ms
        ]
        for producer_id in silent:
            del self.producers[producer_id]
        return len(silent)

    def clear(self) -> None:
        self.producers.clear()

    def _shed(self) -> None:
        # A client that takes a new id for every batch must not grow the broker without bound. Forgetting the
        # half that has been silent longest costs those producers only their protection against old retries.
        by_age = sorted(self.producers.values(), key=lambda producer: producer.last_seen_ms)
        for producer in by_age[: max(1, len(by_age) // 2)]:
            del self.producers[producer.producer_id]
