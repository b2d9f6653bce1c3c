"""The transaction coordinator: every transactional id of every partition of the transaction log that this broker leads.

It does no I/O. A handler takes a request and returns effects: replies to send, records to append, markers to write.
Time comes in as `now_ms`, a clock that never goes back; timestamps that outlive the process come from the wall clock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from culver.core.coordinator_effects import (
    Append,
    Effects,
    Gather,
    Reply,
    RequestContext,
    TakeProducerId,
    Token,
    WriteMarkers,
)
from culver.core.coordinator_partitions import PartitionsByName
from culver.core.coordinator_timers import TimerQueue
from culver.core.names import GROUP_OFFSETS_TOPIC
from culver.core.transaction_add import (
    AddRequest,
    Errors,
    VerifyRequest,
    as_of_version,
    named_partitions,
    topic_results,
    unusable_partitions,
)
from culver.core.transaction_admin import describe_error, describe_transaction, list_matching
from culver.core.transaction_end import EndRequest, end_error
from culver.core.transaction_init import InitRequest, init_error, request_error
from culver.core.transaction_partition import Request, TransactionEntry, TransactionPartition
from culver.core.transaction_records import decode_change
from culver.core.transaction_settings import Topics, TransactionSettings
from culver.core.transaction_state import EPOCH_BUMP_VERSION, TopicPartition
from culver.errors import ErrorCode
from culver.protocol.messages.add_offsets_to_txn import AddOffsetsToTxnRequest, AddOffsetsToTxnResponse
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTransaction,
)
from culver.protocol.messages.describe_transactions import (
    DescribeTransactionsRequest,
    DescribeTransactionsResponse,
)
from culver.protocol.messages.end_txn import EndTxnRequest
from culver.protocol.messages.init_producer_id import InitProducerIdRequest
from culver.protocol.messages.list_transactions import ListTransactionsRequest, ListTransactionsResponse

# A transactional id goes into record keys with a 16-bit length.
_MAX_ID_BYTES = 32_767
# Since this version AddPartitionsToTxn comes from brokers, for producers of the newer protocol or to verify.
_FROM_BROKERS_SINCE = 4


class TransactionCoordinator:
    """Answers the requests of transactional producers, and sees every transaction to its end.

    Partitions come and go: `load_begin`, `replay` for each record in its log, `load_done`; `unload` when another
    broker takes over. While a partition loads, requests for its ids hear COORDINATOR_LOAD_IN_PROGRESS; without it,
    NOT_COORDINATOR.

    A request that comes while an earlier step of the same transaction is under way waits until that is over; Kafka
    answers CONCURRENT_TRANSACTIONS at once, here that is the answer when it takes longer than `patience_ms`.

    `group_partition(group_id)` is the partition of `__consumer_offsets` that holds a group.
    """

    def __init__(
        self,
        settings: TransactionSettings,
        topics: Topics,
        group_partition: Callable[[str], int],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.settings = settings
        self.topics = topics
        self.wall_clock_ms = wall_clock_ms
        self.timers = TimerQueue()
        # Requests that wait, by token; one from a broker may wait for several transactions.
        self.parked: dict[Token, list[Request]] = {}
        self._group_partition = group_partition
        self._partitions: dict[int, TransactionPartition] = {}
        # The partition of the transaction log that holds an id.
        self.partition_for = PartitionsByName(settings.transaction_state_log_num_partitions)

    # --- partitions ---

    def load_begin(self, partition: int, coordinator_epoch: int) -> None:
        """This broker now leads the partition, since `coordinator_epoch`, and is about to read its log."""
        assert partition not in self._partitions, f"partition {partition} is loaded already"
        self._partitions[partition] = TransactionPartition(
            partition, coordinator_epoch, self.settings, self.timers, self.parked, self.wall_clock_ms
        )

    def replay(self, partition: int, key: bytes, value: bytes | None, producer_id: int = -1) -> None:
        """One record of a partition that is being loaded. Raises MalformedRequest if it cannot be read."""
        state = self._partitions[partition]
        assert state.loading
        change = decode_change(key, value)
        if change is not None:
            state.replay(change)

    def replay_marker(self, partition: int, producer_id: int, committed: bool) -> None:
        """A marker in the log of a partition that is being loaded: nobody writes any there."""

    def load_done(self, partition: int, now_ms: float) -> Effects:
        """The whole log has been replayed: its ids are open for requests, and what was begun is finished."""
        out: Effects = []
        state = self._partitions[partition]
        state.load_done(now_ms, out)
        # The partitions take turns, so that no check holds up everyone for long.
        turn = (partition + 1) / self.settings.transaction_state_log_num_partitions
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self.timers.schedule(
            state.expiry_timer, now_ms + interval_ms * min(turn, 1.0), partial(self._expire_ids, state)
        )
        return out

    def unload(self, partition: int, now_ms: float) -> Effects:
        """Another broker leads the partition now: let everyone who waits look for it there."""
        out: Effects = []
        state = self._partitions.pop(partition, None)
        if state is not None:
            state.unload(now_ms, out)
        return out

    # --- the caller's reports ---

    def append_done(self, append: Append, error: ErrorCode, now_ms: float) -> Effects:
        """The records of `append` are durable (`error` is NONE), or could not be written, or nobody knows."""
        out: Effects = []
        state = self._partitions.get(append.partition)
        if state is None or append not in state.in_flight:
            # The partition has been unloaded since, and everyone who waited has been told.
            return out
        state.in_flight.remove(append)
        if error is ErrorCode.NONE:
            for record in append.records:
                state.replay(record.change)
        append.finish(error, now_ms, out)
        return out

    def producer_id_taken(self, effect: TakeProducerId, producer_id: int | None, now_ms: float) -> Effects:
        """The producer id that was asked for, or None when there is none to be had now."""
        out: Effects = []
        effect.then(producer_id, now_ms, out)
        return out

    def markers_written(self, effect: WriteMarkers, now_ms: float) -> Effects:
        """Every partition of a transaction has its marker."""
        out: Effects = []
        state = self._partitions.get(effect.partition)
        if state is not None:
            state.markers_written(effect, out)
        return out

    def markers_refused(self, effect: WriteMarkers, now_ms: float) -> Effects:
        """A newer coordinator has been there: it finishes the transaction, and this one is about to be unloaded."""
        return []

    def cancel(self, token: Token) -> None:
        """The client of a request that waits is gone: it is dropped, and no reply will come for it."""
        for request in list(self.parked.get(token, ())):
            self._partitions[self.partition_for(request.entry.transactional_id)].unpark(request)

    def next_deadline_ms(self) -> float | None:
        """When `expire` wants to be called next, or None if nothing is due ever."""
        return self.timers.next_deadline_ms()

    def expire(self, now_ms: float) -> Effects:
        """Do what is due: abort transactions, lose patience, try again, forget ids."""
        out: Effects = []
        self.timers.expire(now_ms, out)
        return out

    def entry(self, transactional_id: str) -> TransactionEntry | None:
        """A transactional id as it is now, to look at."""
        state = self._partitions.get(self.partition_for(transactional_id))
        return None if state is None else state.entries.get(transactional_id)

    # --- requests of producers ---

    def handle_init_producer_id(
        self, request: InitProducerIdRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        """With a transactional id; without one there is nothing to coordinate."""
        out: Effects = []
        version = context.api_version
        transactional_id = request.transactional_id or ""
        error = request_error(request, self.settings.transaction_max_timeout_ms)
        if transactional_id and error is not ErrorCode.NONE:
            out.append(Reply(token, init_error(error, version)))
            return out
        state, error = self._find(transactional_id)
        if state is None:
            out.append(Reply(token, init_error(error, version)))
        else:
            InitRequest(state, state.entry(transactional_id), request, version, token).attempt(now_ms, out)
        return out

    def handle_end_txn(
        self, request: EndTxnRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []
        entry, state, error = self._known(request.transactional_id)
        if entry is None or state is None:
            out.append(Reply(token, end_error(error, context.api_version)))
        else:
            EndRequest(state, entry, request, context.api_version, token).attempt(now_ms, out)
        return out

    def handle_add_offsets_to_txn(
        self, request: AddOffsetsToTxnRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        out: Effects = []

        def answer(error: ErrorCode, out: Effects) -> None:
            code = as_of_version(error, context.api_version)
            out.append(Reply(token, AddOffsetsToTxnResponse(error_code=code)))

        entry, state, error = self._known(request.transactional_id)
        if entry is None or state is None:
            answer(error, out)
            return out
        added = frozenset({(GROUP_OFFSETS_TOPIC, self._group_partition(request.group_id))})
        producer = (request.producer_id, request.producer_epoch)
        AddRequest(state, entry, producer, added, 0, token, answer).attempt(now_ms, out)
        return out

    def handle_add_partitions_to_txn(
        self, request: AddPartitionsToTxnRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        """From a client up to version 3; then from brokers, who have been checked to be such."""
        out: Effects = []
        version = context.api_version
        transactions = list(request.transactions)
        if version < _FROM_BROKERS_SINCE:
            transactions = [_as_from_broker(request)]
        results: list[AddPartitionsToTxnResult] = [
            AddPartitionsToTxnResult(transactional_id=transaction.transactional_id, topic_results=[])
            for transaction in transactions
        ]

        def done(out: Effects) -> None:
            if version < _FROM_BROKERS_SINCE:
                response = AddPartitionsToTxnResponse(results_by_topic_v3_and_below=results[0].topic_results)
            else:
                response = AddPartitionsToTxnResponse(results_by_transaction=results)
            out.append(Reply(token, response))

        gather = Gather(done)

        def one_done(
            asked: AddPartitionsToTxnTransaction,
            result: AddPartitionsToTxnResult,
            errors: Errors,
            out: Effects,
        ) -> None:
            result.topic_results = topic_results(asked.topics, errors, version)
            gather.close(out)

        for transaction, result in zip(transactions, results, strict=True):
            gather.add()
            answer = partial(one_done, transaction, result)
            self._add_partitions(transaction, version, token, answer, now_ms, out)
        gather.close(out)
        return out

    def _add_partitions(
        self,
        transaction: AddPartitionsToTxnTransaction,
        version: int,
        token: Token,
        answer: Callable[[Errors, Effects], None],
        now_ms: float,
        out: Effects,
    ) -> None:
        partitions = named_partitions(transaction.topics)
        errors: Mapping[TopicPartition, ErrorCode]
        errors = unusable_partitions(partitions, self.topics, from_client=version < _FROM_BROKERS_SINCE)
        if errors:
            answer(errors, out)
            return
        entry, state, error = self._known(transaction.transactional_id)
        if entry is None or state is None:
            answer(dict.fromkeys(partitions, error), out)
            return
        producer = (transaction.producer_id, transaction.producer_epoch)
        request: Request
        if transaction.verify_only:
            request = VerifyRequest(state, entry, producer, partitions, token, answer)
        else:
            client_version = 0 if version < _FROM_BROKERS_SINCE else EPOCH_BUMP_VERSION

            def same_for_all(error: ErrorCode, out: Effects) -> None:
                answer(dict.fromkeys(partitions, error), out)

            request = AddRequest(
                state, entry, producer, frozenset(partitions), client_version, token, same_for_all
            )
        request.from_broker = version >= _FROM_BROKERS_SINCE
        request.attempt(now_ms, out)

    # --- administration ---

    def handle_describe_transactions(
        self, request: DescribeTransactionsRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        described = []
        for transactional_id in request.transactional_ids:
            state, error = self._find(transactional_id)
            if state is None:
                described.append(describe_error(transactional_id, error))
            else:
                described.append(describe_transaction(state.entries.get(transactional_id), transactional_id))
        return [Reply(token, DescribeTransactionsResponse(transaction_states=described))]

    def handle_list_transactions(
        self, request: ListTransactionsRequest, context: RequestContext, token: Token, now_ms: float
    ) -> Effects:
        partitions = self._partitions.values()
        if any(partition.loading for partition in partitions):
            response = ListTransactionsResponse(
                error_code=ErrorCode.COORDINATOR_LOAD_IN_PROGRESS,
                unknown_state_filters=[],
                transaction_states=[],
            )
        else:
            response = list_matching(partitions, request, self.wall_clock_ms())
        return [Reply(token, response)]

    @property
    def open_count(self) -> int:
        """Transactions that have begun and are not over: open, or decided and not yet so written everywhere."""
        return sum([partition.open_count for partition in self._partitions.values()])

    # --- inside ---

    def _find(self, transactional_id: str) -> tuple[TransactionPartition | None, ErrorCode]:
        """The partition of an id, or the reason why it cannot be asked."""
        if not transactional_id or (
            len(transactional_id) * 4 > _MAX_ID_BYTES and len(transactional_id.encode()) > _MAX_ID_BYTES
        ):
            return None, ErrorCode.INVALID_REQUEST
        state = self._partitions.get(self.partition_for(transactional_id))
        if state is None:
            return None, ErrorCode.NOT_COORDINATOR
        if state.loading:
            return None, ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
        return state, ErrorCode.NONE

    def _known(
        self, transactional_id: str
    ) -> tuple[TransactionEntry | None, TransactionPartition | None, ErrorCode]:
        """An id that a producer has been given, with its partition, or the reason why there is none."""
        state, error = self._find(transactional_id)
        if state is None:
            return None, None, error
        entry = state.entries.get(transactional_id)
        return entry, state, ErrorCode.INVALID_PRODUCER_ID_MAPPING

    def _expire_ids(self, state: TransactionPartition, now_ms: float, out: Effects) -> None:
        state.expire_ids(out)
        interval_ms = self.settings.transaction_remove_expired_transaction_cleanup_interval_ms
        self.timers.schedule(state.expiry_timer, now_ms + interval_ms, partial(self._expire_ids, state))


def _as_from_broker(request: AddPartitionsToTxnRequest) -> AddPartitionsToTxnTransaction:
    """The one transaction of a client's request, in the form in which brokers ask."""
    return AddPartitionsToTxnTransaction(
        transactional_id=request.v3_and_below_transactional_id,
        producer_id=request.v3_and_below_producer_id,
        producer_epoch=request.v3_and_below_producer_epoch,
        verify_only=False,
        topics=request.v3_and_below_topics,
    )
