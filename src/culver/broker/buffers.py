"""Receive buffers: one shared scratch, a few large ones to lend, and a budget for the rest.

A connection reads into the scratch buffer that all share, so a thousand idle connections own nothing. Only
one that holds part of a request keeps bytes of its own, and it gets room as bytes arrive: what a peer
announces never sizes an allocation.
"""

from __future__ import annotations

LARGE_BYTES = (1 << 20) + (128 << 10)  # a default-sized produce request (1 MiB of records) fits
_LENT_MAX = 16
_KEPT_MAX = 4
_SMALL_BYTES = 4096
_LEND_FROM_BYTES = 64 << 10


class ReceiveBuffers:
    """Hands out buffers for partial requests and counts what is out."""

    def __init__(self, budget_bytes: int) -> None:
        self.scratch = bytearray(LARGE_BYTES)
        self.scratch_view = memoryview(self.scratch)
        self.held_bytes = 0
        self._budget_bytes = budget_bytes
        self._free: list[bytearray] = []
        self._lent = 0

    def keep_from_scratch(self, start: int, end: int, needed: int) -> tuple[bytearray, int, int]:
        """Save the unread bytes of the scratch buffer; the caller owns (buffer, start, end) now.

        A long remainder takes the scratch itself and leaves a fresh one behind, which saves copying it.
        """
        length = end - start
        if length >= _LEND_FROM_BYTES and self._lent < _LENT_MAX:
            taken = self.scratch
            self.scratch = self._free.pop() if self._free else bytearray(LARGE_BYTES)
            self.scratch_view = memoryview(self.scratch)
            self._lent += 1
            self.held_bytes += LARGE_BYTES
            if start + needed > LARGE_BYTES and needed <= LARGE_BYTES:
                taken[:length] = taken[start:end]
                return taken, 0, length
            return taken, start, end
        kept = bytearray(min(needed, max(2 * length, _SMALL_BYTES)))
        kept[:length] = self.scratch_view[start:end]
        self.held_bytes += len(kept)
        return kept, 0, length

    def grow(self, buffer: bytearray, start: int, end: int, needed: int) -> tuple[bytearray, int, int]:
        """Make room behind the unread bytes: move them to the front, or double the buffer up to `needed`."""
        length = end - start
        if needed <= len(buffer):
            buffer[:length] = buffer[start:end]
            return buffer, 0, length
        larger = bytearray(min(needed, max(2 * length, _SMALL_BYTES)))
        larger[:length] = memoryview(buffer)[start:end]
        self.held_bytes += len(larger)
        self.give_back(buffer)
        return larger, 0, length

    def give_back(self, buffer: bytearray) -> None:
        self.held_bytes -= len(buffer)
        if len(buffer) == LARGE_BYTES and self._lent > 0:
            self._lent -= 1
            if len(self._free) < _KEPT_MAX:
                self._free.append(buffer)

    @property
    def exhausted(self) -> bool:
        """Partial requests hold all that configuration allows: those that want more must wait."""
        return self.held_bytes >= self._budget_bytes
