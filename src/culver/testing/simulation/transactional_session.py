"""One transactional producer of a simulated workload: its id and epoch, and requests with a careful client's retries.

Generation 1 adds partitions to its transaction before it writes to them, and keeps its epoch. Generation 2 just writes,
and goes on with the epoch that the end of each transaction brings (KIP-890).
"""

from __future__ import annotations

from functools import partial
from typing import Any

from culver.errors import ErrorCode, KafkaError
from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
)
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from culver.protocol.messages.txn_offset_commit import (
    TxnOffsetCommitRequest,
    TxnOffsetCommitRequestPartition,
    TxnOffsetCommitRequestTopic,
)
from culver.protocol.records import Record, encode_batch
from culver.protocol.schema import Message
from culver.testing.history import ACKS_ALL, Outcome, Partition, Send, Transaction
from culver.testing.simulation.client import (
    OF_GROUPS,
    OF_TRANSACTIONS,
    Client,
    Connection,
    Disconnected,
    NotSent,
)
from culver.testing.simulation.postman import Postman, Way

_ANSWER_WITHIN_MS = 1_500
_INIT_VERSION = 4
_ADD_PARTITIONS_VERSION = 3
_ADD_OFFSETS_VERSION = 3
# By generation.
_PRODUCE_VERSIONS = {1: 9, 2: 12}
_OFFSET_COMMIT_VERSIONS = {1: 3, 2: 5}
_END_VERSIONS = {1: 3, 2: 5}
_SEQUENCE_GAPS_MAX = 20

