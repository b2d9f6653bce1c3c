"""The scheduler and the clocks of a simulated process."""

from __future__ import annotations

import random
from collections.abc import Callable
from math import ceil
from typing import Any, TypeVar

from culver.testing.simulation.loop import Event, Process, World

T = TypeVar("T")

_EPOCH_MS = 1_750_000_000_000


class SimulatedClock:
    """A machine's clocks: the wall's may be wrong and jump, the monotonic one starts anywhere and never goes back."""

    def __init__(self, world: World, generator: random.Random) -> None:
        self._world = world
        self._monotonic_start_ms = float(generator.randrange(1, 10_000_000))
        self.skew_ms = generator.randrange(-2_000, 2_000)

    def now_ms(self) -> int:
        return _EPOCH_MS + self._world.now_us // 1000 + self.skew_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_start_ms + self._world.now_us / 1000.0


class SimulatedScheduler:
    """Timers on virtual time; blocking work happens as a whole at a random later moment.

    Pieces of work that were begun together may end in any order, as on threads.
    """

    def __init__(self, process: Process, generator: random.Random, slow: float = 0.02) -> None:
        self._process = process
        self._random = generator
        self._slow = slow  # the share of work that takes long: a disk under load
        self._under_way = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._process.soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        self._process.soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Event:
        # Never early: who finds that it is not quite time yet would set another timer at the same moment, for ever.
        return self._process.later(max(0, ceil(delay_ms * 1000)), callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        self._under_way += 1
        self._process.later(round(delay_ms * 1000) + self._moment_us(), self._work, work, done)

    def _moment_us(self) -> int:
        generator = self._random
        if generator.random() < self._slow:
            return generator.randrange(5_000, 300_000)
        return generator.randrange(50, 2_000)

    def _work(self, work: Callable[[], Any], done: Callable[[Any, BaseException | None], object]) -> None:
        if self._closed:
            return
        result = error = None
        try:
            result = work()
        except Exception as caught:  # noqa: BLE001 - handed to `done`, which decides
            error = caught
        self._process.later(self._random.randrange(20, 500), self._finish, done, result, error)

    def _finish(
        self, done: Callable[[Any, BaseException | None], object], result: Any, error: BaseException | None
    ) -> None:
        self._under_way -= 1
        if not self._closed:
            done(result, error)

    def close(self) -> None:
        """Queued work is dropped and no `done` is called any more."""
        self._closed = True
