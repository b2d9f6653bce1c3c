"""A transactional producer in a script: its id, epoch and sequences, and the requests that it makes of them."""

from __future__ import annotations

from typing import Any

from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from culver.protocol.messages.add_partitions_to_txn import AddPartitionsToTxnRequest, AddPartitionsToTxnTopic
from culver.protocol.messages.describe_transactions import DescribeTransactionsRequest
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from differential import batches
from differential.play import COORDINATOR_NOT_THERE, Play, produce_request

# From these versions on the broker adds partitions to the transaction itself and raises the epoch with its end.
PRODUCE_V2 = 12
OFFSETS_V2 = 5
END_V2 = 5
CONCURRENT_TRANSACTIONS = 51
ENDING = ("PrepareCommit", "PrepareAbort", "PrepareEpochFence")


class TransactionalProducer:
    """Each method sends one request, recorded under its title. Attributes may be changed to lie."""

    def __init__(self, play: Play, transactional_id: str) -> None:
        self.play = play
        self.transactional_id = transactional_id
        self.id = -1
        self.epoch = -1
        self.sequences: dict[tuple[str, int], int] = {}
        find_coordinator(play, transactional_id)

    def begun(self) -> TransactionalProducer:
        """With an id and an epoch, unrecorded."""
        answer = self.play.quiet(self.init_request(), 4)
        assert answer.error_code == 0, answer
        self._take(answer)
        return self

    def init_request(
        self, timeout_ms: int = 60_000, producer_id: int = -1, epoch: int = -1
    ) -> InitProducerIdRequest:
        return InitProducerIdRequest(
            transactional_id=self.transactional_id,
            transaction_timeout_ms=timeout_ms,
            producer_id=producer_id,
            producer_epoch=epoch,
        )

    def init(self, title: str, version: int = 4, **fields: int) -> None:
        answer = self.play.step(title, self.init_request(**fields), version)
        if answer.error_code == 0:
            self._take(answer)

    def add_request(self, topic: str, *partitions: int) -> AddPartitionsToTxnRequest:
        return AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self.id,
            v3_and_below_producer_epoch=self.epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=topic, partitions=list(partitions))],
        )

    def add(self, title: str, topic: str, *partitions: int, version: int = 3) -> None:
        self.play.step(title, self.add_request(topic, *partitions), version)

    def produce(
        self,
        title: str,
        topic: str,
        partition: int = 0,
        *,
        count: int = 1,
        version: int = 11,
        transactional: bool = True,
    ) -> None:
        """The sequence goes on from the last batch that was taken."""
        target = (topic, partition)
        sequence = self.sequences.get(target, 0)
        records = batches.batch(count, producer=(self.id, self.epoch, sequence), transactional=transactional)
        request = produce_request(
            topic, records, partition, transactional_id=self.transactional_id if transactional else None
        )
        answer = self.play.step(title, request, version)
        if answer is not None and answer.responses[0].partition_responses[0].error_code == 0:
            self.sequences[target] = sequence + count

    def add_offsets(self, title: str, group: str, version: int = 3) -> None:
        request = AddOffsetsToTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            group_id=group,
        )
        self.play.step(title, request, version)

    def commit_offsets(
        self,
        title: str,
        group: str,
        topic: str,
        *offsets: tuple[int, int],
        version: int = 3,
        metadata: str | None = "",
        **member: Any,
    ) -> None:
        """`offsets` holds pairs of partition and offset."""
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self.id,
            producer_epoch=self.epoch,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=partition, committed_offset=offset, committed_metadata=metadata
                        )
                        for partition, offset in offsets
                    ],
                )
            ],
            **member,
        )
        self.play.step(title, request, version)

    def end_request(self, *, commit: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self.id,
            producer_epoch=self.epoch,
            committed=commit,
        )

    def end(self, title: str, *, commit: bool = True, version: int = 4) -> None:
        """And wait until its markers are written: Kafka has the next request wait for them, one way or another."""
        answer = self.play.step(title, self.end_request(commit=commit), version)
        if answer.error_code == 0 and version >= END_V2:
            self._take(answer)
        self.settled()

    def describe(self, title: str) -> None:
        self.play.step(title, DescribeTransactionsRequest(transactional_ids=[self.transactional_id]), 0)

    def settled(self) -> None:
        """Wait until no transaction of this id is about to end."""
        asked = DescribeTransactionsRequest(transactional_ids=[self.transactional_id])
        self.play.until(
            lambda: self.play.quiet(asked, 0).transaction_states[0].transaction_state not in ENDING
        )

    def _take(self, answer: Any) -> None:
        self.id, self.epoch = answer.producer_id, answer.producer_epoch
        self.play.normal.producer_is_known(self.id)
        self.sequences.clear()


def find_coordinator(play: Play, transactional_id: str) -> None:
    """Wait until the broker coordinates transactions, which may have to create its internal topic first."""
    asked = FindCoordinatorRequest(key=transactional_id, key_type=1)
    play.until(lambda: play.quiet(asked, 3).error_code == 0)
    described = DescribeTransactionsRequest(transactional_ids=[transactional_id])
    play.until(lambda: play.quiet(described, 0).transaction_states[0].error_code not in COORDINATOR_NOT_THERE)
    # Errors show a producer id of 0, which must not be somebody's.
    burnt = InitProducerIdRequest(transactional_id=None, transaction_timeout_ms=0)
    play.until(lambda: play.quiet(burnt, 4).error_code == 0)
