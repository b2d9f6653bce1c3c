"""InitProducerId with a transactional id: gives a producer its id and epoch, and shuts out whoever had it before."""

from __future__ import annotations

from functools import partial

from culver.core.coordinator_effects import Effects, Reply, Token
from culver.core.transaction_partition import Request, TransactionEntry, TransactionPartition
from culver.core.transaction_state import (
    EPOCH_BUMP_VERSION,
    EXHAUSTED_EPOCH,
    NO_PRODUCER_EPOCH,
    NO_PRODUCER_ID,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import ErrorCode
from culver.protocol.messages.init_producer_id import InitProducerIdRequest, InitProducerIdResponse


def init_error(error: ErrorCode, version: int) -> InitProducerIdResponse:
    """The response to a request that failed."""
    if error is ErrorCode.PRODUCER_FENCED and version < 4:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return InitProducerIdResponse(
        error_code=error, producer_id=NO_PRODUCER_ID, producer_epoch=NO_PRODUCER_EPOCH
    )


def request_error(request: InitProducerIdRequest, max_timeout_ms: int) -> ErrorCode:
    """What is wrong with a request, whatever the state of its transactional id."""
    if (request.producer_id == NO_PRODUCER_ID) != (request.producer_epoch == NO_PRODUCER_EPOCH):
        return ErrorCode.INVALID_REQUEST
    if not 0 < request.transaction_timeout_ms <= max_timeout_ms:
        return ErrorCode.INVALID_TRANSACTION_TIMEOUT
    return ErrorCode.NONE


class InitRequest(Request):
    """One InitProducerId request.

    An open transaction is aborted first, under a raised epoch; the request waits for the end of that. A producer that
    names the id and epoch it had (KIP-360) only goes on if nobody else has taken over since; when it asks again
    because the answer was lost, it is told the same epoch again.
    """

    def __init__(
        self,
        partition: TransactionPartition,
        entry: TransactionEntry,
        request: InitProducerIdRequest,
        version: int,
        token: Token,
    ) -> None:
        super().__init__(entry, token)
        self._partition = partition
        self._version = version
        self._timeout_ms = request.transaction_timeout_ms
        self._has_id = request.producer_id != NO_PRODUCER_ID
        self._id = request.producer_id
        self._epoch = request.producer_epoch

    def attempt(self, now_ms: float, out: Effects) -> None:
        entry = self.entry
        if entry.busy:
            self._partition.park(self, now_ms)
            return
        metadata = entry.metadata
        if metadata is None:
            self._partition.with_new_producer_id(entry, self._create, self._failed, out)
        elif self._has_id and not self._knows(metadata):
            self.refuse(ErrorCode.PRODUCER_FENCED, out)
        elif metadata.state is TransactionState.ONGOING:
            self._partition.end(entry, False, EPOCH_BUMP_VERSION, self._aborted, out)
        elif self._has_id and self._epoch != metadata.producer_epoch:
            # Asked before, and answered: its new epoch is the current one.
            self._take(metadata, metadata.producer_epoch, metadata.last_producer_epoch, out)
        elif metadata.exhausted:
            self._partition.with_new_producer_id(entry, partial(self._rotate, metadata), self._failed, out)
        else:
            last_epoch = metadata.producer_epoch if self._has_id else NO_PRODUCER_EPOCH
            self._take(metadata, metadata.producer_epoch + 1, last_epoch, out)

    def refuse(self, error: ErrorCode, out: Effects) -> None:
        out.append(Reply(self.token, init_error(error, self._version)))

    def _knows(self, metadata: TransactionMetadata) -> bool:
        """Whether the id and epoch that the request names are those of the producer whose turn it is.

        Kafka looks at the epoch later, and lets a producer that was replaced abort the transaction of the new one
        before it is told so; the answer is the same.
        """
        if self._id != metadata.producer_id and not (
            self._id == metadata.previous_producer_id and self._epoch >= EXHAUSTED_EPOCH
        ):
            return False
        if self._id == metadata.producer_id and self._epoch == metadata.producer_epoch:
            return True
        return metadata.state is not TransactionState.ONGOING and self._epoch == metadata.last_producer_epoch

    def _create(self, producer_id: int, _now_ms: float, out: Effects) -> None:
        now_wall_ms = self._partition.wall_clock_ms()
        metadata = TransactionMetadata.created(producer_id, self._timeout_ms, now_wall_ms)
        self._partition.change(self.entry, metadata, partial(self._done, metadata), out)

    def _rotate(self, metadata: TransactionMetadata, producer_id: int, _now_ms: float, out: Effects) -> None:
        last_epoch = metadata.producer_epoch if self._has_id else NO_PRODUCER_EPOCH
        self._take(metadata, 0, last_epoch, out, producer_id)

    def _take(
        self,
        metadata: TransactionMetadata,
        epoch: int,
        last_epoch: int,
        out: Effects,
        producer_id: int | None = None,
    ) -> None:
        now_wall_ms = self._partition.wall_clock_ms()
        changed = metadata.with_epoch(epoch, last_epoch, self._timeout_ms, now_wall_ms, producer_id)
        self._partition.change(self.entry, changed, partial(self._done, changed), out)

    def _aborted(self, error: ErrorCode, now_ms: float, out: Effects) -> None:
        if error is ErrorCode.NONE:
            self._partition.park(self, now_ms, first=True)
        else:
            self.refuse(error, out)

    def _done(self, metadata: TransactionMetadata, error: ErrorCode, _now_ms: float, out: Effects) -> None:
        if error is not ErrorCode.NONE:
            self.refuse(error, out)
            return
        response = InitProducerIdResponse(
            error_code=ErrorCode.NONE,
            producer_id=metadata.producer_id,
            producer_epoch=metadata.producer_epoch,
        )
        out.append(Reply(self.token, response))

    def _failed(self, error: ErrorCode, _now_ms: float, out: Effects) -> None:
        self.refuse(error, out)
