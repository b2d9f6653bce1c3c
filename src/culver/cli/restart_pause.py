"""How long to wait before a process that died is started again: longer with each quick death."""

from __future__ import annotations

FIRST_PAUSE_SECONDS = 0.5
LONGEST_PAUSE_SECONDS = 30.0
# A process that ran for so long had no part in its last death: the next pause is a short one again.
SETTLED_SECONDS = 60.0


class RestartPause:
    """The pauses of one process."""

    __slots__ = ("_next_s",)

    def __init__(self) -> None:
        self._next_s = FIRST_PAUSE_SECONDS

    def after(self, ran_s: float) -> float:
        """The pause after a death, given how long the process had lived."""
        if ran_s >= SETTLED_SECONDS:
            self._next_s = FIRST_PAUSE_SECONDS
        pause_s = self._next_s
        self._next_s = min(2 * pause_s, LONGEST_PAUSE_SECONDS)
        return pause_s
