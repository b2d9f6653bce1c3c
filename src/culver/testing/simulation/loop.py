"""Virtual time: one queue of events for all processes of a simulation, and an event loop for each process."""

from __future__ import annotations

import asyncio
import heapq
import inspect
import random
from asyncio import events
from collections import deque
from collections.abc import Callable, Coroutine, Generator
from contextvars import Context, copy_context
from math import ceil
from typing import Any, TypeVar

from culver.testing.simulation.trace import Trace

T = TypeVar("T")

# So many events at one and the same moment mean that somebody waits for time to pass by asking again and again.
_EVENTS_AT_ONE_MOMENT_MAX = 200_000


class SimulationStuck(Exception):
    """The run cannot go on: nothing is left to happen, or time stands still."""


class Event:
    """Something that will happen; also what asyncio calls a handle."""

    __slots__ = ("_cancelled", "args", "callback", "context", "process", "when_us")

    def __init__(
        self,
        when_us: int,
        process: Process | None,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: Context | None,
    ) -> None:
        self.when_us = when_us
        self.process = process
        self.callback = callback
        self.args = args
        self.context = context
        self._cancelled = False

    def cancel(self) -> None:
        self._cancelled = True

    def cancelled(self) -> bool:
        return self._cancelled

    def when(self) -> float:
        return self.when_us / 1e6


class World:
    """The queue of all events and the one clock behind all clocks. Events at the same moment keep their order."""

    def __init__(self, seed: int | str) -> None:
        self.seed = seed
        self.now_us = 0
        self.trace = Trace(lambda: self.now_us, lambda: self.running)
        self.running: Process | None = None
        # What no callback may raise: a broker with an unexpected exception is a finding.
        self.errors: list[str] = []
        self._queue: list[tuple[int, int, Event]] = []
        self._number = 0
        self.event_count = 0
        self.processes: list[Process] = []

    def random(self, purpose: str) -> random.Random:
        """A source of its own for each purpose, so that one more draw here changes nothing there."""
        return random.Random(f"{self.seed}/{purpose}")

    def at(
        self,
        when_us: int,
        process: Process | None,
        callback: Callable[..., object],
        *args: Any,
        context: Context | None = None,
    ) -> Event:
        event = Event(when_us, process, callback, args, context)
        self._push(event)
        return event

    def after(
        self, delay_us: int, process: Process | None, callback: Callable[..., object], *args: Any
    ) -> Event:
        return self.at(self.now_us + delay_us, process, callback, *args)

    def _push(self, event: Event) -> None:
        self._number += 1
        heapq.heappush(self._queue, (event.when_us, self._number, event))

    def run(self, until: Callable[[], bool], limit_us: int) -> bool:
        """Let things happen until the condition holds or the time is over; whether the condition holds."""
        queue = self._queue
        at_this_moment = 0
        before = events._get_running_loop()
        current: object = None
        try:
            while not until():
                if not queue:
                    raise SimulationStuck("nothing is left to happen")
                when_us, _, event = queue[0]
                if when_us > limit_us:
                    self.now_us = limit_us
                    return until()
                heapq.heappop(queue)
                if event._cancelled:
                    continue
                process = event.process
                if process is not None and not process.running:
                    process._defer(event)
                    continue
                if when_us > self.now_us:
                    self.now_us = when_us
                    at_this_moment = 0
                else:
                    at_this_moment += 1
                    if at_this_moment > _EVENTS_AT_ONE_MOMENT_MAX:
                        raise SimulationStuck(f"time stands still at {event.callback}")
                self.event_count += 1
                self.running = process
                loop = None if process is None else process.loop
                if loop is not current:
                    events._set_running_loop(loop)
                    current = loop
                self._happen(event)
        finally:
            self.running = None
            events._set_running_loop(before)
        return True

    def _happen(self, event: Event) -> None:
        process = event.process
        self.trace.step("-" if process is None else process.name)
        try:
            if event.context is None:
                event.callback(*event.args)
            else:
                event.context.run(event.callback, *event.args)
        except Exception as error:  # noqa: BLE001 - as an event loop does; here it ends in the verdict
            self.failed(f"{type(error).__name__}: {error}", error)

    def failed(self, text: str, error: BaseException | None = None) -> None:
        """Something that must never happen has happened."""
        where = "-" if self.running is None else self.running.name
        self.errors.append(f"{where}: {text}")
        self.trace.note(f"unexpected: {text}", error)


