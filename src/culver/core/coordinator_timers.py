"""Deadlines in a heap, made for timers that are moved far more often than they fire."""

from __future__ import annotations

from collections.abc import Callable
from heapq import heappop, heappush
from typing import TypeAlias

from culver.core.coordinator_effects import Effects

NEVER = float("inf")

Fire: TypeAlias = Callable[[float, Effects], None]
"""What happens at a deadline: it is told the time and adds to the effects."""


class Timer:
    """One deadline that can be set, moved and cancelled; when it comes, `fire` is called once."""

    __slots__ = ("deadline_ms", "fire", "queued_ms")

    def __init__(self) -> None:
        self.fire: Fire | None = None
        self.deadline_ms = NEVER
        # When the heap will look at this timer next; never later than the deadline.
        self.queued_ms = NEVER

    def cancel(self) -> None:
        """Drop the deadline. The heap entry stays behind and is thrown away when its time comes."""
        self.deadline_ms = NEVER


class TimerQueue:
    """All timers of a coordinator.

    A heartbeat moves its member's deadline into the future, thousands of times a second; it only writes a
    number. The heap keeps the timer at its old place, finds there that the deadline has moved, and puts it
    back: one heap operation per session timeout and member, not one per heartbeat.
    """

    __slots__ = ("_count", "_heap")

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timer]] = []
        self._count = 0

    def schedule(self, timer: Timer, deadline_ms: float, fire: Fire) -> None:
        """Set the deadline, and what is to happen then."""
        timer.fire = fire
        self.move(timer, deadline_ms)

    def move(self, timer: Timer, deadline_ms: float) -> None:
        """Move the deadline of a timer that has been scheduled before. Hot."""
        timer.deadline_ms = deadline_ms
        if deadline_ms < timer.queued_ms:
            self._push(timer, deadline_ms)

    def next_deadline_ms(self) -> float | None:
        """When `expire` wants to be called next; at the latest then, perhaps for nothing."""
        heap = self._heap
        while heap:
            when, _, timer = heap[0]
            if when == timer.queued_ms and timer.deadline_ms != NEVER:
                return when
            # Stale: cancelled, or queued again for an earlier moment.
            heappop(heap)
            if when == timer.queued_ms:
                timer.queued_ms = NEVER
        return None

    def expire(self, now_ms: float, out: Effects) -> None:
        """Fire every timer whose deadline has come."""
        heap = self._heap
        while heap and heap[0][0] <= now_ms:
            when, _, timer = heappop(heap)
            if when != timer.queued_ms:
                continue
            timer.queued_ms = NEVER
            deadline_ms = timer.deadline_ms
            if deadline_ms <= now_ms:
                timer.deadline_ms = NEVER
                assert timer.fire is not None
                timer.fire(now_ms, out)
            elif deadline_ms != NEVER:
                self._push(timer, deadline_ms)

    def _push(self, timer: Timer, when_ms: float) -> None:
        timer.queued_ms = when_ms
        self._count += 1
        heappush(self._heap, (when_ms, self._count, timer))
