"""AddPartitionsToTxn and AddOffsetsToTxn: note which partitions a transaction reaches into, or look it up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from culver.core.coordinator_effects import Effects, Token
from culver.core.names import INTERNAL_TOPICS
from culver.core.transaction_partition import Request, TransactionEntry, TransactionPartition
from culver.core.transaction_settings import Topics
from culver.core.transaction_state import TopicPartition, TransactionState
from culver.errors import ErrorCode
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTopicResult,
)

Answer: TypeAlias = Callable[[ErrorCode, Effects], None]
Errors: TypeAlias = Mapping[TopicPartition, ErrorCode]
"""What became of each partition."""


def named_partitions(topics: Sequence[AddPartitionsToTxnTopic]) -> list[TopicPartition]:
    """The partitions that a request names, each once."""
    return list(dict.fromkeys((topic.name, index) for topic in topics for index in topic.partitions))


def unusable_partitions(
    partitions: Sequence[TopicPartition], topics: Topics, *, from_client: bool
) -> dict[TopicPartition, ErrorCode]:
    """Why a request must fail as a whole, if it must: one bad partition leaves the others unattempted."""
    errors: dict[TopicPartition, ErrorCode] = {}
    for name, index in partitions:
        if from_client and name in INTERNAL_TOPICS:
            errors[name, index] = ErrorCode.TOPIC_AUTHORIZATION_FAILED
        elif not topics.partition_exists(name, index):
            errors[name, index] = ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    if not errors:
        return errors
    return {partition: errors.get(partition, ErrorCode.OPERATION_NOT_ATTEMPTED) for partition in partitions}


def topic_results(
    topics: Sequence[AddPartitionsToTxnTopic], errors: Errors, version: int
) -> list[AddPartitionsToTxnTopicResult]:
    """The errors of partitions as a response of this version has them: what was asked is answered, as often."""
    by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
    for topic in topics:
        by_topic.setdefault(topic.name, []).extend(
            AddPartitionsToTxnPartitionResult(
                partition_index=index, partition_error_code=as_of_version(errors[topic.name, index], version)
            )
            for index in topic.partitions
        )
    return [
        AddPartitionsToTxnTopicResult(name=name, results_by_partition=results)
        for name, results in by_topic.items()
    ]


def as_of_version(error: ErrorCode, version: int) -> ErrorCode:
    """Clients before version 2 of both requests do not know PRODUCER_FENCED."""
    fenced = error is ErrorCode.PRODUCER_FENCED and version < 2
    return ErrorCode.INVALID_PRODUCER_EPOCH if fenced else error


class AddRequest(Request):
    """Partitions to be added to one transaction; the first ones begin it."""

    def __init__(
        self,
        partition: TransactionPartition,
        entry: TransactionEntry,
        producer: tuple[int, int],
        added: frozenset[TopicPartition],
        client_version: int,
        token: Token,
        answer: Answer,
    ) -> None:
        super().__init__(entry, token)
        self.producer = producer
        self.added = added
        self.client_version = client_version
        self.answer = answer
        self._partition = partition

    def attempt(self, now_ms: float, out: Effects) -> None:
        entry = self.entry
        if entry.busy:
            self._partition.park(self, now_ms)
            return
        metadata = entry.metadata
        producer_id, epoch = self.producer
        if metadata is None or metadata.producer_id != producer_id:
            self.answer(ErrorCode.INVALID_PRODUCER_ID_MAPPING, out)
        elif metadata.producer_epoch != epoch:
            self.answer(ErrorCode.PRODUCER_FENCED, out)
        elif metadata.state is TransactionState.ONGOING and self.added <= metadata.partitions:
            self.answer(ErrorCode.NONE, out)
        else:
            together = [self, *self._next_in_line()]
            added = frozenset().union(*(request.added for request in together))

            def done(error: ErrorCode, _now_ms: float, out: Effects) -> None:
                for request in together:
                    request.answer(error, out)

            changed = metadata.with_partitions(added, self.client_version, self._partition.wall_clock_ms())
            self._partition.change(entry, changed, done, out)

    def refuse(self, error: ErrorCode, out: Effects) -> None:
        self.answer(error, out)

    def _next_in_line(self) -> list[AddRequest]:
        """Requests for the same transaction that wait right behind this one: one record serves them all.

        A producer that writes to several brokers at once makes all of them ask at the same time.
        """
        together: list[AddRequest] = []
        for request in self.entry.waiting:
            if not (
                isinstance(request, AddRequest)
                and request.producer == self.producer
                and request.client_version == self.client_version
            ):
                break
            together.append(request)
        for request in together:
            self._partition.unpark(request)
        return together


class VerifyRequest(Request):
    """A broker asks whether partitions are part of a transaction, before it lets the producer write to them."""

    def __init__(
        self,
        partition: TransactionPartition,
        entry: TransactionEntry,
        producer: tuple[int, int],
        partitions: Sequence[TopicPartition],
        token: Token,
        answer: Callable[[Errors, Effects], None],
    ) -> None:
        super().__init__(entry, token)
        self._partition = partition
        self._producer = producer
        self._partitions = partitions
        self._answer = answer

    def attempt(self, now_ms: float, out: Effects) -> None:
        metadata = self.entry.metadata
        producer_id, epoch = self._producer
        if metadata is None or metadata.producer_id != producer_id:
            self.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING, out)
        elif metadata.producer_epoch != epoch:
            self.refuse(ErrorCode.PRODUCER_FENCED, out)
        elif self.entry.ending:
            self._partition.park(self, now_ms)
        else:
            # What is on its way to the log does not count yet: the producer was told to wait for it.
            errors = {
                partition: ErrorCode.NONE
                if partition in metadata.partitions
                else ErrorCode.TRANSACTION_ABORTABLE
                for partition in self._partitions
            }
            self._answer(errors, out)

    def refuse(self, error: ErrorCode, out: Effects) -> None:
        self._answer(dict.fromkeys(self._partitions, error), out)