class Process:
    """A program that can be frozen and killed: its callbacks run in order, wait while it is frozen, and die with it."""

    def __init__(self, world: World, name: str, host: str) -> None:
        self.world = world
        self.name = name
        self.host = host
        self.loop = ProcessLoop(self)  # type: ignore[abstract]
        self.alive = True
        self.paused = False
        self._backlog: deque[Event] = deque()
        # What it leaves behind is kept, not collected: a coroutine that is thrown away would run its `finally`.
        self.remains: list[object] = []
        world.processes.append(self)

    @property
    def running(self) -> bool:
        return self.alive and not self.paused

    def kill(self) -> None:
        self.alive = False
        self._backlog.clear()

    def pause(self) -> None:
        """Freeze it, as SIGSTOP does: what falls due meanwhile waits."""
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        backlog, self._backlog = self._backlog, deque()
        for event in backlog:
            event.when_us = self.world.now_us
            self.world._push(event)

    def _defer(self, event: Event) -> None:
        if self.alive:
            self._backlog.append(event)

    def soon(self, callback: Callable[..., object], *args: Any) -> Event:
        return self.world.at(self.world.now_us, self, callback, *args)

    def later(self, delay_us: int, callback: Callable[..., object], *args: Any) -> Event:
        return self.world.at(self.world.now_us + delay_us, self, callback, *args)

    def start(self, coroutine: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Run a coroutine in this process."""
        task: asyncio.Task[T] = self.loop.create_task(coroutine)
        task.add_done_callback(self._ended)
        return task

    def _ended(self, task: asyncio.Task[Any]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            self.world.failed(f"a task failed with {type(error).__name__}: {error}", error)

    def let_go(self) -> None:
        """The run is over. What was never begun is closed, so that nobody takes it for forgotten."""
        for task in self.remains:
            if isinstance(task, asyncio.Task):
                coroutine = task.get_coro()
                if (
                    inspect.iscoroutine(coroutine)
                    and inspect.getcoroutinestate(coroutine) == inspect.CORO_CREATED
                ):
                    coroutine.close()

    def unnoticed_errors(self) -> list[BaseException]:
        """Of tasks that failed while nobody waited for them."""
        return [
            error
            for task in self.remains
            if isinstance(task, asyncio.Task) and task.done() and not task.cancelled() and task._log_traceback
            if (error := task.exception()) is not None
        ]


class ProcessLoop(asyncio.AbstractEventLoop):
    """What asyncio's futures, tasks and timeouts see of a process."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._world = process.world
        self._executor_random = process.world.random(f"executor/{process.name}")

    def time(self) -> float:
        return self._world.now_us / 1e6

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return self._process.alive

    def is_closed(self) -> bool:
        return False

    def call_soon(  # type: ignore[override]
        self, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        return self._world.at(self._world.now_us, self._process, callback, *args, context=context)

    call_soon_threadsafe = call_soon  # type: ignore[assignment]

    def call_later(  # type: ignore[override]
        self, delay: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        when_us = self._world.now_us + max(0, ceil(delay * 1e6))
        return self._world.at(when_us, self._process, callback, *args, context=context)

    def call_at(  # type: ignore[override]
        self, when: float, callback: Callable[..., object], *args: Any, context: Context | None = None
    ) -> Event:
        when_us = max(self._world.now_us, ceil(when * 1e6))
        return self._world.at(when_us, self._process, callback, *args, context=context)

    def create_future(self) -> asyncio.Future[Any]:
        return asyncio.Future(loop=self)

    def create_task(
        self,
        coro: Generator[Any, None, T] | Coroutine[Any, Any, T],
        *,
        name: str | None = None,
        context: Context | None = None,
    ) -> asyncio.Task[T]:
        task: asyncio.Task[T] = asyncio.Task(
            coro, loop=self, name=name or "task", context=context or copy_context()
        )
        # A task that dies with its process is nothing to complain about.
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._process.remains.append(task)
        return task

    def run_in_executor(  # type: ignore[override]
        self, executor: object, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Work on a thread: it happens as a whole at some later moment."""
        future: asyncio.Future[T] = self.create_future()

        def work() -> None:
            try:
                future.set_result(func(*args))
            except Exception as error:  # noqa: BLE001 - the future carries it
                future.set_exception(error)

        self._process.later(self._executor_random.randint(50, 3_000), work)
        return future

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._world.failed(f"{context.get('message')}: {error}", error)

    def default_exception_handler(self, context: dict[str, Any]) -> None:
        self.call_exception_handler(context)
