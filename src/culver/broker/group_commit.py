"""Group commit: acknowledgements that wait for the disk share one fdatasync per partition."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, TypeAlias

from culver.core.histogram import Histogram
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.partition import Partition
    from culver.scheduler import Scheduler

_log = get_logger("culver.commit")

_GATHERING_SHARE = 0.25  # of what the last flush took
_GATHERING_MAX_MS = 1.0

Committed: TypeAlias = Callable[[BaseException | None], object]


class CutOff(Exception):
    """What was waited for is not in the log any more: another leader has other records in its place."""


class GroupCommit:
    """Per partition at most one flush runs; whatever is appended meanwhile goes with the next one."""

    def __init__(
        self,
        scheduler: Scheduler,
        monotonic_ms: Callable[[], float],
        on_failed: Callable[[Partition], object],
    ) -> None:
        self.flushes = Histogram()  # how long the disk took
        self._scheduler = scheduler
        self._monotonic_ms = monotonic_ms
        self._on_failed = on_failed
        self._waiting: dict[Partition, deque[tuple[int, Committed]]] = {}
        self._running: set[Partition] = set()
        self._asked: dict[Partition, None] = {}

    def wait(self, partition: Partition, committed: Committed) -> None:
        """Call `committed` once all that is in the log now is on disk, or with the error if it cannot be."""
        log = partition.log
        if log.flushed_offset >= log.end_offset:
            committed(None)
            return
        self._waiting.setdefault(partition, deque()).append((log.end_offset, committed))
        self.ask(partition)

    def ask(self, partition: Partition) -> None:
        """Have the partition flushed soon, with nobody waiting for it."""
        if partition not in self._running:
            self._asked[partition] = None

    def start(self) -> None:
        """Begin the flushes asked for; called after a bunch of requests, so that they share one."""
        if self._asked:
            asked, self._asked = self._asked, {}
            for partition in asked:
                self._flush(partition)

    def _flush(self, partition: Partition) -> None:
        task = partition.log.begin_flush()
        if task is None:
            failed = partition.log.failed
            if failed is None and partition.log.flushed_offset < partition.log.end_offset:
                failed = OSError("the log is closed")
            self._complete(partition, failed)
            return
        self._running.add(partition)
        began_ms = self._monotonic_ms()

        def sync() -> float:
            partition.log.extend_flush(task)
            sync_began_ms = self._monotonic_ms()
            task.run()
            return self._monotonic_ms() - sync_began_ms

        def done(disk_took_ms: float | None, error: BaseException | None) -> None:
            if disk_took_ms is not None:
                self.flushes.record(disk_took_ms)
            self._running.discard(partition)
            partition.log.finish_flush(task, error)
            partition.flushed_at_ms = self._monotonic_ms()
            partition.flush_took_ms = partition.flushed_at_ms - began_ms
            if error is not None:
                # Never retried: after a failed fsync nobody knows which pages reached the disk.
                _log.error(
                    "a flush failed", topic=partition.topic, partition=partition.index, error=str(error)
                )
                if not partition.replicated:
                    partition.log.high_watermark = partition.log.flushed_offset
                self._on_failed(partition)
            waiting = self._waiting.get(partition)
            if error is None and waiting and waiting[-1][0] > partition.log.flushed_offset:
                self._flush(partition)
            self._complete(partition, error)

        self._scheduler.run_blocking(sync, done, self._gathering_ms(partition))

    def _gathering_ms(self, partition: Partition) -> float:
        """How long to wait for others before a flush.

        Clients that were just answered together send their next requests together. Without a short wait the
        first of them begins a flush that the others miss, and from then on half of them always wait for two.
        """
        if partition.flush_served < 2:
            return 0.0
        return min(partition.flush_took_ms * _GATHERING_SHARE, _GATHERING_MAX_MS)

    def _complete(self, partition: Partition, error: BaseException | None) -> None:
        waiting = self._waiting.get(partition)
        if waiting is None:
            return
        flushed = partition.log.flushed_offset
        end = partition.log.end_offset
        ready: list[tuple[Committed, BaseException | None]] = []
        # A follower's log may have been cut: what waits for an offset beyond its end would hold up all behind it.
        while waiting and (error is not None or waiting[0][0] <= flushed or waiting[0][0] > end):
            offset, committed = waiting.popleft()
            ready.append(
                (committed, None if offset <= flushed else error or CutOff("cut off by a new leader"))
            )
        if not waiting:
            del self._waiting[partition]
        partition.flush_served = len(ready)
        for committed, outcome in ready:
            committed(outcome)
