"""The scheduler port: timers, and work that must not stall the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol, TypeVar

T = TypeVar("T")


class Timer(Protocol):
    """A call that is yet to happen."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """All callbacks run on the one thread that runs the broker, never concurrently."""

    def call_soon(self, callback: Callable[[], object]) -> None: ...

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer: ...

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
    ) -> None:
        """Run `work` on another thread, then `done(result, error)` on the broker's thread.

        `work` must touch nothing that the broker's thread changes.
        """
        ...


class AsyncioScheduler:
    """Timers of the running event loop; blocking work on a small pool of threads."""

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 4) -> None:
        self._loop = loop
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="culver-io")
        self._closed = False

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_later(delay_ms / 1000.0, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
    ) -> None:
        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001 - handed to `done`, which decides
                error = caught
            if not self._closed:
                self._loop.call_soon_threadsafe(done, result, error)

        self._pool.submit(run)

    def close(self) -> None:
        """Wait for running work; its `done` is not called any more."""
        self._closed = True
        self._pool.shutdown(wait=True, cancel_futures=True)
