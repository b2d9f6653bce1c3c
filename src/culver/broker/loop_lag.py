"""Event-loop lag: how much later than planned a timer runs, and with it every request that comes at that moment."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from culver.core.histogram import Histogram

if TYPE_CHECKING:
    from culver.scheduler import Scheduler, Timer

_INTERVAL_MS = 250.0


class LoopLag:
    """Looks four times a second. A timer of the event loop is itself good to about a millisecond."""

    def __init__(self, scheduler: Scheduler, monotonic_ms: Callable[[], float]) -> None:
        self.lags = Histogram()
        self._scheduler = scheduler
        self._monotonic_ms = monotonic_ms
        self._planned_ms = 0.0
        self._timer: Timer | None = None

    def start(self) -> None:
        self._planned_ms = self._monotonic_ms() + _INTERVAL_MS
        self._timer = self._scheduler.call_later(_INTERVAL_MS, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        self.lags.record(max(self._monotonic_ms() - self._planned_ms, 0.0))
        self.start()
