"""What the log remembers of idempotent producers: enough to refuse gaps and to answer retries.

For every producer id the last five batches are kept. A batch that repeats one of them is a retry whose first
answer was lost: it is answered with the original offsets. Anything else must continue the sequence exactly.
An unknown producer id may start with any sequence, as in Kafka: its history may have been expired.

A producer whose transaction is open is never forgotten. Memory is bounded all the same: a leader lets half as many
transactions be open as there may be producers, and followers copy only what leaders have accepted.
"""

from __future__ import annotations

from typing import NamedTuple

from culver.errors import ErrorCode, KafkaError
from culver.filesystem import Buffer
from culver.log.batches import CONTROL, TRANSACTIONAL, HeaderFields
from culver.log.transactions import NO_OFFSET, AbortedTransaction, OpenTransaction, Transactions, Undo
from culver.protocol.control_records import EndMarker, decode_end_marker

REMEMBERED_BATCHES = 5
MAX_SEQUENCE = 0x7FFF_FFFF
NO_EPOCH = -1
MAX_EPOCH = 0x7FFF


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
        "sequence_known",
        "transaction_started_ms",
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
        # With no batches: that the epoch has just begun, and so the next sequence is 0. Otherwise it may be any.
        self.sequence_known = False
        # Of the last marker.
        self.coordinator_epoch = -1
        # When this broker first heard of the transaction that is open.
        self.transaction_started_ms = -1

    @property
    def last_sequence(self) -> int:
        return self.batches[-1].last_sequence if self.batches else -1


