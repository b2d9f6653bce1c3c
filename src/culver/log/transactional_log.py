"""A log as transactions see it: which are open in it, how they end, and up to where what is read can be trusted."""

from __future__ import annotations

from culver.log.aborted_search import collect_aborted
from culver.log.append_log import AppendLog, AppendResult
from culver.log.batches import HEADER
from culver.log.transactions import OpenTransaction
from culver.protocol.control_records import EndMarker, encode_end_marker


class TransactionalLog(AppendLog):
    """Transactions in one partition."""

    @property
    def last_stable_offset(self) -> int:
        """Hot. Below it every transaction has ended, and its marker is below the high watermark."""
        high_watermark = self._high_watermark
        if high_watermark is None:
            high_watermark = self._end_offset
        transactions = self._producers.transactions
        if transactions.settled:
            return high_watermark
        # What was deleted need not be waited for.
        return max(transactions.stable_below(high_watermark), self.start_offset)

    def aborted_transactions(self, from_offset: int, up_to_offset: int) -> list[tuple[int, int]]:
        """Hot. (producer id, first offset) of those of which a read of [from, up to) must skip the records.

        `up_to_offset` is at most the last stable offset. May look at small files on disk, once.
        """
        if from_offset >= self._nothing_aborted_from or from_offset >= up_to_offset:
            return []
        found, clear = collect_aborted(self._fs, self._segments, from_offset, up_to_offset, self._end_offset)
        if clear:
            at = self._segments.index_of(from_offset)
            self._nothing_aborted_from = self._segments.items[at].base_offset
        return [(one.producer_id, one.first_offset) for one in found]

    def open_transactions(self) -> list[OpenTransaction]:
        """In the order in which they began."""
        return self._producers.open_transactions()

    def transaction_open(self, producer_id: int, epoch: int) -> bool:
        """Hot. Whether the producer has a transaction open here, in this epoch."""
        states = self._producers
        return producer_id in states.transactions.open and states.producers[producer_id].epoch == epoch

    def begin_verification(
        self, producer_id: int, epoch: int, sequence: int | None = None, *, begins_at_zero: bool = False
    ) -> object | None:
        """A guard, for `append` to know that no marker has come since; None when the transaction is open already.

        With a sequence, a batch that waits for an answer is not overtaken by one behind it that waits for the same.
        With `begins_at_zero` a producer of which nothing is known must begin with sequence 0: where every transaction
        has an epoch of its own, nothing of it can have been forgotten. `append` sees to that: the batch with sequence 0
        may be waiting, too.
        """
        if self.transaction_open(producer_id, epoch):
            return None
        states = self._producers
        states.check_fenced(producer_id, epoch)
        return states.transactions.guard(producer_id, epoch, sequence, begins_at_zero)

    def append_marker(
        self,
        producer_id: int,
        producer_epoch: int,
        committed: bool,
        coordinator_epoch: int,
        transaction_version: int,
        leader_epoch: int,
    ) -> AppendResult:
        """End the producer's transaction, if it has one here; or raise KafkaError and do nothing.

        One that is sent again is written again, as Kafka does: it ends nothing, and does no harm.
        """
        self._producers.check_marker(producer_id, producer_epoch, coordinator_epoch, transaction_version)
        self._producers.transactions.end_guards(producer_id, producer_epoch, transaction_version)
        now_ms = self._clock.now_ms()
        batch = encode_end_marker(
            EndMarker(committed, coordinator_epoch),
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            timestamp_ms=now_ms,
        )
        return self._write(batch, HEADER.unpack_from(batch), leader_epoch, now_ms)
