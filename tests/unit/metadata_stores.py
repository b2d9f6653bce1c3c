"""The worlds in which every adapter of the metadata store has to keep the same contract.

A world is one store's state and any number of clients on it, each with a session of its own. To add an adapter, put
a function into WORLDS that makes its world from pytest's `request` (so it can ask for fixtures, a server say).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from culver.clock import Clock, ManualClock, SystemClock
from culver.coordination.local import LocalStore
from culver.coordination.store import Change, Entry, Event, MetadataStore
from culver.scheduler import AsyncioScheduler, Scheduler, T, Timer

PATIENCE_SECONDS = 30.0


class Call:
    """A change or an allocation that was asked for: whether it is done, and what came of it."""

    def __init__(self) -> None:
        self.done = False
        self.first_id: int | None = None
        self.error: BaseException | None = None
        # How many events the client had been told when the call was done.
        self.events_before = -1


class Client:
    """A store as a broker uses it, and everything it was told."""

    def __init__(self, world: StoreWorld, store: MetadataStore, scheduler: MortalScheduler) -> None:
        self.world = world
        self.store = store
        self.scheduler = scheduler
        self.events: list[Event] = []
        self.sessions: list[bool] = []
        self.finished: list[Call] = []  # in the order in which they were reported
        self.on_event: Callable[[str, Entry | None], object] = lambda _path, _entry: None
        self.on_session: Callable[[bool], object] = lambda _begun: None
        self.entries: dict[str, Entry] = dict(store.open(self._take, self._take_session))

    def _take(self, events: Sequence[Event]) -> None:
        for path, entry in events:
            self.events.append((path, entry))
            if entry is None:
                self.entries.pop(path, None)
            else:
                self.entries[path] = entry
            self.on_event(path, entry)

    def _take_session(self, begun: bool) -> None:
        self.sessions.append(begun)
        self.on_session(begun)

    def begin(self, *changes: Change) -> Call:
        """Ask for a change; whoever pumps the world sees it done."""
        call = Call()

        def done(error: BaseException | None) -> None:
            self._finish(call, error)

        self.store.change(changes, done)
        return call

    def begin_ids(self, kind: str, count: int) -> Call:
        call = Call()

        def done(first: int | None, error: BaseException | None) -> None:
            call.first_id = first
            self._finish(call, error)

        self.store.allocate_ids(kind, count, done)
        return call

    def _finish(self, call: Call, error: BaseException | None) -> None:
        assert not call.done, "reported twice"
        call.done, call.error, call.events_before = True, error, len(self.events)
        self.finished.append(call)

    def change(self, *changes: Change) -> BaseException | None:
        """Make a change and wait for its outcome."""
        call = self.begin(*changes)
        self.world.until(lambda: call.done, f"the outcome of {changes}")
        return call.error

    def ids(self, kind: str, count: int) -> int:
        call = self.begin_ids(kind, count)
        self.world.until(lambda: call.done, f"{count} ids")
        assert call.error is None
        assert call.first_id is not None
        return call.first_id

    def sees(self, path: str, value: bytes | None) -> None:
        """Wait until the path has this value here, None meaning that it is not there."""

        def seen() -> bool:
            entry = self.entries.get(path)
            return value is None if entry is None else entry.value == value

        self.world.until(seen, f"{path} being {value!r}")

    def close(self) -> None:
        """End the session as a broker does that stops."""
        self.store.close()
        self.world.clients.remove(self)
        self.scheduler.end()


class StoreWorld(ABC):
    """One state, several clients, and what can happen to them."""

    clock: Clock
    # After how long without a sign of life a session is over.
    session_timeout_ms: int

    def __init__(self) -> None:
        self.clients: list[Client] = []

    @abstractmethod
    def new_store(self, scheduler: Scheduler) -> MetadataStore:
        """A store that has not been opened yet."""

    @abstractmethod
    def new_scheduler(self) -> Scheduler: ...

    @abstractmethod
    def until(self, condition: Callable[[], bool], what: str = "a condition") -> None:
        """Let time pass and callbacks run until the condition holds; fails when it never does."""

    @abstractmethod
    def crash(self, store: MetadataStore) -> None:
        """Take from a store whose callbacks run no more what the kernel takes from a dead process."""

    def open(self) -> Client:
        """One more client, with a session of its own."""
        scheduler = MortalScheduler(self.new_scheduler())
        client = Client(self, self.new_store(scheduler), scheduler)
        self.clients.append(client)
        return client

    def kill(self, client: Client) -> None:
        """End a client as SIGKILL would: nothing of it runs any more, nothing was tidied up."""
        self.clients.remove(client)
        client.scheduler.end()
        self.crash(client.store)

    def stall(self, client: Client) -> None:
        """Stop a client as SIGSTOP would, until `resume`."""
        client.scheduler.hold()

    def resume(self, client: Client) -> None:
        client.scheduler.go_on()

    def pass_ms(self, duration_ms: float) -> None:
        """Let that much time pass."""
        end_ms = self.clock.monotonic_ms() + duration_ms
        self.until(lambda: self.clock.monotonic_ms() >= end_ms, "time to pass")

    def close(self) -> None:
        """Everything is let go of, whatever state it is in."""
        for client in list(self.clients):
            client.scheduler.go_on()
            client.close()


class MortalScheduler:
    """Passes everything on to a real scheduler, until the process that it stands for is stopped or killed."""

    def __init__(self, inner: Scheduler) -> None:
        self._inner = inner
        self._dead = False
        self._stalled = False
        self._held: list[Callable[[], object]] = []

    @property
    def busy(self) -> bool:
        return self._inner.busy

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._inner.call_soon(lambda: self._run(callback))

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return _MortalTimer(self, delay_ms, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        self._inner.run_blocking(
            work, lambda result, error: self._run(lambda: done(result, error)), delay_ms=delay_ms
        )

    def _run(self, callback: Callable[[], object]) -> None:
        if self._dead:
            return
        if self._stalled:
            self._held.append(callback)
        else:
            callback()

    def hold(self) -> None:
        self._stalled = True

    def go_on(self) -> None:
        """What came due meanwhile runs, in its order."""
        self._stalled = False
        held, self._held = self._held, []
        for callback in held:
            self._inner.call_soon(lambda callback=callback: self._run(callback))  # type: ignore[misc]

    def end(self) -> None:
        self._dead = True
        self._held.clear()
        close = getattr(self._inner, "close", None)
        if close is not None:
            close()


class _MortalTimer:
    def __init__(self, scheduler: MortalScheduler, delay_ms: float, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback
        self._scheduler = scheduler
        self._timer = scheduler._inner.call_later(delay_ms, lambda: scheduler._run(self._fire))

    def _fire(self) -> None:
        callback, self._callback = self._callback, None
        if callback is not None:
            callback()

    def cancel(self) -> None:
        self._callback = None
        self._timer.cancel()


class AsyncioWorld(StoreWorld):
    """Real time, an event loop and real threads."""

    def __init__(self, session_timeout_ms: int) -> None:
        super().__init__()
        self.clock = SystemClock()
        self.session_timeout_ms = session_timeout_ms
        self.loop = asyncio.new_event_loop()
        self.failures: list[dict[str, Any]] = []
        self.loop.set_exception_handler(lambda _loop, context: self.failures.append(context))

    def new_scheduler(self) -> Scheduler:
        return AsyncioScheduler(self.loop)

    def until(self, condition: Callable[[], bool], what: str = "a condition") -> None:
        deadline = time.monotonic() + PATIENCE_SECONDS

        async def wait() -> None:
            while not condition():
                if time.monotonic() > deadline:
                    raise TimeoutError(f"waited {PATIENCE_SECONDS:g} s for {what}")
                await asyncio.sleep(0.001)

        self.loop.run_until_complete(wait())
        assert not self.failures, self.failures

    def close(self) -> None:
        super().close()
        self.loop.close()


class SteppedTime:
    """Time that moves only to the next thing that is due, for any number of schedulers."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        # How long a thread takes to come to its work, and how long the loop takes to hear of it.
        self.delay_ms: Callable[[], float] = lambda: 0.0
        self._numbers = itertools.count()
        self._due: list[tuple[float, int, Callable[[], object]]] = []

    def at(self, delay_ms: float, callback: Callable[[], object]) -> _SteppedTimer:
        timer = _SteppedTimer(callback)
        heapq.heappush(
            self._due, (self.clock.monotonic_ms() + max(0.0, delay_ms), next(self._numbers), timer.fire)
        )
        return timer

    def step(self) -> bool:
        """Run what is due next, moving time there; False when nothing is."""
        if not self._due:
            return False
        due_ms, _number, callback = heapq.heappop(self._due)
        late_ms = due_ms - self.clock.monotonic_ms()
        if late_ms > 0:
            self.clock.advance_ms(late_ms)  # type: ignore[arg-type]
        callback()
        return True


