"""Housekeeping: retention, compaction, checkpoints and expiry, each on its own timer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.broker.partition import Partition
    from culver.log.compaction import CompactionTask
    from culver.scheduler import Timer

_log = get_logger("culver.housekeeping")

_FLUSH_CHECK_INTERVAL_MS = 1_000
_WRITE_BEHIND_MS = 1_000
_REMOVAL_INTERVAL_MS = 10_000
_PARTITIONS_PER_STEP = 50  # so that 10,000 partitions never hold up a request


class Housekeeping:
    """Runs the chores for as long as the broker serves."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._timers: dict[str, Timer] = {}
        self._compacting = False
        self._stopped = False

    def start(self) -> None:
        config = self._node.config
        self._every("flush", _FLUSH_CHECK_INTERVAL_MS, self._flush)
        self._every("retention", config.log_retention_check_interval_ms, self._retention)
        self._every("checkpoint", config.log_flush_offset_checkpoint_interval_ms, self._checkpoint)
        self._every("producers", config.producer_id_expiration_check_interval_ms, self._expire_producers)
        self._every("removal", _REMOVAL_INTERVAL_MS, self._remove)
        if config.log_cleaner_enable:
            self._every("compaction", config.log_cleaner_backoff_ms, self._compact)

    def stop(self) -> None:
        self._stopped = True
        for timer in self._timers.values():
            timer.cancel()

    def _every(self, name: str, interval_ms: float, chore: Callable[[], object]) -> None:
        def run() -> None:
            if self._stopped:
                return
            try:
                chore()
            except Exception:  # noqa: BLE001 - a chore that fails is tried again at its next turn
                _log.exception("a chore failed", chore=name)
            self._timers[name] = self._node.scheduler.call_later(interval_ms, run)

        self._timers[name] = self._node.scheduler.call_later(interval_ms, run)

    def _flush(self) -> None:
        """Get records on disk that nobody waits for: by flush.ms, and what only other replicas have made safe."""
        now_ms = self._node.clock.monotonic_ms()
        for partition in self._node.partitions:
            log = partition.log
            wait_ms = log.config.flush_ms
            if partition.replicated and log.config.flush == "replicated":
                # What other replicas hold was acknowledged without it: it follows behind.
                wait_ms = min(wait_ms, _WRITE_BEHIND_MS)
            if log.flushed_offset < log.end_offset and now_ms - partition.flushed_at_ms >= wait_ms:
                self._node.group_commit.ask(partition)
        self._node.group_commit.start()

    def _retention(self) -> None:
        self._in_steps(list(self._node.partitions), self._retain)

    def _retain(self, partition: Partition) -> None:
        if partition.log.failed is None and partition.log.corruption is None:
            deleted = partition.log.retention_step(self._node.clock.now_ms())
            if deleted:
                _log.info(
                    "deleted old segments", topic=partition.topic, partition=partition.index, segments=deleted
                )

    def _in_steps(self, partitions: list[Partition], visit: Callable[[Partition], object]) -> None:
        """Visit all, a few at a time, and let requests in between."""
        if self._stopped:
            return
        for partition in partitions[:_PARTITIONS_PER_STEP]:
            try:
                visit(partition)
            except OSError as error:
                _log.error(
                    "a chore failed", topic=partition.topic, partition=partition.index, error=str(error)
                )
        rest = partitions[_PARTITIONS_PER_STEP:]
        if rest:
            self._node.scheduler.call_soon(lambda: self._in_steps(rest, visit))

    def _checkpoint(self) -> None:
        self._node.scheduler.run_blocking(
            self._node.logs.begin_checkpoint().run, self._failed_quietly("checkpoint")
        )

    def _expire_producers(self) -> None:
        now_ms = self._node.clock.now_ms()
        self._in_steps(list(self._node.partitions), lambda partition: partition.log.expire_producers(now_ms))

    def remove_soon(self) -> None:
        """Something was deleted: take it off the disk without waiting for the timer."""
        self._node.scheduler.call_soon(self._remove)

    def _remove(self) -> None:
        task = self._node.logs.begin_removal()
        if task is not None:
            self._node.scheduler.run_blocking(task.run, self._failed_quietly("removal"))

    def _failed_quietly(self, chore: str) -> Callable[[object, BaseException | None], None]:
        def done(_result: object, error: BaseException | None) -> None:
            if error is not None:
                _log.error("a chore failed", chore=chore, error=str(error))

        return done

    def _compact(self) -> None:
        """Compact one partition at a time, on a thread; the dirtiest of those that are due comes first."""
        if self._compacting:
            return
        due = [
            partition
            for partition in self._node.partitions
            if "compact" in partition.log.config.cleanup_policy and partition.log.failed is None
        ]
        self._compact_next(due)

    def _compact_next(self, due: list[Partition]) -> None:
        while due and not self._stopped:
            partition = due.pop(0)
            task = partition.log.begin_compaction()
            if task is None:
                continue
            self._compacting = True

            self._node.scheduler.run_blocking(task.run, partial(self._compacted, partition, task, due))
            return

    def _compacted(
        self,
        partition: Partition,
        task: CompactionTask,
        due: list[Partition],
        _result: object,
        error: BaseException | None,
    ) -> None:
        self._compacting = False
        partition.log.finish_compaction(task, error)
        if error is not None:
            _log.error(
                "compaction failed", topic=partition.topic, partition=partition.index, error=str(error)
            )
        self._compact_next(due)
