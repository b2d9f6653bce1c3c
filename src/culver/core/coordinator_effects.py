"""What a coordinator, of groups or of transactions, asks its caller to do: replies to send, records to append."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias

from culver.errors import ErrorCode

Token: TypeAlias = Hashable
"""Whatever the caller needs to find the request again; it comes back in exactly one `Reply`."""


class RequestContext(NamedTuple):
    """What a request says beside its body. `client_host` is shown as given by DescribeGroups."""

    client_id: str
    client_host: str
    api_version: int


class Reply(NamedTuple):
    """Send `response` to the request that `token` stands for."""

    token: Token
    response: object


class LogRecord(Protocol):
    """A record for a coordinator's log."""

    @property
    def key(self) -> bytes: ...

    @property
    def value(self) -> bytes | None: ...

    @property
    def change(self) -> Any:
        """What the record means; the coordinator's `replay` takes it."""


class ProducerMark(NamedTuple):
    """The producer in whose transaction records are written: they count once its marker says so."""

    producer_id: int
    producer_epoch: int


class Marker(NamedTuple):
    """The end of a producer's transaction in one partition, as it is written into the partition's log."""

    producer_id: int
    producer_epoch: int
    committed: bool
    coordinator_epoch: int
    # 2: the epoch was raised for this marker, so that nothing older can come after it (KIP-890).
    transaction_version: int


class Append:
    """Append `records` to one partition of the coordinator's topic, then hand this object back.

    Once the records are durable, or could not be made so, the caller passes it to the coordinator's
    `append_done`, and for appends to the same partition in the order they were asked for: only there do the
    records change state, and only there do the requests that wait for them get replies.

    With `producer` they are part of that producer's transaction. With `marker` there are no records: the end of
    a transaction is to be written.
    """

    __slots__ = ("_finish", "marker", "partition", "producer", "records")

    def __init__(
        self,
        partition: int,
        records: Sequence[LogRecord],
        finish: Finish,
        *,
        producer: ProducerMark | None = None,
        marker: Marker | None = None,
    ) -> None:
        self.partition = partition
        self.records = records
        self.producer = producer
        self.marker = marker
        self._finish: list[Finish] = [finish]

    def then(self, finish: Finish) -> None:
        """Call `finish` too, after what was there before."""
        self._finish.append(finish)

    def finish(self, error: ErrorCode, now_ms: float, out: Effects) -> None:
        """Let whoever waits for this append go on. Every waiter hears of it once."""
        waiting, self._finish = self._finish, []
        for finish in waiting:
            finish(error, now_ms, out)

    def __repr__(self) -> str:
        return f"Append(partition={self.partition}, records={list(self.records)!r}, marker={self.marker!r})"


class TakeProducerId:
    """Get a producer id that nobody has had, then call the coordinator's `producer_id_taken` with this object."""

    __slots__ = ("partition", "then")

    def __init__(self, partition: int, then: Callable[[int | None, float, Effects], None]) -> None:
        self.partition = partition
        self.then = then  # gets None when there is no id to be had now


class WriteMarkers:
    """Have `marker` written into every one of `targets`, wherever it is led, however long that takes.

    Then call the coordinator's `markers_written` with this object; `markers_refused` when a leader says that a newer
    coordinator has been there. Targets that exist no longer count as done. Dropped when `partition`, the one of the
    transaction log that it comes from, is unloaded.
    """

    __slots__ = ("marker", "partition", "targets", "transactional_id")

    def __init__(
        self, partition: int, transactional_id: str, marker: Marker, targets: Sequence[tuple[str, int]]
    ) -> None:
        self.partition = partition
        self.transactional_id = transactional_id
        self.marker = marker
        self.targets = targets

    def __repr__(self) -> str:
        return f"WriteMarkers({self.transactional_id!r}, {self.marker!r}, {list(self.targets)!r})"


Effect: TypeAlias = Reply | Append | TakeProducerId | WriteMarkers
Effects: TypeAlias = list[Effect]
Finish: TypeAlias = Callable[[ErrorCode, float, Effects], None]

# What a client hears when the log refused the coordinator's records: it does not know that log, only us.
_APPEND_ERRORS = {
    ErrorCode.UNKNOWN_TOPIC_OR_PARTITION: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.REQUEST_TIMED_OUT: ErrorCode.COORDINATOR_NOT_AVAILABLE,
    ErrorCode.NOT_LEADER_OR_FOLLOWER: ErrorCode.NOT_COORDINATOR,
    ErrorCode.KAFKA_STORAGE_ERROR: ErrorCode.NOT_COORDINATOR,
    ErrorCode.MESSAGE_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.RECORD_LIST_TOO_LARGE: ErrorCode.UNKNOWN_SERVER_ERROR,
    ErrorCode.INVALID_FETCH_SIZE: ErrorCode.UNKNOWN_SERVER_ERROR,
}

# The records are in the log: whether they stay there shows later.
WRITTEN_ANYHOW = frozenset({ErrorCode.REQUEST_TIMED_OUT, ErrorCode.NOT_ENOUGH_REPLICAS_AFTER_APPEND})


def append_error(error: ErrorCode) -> ErrorCode:
    """The error a group request is answered with when its records could not be appended."""
    return _APPEND_ERRORS.get(error, error)


class Gather:
    """Waits for several parts of one request, then calls `done` once."""

    __slots__ = ("_done", "_open")

    def __init__(self, done: Callable[[Effects], None]) -> None:
        self._done = done
        self._open = 1

    def add(self) -> None:
        """One more part to wait for."""
        self._open += 1

    def close(self, out: Effects) -> None:
        """A part is there (or, the first time, all parts have been added)."""
        self._open -= 1
        if self._open == 0:
            self._done(out)
