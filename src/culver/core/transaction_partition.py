"""The transactional ids of one partition of the transaction log: what the log says, and what is on its way there."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial

from culver.core.coordinator_effects import (
    Append,
    Effects,
    Finish,
    Marker,
    TakeProducerId,
    Token,
    WriteMarkers,
    append_error,
)
from culver.core.coordinator_timers import Timer, TimerQueue
from culver.core.transaction_records import (
    TransactionChange,
    TransactionRecord,
    transaction_record,
    transaction_tombstone,
)
from culver.core.transaction_settings import TransactionSettings
from culver.core.transaction_state import (
    ENDING,
    EPOCH_BUMP_VERSION,
    IDLE,
    NO_PRODUCER_ID,
    NO_TIMEOUT_MS,
    TransactionMetadata,
    TransactionState,
)
from culver.errors import ErrorCode

# With these errors nothing has been written. After any other it is in doubt: the record may be in the log already,
# or on another replica that leads next.
_NOT_WRITTEN = frozenset(
    {
        ErrorCode.NOT_ENOUGH_REPLICAS,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
        ErrorCode.MESSAGE_TOO_LARGE,
        ErrorCode.RECORD_LIST_TOO_LARGE,
        ErrorCode.INVALID_RECORD,
    }
)
# So many tombstones go into one append.
_TOMBSTONES_MAX = 500


class Request(ABC):
    """A request for one transactional id, which may have to wait for its turn."""

    def __init__(self, entry: TransactionEntry, token: Token) -> None:
        self.entry = entry
        self.token = token
        self.from_broker = False
        self.patience_timer = Timer()
        self.patience_ends_ms = 0.0

    @abstractmethod
    def attempt(self, now_ms: float, out: Effects) -> None:
        """Answer, or begin what leads to an answer, or park until the entry is free."""

    @abstractmethod
    def refuse(self, error: ErrorCode, out: Effects) -> None:
        """Answer with an error."""


class Transition:
    """A record on its way to the log. `answer` hears how it went, once; the entry is blocked until it is certain."""

    __slots__ = ("_answer", "entry", "must_happen", "record")

    def __init__(
        self, entry: TransactionEntry, record: TransactionRecord, answer: Finish | None, must_happen: bool
    ) -> None:
        self.entry = entry
        self.record = record
        # Tried again until it is written, whatever goes wrong: the coordinator's own, and what is in doubt.
        self.must_happen = must_happen
        self._answer = answer

    def tell(self, error: ErrorCode, now_ms: float, out: Effects) -> None:
        answer, self._answer = self._answer, None
        if answer is not None:
            answer(error, now_ms, out)


class TransactionEntry:
    """One transactional id: `metadata` is what the log says of it, the rest is under way."""

    __slots__ = ("markers", "metadata", "taking_id", "timer", "transactional_id", "transition", "waiting")

    def __init__(self, transactional_id: str) -> None:
        self.transactional_id = transactional_id
        self.metadata: TransactionMetadata | None = None
        self.transition: Transition | None = None
        self.taking_id = False
        self.markers: WriteMarkers | None = None
        self.waiting: deque[Request] = deque()
        self.timer = Timer()  # of the transaction that is open

    @property
    def changing(self) -> bool:
        """The next state is on its way: nothing else may be decided from this one."""
        return self.transition is not None or self.taking_id

    @property
    def ending(self) -> bool:
        """The outcome of the last transaction is decided, and not yet carried out."""
        return self.metadata is not None and self.metadata.state in ENDING

    @property
    def busy(self) -> bool:
        return self.changing or self.ending


class TransactionPartition:
    """Transactional ids as they stand in one partition's log, each with at most one change under way.

    `replay` is the only way in: it runs for every record when the partition is loaded, and for every record that the
    coordinator itself wrote once that record is durable.

    A record of which it is not known whether it is durable blocks its transactional id: it is written again, the very
    same, until it is known to be. A record says everything about its id, so writing it twice does no harm; deciding
    anything else meanwhile would, for the first copy may turn out to have been durable all along.
    """

    def __init__(
        self,
        number: int,
        coordinator_epoch: int,
        settings: TransactionSettings,
        timers: TimerQueue,
        parked: dict[Token, list[Request]],
        wall_clock_ms: Callable[[], int],
    ) -> None:
        self.number = number
        self.coordinator_epoch = coordinator_epoch
        self.settings = settings
        self.loading = True
        # Another broker leads the partition now: nothing can be written any more.
        self.closed = False
        self.entries: dict[str, TransactionEntry] = {}
        self.in_flight: list[Append] = []
        # Questions for a producer id, with whom to tell when there will be no answer.
        self.asked_ids: dict[TakeProducerId, Finish] = {}
        self.expiry_timer = Timer()
        self.wall_clock_ms = wall_clock_ms
        self._timers = timers
        self._parked = parked

    @property
    def open_count(self) -> int:
        """Transactions that have begun and are not over."""
        return sum(
            [
                entry.ending
                or (entry.metadata is not None and entry.metadata.state is TransactionState.ONGOING)
                for entry in self.entries.values()
            ]
        )

    # --- what the log says ---

    def replay(self, change: TransactionChange) -> None:
        """Apply one record."""
        entry = self.entries.get(change.transactional_id)
        if entry is None:
            if change.metadata is None:
                return
            entry = self.entries[change.transactional_id] = TransactionEntry(change.transactional_id)
        entry.metadata = change.metadata
        if self.loading and change.metadata is None:
            del self.entries[change.transactional_id]

    def load_done(self, now_ms: float, out: Effects) -> None:
        """Every record has been replayed: go on where the last coordinator stopped."""
        self.loading = False
        for entry in list(self.entries.values()):
            self._go_on(entry, now_ms, out)

    def unload(self, now_ms: float, out: Effects) -> None:
        """Another broker leads the partition now: let everyone who waits look for it there."""
        error = ErrorCode.NOT_COORDINATOR
        self.closed = True
        self.expiry_timer.cancel()
        for entry in self.entries.values():
            entry.timer.cancel()
            waiting = list(entry.waiting)
            entry.waiting.clear()
            for request in waiting:
                self._forget_parked(request)
                request.refuse(error, out)
        asked, self.asked_ids = self.asked_ids, {}
        for answer in asked.values():
            answer(error, now_ms, out)
        in_flight, self.in_flight = self.in_flight, []
        for append in in_flight:
            append.finish(error, now_ms, out)

    def entry(self, transactional_id: str) -> TransactionEntry:
        """The entry of an id, a new one if nothing is known of it."""
        entry = self.entries.get(transactional_id)
        if entry is None:
            entry = self.entries[transactional_id] = TransactionEntry(transactional_id)
        return entry

    # --- changes ---

    def change(
        self,
        entry: TransactionEntry,
        metadata: TransactionMetadata,
        answer: Finish | None,
        out: Effects,
        *,
        must_happen: bool = False,
    ) -> None:
        """Write the next state of an id. `answer` hears how it went, with an error that a client understands."""
        assert not entry.changing, f"{entry.transactional_id} is changing already"
        record = transaction_record(entry.transactional_id, metadata)
        self._write([Transition(entry, record, answer, must_happen)], out)

    def with_new_producer_id(
        self,
        entry: TransactionEntry,
        go_on: Callable[[int, float, Effects], None],
        answer: Finish,
        out: Effects,
    ) -> None:
        """Go on with a producer id that nobody has had; `answer` hears of it if there is none."""
        assert not entry.changing
        entry.taking_id = True

        def taken(producer_id: int | None, now_ms: float, out: Effects) -> None:
            if self.asked_ids.pop(effect, None) is None:
                return
            entry.taking_id = False
            if producer_id is not None:
                go_on(producer_id, now_ms, out)
                return
            answer(ErrorCode.COORDINATOR_LOAD_IN_PROGRESS, now_ms, out)
            self.freed(entry, now_ms, out)

        effect = TakeProducerId(self.number, taken)
        self.asked_ids[effect] = answer
        out.append(effect)

    def end(
        self,
        entry: TransactionEntry,
        committed: bool,
        client_version: int,
        answer: Finish,
        out: Effects,
    ) -> None:
        """Decide the outcome of a transaction; `answer` hears of it once that is durable."""
        assert entry.metadata is not None
        if client_version >= EPOCH_BUMP_VERSION and entry.metadata.exhausted:
            self.with_new_producer_id(
                entry, partial(self._end_with, entry, committed, client_version, answer), answer, out
            )
        else:
            self._end_with(entry, committed, client_version, answer, NO_PRODUCER_ID, 0.0, out)

    def _end_with(
        self,
        entry: TransactionEntry,
        committed: bool,
        client_version: int,
        answer: Finish,
        next_producer_id: int,
        _now_ms: float,
        out: Effects,
    ) -> None:
        assert entry.metadata is not None
        now_wall_ms = self.wall_clock_ms()
        metadata = entry.metadata.ending(committed, client_version, next_producer_id, now_wall_ms)
        self.change(entry, metadata, answer, out)

    def _write(self, transitions: Sequence[Transition], out: Effects) -> None:
        for transition in transitions:
            transition.entry.transition = transition
        append = Append(
            self.number,
            [transition.record for transition in transitions],
            partial(self._written, transitions),
        )
        self.in_flight.append(append)
        out.append(append)

    def _written(
        self, transitions: Sequence[Transition], error: ErrorCode, now_ms: float, out: Effects
    ) -> None:
        """The records are in the log (and have been replayed), or not, or nobody knows."""
        undecided: list[Transition] = []
        for transition in transitions:
            transition.tell(append_error(error), now_ms, out)
            if error is not ErrorCode.NONE and (error not in _NOT_WRITTEN or transition.must_happen):
                # From now on nothing but this very record will do, even if the next attempt is refused for good.
                transition.must_happen = True
                undecided.append(transition)
                continue
            transition.entry.transition = None
            if not self.closed:
                # A log that takes nothing now is not asked again at once.
                pause_ms = 0 if error is ErrorCode.NONE else self.settings.retry_ms
                self._go_on(transition.entry, now_ms, out, pause_ms)
        if undecided and not self.closed:
            again_ms = now_ms + self.settings.retry_ms
            self._timers.schedule(Timer(), again_ms, partial(self._write_again, undecided))

    def _write_again(self, transitions: Sequence[Transition], _now_ms: float, out: Effects) -> None:
        if not self.closed:
            self._write(transitions, out)

    def _go_on(self, entry: TransactionEntry, now_ms: float, out: Effects, pause_ms: float = 0) -> None:
        """Do what an id's state asks for, then let those in who waited for it."""
        metadata = entry.metadata
        entry.timer.cancel()
        if metadata is not None and metadata.state is TransactionState.ONGOING:
            self._set_timeout(entry, metadata, now_ms, pause_ms)
        elif metadata is not None and metadata.state in ENDING:
            self._send_markers(entry, metadata, out)
        self.freed(entry, now_ms, out)

    # --- the end of a transaction ---

    def _send_markers(self, entry: TransactionEntry, metadata: TransactionMetadata, out: Effects) -> None:
        if not metadata.partitions:
            self._complete(entry, out)
            return
        marker = Marker(
            metadata.producer_id,
            metadata.producer_epoch,
            metadata.committing,
            self.coordinator_epoch,
            metadata.client_version,
        )
        entry.markers = WriteMarkers(self.number, entry.transactional_id, marker, sorted(metadata.partitions))
        out.append(entry.markers)

    def markers_written(self, effect: WriteMarkers, out: Effects) -> None:
        """Every partition of a transaction has its marker."""
        entry = self.entries.get(effect.transactional_id)
        if entry is not None and entry.markers is effect:
            entry.markers = None
            self._complete(entry, out)

    def _complete(self, entry: TransactionEntry, out: Effects) -> None:
        assert entry.metadata is not None
        self.change(entry, entry.metadata.completed(self.wall_clock_ms()), None, out, must_happen=True)

    def _set_timeout(
        self, entry: TransactionEntry, metadata: TransactionMetadata, now_ms: float, pause_ms: float
    ) -> None:
        if metadata.timeout_ms == NO_TIMEOUT_MS:
            return
        left_ms = metadata.started_ms + metadata.timeout_ms - self.wall_clock_ms()
        # No longer than the timeout, should the clock have been set back.
        deadline_ms = now_ms + max(min(left_ms, metadata.timeout_ms), pause_ms, 0)
        self._timers.schedule(entry.timer, deadline_ms, partial(self._time_out, entry))

    def _time_out(self, entry: TransactionEntry, _now_ms: float, out: Effects) -> None:
        metadata = entry.metadata
        # A change that is under way sets the timer again if it leaves the transaction open.
        if metadata is not None and metadata.state is TransactionState.ONGOING and not entry.changing:
            self.end(entry, False, EPOCH_BUMP_VERSION, partial(self._timed_out, entry), out)

    def _timed_out(self, entry: TransactionEntry, error: ErrorCode, now_ms: float, out: Effects) -> None:
        if error is not ErrorCode.NONE and not self.closed:
            # If the end is in the log nevertheless, this finds no open transaction.
            again_ms = now_ms + self.settings.retry_ms
            self._timers.schedule(entry.timer, again_ms, partial(self._time_out, entry))

    # --- waiting ---

    def park(self, request: Request, now_ms: float, *, first: bool = False) -> None:
        """Let a request wait until its entry is free: behind all others, or before them."""
        assert request.entry.busy
        if request.patience_ends_ms == 0.0:
            settings = self.settings
            patience_ms = settings.broker_patience_ms if request.from_broker else settings.patience_ms
            request.patience_ends_ms = now_ms + patience_ms
        if first:
            request.entry.waiting.appendleft(request)
        else:
            request.entry.waiting.append(request)
        self._parked.setdefault(request.token, []).append(request)
        self._timers.schedule(
            request.patience_timer, request.patience_ends_ms, partial(self._lose_patience, request)
        )

    def freed(self, entry: TransactionEntry, now_ms: float, out: Effects) -> None:
        """Something that blocked an entry is over: let those in who wait, until it is blocked again."""
        while entry.waiting and not entry.busy:
            request = entry.waiting.popleft()
            self._forget_parked(request)
            request.attempt(now_ms, out)
        if entry.metadata is None and not entry.busy:
            self.entries.pop(entry.transactional_id, None)

    def _lose_patience(self, request: Request, _now_ms: float, out: Effects) -> None:
        self.unpark(request)
        request.refuse(ErrorCode.CONCURRENT_TRANSACTIONS, out)

    def unpark(self, request: Request) -> None:
        """Take a request out of the queue: someone else answers it, or nobody does."""
        request.entry.waiting.remove(request)
        self._forget_parked(request)

    def _forget_parked(self, request: Request) -> None:
        request.patience_timer.cancel()
        same_token = self._parked[request.token]
        same_token.remove(request)
        if not same_token:
            del self._parked[request.token]

    # --- expiry ---

    def expire_ids(self, out: Effects) -> None:
        """Forget the transactional ids that have not been used for long."""
        before_ms = self.wall_clock_ms() - self.settings.transactional_id_expiration_ms
        expired = [
            Transition(entry, transaction_tombstone(entry.transactional_id), None, False)
            for entry in self.entries.values()
            if entry.metadata is not None
            and entry.metadata.state in IDLE
            and entry.metadata.updated_ms <= before_ms
            and not entry.changing
        ]
        for start in range(0, len(expired), _TOMBSTONES_MAX):
            self._write(expired[start : start + _TOMBSTONES_MAX], out)
