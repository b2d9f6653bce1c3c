"""The clock port: where time comes from."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Two clocks: the wall's for timestamps that people see, a monotonic one for durations."""

    def now_ms(self) -> int:
        """Milliseconds since 1970, for record timestamps and retention. May jump."""
        ...

    def monotonic_ms(self) -> float:
        """Milliseconds since some fixed moment, for timeouts. Never goes back."""
        ...


class SystemClock:
    """The machine's clocks."""

    def now_ms(self) -> int:
        return time.time_ns() // 1_000_000

    def monotonic_ms(self) -> float:
        return time.monotonic() * 1000.0


class ManualClock:
    """A clock that moves only when told, for tests and the simulator."""

    def __init__(self, now_ms: int = 1_700_000_000_000) -> None:
        self._now_ms = now_ms
        self._monotonic_ms = 0.0

    def now_ms(self) -> int:
        return self._now_ms

    def monotonic_ms(self) -> float:
        return self._monotonic_ms

    def advance_ms(self, delta_ms: int) -> None:
        """Move both clocks forward."""
        assert delta_ms >= 0
        self._now_ms += delta_ms
        self._monotonic_ms += delta_ms
