"""Group commit: one flush for all that wait, in order, and none is told a lie."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from culver.broker.group_commit import CutOff, GroupCommit
from culver.broker.partition import Partition


class Task:
    def __init__(self, up_to: int) -> None:
        self.up_to = up_to

    def run(self) -> None: ...


class Log:
    """As much of a partition log as group commit needs."""

    def __init__(self) -> None:
        self.end_offset = 0
        self.flushed_offset = 0
        self.failed: OSError | None = None
        self.high_watermark: int | None = None
        self.flushes = 0
        self.extends = False

    def begin_flush(self) -> Task | None:
        if self.failed is not None or self.flushed_offset == self.end_offset:
            return None
        self.flushes += 1
        return Task(self.end_offset)

    def extend_flush(self, task: Task) -> None:
        if self.extends:
            task.up_to = self.end_offset

    def finish_flush(self, task: Task, error: OSError | None) -> None:
        if error is None:
            self.flushed_offset = task.up_to
        else:
            self.failed = error


class Threads:
    """A scheduler whose threads end when the test says so, and how it says."""

    def __init__(self) -> None:
        self.running: list[Callable[[Any, BaseException | None], object]] = []
        self.delays_ms: list[float] = []

    def run_blocking(
        self,
        work: Callable[[], Any],
        done: Callable[[Any, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        self.running.append(lambda result, error: (work(), done(result, error)))
        self.delays_ms.append(delay_ms)

    def finish(self, error: BaseException | None = None) -> None:
        self.running.pop(0)(None, error)


class World:
    def __init__(self) -> None:
        self.log = Log()
        self.clock_ms = 0.0
        self.threads = Threads()
        self.partition = Partition("t", 0, bytes(16), self.log)  # type: ignore[arg-type]
        self.failed: list[Partition] = []
        self.commit = GroupCommit(self.threads, lambda: self.clock_ms, self.failed.append)  # type: ignore[arg-type]
        self.told: list[tuple[str, BaseException | None]] = []

    def append(self, name: str) -> None:
        self.log.end_offset += 1
        self.commit.wait(self.partition, lambda error: self.told.append((name, error)))


@pytest.fixture
def world() -> World:
    return World()


def test_all_that_came_together_share_one_flush(world: World) -> None:
    for name in "abc":
        world.append(name)
    world.commit.start()
    assert world.told == []
    world.threads.finish()
    assert world.told == [("a", None), ("b", None), ("c", None)]
    assert world.log.flushes == 1


def test_what_comes_during_a_flush_waits_for_the_next(world: World) -> None:
    world.append("a")
    world.commit.start()
    world.append("b")
    world.append("c")
    world.commit.start()
    assert world.log.flushes == 1
    world.threads.finish()
    assert world.told == [("a", None)]
    world.threads.finish()
    assert world.told == [("a", None), ("b", None), ("c", None)]
    assert world.log.flushes == 2


def test_what_comes_before_the_sync_itself_begins_is_covered_by_it(world: World) -> None:
    world.log.extends = True
    world.append("a")
    world.commit.start()
    world.append("b")
    world.threads.finish()
    assert world.told == [("a", None), ("b", None)]
    assert world.log.flushes == 1


def test_clients_that_were_answered_together_are_waited_for(world: World) -> None:
    world.append("alone")
    world.commit.start()
    world.clock_ms = 4.0
    world.threads.finish()
    world.append("a")
    world.append("b")
    world.commit.start()
    world.clock_ms = 6.0
    world.threads.finish()
    world.append("c")
    world.commit.start()
    # A quarter of the two milliseconds that the last flush took; nothing while there was one client.
    assert world.threads.delays_ms == [0.0, 0.0, 0.5]


def test_who_waits_for_what_was_cut_off_holds_up_nobody(world: World) -> None:
    for name in "abc":
        world.append(name)
    world.log.end_offset = 1  # a new leader has other records
    world.append("d")
    world.commit.start()
    world.threads.finish()
    assert [name for name, error in world.told if error is None] == ["a", "b", "d"]
    assert [name for name, error in world.told if isinstance(error, CutOff)] == ["c"]


def test_nothing_to_flush_is_told_at_once(world: World) -> None:
    world.append("a")
    world.commit.start()
    world.threads.finish()
    world.commit.wait(world.partition, lambda error: world.told.append(("again", error)))
    assert world.told[-1] == ("again", None)


def test_a_failed_flush_is_told_to_all_and_hides_what_may_be_lost(world: World) -> None:
    world.append("a")
    world.commit.start()
    world.threads.finish()
    world.append("b")
    world.commit.start()
    world.append("c")
    error = OSError(5, "input/output error")
    world.threads.finish(error)
    assert world.told == [("a", None), ("b", error), ("c", error)]
    assert world.log.high_watermark == 1


def test_after_a_failure_nobody_is_acknowledged(world: World) -> None:
    world.append("a")
    world.commit.start()
    world.threads.finish(OSError(5, "input/output error"))
    world.append("b")
    world.commit.start()
    assert [type(error) for _, error in world.told] == [OSError, OSError]
