"""One webhook in one gateway: a member of its group that reads partitions and posts what ordering.py allows.

Every gateway runs one for each webhook that is not paused; the group shares the partitions out among them. A delivery
has connections, tasks and memory of its own, so that a receiver which is slow or dead delays no other.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Iterable

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.membership.group_member import GroupMember
from culver.gateway.producing import Producing
from culver.gateway.reading.partition_reader import Readers
from culver.gateway.webhooks.burial import Burial
from culver.gateway.webhooks.endpoint import GONE, Outcome
from culver.gateway.webhooks.feeding import Feeding
from culver.gateway.webhooks.ordering import Call, Limits, Ordering, Verdict
from culver.gateway.webhooks.posting import Poster
from culver.gateway.webhooks.status import Status
from culver.gateway.webhooks.subscription import Subscription
from culver.gateway.webhooks.target_check import Allowance
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.webhooks")

WINDOW_RECORDS = 1000
HELD_MAX_BYTES = 16 << 20
CALL_MAX_BYTES = 1 << 20
_COMMIT_SECONDS = 0.25
# What is out when a partition is given up may still be acknowledged, which saves a repetition.
_GRACE_SECONDS_MAX = 3.0


class Delivery:
    """Runs from start() to close(). `on_gone` is called when the receiver says that it is gone for good."""

    def __init__(
        self,
        subscription: Subscription,
        cluster: Cluster,
        readers: Readers,
        producing: Producing,
        allowance: Allowance,
        *,
        on_gone: Callable[[str], object],
    ) -> None:
        self.subscription = subscription
        self._on_gone = on_gone
        self._gone = False
        self._poster = Poster(subscription, allowance)
        self._burial = Burial(subscription, cluster, producing, on_trouble=self._note_trouble)
        limits = Limits(
            batch=subscription.batch,
            call_max_bytes=CALL_MAX_BYTES,
            concurrency=subscription.concurrency,
            window_records=max(WINDOW_RECORDS, 2 * subscription.batch),
            held_max_bytes=HELD_MAX_BYTES,
        )
        self._ordering = Ordering(limits, subscription.retry)
        self._feeding = Feeding(
            subscription,
            cluster,
            readers,
            self._ordering,
            on_records=self._pump,
            on_trouble=self._note_trouble,
        )
        self._member = GroupMember(
            cluster,
            subscription.group,
            subscription.topics,
            instance_name=f"culver-webhook-{subscription.name}",
            on_assigned=self._on_assigned,
            on_revoked=self._on_revoked,
        )
        self._calls: dict[Call, asyncio.Task[None]] = {}
        self._committed: dict[TopicPartition, int] = {}
        self._committing = asyncio.Lock()
        self._commits: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._status = Status(running=True)

    async def start(self) -> None:
        """Begin to join the group. Returns at once."""
        self._commits = asyncio.create_task(self._commit_now_and_then())
        await self._member.start()

    async def close(self) -> None:
        """Wait a little for calls that are out, commit, leave the group."""
        try:
            await self._member.close()
        finally:
            self._stop_timer()
            await self._feeding.end(self._feeding.partitions)
            await _end([*self._calls.values(), *([self._commits] if self._commits is not None else [])])
            await self._poster.close()

    @property
    def status(self) -> Status:
        """How it is doing, without the lag."""
        status, waiting = self._status, self._ordering.waiting
        status.partitions = [str(partition) for partition in self._feeding.partitions]
        status.in_flight = self._ordering.in_flight
        status.waiting = len(waiting)
        status.tries = max((call.failures for call in waiting), default=0)
        status.next_retry_at_ms = None
        if waiting:
            status.next_retry_at_ms = _now_ms() + max(0, round(waiting[0].due_ms - _monotonic_ms()))
        status.receiver_down = self._ordering.patience.down
        if self._member.error is not None:
            status.last_error = str(self._member.error)
        return status

    # --- partitions come and go ---

    def _on_assigned(self, committed: dict[TopicPartition, int | None]) -> None:
        for partition, offset in committed.items():
            if offset is not None:
                self._committed[partition] = offset
            self._feeding.begin(partition, offset)

    async def _on_revoked(self, partitions: set[TopicPartition]) -> None:
        """May be called a second time for the same partitions, when the first was cancelled."""
        await self._feeding.end(partitions)
        for partition in partitions:
            self._ordering.hold(partition)
        calls = [task for call, task in self._calls.items() if call.window.partition in partitions]
        if calls:
            await asyncio.wait(calls, timeout=min(self.subscription.timeout_ms / 1000, _GRACE_SECONDS_MAX))
            # Left to go on, they could reach the receiver after what the next owner of the partition sends.
            await _end(calls)
        await self._commit()
        for partition in partitions:
            self._ordering.revoke(partition)
            self._committed.pop(partition, None)
        self._feeding.progressed()

    # --- calls ---

    def _pump(self) -> None:
        """Start what may go out now, and come back when more may. To be called after every change."""
        self._stop_timer()
        if self._gone:
            return
        now_ms = _monotonic_ms()
        for call in self._ordering.start(now_ms):
            self._calls[call] = asyncio.create_task(self._make(call))
        wake_at_ms = self._ordering.wake_at_ms(now_ms)
        if wake_at_ms is not None:
            delay_s = max(0.0, wake_at_ms - now_ms) / 1000
            self._timer = asyncio.get_running_loop().call_later(delay_s, self._pump)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    async def _make(self, call: Call) -> None:
        try:
            outcome = await self._try(call)
            if outcome.acknowledged:
                self._status.records_delivered += len(call.records)
                self._status.last_success_at_ms = _now_ms()
                self._ordering.acknowledged(call)
            elif outcome.status == GONE:
                self._give_up(outcome)
            else:
                await self._failed(call, outcome)
        finally:
            self._calls.pop(call, None)
        self._feeding.progressed()
        self._pump()

    async def _try(self, call: Call) -> Outcome:
        try:
            return await self._poster.post(call.records)
        except Exception as error:  # noqa: BLE001 - the boundary: one record must not stop all the others
            _log.exception("webhook call failed in the gateway", webhook=self.subscription.name)
            return Outcome(None, f"a fault in the gateway: {type(error).__name__}")

    async def _failed(self, call: Call, outcome: Outcome) -> None:
        self._status.calls_failed += 1
        self._note_trouble(outcome.error)
        verdict = self._ordering.failed(
            call,
            _monotonic_ms(),
            random.random(),
            retry_after_ms=outcome.retry_after_ms,
            # A setting of this gateway stands in the way. That is put right, or another gateway may do it.
            can_be_last=not outcome.refused,
        )
        if verdict is Verdict.DEAD:
            # Its place is free while the letter is written.
            self._pump()
            await self._burial.bury(call, outcome)
            self._status.dead_letters += 1
            self._ordering.buried(call)

    def _give_up(self, outcome: Outcome) -> None:
        """The receiver is gone: nothing more is sent until somebody resumes the webhook."""
        self._note_trouble(outcome.error)
        if not self._gone:
            self._gone = True
            self._on_gone(outcome.error)

    def _note_trouble(self, text: str) -> None:
        self._status.last_error = text
        self._status.last_error_at_ms = _now_ms()

    # --- commits ---

    async def _commit_now_and_then(self) -> None:
        while True:
            await asyncio.sleep(_COMMIT_SECONDS)
            try:
                await self._commit()
            except Exception:  # noqa: BLE001 - the boundary: without commits everything would be sent again one day
                _log.exception("webhook failed to commit", webhook=self.subscription.name)

    async def _commit(self) -> None:
        """Store how far everything is acknowledged. What cannot be stored now is, with the next commit."""
        async with self._committing:
            positions = self._ordering.positions()
            moved = {place: at for place, at in positions.items() if self._committed.get(place) != at}
            if not moved:
                return
            try:
                await self._member.commit(moved)
            except (KafkaError, Unreachable) as error:
                _log.info("webhook cannot commit", webhook=self.subscription.name, error=str(error))
            else:
                self._committed |= moved


async def _end(tasks: Iterable[asyncio.Task[None]]) -> None:
    tasks = list(tasks)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def _monotonic_ms() -> float:
    return time.monotonic() * 1000


def _now_ms() -> int:
    return time.time_ns() // 1_000_000