_FIND_AGAIN = frozenset({ErrorCode.NOT_COORDINATOR, ErrorCode.COORDINATOR_NOT_AVAILABLE})
# Asked again after these; in the case of the first ones nothing has been done for certain.
_NOT_DONE = frozenset(
    {
        ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.NOT_ENOUGH_REPLICAS,
    }
)
_ASK_AGAIN = _FIND_AGAIN | _NOT_DONE | {ErrorCode.REQUEST_TIMED_OUT}
_WRITE_AGAIN = _ASK_AGAIN | {
    ErrorCode.NOT_LEADER_OR_FOLLOWER,
    ErrorCode.LEADER_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND,
    ErrorCode.KAFKA_STORAGE_ERROR,
    # A leader that does not know yet that it was replaced lacks what the new one has.
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
_WRITTEN = frozenset({ErrorCode.NONE, ErrorCode.DUPLICATE_SEQUENCE_NUMBER})
_REPLACED = frozenset({ErrorCode.PRODUCER_FENCED, ErrorCode.INVALID_PRODUCER_EPOCH})
# What a producer may hear whose transaction was ended by others: by a time-out, or by who has taken its place.
_NO_LONGER = _REPLACED | {
    ErrorCode.INVALID_TXN_STATE,
    # When its id had no epoch left, who has taken its place has another id, too.
    ErrorCode.INVALID_PRODUCER_ID_MAPPING,
    ErrorCode.TRANSACTION_ABORTABLE,
    ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER,
}
# A group has gone on without this member.
_NOT_A_MEMBER = frozenset(
    {ErrorCode.ILLEGAL_GENERATION, ErrorCode.UNKNOWN_MEMBER_ID, ErrorCode.REBALANCE_IN_PROGRESS}
)


class Fenced(Exception):
    """This producer has to begin anew. When it was `replaced` its epoch is over; nothing of that may count any more."""

    def __init__(self, error: ErrorCode) -> None:
        super().__init__(error.name)
        self.replaced = error in _REPLACED


class Abortable(Exception):
    """This transaction can only be aborted."""


class TransactionalSession:
    """A producer from its InitProducerId on. `transaction` is the one that is open."""

    def __init__(
        self,
        client: Client,
        transactional_id: str,
        generation: int,
        complaints: list[str],
        *,
        timeout_ms: int = 5_000,
        postman: Postman | None = None,
    ) -> None:
        self.client = client
        self.transactional_id = transactional_id
        self.generation = generation
        self._complaints = complaints
        self._timeout_ms = timeout_ms
        self._postman = postman
        self._producer_id = -1
        self._producer_epoch = -1
        self._sequences: dict[Partition, int] = {}
        self._added: set[Partition | str] = set()
        # Something was sent and not answered: it may yet arrive.
        self._outstanding = False
        # What the coordinator said when it would not let the transaction begin.
        self._refused: ErrorCode | None = None
        self.transaction: Transaction | None = None

    def __repr__(self) -> str:
        return f"{self.transactional_id} ({self._producer_id}, {self._producer_epoch})"

    # -- beginning --------------------------------------------------------------------------------------

    async def begin(self, transaction: Transaction) -> None:
        """Begin a transaction; first become a producer, or one of another epoch, where that is needed."""
        if self._producer_id < 0:
            await self._init(keep=False)
        elif self._outstanding and self.generation == 1:
            # What is still on its way must not become part of the next transaction. In generation 2 the end of the
            # last one has seen to it.
            await self._init(keep=True)
        self._outstanding = False
        self._added.clear()
        self.transaction = transaction

    async def _init(self, *, keep: bool) -> None:
        request = InitProducerIdRequest(
            transactional_id=self.transactional_id, transaction_timeout_ms=self._timeout_ms
        )
        if keep:
            request.producer_id, request.producer_epoch = self._producer_id, self._producer_epoch
        error, answer, _ = await self._coordinate(request, _INIT_VERSION)
        if error is not ErrorCode.NONE:
            self._expected(error, _NO_LONGER, "InitProducerId")
            raise Fenced(error)
        self._is_now(answer.producer_id, answer.producer_epoch)

    def _is_now(self, producer_id: int, producer_epoch: int) -> None:
        if producer_id == self._producer_id and producer_epoch <= self._producer_epoch:
            self._complaints.append(f"{self!r} was given epoch {producer_epoch}")
        self._producer_id, self._producer_epoch = producer_id, producer_epoch
        self._sequences.clear()

    # -- inside a transaction ---------------------------------------------------------------------------

    async def write(self, partition: Partition, sends: list[Send]) -> None:
        """Write records as one batch. Abortable when that will not be."""
        if self.generation == 1 and partition not in self._added:
            await self._add_partition(partition)
        self._added.add(partition)
        sequence = self._sequences.get(partition, 0)
        request = self._produce_request(partition, sends, sequence)
        client = self.client
        uncertain = False
        gaps = 0
        while True:
            try:
                connection, _ = await client.leader(partition)
                answer = await self._ask(
                    connection, request, self._produce_version, partial(_leader, partition)
                )
            except NotSent:
                await client.leader_is_another(partition)
                continue
            except Disconnected:
                uncertain = self._outstanding = True
                await client.leader_is_another(partition)
                continue
            result = answer.responses[0].partition_responses[0]
            error = ErrorCode(result.error_code)
            gaps += error is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
            if error in _WRITTEN:
                break
            if error not in _WRITE_AGAIN or gaps > _SEQUENCE_GAPS_MAX:
                if not uncertain:
                    for send in sends:
                        send.outcome = Outcome.FAILED
                self._outstanding = True
                self._expected(error, _NO_LONGER, f"Produce to {partition}")
                raise Abortable(error.name)
            if error not in _NOT_DONE:
                uncertain = self._outstanding = True
            await client.leader_is_another(partition)
        self._sequences[partition] = sequence + len(sends)
        for at, send in enumerate(sends):
            send.outcome = Outcome.OK
            send.completed_ms = client.now_ms
            if error is ErrorCode.NONE and result.base_offset >= 0:
                send.offset = result.base_offset + at

    @property
    def _produce_version(self) -> int:
        return _PRODUCE_VERSIONS[self.generation]

    def _produce_request(self, partition: Partition, sends: list[Send], sequence: int) -> ProduceRequest:
        now_ms = 1_750_000_000_000 + round(self.client.now_ms)
        batch = encode_batch(
            [Record(at, now_ms, None, send.value) for at, send in enumerate(sends)],
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            base_sequence=sequence,
            is_transactional=True,
        )
        data = PartitionProduceData(index=partition[1], records=memoryview(batch))
        return ProduceRequest(
            transactional_id=self.transactional_id,
            acks=ACKS_ALL,
            timeout_ms=_ANSWER_WITHIN_MS,
            topic_data=[TopicProduceData(name=partition[0], partition_data=[data])],
        )

    async def _add_partition(self, partition: Partition) -> None:
        request = AddPartitionsToTxnRequest(
            v3_and_below_transactional_id=self.transactional_id,
            v3_and_below_producer_id=self._producer_id,
            v3_and_below_producer_epoch=self._producer_epoch,
            v3_and_below_topics=[AddPartitionsToTxnTopic(name=partition[0], partitions=[partition[1]])],
        )
        error, _, _ = await self._coordinate(request, _ADD_PARTITIONS_VERSION)
        if error is not ErrorCode.NONE:
            self._expected(error, _NO_LONGER, "AddPartitionsToTxn")
            self._refused = error
            raise Abortable(error.name)

    async def write_offsets(
        self, group: str, member_id: str, generation_id: int, positions: dict[Partition, int]
    ) -> None:
        """Commit a group's offsets as part of the transaction. Abortable when that will not be."""
        if self.generation == 1 and group not in self._added:
            add = AddOffsetsToTxnRequest(
                transactional_id=self.transactional_id,
                producer_id=self._producer_id,
                producer_epoch=self._producer_epoch,
                group_id=group,
            )
            error, _, _ = await self._coordinate(add, _ADD_OFFSETS_VERSION)
            if error is not ErrorCode.NONE:
                self._expected(error, _NO_LONGER, "AddOffsetsToTxn")
                self._refused = error
                raise Abortable(error.name)
        self._added.add(group)
        request = TxnOffsetCommitRequest(
            transactional_id=self.transactional_id,
            group_id=group,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            generation_id=generation_id,
            member_id=member_id,
            topics=[
                TxnOffsetCommitRequestTopic(
                    name=topic,
                    partitions=[
                        TxnOffsetCommitRequestPartition(
                            partition_index=index, committed_offset=offset, committed_metadata=None
                        )
                        for (name, index), offset in positions.items()
                        if name == topic
                    ],
                )
                for topic in sorted({name for name, _ in positions})
            ],
        )
        error, _, _ = await self._coordinate(
            request, _OFFSET_COMMIT_VERSIONS[self.generation], group, OF_GROUPS
        )
        if error is not ErrorCode.NONE:
            self._outstanding = True
            self._expected(error, _NO_LONGER | _NOT_A_MEMBER, "TxnOffsetCommit")
            raise Abortable(error.name)

    # -- ending -----------------------------------------------------------------------------------------

    async def commit(self) -> None:
        """Fenced when it was too late, Abortable when it cannot be; the transaction says what is known."""
        transaction, self.transaction = self.transaction, None
        assert transaction is not None
        if not self._added:
            return
        transaction.commit_asked()
        error, uncertain = await self._end(True)
        if error is ErrorCode.NONE:
            transaction.committed(self.client.now_ms)
            return
        if not uncertain:
            transaction.aborted()
        if error is ErrorCode.TRANSACTION_ABORTABLE and not uncertain:
            self.transaction = transaction
            raise Abortable(error.name)
        self._expected(error, _NO_LONGER, "EndTxn (commit)")
        raise Fenced(error)

    async def abort(self) -> None:
        """Fenced when others have done it."""
        self.transaction = None
        if self._refused is not None:
            raise Fenced(self._refused)
        if not self._added:
            return
        error, _ = await self._end(False)
        if error is not ErrorCode.NONE:
            self._expected(error, _NO_LONGER, "EndTxn (abort)")
            raise Fenced(error)

    async def _end(self, committed: bool) -> tuple[ErrorCode, bool]:
        error, answer, uncertain = await self._coordinate(self._end_request(committed), self._end_version)
        if error is ErrorCode.NONE and self.generation == 2:
            self._is_now(answer.producer_id, answer.producer_epoch)
        return error, uncertain

    @property
    def _end_version(self) -> int:
        return _END_VERSIONS[self.generation]

    def _end_request(self, committed: bool) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=self.transactional_id,
            producer_id=self._producer_id,
            producer_epoch=self._producer_epoch,
            committed=committed,
        )

    async def haunt(self, partition: Partition, sends: list[Send]) -> None:
        """Go on although it is known that others have taken this producer's place: nothing of it may ever count."""
        client = self.client
        for _ in range(3):
            try:
                connection, _ = await client.leader(partition)
                connection.begin(self._produce_request(partition, sends, 0), self._produce_version)
                coordinator = await client.coordinator(self.transactional_id, OF_TRANSACTIONS)
                await coordinator.ask(self._end_request(True), self._end_version)
            except (Disconnected, KafkaError):
                client.coordinator_is_another(self.transactional_id, OF_TRANSACTIONS)
                await client.leader_is_another(partition)

    # -- coordinators -----------------------------------------------------------------------------------

    async def _coordinate(
        self, request: Message, version: int, key: str = "", kind: int = OF_TRANSACTIONS
    ) -> tuple[ErrorCode, Any, bool]:
        """A coordinator's last word, and whether an earlier attempt may have been carried out without a word."""
        key = key or self.transactional_id
        client = self.client
        uncertain = False
        while True:
            try:
                connection = await client.coordinator(key, kind)
                answer = await self._ask(connection, request, version, partial(_coordinator, key, kind))
            except (NotSent, KafkaError):
                client.coordinator_is_another(key, kind)
                await client.pause(50, 200)
                continue
            except Disconnected:
                uncertain = self._outstanding = True
                client.coordinator_is_another(key, kind)
                await client.pause(50, 200)
                continue
            error = _error_of(answer)
            if error not in _ASK_AGAIN:
                return error, answer, uncertain
            if error not in _NOT_DONE:
                uncertain = self._outstanding = True
            if error in _FIND_AGAIN:
                client.coordinator_is_another(key, kind)
            await client.pause(20, 150)

    async def _ask(self, connection: Connection, request: Message, version: int, way: Way) -> Any:
        if self._postman is not None and self._postman.takes(request, version, way):
            await self.client.pause(100, 1_000)
            raise Disconnected("it will come late")
        return await connection.ask(request, version)

    def _expected(self, error: ErrorCode, allowed: frozenset[ErrorCode], what: str) -> None:
        if error not in allowed:
            self._complaints.append(f"{self!r} was told {error.name} when it asked for {what}")


async def _leader(partition: Partition, client: Client) -> Connection:
    await client.refresh(partition[0])
    return (await client.leader(partition))[0]


async def _coordinator(key: str, kind: int, client: Client) -> Connection:
    client.coordinator_is_another(key, kind)
    return await client.coordinator(key, kind)


def _error_of(answer: Any) -> ErrorCode:
    """The error of an answer, or the worst of its parts."""
    codes = [getattr(answer, "error_code", 0)]
    for topic in getattr(answer, "results_by_topic_v3_and_below", ()):
        codes += [each.partition_error_code for each in topic.results_by_partition]
    for topic in getattr(answer, "topics", ()):
        codes += [each.error_code for each in topic.partitions]
    # With several the one that is not just a matter of time.
    errors = [ErrorCode(code) for code in codes if code]
    return next(
        (error for error in errors if error not in _ASK_AGAIN), errors[0] if errors else ErrorCode.NONE
    )
