"""What a webhook may send now, what has been acknowledged, and what may be committed: all of it without I/O.

A call is the records of one request to the receiver, of one partition, the same ones at every try. Its life:

    take -> in flight -> acknowledged
                |   ^
                v   | (after a pause)
              waiting                          failed, and tries are left
              taken apart                      failed for the last time with several records: each goes by itself
              dead -> acknowledged             failed for the last time alone: once the dead-letter topic has it

Order: a key's records are never in two calls at once, and none goes out before those in front of it are acknowledged.
Memory: of each partition at most `window_records` records are remembered from the first that is not acknowledged, and
all partitions together hold about `held_max_bytes`; reading stops until there is room. So a key whose record fails
again and again holds up its partition after a while, but only until it is a dead letter.

Time comes in as `now_ms` (any clock that does not go back), chance as numbers from 0 up to 1.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from heapq import heapify, heappop, heappush

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.reading.record import Record
from culver.gateway.webhooks.patience import Patience
from culver.gateway.webhooks.subscription import Retry
from culver.gateway.webhooks.window import Window


@dataclass(frozen=True, slots=True)
class Limits:
    """How much of what at a time."""

    # Records in one call, and their bytes unless it is a single one.
    batch: int
    call_max_bytes: int
    # Calls at the same time.
    concurrency: int
    # Records of a partition that are remembered from its position on.
    window_records: int
    # Bytes of records that are held over all partitions. Each may hold one record all the same.
    held_max_bytes: int


@dataclass(slots=True, eq=False)
class Call:
    """Records that go to the receiver in one request."""

    window: Window
    records: tuple[Record, ...]
    # How often it has failed.
    failures: int = 0
    # When it may be tried again, while it waits.
    due_ms: float = 0.0


class Verdict(Enum):
    """What becomes of a call that failed."""

    RETRIED = "it waits for its next try"
    TAKEN_APART = "its records are sent one by one"
    DEAD = "its record goes to the dead-letter topic"
    MOOT = "its partition goes to another gateway"


@dataclass(frozen=True, slots=True)
class Room:
    """How much may be read of a partition."""

    records: int
    bytes: int


class Ordering:
    """The calls of one webhook in one gateway."""

    def __init__(self, limits: Limits, retry: Retry) -> None:
        self._limits = limits
        self._retry = retry
        self._windows: dict[TopicPartition, Window] = {}
        # Windows with records that may go out, in the order of their turns.
        self._turns: OrderedDict[TopicPartition, Window] = OrderedDict()
        self._in_flight: set[Call] = set()
        # (when, serial number, call); calls of held partitions are dropped when their time comes.
        self._waiting: list[tuple[float, int, Call]] = []
        self._serial = 0
        self._held_bytes = 0
        self.patience = Patience(retry)

    # --- partitions ---

    def assign(self, partition: TopicPartition, position: int) -> None:
        """The partition is this gateway's from now on; its first record to send is at `position`."""
        assert partition not in self._windows, "assigned twice"
        self._windows[partition] = Window(partition, position)

    def hold(self, partition: TopicPartition) -> None:
        """Start no more calls of the partition. Those that are out still count."""
        window = self._windows.get(partition)
        if window is not None:
            window.held = True
            self._turns.pop(partition, None)

    def revoke(self, partition: TopicPartition) -> None:
        """The partition is another's; the outcome of calls that are out no longer matters."""
        window = self._windows.pop(partition, None)
        if window is not None:
            window.revoked = True
            self._held_bytes -= window.held_bytes
            self._turns.pop(partition, None)
            # Their time may be far off, and they hold records.
            self._waiting = [entry for entry in self._waiting if entry[2].window is not window]
            heapify(self._waiting)

    def room(self, partition: TopicPartition) -> Room | None:
        """How much may be read of the partition now; None: wait until something has been acknowledged."""
        window = self._windows[partition]
        records = self._limits.window_records - window.held_records
        if records <= 0:
            return None
        bytes_left = self._limits.held_max_bytes - self._held_bytes
        if bytes_left > 0:
            return Room(records, bytes_left)
        # However full it is, a partition that holds nothing may read one record: none waits for another for ever.
        return Room(1, 1) if window.held_bytes == 0 else None

    def add(self, partition: TopicPartition, records: Sequence[Record], read_to: int) -> None:
        """Records that were read, in order; the next one of the partition has the offset `read_to` or more."""
        window = self._windows[partition]
        before = window.held_bytes
        window.add(records, read_to)
        self._held_bytes += window.held_bytes - before
        self._queue(window)

    def holds_records(self, partition: TopicPartition) -> bool:
        """Are there records of the partition that are not acknowledged?"""
        return self._windows[partition].held_records > 0

    def positions(self) -> dict[TopicPartition, int]:
        """What may be committed of each partition."""
        return {partition: window.position for partition, window in self._windows.items()}

    # --- calls ---

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    @property
    def waiting(self) -> list[Call]:
        """Calls that failed and will be tried again, the next one first."""
        return [call for _, _, call in sorted(self._waiting) if not (call.window.held or call.window.revoked)]

    def start(self, now_ms: float) -> list[Call]:
        """The calls to make now. They are in flight until acknowledged() or failed()."""
        # New ones first when the receiver looks down: whether it takes anything at all is found out by them, and
        # those that have failed would fill all places.
        if self.patience.down:
            return self._start_new(now_ms) + self._start_due(now_ms)
        return self._start_due(now_ms) + self._start_new(now_ms)

    def wake_at_ms(self, now_ms: float) -> float | None:
        """When start() may have more to give, by the passing of time alone. Later than now, or None."""
        if len(self._in_flight) >= self._limits.concurrency:
            return None
        moments = []
        if self._waiting:
            moments.append(max(self._waiting[0][0], self.patience.silent_until_ms))
        if self._turns:
            new_after_ms = self.patience.new_after_ms(now_ms, self._new_in_flight())
            if new_after_ms is not None:
                moments.append(new_after_ms)
        return min(moments, default=None)

    def acknowledged(self, call: Call) -> None:
        """The receiver has taken it."""
        self._in_flight.discard(call)
        self.patience.succeeded()
        self._done(call)

    def failed(
        self,
        call: Call,
        now_ms: float,
        chance: float,
        *,
        retry_after_ms: float | None = None,
        can_be_last: bool = True,
    ) -> Verdict:
        """The receiver has not taken it, or nobody knows. Not `can_be_last`: it is not the receiver's fault."""
        self._in_flight.discard(call)
        call.failures += 1
        due_ms = self.patience.failed(call, call.failures, now_ms, chance, retry_after_ms)
        if call.window.held or call.window.revoked:
            return Verdict.MOOT
        if not can_be_last or self._retry.tries == 0 or call.failures < self._retry.tries:
            self._serial += 1
            call.due_ms = due_ms
            heappush(self._waiting, (due_ms, self._serial, call))
            return Verdict.RETRIED
        if len(call.records) == 1:
            return Verdict.DEAD
        call.window.put_back(call.records)
        self._queue(call.window)
        return Verdict.TAKEN_APART

    def buried(self, call: Call) -> None:
        """The dead-letter topic has it, safely."""
        self._done(call)

    def _done(self, call: Call) -> None:
        window = call.window
        if window.revoked:
            return
        before = window.held_bytes
        window.acknowledge(call.records)
        self._held_bytes += window.held_bytes - before
        self._queue(window)

    def _start_due(self, now_ms: float) -> list[Call]:
        started: list[Call] = []
        if now_ms < self.patience.silent_until_ms:
            return started
        while self._waiting and self._waiting[0][0] <= now_ms and self._has_place():
            _, _, call = heappop(self._waiting)
            if not (call.window.held or call.window.revoked):
                self._in_flight.add(call)
                started.append(call)
        return started

    def _start_new(self, now_ms: float) -> list[Call]:
        started: list[Call] = []
        while self._turns and self._has_place():
            new_after_ms = self.patience.new_after_ms(now_ms, self._new_in_flight())
            if new_after_ms is None or new_after_ms > now_ms:
                break
            # One call from each partition in turn, so that a full one does not hold up the others.
            _, window = self._turns.popitem(last=False)
            records = window.take(records_max=self._limits.batch, bytes_max=self._limits.call_max_bytes)
            self._queue(window)
            call = Call(window, records)
            self._in_flight.add(call)
            started.append(call)
        return started

    def _has_place(self) -> bool:
        return len(self._in_flight) < self._limits.concurrency

    def _new_in_flight(self) -> int:
        return sum(call.failures == 0 for call in self._in_flight)

    def _queue(self, window: Window) -> None:
        """Have the window wait for its turn if it has something that may go out."""
        if window.ready:
            self._turns.setdefault(window.partition, window)
