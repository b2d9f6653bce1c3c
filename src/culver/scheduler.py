"""The scheduler port: timers, and work that must not stall the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

_Job: TypeAlias = tuple[Callable[[], Any], Callable[[Any, BaseException | None], object], float]


class Timer(Protocol):
    """A call that is yet to happen."""

    def cancel(self) -> None: ...


class Scheduler(Protocol):
    """All callbacks run on the one thread that runs the broker, never concurrently."""

    @property
    def busy(self) -> bool:
        """Whether work that was handed to `run_blocking` is not done yet."""
        ...

    def call_soon(self, callback: Callable[[], object]) -> None: ...

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        """The one method that any thread may call: a library's own hands what it heard to the broker's thread."""
        ...

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer: ...

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        """Run `work` on another thread, then `done(result, error)` on the broker's thread.

        `work` must touch nothing that the broker's thread changes. With `delay_ms`, which may be a fraction of a
        millisecond, the thread waits that long first.
        """
        ...


class AsyncioScheduler:
    """Timers of the running event loop; blocking work on a few threads, started when first needed.

    An executor would do, but its futures and locks cost more than the hand-over itself, and every
    acknowledgement that waits for the disk pays for two of those.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, threads: int = 4) -> None:
        self._loop = loop
        self._threads_max = threads
        self._threads: list[threading.Thread] = []
        self._jobs: SimpleQueue[_Job | None] = SimpleQueue()
        self._under_way = 0  # jobs queued or running, as the loop's thread knows it
        self._closed = False

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._loop.call_soon(callback)

    def call_soon_threadsafe(self, callback: Callable[[], object]) -> None:
        # A thread that does not know that all is over has nobody left to tell.
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return self._loop.call_later(delay_ms / 1000.0, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        self._under_way += 1
        if self._under_way > len(self._threads) and len(self._threads) < self._threads_max:
            thread = threading.Thread(target=self._work, name=f"culver-io-{len(self._threads)}", daemon=True)
            self._threads.append(thread)
            thread.start()
        self._jobs.put((work, done, delay_ms))

    def _work(self) -> None:
        """A thread's life."""
        while (job := self._jobs.get()) is not None:
            work, done, delay_ms = job
            result = error = None
            if delay_ms:
                time.sleep(delay_ms / 1000.0)
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001 - handed to `done`, which decides
                error = caught
            if not self._closed:
                self._loop.call_soon_threadsafe(self._finish, done, result, error)

    def _finish(
        self,
        done: Callable[[Any, BaseException | None], object],
        result: Any,
        error: BaseException | None,
    ) -> None:
        self._under_way -= 1
        if not self._closed:
            done(result, error)

    def close(self) -> None:
        """Wait for running work; what is queued is dropped, and no `done` is called any more."""
        self._closed = True
        while not self._jobs.empty():
            self._jobs.get_nowait()
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()