class _SteppedTimer:
    def __init__(self, callback: Callable[[], object]) -> None:
        self._callback: Callable[[], object] | None = callback

    def fire(self) -> None:
        if self._callback is not None:
            self._callback()

    def cancel(self) -> None:
        self._callback = None


class SteppedScheduler:
    """Blocking work runs in one go when its turn comes, its `done` in a later turn."""

    def __init__(self, time: SteppedTime) -> None:
        self._time = time
        self._under_way = 0

    @property
    def busy(self) -> bool:
        return self._under_way > 0

    def call_soon(self, callback: Callable[[], object]) -> None:
        self._time.at(0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Timer:
        return self._time.at(delay_ms, callback)

    def run_blocking(
        self,
        work: Callable[[], T],
        done: Callable[[T | None, BaseException | None], object],
        delay_ms: float = 0.0,
    ) -> None:
        self._under_way += 1

        def run() -> None:
            result: T | None = None
            error: BaseException | None = None
            try:
                result = work()
            except BaseException as caught:  # noqa: BLE001 - handed on, as a thread would
                error = caught
            self._time.at(self._time.delay_ms(), lambda: finish(result, error))

        def finish(result: T | None, error: BaseException | None) -> None:
            self._under_way -= 1
            done(result, error)

        self._time.at(delay_ms + self._time.delay_ms(), run)


class SteppedWorld(StoreWorld):
    """Virtual time: a timeout passes at once, and each run is like the last."""

    steps_max = 200_000

    def __init__(self, session_timeout_ms: int) -> None:
        super().__init__()
        self.time = SteppedTime()
        self.clock = self.time.clock
        self.session_timeout_ms = session_timeout_ms

    def new_scheduler(self) -> Scheduler:
        return SteppedScheduler(self.time)

    def until(self, condition: Callable[[], bool], what: str = "a condition") -> None:
        for _ in range(self.steps_max):
            if condition():
                return
            if not self.time.step():
                break
        raise TimeoutError(f"nothing more happens that could bring {what}")

    def pass_ms(self, duration_ms: float) -> None:
        self.time.at(duration_ms, lambda: None)
        super().pass_ms(duration_ms)


class _LocalFiles:
    """What both worlds of the local store share: where its file is, and how a process of it dies."""

    session_timeout_ms: int
    clock: Clock
    path: Path

    def new_store(self, scheduler: Scheduler) -> MetadataStore:
        return LocalStore(str(self.path), scheduler, self.clock, session_timeout_ms=self.session_timeout_ms)

    def crash(self, store: MetadataStore) -> None:
        assert isinstance(store, LocalStore)
        store.abandon()


class LocalWorld(_LocalFiles, AsyncioWorld):
    """The local store as a broker runs it."""

    def __init__(self, directory: Path) -> None:
        super().__init__(session_timeout_ms=800)
        self.path = directory / "metadata.sqlite"


class SteppedLocalWorld(_LocalFiles, SteppedWorld):
    """The local store in virtual time."""

    def __init__(self, directory: Path) -> None:
        super().__init__(session_timeout_ms=2000)
        self.path = directory / "metadata.sqlite"


WORLDS: dict[str, Callable[[pytest.FixtureRequest], StoreWorld]] = {
    "local": lambda request: LocalWorld(request.getfixturevalue("tmp_path")),
    "local-stepped": lambda request: SteppedLocalWorld(request.getfixturevalue("tmp_path")),
}