class ProducerStates:
    """All producer ids of one partition."""

    __slots__ = ("_limit", "producers", "transactions")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.producers: dict[int, Producer] = {}
        # Half of them, so that there is always somebody to forget.
        self.transactions = Transactions(max(limit // 2, 1))

    def __len__(self) -> int:
        return len(self.producers)

    # -- may it be appended? ---------------------------------------------------------------------------------

    def check(self, producer_id: int, epoch: int, first_sequence: int, count: int) -> StoredBatch | None:
        """Hot. None when the batch may be appended; the stored batch when it repeats one; else raises."""
        producer = self.producers.get(producer_id)
        if producer is None:
            return None
        if epoch == producer.epoch:
            batches = producer.batches
            if not batches:
                if first_sequence and producer.sequence_known:
                    raise self._out_of_order(producer, first_sequence)
                return None
            if first_sequence == (batches[-1].last_sequence + 1) & MAX_SEQUENCE:
                return None
            stored = _find(batches, first_sequence, count)
            if stored is None:
                raise self._out_of_order(producer, first_sequence)
            return stored
        if epoch < producer.epoch:
            raise _fenced(producer, epoch)
        if first_sequence != 0:
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} began epoch {epoch} with sequence {first_sequence} instead of 0",
            )
        return None

    def _out_of_order(self, producer: Producer, first_sequence: int) -> KafkaError:
        return KafkaError(
            ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
            f"producer {producer.producer_id} (epoch {producer.epoch}) sent sequence {first_sequence} "
            f"after {producer.last_sequence}",
        )

    def check_transactional(
        self, producer_id: int, epoch: int, first_sequence: int, count: int, guard: object | None
    ) -> StoredBatch | None:
        """Hot. The same for a batch that is part of a transaction, which it may begin with the right guard only."""
        producer = self.producers.get(producer_id)
        if producer is not None and epoch == producer.epoch:
            if producer_id in self.transactions.open:
                return self.check(producer_id, epoch, first_sequence, count)
            stored = _find(producer.batches, first_sequence, count)
            if stored is not None:
                return stored
        self.check_beginning(producer_id, epoch, guard, first_sequence)
        return self.check(producer_id, epoch, first_sequence, count)

    def check_beginning(
        self, producer_id: int, epoch: int, guard: object | None, first_sequence: int = -1
    ) -> None:
        """Raise unless a transaction may begin here, or go on."""
        self.check_fenced(producer_id, epoch)
        if producer_id in self.transactions.open:
            if epoch == self.producers[producer_id].epoch:
                return
        else:
            self.transactions.check_room()
        verified = self.transactions.verify(producer_id, guard)
        if verified is None or first_sequence < 0:
            return
        producer = self.producers.get(producer_id)
        ahead = verified.begins_at_zero and first_sequence > 0 and (producer is None or not producer.batches)
        if ahead or verified.overtakes(first_sequence):
            raise KafkaError(
                ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
                f"producer {producer_id} (epoch {epoch}) sent sequence {first_sequence}, "
                "and what comes before that has not been written yet",
            )

    def check_fenced(self, producer_id: int, epoch: int) -> None:
        """Raise when the producer has been seen with a later epoch."""
        producer = self.producers.get(producer_id)
        if producer is not None and epoch < producer.epoch:
            raise _fenced(producer, epoch)

    def check_outside(self, producer_id: int) -> None:
        """Raise when the producer has a transaction open: all that it writes must be part of it."""
        if producer_id in self.transactions.open:
            raise KafkaError(
                ErrorCode.INVALID_TXN_STATE,
                f"producer {producer_id} wrote outside of the transaction that it has open",
            )

    def check_marker(self, producer_id: int, epoch: int, coordinator_epoch: int, version: int) -> None:
        """Raise unless a marker may be written. One for a producer that is not known may (as in Kafka).

        From version 2 on the epoch is raised for each marker, so one that does not raise it is late, and would end a
        transaction that is not its own. It is harmless when none is open: a marker that is sent again. The highest
        epoch cannot be raised.
        """
        producer = self.producers.get(producer_id)
        if producer is None:
            return
        self.check_fenced(producer_id, epoch)
        late = version >= 2 and epoch == producer.epoch and epoch != MAX_EPOCH
        if late and producer_id in self.transactions.open:
            raise KafkaError(
                ErrorCode.INVALID_PRODUCER_EPOCH,
                f"a marker of producer {producer_id} has epoch {epoch}, in which its transaction goes on",
            )
        if coordinator_epoch < producer.coordinator_epoch:
            raise KafkaError(
                ErrorCode.TRANSACTION_COORDINATOR_FENCED,
                f"a marker of producer {producer_id} comes from a coordinator with epoch {coordinator_epoch}, "
                f"but one with epoch {producer.coordinator_epoch} has been here",
            )

    # -- what is in the log ----------------------------------------------------------------------------------

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
            producer = self._add(producer_id, epoch, first_offset)
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

    def begin_transaction(self, producer_id: int, first_offset: int, seen_ms: int) -> None:
        """A batch of a transaction has been noted: it is the first one unless one is open."""
        if producer_id not in self.transactions.open:
            self.transactions.begin(producer_id, first_offset)
            self.producers[producer_id].transaction_started_ms = seen_ms

    def bump_epoch(self, producer_id: int, epoch: int, offset: int, timestamp_ms: int, seen_ms: int) -> None:
        """A batch without a sequence was written with this epoch."""
        producer = self.producers.get(producer_id)
        if producer is None:
            producer = self._add(producer_id, epoch, offset)
        elif epoch > producer.epoch:
            producer.epoch = epoch
            producer.epoch_offset = offset
            producer.batches = []
            producer.sequence_known = True
        producer.last_timestamp_ms = timestamp_ms
        producer.last_seen_ms = seen_ms

    def end_transaction(
        self,
        producer_id: int,
        epoch: int,
        marker: EndMarker,
        offset: int,
        timestamp_ms: int,
        seen_ms: int,
        high_watermark: int,
    ) -> AbortedTransaction | None:
        """A marker is in the log; what to note if it aborted something."""
        transactions = self.transactions
        producer = self.producers.get(producer_id)
        first_offset = transactions.end(producer_id, offset, high_watermark)
        if producer is None:
            undo = Undo(offset, producer_id, NO_OFFSET, 0, None, NO_OFFSET, NO_OFFSET, -1, False, None, -1)
        else:
            undo = Undo(
                offset,
                producer_id,
                first_offset,
                producer.transaction_started_ms,
                producer.epoch,
                producer.epoch_offset,
                producer.known_from_offset,
                producer.coordinator_epoch,
                producer.sequence_known,
                producer.batches if epoch > producer.epoch else None,
                producer.last_timestamp_ms,
            )
        transactions.remember(undo, high_watermark)
        self.bump_epoch(producer_id, epoch, offset, timestamp_ms, seen_ms)
        producer = self.producers[producer_id]
        producer.coordinator_epoch = marker.coordinator_epoch
        if marker.committed or first_offset < 0:
            return None
        stable = offset + 1 if transactions.first_offset < 0 else transactions.first_offset
        return AbortedTransaction(producer_id, first_offset, offset, stable)

    def note(
        self, header: HeaderFields, data: Buffer, seen_ms: int, high_watermark: int
    ) -> AbortedTransaction | None:
        """Any batch of a producer is in the log, `data` from its header on; what to note if it aborted something."""
        base_offset, attributes, last_delta, timestamp_ms = header[0], header[5], header[6], header[8]
        producer_id, epoch, sequence = header[9], header[10], header[11]
        if attributes & CONTROL:
            marker = decode_end_marker(data)
            if marker is not None:
                return self.end_transaction(
                    producer_id, epoch, marker, base_offset, timestamp_ms, seen_ms, high_watermark
                )
        if sequence >= 0:
            self.record(producer_id, epoch, sequence, last_delta + 1, base_offset, timestamp_ms, seen_ms)
        else:
            self.bump_epoch(producer_id, epoch, base_offset, timestamp_ms, seen_ms)
        if attributes & (TRANSACTIONAL | CONTROL) == TRANSACTIONAL:
            self.begin_transaction(producer_id, base_offset, seen_ms)
        return None

    def open_transactions(self) -> list[OpenTransaction]:
        """In the order in which they began."""
        found = []
        for producer_id, first_offset in self.transactions.open.items():
            one = self.producers[producer_id]
            found.append(
                OpenTransaction(
                    producer_id, one.epoch, first_offset, one.transaction_started_ms, one.coordinator_epoch
                )
            )
        return found

    # -- forgetting ------------------------------------------------------------------------------------------

    def truncate(self, end_offset: int) -> set[int]:
        """Forget all batches from `end_offset` on. Returns the ids of producers of which that left nothing although
        the log has batches of theirs further down: what is known of their transactions is right, their epoch and
        batches are to be looked for there."""
        self._undo_markers(end_offset)
        self.transactions.cut(end_offset)
        lost = set()
        for producer in list(self.producers.values()):
            batches = producer.batches
            if producer.known_from_offset >= end_offset:
                del self.producers[producer.producer_id]
            elif producer.epoch_offset >= end_offset or (batches and batches[0].first_offset >= end_offset):
                lost.add(producer.producer_id)
            else:
                while batches and batches[-1].first_offset >= end_offset:
                    batches.pop()
                if batches:
                    producer.last_timestamp_ms = batches[-1].timestamp_ms
        return lost

    def replace(self, lost: set[int], found: list[Producer]) -> None:
        """Lost producers as they were found further down. Those that were not are forgotten, or all but their
        transaction if that is open."""
        known = {producer_id: self.producers.pop(producer_id) for producer_id in lost}
        for producer in found:
            before = known.pop(producer.producer_id)
            producer.coordinator_epoch = before.coordinator_epoch
            producer.transaction_started_ms = before.transaction_started_ms
            self.producers[producer.producer_id] = producer
        for producer_id, producer in known.items():
            if producer_id in self.transactions.open:
                producer.batches = []
                producer.sequence_known = False
                self.producers[producer_id] = producer

    def _undo_markers(self, end_offset: int) -> None:
        history = self.transactions.history
        while history and history[-1].marker_offset >= end_offset:
            undo = history.pop()
            if undo.epoch is None:
                self.producers.pop(undo.producer_id, None)
                self.transactions.open.pop(undo.producer_id, None)
                continue
            producer = self.producers.get(undo.producer_id)
            if producer is None:
                producer = self._add(undo.producer_id, undo.epoch, undo.known_from_offset)
            producer.epoch = undo.epoch
            producer.epoch_offset = undo.epoch_offset
            producer.coordinator_epoch = undo.coordinator_epoch
            producer.sequence_known = undo.sequence_known
            producer.last_timestamp_ms = undo.last_timestamp_ms
            if undo.batches is not None:
                producer.batches = undo.batches
            if undo.first_offset >= 0:
                producer.transaction_started_ms = undo.started_ms
                self.transactions.open[undo.producer_id] = undo.first_offset
            else:
                self.transactions.open.pop(undo.producer_id, None)

    def expire(self, now_ms: int, expiration_ms: int) -> int:
        """Forget producers that have been silent for so long; returns how many."""
        open_now = self.transactions.open
        silent = [
            producer_id
            for producer_id, producer in self.producers.items()
            if now_ms - producer.last_seen_ms >= expiration_ms and producer_id not in open_now
        ]
        for producer_id in silent:
            del self.producers[producer_id]
        return len(silent)

    def _add(self, producer_id: int, epoch: int, offset: int) -> Producer:
        if len(self.producers) >= self._limit:
            self._shed()
        producer = self.producers[producer_id] = Producer(producer_id, epoch, offset)
        return producer

    def _shed(self) -> None:
        # A client that takes a new id for every batch must not grow the broker without bound. Forgetting the
        # half that has been silent longest costs those producers only their protection against old retries.
        open_now = self.transactions.open
        idle = [producer for producer in self.producers.values() if producer.producer_id not in open_now]
        idle.sort(key=lambda producer: producer.last_seen_ms)
        for producer in idle[: max(1, len(idle) // 2)]:
            del self.producers[producer.producer_id]


def _find(batches: list[StoredBatch], first_sequence: int, count: int) -> StoredBatch | None:
    last_sequence = (first_sequence + count - 1) & MAX_SEQUENCE
    for batch in batches:
        if batch.first_sequence == first_sequence and batch.last_sequence == last_sequence:
            return batch
    return None


def _fenced(producer: Producer, epoch: int) -> KafkaError:
    return KafkaError(
        ErrorCode.INVALID_PRODUCER_EPOCH,
        f"producer {producer.producer_id} wrote with epoch {epoch}, but epoch {producer.epoch} has been seen",
    )
