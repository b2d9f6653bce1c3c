"""EndTxn: commits or aborts a producer's transaction, in both generations of the protocol."""

from __future__ import annotations

from culver.core.coordinator_effects import Effects, Reply, Token
from culver.core.transaction_partition import Request, TransactionEntry, TransactionPartition
from culver.core.transaction_state import (
    ENDING,
    EPOCH_BUMP_VERSION,
    EXHAUSTED_EPOCH,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import ErrorCode
from culver.protocol.messages.end_txn import EndTxnRequest, EndTxnResponse

# Since this version of EndTxn the epoch is raised with every transaction.
_EPOCH_BUMP_SINCE = 5
_COMPLETE = frozenset({TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT})


def end_error(error: ErrorCode, version: int) -> EndTxnResponse:
    """The response to a request that failed, or that succeeded in the older protocol."""
    if error is ErrorCode.PRODUCER_FENCED and version < 2:
        error = ErrorCode.INVALID_PRODUCER_EPOCH
    return EndTxnResponse(error_code=error)


class EndRequest(Request):
    """One EndTxn request. It is answered when the outcome is durable, before the partitions hear of it.

    The older protocol (up to version 4) cannot tell a repeated request from the end of the next transaction: it may
    end a transaction again in the way in which it ended.

    The newer one can, by the epoch. What it answers when no transaction is open:

                          repeated (epoch - 1)      new (epoch)
                          abort      commit         abort      commit
        Empty             FENCED     FENCED         raises     INVALID
        CompleteAbort     as before  INVALID        raises     INVALID
        CompleteCommit    INVALID    as before      raises     INVALID

    FENCED is PRODUCER_FENCED, INVALID is INVALID_TXN_STATE, "as before" is the epoch that was told the first time,
    "raises" is an abort of nothing, which raises the epoch: a producer that aborts need not know whether any of its
    partitions were noted.
    """

    def __init__(
        self,
        partition: TransactionPartition,
        entry: TransactionEntry,
        request: EndTxnRequest,
        version: int,
        token: Token,
    ) -> None:
        super().__init__(entry, token)
        self._partition = partition
        self._version = version
        self._raises_epoch = version >= _EPOCH_BUMP_SINCE
        self._id = request.producer_id
        self._epoch = request.producer_epoch
        self._committed = request.committed

    def attempt(self, now_ms: float, out: Effects) -> None:
        metadata = self.entry.metadata
        if metadata is None or self._raises_epoch:
            if self.entry.busy:
                self._partition.park(self, now_ms)
            elif metadata is None:
                self.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING, out)
            else:
                self._end_raising_epoch(metadata, out)
        elif metadata.producer_id != self._id:
            self.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING, out)
        elif metadata.producer_epoch != self._epoch:
            self.refuse(ErrorCode.PRODUCER_FENCED, out)
        elif self.entry.busy:
            self._partition.park(self, now_ms)
        elif metadata.state is TransactionState.ONGOING:
            self._partition.end(self.entry, self._committed, 0, self._done, out)
        elif metadata.state is self._complete_state:
            out.append(Reply(self.token, end_error(ErrorCode.NONE, self._version)))
        else:
            self.refuse(ErrorCode.INVALID_TXN_STATE, out)

    def refuse(self, error: ErrorCode, out: Effects) -> None:
        out.append(Reply(self.token, end_error(error, self._version)))

    def _end_raising_epoch(self, metadata: TransactionMetadata, out: Effects) -> None:
        state = metadata.state
        is_new = self._id == metadata.producer_id and self._epoch == metadata.producer_epoch
        is_repeated = self._is_repeated(metadata)
        if self._id != metadata.producer_id and not is_repeated:
            self.refuse(ErrorCode.INVALID_PRODUCER_ID_MAPPING, out)
        elif not is_new and not (is_repeated and state in _COMPLETE):
            self.refuse(ErrorCode.PRODUCER_FENCED, out)
        elif state is TransactionState.ONGOING or (is_new and not self._committed):
            self._partition.end(self.entry, self._committed, EPOCH_BUMP_VERSION, self._done, out)
        elif is_repeated and state is self._complete_state:
            self._answer(metadata, out)
        else:
            self.refuse(ErrorCode.INVALID_TXN_STATE, out)

    def _is_repeated(self, metadata: TransactionMetadata) -> bool:
        """Whether the request has ended the last transaction already: its epoch is the one before.

        Only if that end has raised the epoch. Kafka does not look: there a producer that was shut out by one of the
        older protocol passes for it, and is told the other's epoch.
        """
        if metadata.client_version < EPOCH_BUMP_VERSION:
            return False
        if self._id == metadata.producer_id:
            return self._epoch + 1 == metadata.producer_epoch
        return (
            self._id == metadata.previous_producer_id
            and self._epoch == EXHAUSTED_EPOCH
            and metadata.producer_epoch == 0
        )

    @property
    def _complete_state(self) -> TransactionState:
        return TransactionState.COMPLETE_COMMIT if self._committed else TransactionState.COMPLETE_ABORT

    def _done(self, error: ErrorCode, _now_ms: float, out: Effects) -> None:
        metadata = self.entry.metadata
        if error is not ErrorCode.NONE or metadata is None:
            self.refuse(error, out)
        else:
            assert metadata.state in ENDING
            self._answer(metadata.completed(metadata.updated_ms), out)

    def _answer(self, metadata: TransactionMetadata, out: Effects) -> None:
        """Tell the producer the id and epoch of its next transaction."""
        response = end_error(ErrorCode.NONE, self._version)
        if self._raises_epoch:
            response.producer_id = metadata.producer_id
            response.producer_epoch = metadata.producer_epoch
        out.append(Reply(self.token, response))
