"""Wait for a condition, never for a length of time: a test goes on as soon as what it waits for is true."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

DEADLINE_SECONDS = 20.0
_PAUSE_SECONDS = 0.02


def eventually(
    what: str, probe: Callable[[], T | None], deadline_s: float = DEADLINE_SECONDS, show: object = None
) -> T:
    """Call `probe` until it returns something true, and return that; fail with `what` at the deadline.

    `show`, when given, is printed with the failure: a list or dict that the probe fills.
    """
    deadline = time.monotonic() + deadline_s
    while True:
        found = probe()
        if found:
            return found
        if time.monotonic() > deadline:
            raise AssertionError(f"not within {deadline_s:g} s: {what}" + (f"; {show!r}" if show else ""))
        time.sleep(_PAUSE_SECONDS)
