"""Deliberate bugs of transactions, to show that the simulator finds them."""

from __future__ import annotations

from typing import Any

from culver.broker.partition import Partition
from culver.broker.replication import Replication
from culver.core.coordinator_effects import Effects, Marker, WriteMarkers
from culver.core.group_partition import GroupPartition
from culver.core.transaction_add import VerifyRequest
from culver.core.transaction_end import EndRequest
from culver.core.transaction_init import InitRequest
from culver.core.transaction_partition import TransactionEntry, TransactionPartition
from culver.core.transaction_state import NO_PRODUCER_EPOCH, TransactionMetadata, TransactionState
from culver.errors import ErrorCode
from culver.log.producer_state import ProducerStates
from culver.log.transactional_log import TransactionalLog
from culver.testing.simulation.planting import Patch, named, names


@named("send markers before the end is durable")
def _markers_early() -> list[Patch]:
    original = TransactionPartition._end_with

    def end_with(self: TransactionPartition, entry: TransactionEntry, *rest: Any) -> None:
        original(self, entry, *rest)
        assert entry.transition is not None
        metadata: TransactionMetadata | None = entry.transition.record.change.metadata
        out: Effects = rest[-1]
        assert metadata is not None
        marker = Marker(
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.committing,
            self.coordinator_epoch,
            metadata.client_version,
        )
        out.append(WriteMarkers(self.number, entry.transactional_id, marker, sorted(metadata.partitions)))

    return [(TransactionPartition, "_end_with", end_with)]


@named("answer EndTxn before the end is durable")
def _answer_end_early() -> list[Patch]:
    original = EndRequest.attempt

    def attempt(self: EndRequest, now_ms: float, out: Effects) -> None:
        before = self._partition.change

        def change(
            entry: TransactionEntry, metadata: TransactionMetadata, answer: Any, out: Effects, **more: Any
        ) -> None:
            before(entry, metadata, None, out, **more)
            self._answer(metadata.completed(metadata.updated_ms), out)

        self._partition.change = change  # type: ignore[method-assign]
        try:
            original(self, now_ms, out)
        finally:
            del self._partition.change

    return [(EndRequest, "attempt", attempt)]


@named("say of every partition that it is in the transaction")
def _verify_nothing() -> list[Patch]:
    def attempt(self: VerifyRequest, now_ms: float, out: Effects) -> None:
        self._answer(dict.fromkeys(self._partitions, ErrorCode.NONE), out)

    return [(VerifyRequest, "attempt", attempt)]


@named("show what is not stable")
def _show_unstable() -> list[Patch]:
    return [(TransactionalLog, "last_stable_offset", property(lambda self: self.high_watermark))]


@named("leave out the aborted transactions")
def _leave_out_aborted() -> list[Patch]:
    return [(TransactionalLog, "aborted_transactions", lambda self, from_offset, up_to_offset: [])]


@named("let offsets count before their transaction is committed")
def _pending_offsets_count() -> list[Patch]:
    original = GroupPartition.replay

    def replay(self: GroupPartition, change: Any, producer_id: int = -1) -> None:
        original(self, change)

    return [(GroupPartition, "replay", replay)]


@named("keep the epoch of a producer that begins anew")
def _keep_epoch() -> list[Patch]:
    original = InitRequest._take

    def take(
        self: InitRequest,
        metadata: TransactionMetadata,
        epoch: int,
        last_epoch: int,
        out: Effects,
        producer_id: int | None = None,
    ) -> None:
        original(self, metadata, metadata.producer_epoch, NO_PRODUCER_EPOCH, out, producer_id)

    return [(InitRequest, "_take", take)]


@named("end transactions for producers that were replaced")
def _end_for_anyone() -> list[Patch]:
    original = EndRequest.attempt

    def attempt(self: EndRequest, now_ms: float, out: Effects) -> None:
        metadata = self.entry.metadata
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            self._epoch = metadata.producer_epoch
        original(self, now_ms, out)

    return [(EndRequest, "attempt", attempt)]


@named("write markers of any epoch")
def _any_marker() -> list[Patch]:
    return [(ProducerStates, "check_marker", lambda self, *_: None)]


@named("forget at a move which markers are to be sent")
def _forget_markers() -> list[Patch]:
    def load_done(self: TransactionPartition, now_ms: float, out: Effects) -> None:
        self.loading = False

    return [(TransactionPartition, "load_done", load_done)]


@named("let transactions stay open for ever")
def _no_timeout() -> list[Patch]:
    return [(TransactionPartition, "_set_timeout", lambda self, *_: None)]


@named("forget at a failover which transactions are open")
def _forget_open() -> list[Patch]:
    original = Replication._lead

    def lead(self: Replication, partition: Partition, image: Any) -> None:
        if not partition.leading:
            partition.log._producers.transactions.sort({})
        original(self, partition, image)

    return [(Replication, "_lead", lead)]


NAMES = names(__name__)
