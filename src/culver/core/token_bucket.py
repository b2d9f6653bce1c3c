"""A token bucket: so many bytes a second, of which a second's worth may be saved up."""

from __future__ import annotations

UNLIMITED = (1 << 63) - 1


class TokenBucket:
    """Bytes are taken after the fact, so it may go below zero; nobody goes on until it is above again."""

    __slots__ = ("_level_bytes", "_looked_at_ms")

    def __init__(self) -> None:
        self._level_bytes: float | None = None  # full
        self._looked_at_ms = 0.0

    def wait_ms(self, bytes_per_second: int, now_ms: float) -> float:
        """How long to wait before more may be taken; 0 when it may be now. The rate may differ from call to call."""
        if bytes_per_second >= UNLIMITED:
            return 0.0
        level = self._level_bytes
        if level is None:
            level = float(bytes_per_second)
        else:
            level += (now_ms - self._looked_at_ms) * bytes_per_second / 1000.0
        self._level_bytes = level = min(level, float(bytes_per_second))
        self._looked_at_ms = now_ms
        # A millisecond at least: shorter waits are lost in the clock, and would be asked for again and again.
        return 0.0 if level >= 1.0 else max((1.0 - level) * 1000.0 / bytes_per_second, 1.0)

    def take(self, size_bytes: int) -> None:
        """So many bytes have been sent or received."""
        if self._level_bytes is not None:
            self._level_bytes -= size_bytes
