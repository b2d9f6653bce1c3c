"""A broker's side of the simulated metadata store: a session over a link that may fail, and what it can be sure of.

Requests, answers and notices of changes travel in order on one connection, as with ZooKeeper, so a broker has heard
of its own change before it is told that it was made. When the connection breaks, whatever was not answered may or
may not have been done.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

from culver.clock import Clock
from culver.coordination.store import Change, Conflict, Done, Entry, IdsDone, OnEvents, OnSession, StoreError
from culver.testing.simulation.loop import Process, World
from culver.testing.simulation.network import SimulatedNetwork
from culver.testing.simulation.store_server import Session, StoreServer, Subscriber

STORE_HOST = "store"
_RETRANSMIT_US = 50_000

_Work: TypeAlias = Callable[[Session], int | None]
_Finished: TypeAlias = Callable[[int | None, BaseException | None], object]


class SimulatedStore:
    """culver.coordination.store.MetadataStore for one process."""

    def __init__(
        self,
        server: StoreServer,
        network: SimulatedNetwork,
        process: Process,
        clock: Clock,
        session_timeout_ms: int,
        generator: random.Random,
    ) -> None:
        self._server = server
        self._network = network
        self._world: World = network.world
        self._process = process
        self._clock = clock
        self._timeout_ms = session_timeout_ms
        self._random = generator
        # Some clients decide for themselves that their session is over, others wait for the server's word.
        self._impatient = generator.random() < 0.5
        self._session: Session | None = None
        self._connection: _Connection | None = None
        self._seen = 0  # how many of the server's events the broker has been told
        self._lease_until_ms = float("-inf")
        self._closed = False
        self._on_events: OnEvents = lambda events: None
        self._on_session: OnSession = lambda alive: None

    @property
    def lease_until_ms(self) -> float:
        return self._lease_until_ms

    # -- the port ---------------------------------------------------------------------------------------

    def open(self, on_events: OnEvents, on_session: OnSession) -> Mapping[str, Entry]:
        if not self._reachable():
            raise StoreError("the metadata store does not answer")
        self._on_events = on_events
        self._on_session = on_session
        self._session = self._server.begin_session(self._timeout_ms * 1000)
        self._lease_until_ms = self._clock.monotonic_ms() + self._timeout_ms
        self._seen = len(self._server.events)
        self._attach(self._session)
        self._process.later(self._timeout_ms * 1000 // 4, self._watch)
        return dict(self._server.entries)

    def change(self, changes: Sequence[Change], done: Done) -> None:
        asked = list(changes)

        def work(session: Session) -> None:
            self._server.apply(session, asked)

        self._ask(work, lambda _result, error: done(error))

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        assert count > 0
        self._ask(lambda _session: self._server.allocate(kind, count), done)

    def close(self) -> None:
        self._closed = True
        self._lease_until_ms = float("-inf")
        if self._session is not None and self._reachable():
            self._server.end_session(self._session)
        if self._connection is not None:
            self._connection.broken = True
        self._session = self._connection = None

    def process_died(self, seen_at_once: bool) -> None:
        """The process is gone without a word. Where the store runs on the same machine, that is seen at once."""
        if self._connection is not None:
            self._connection.broken = True
        if seen_at_once and self._session is not None:
            self._server.end_session(self._session)

    # -- the connection ---------------------------------------------------------------------------------

    def _reachable(self) -> bool:
        host = self._process.host
        return (
            self._server.up
            and self._network.reaches(host, STORE_HOST)
            and self._network.reaches(STORE_HOST, host)
        )

    def _ask(self, work: _Work, finished: _Finished) -> None:
        if self._closed:
            raise StoreError("the metadata store is closed")
        if self._connection is None:
            error = StoreError("there is no connection to the metadata store")
            self._process.soon(finished, None, error)
            return
        self._connection.ask(work, finished)

    def _attach(self, session: Session) -> None:
        self._connection = session.connection = _Connection(self, session)

    def _watch(self) -> None:
        """Ping, notice silence, and come back after it."""
        if self._closed:
            return
        connection = self._connection
        now_ms = self._clock.monotonic_ms()
        if connection is not None:
            if now_ms - connection.heard_ms > self._timeout_ms * 2 / 3:
                self._disconnected("no answer from the metadata store")
            else:
                connection.ping()
        elif self._reachable():
            self._reconnect()
        if self._impatient and self._session is not None and float("-inf") < self._lease_until_ms <= now_ms:
            self._lost()
        self._process.later(self._random.randrange(50_000, self._timeout_ms * 250), self._watch)

    def _disconnected(self, reason: str) -> None:
        assert self._connection is not None
        self._world.trace.note(f"lost the connection to the store: {reason}")
        broken, self._connection = self._connection, None
        broken.break_off()

    def _reconnect(self) -> None:
        if self._session is not None and self._server.touch(self._session):
            # The lease is renewed by the first answered ping, not by this.
            self._attach(self._session)
            self._catch_up()
            return
        if self._session is not None:
            self._lost()
        began_ms = self._clock.monotonic_ms()
        session = self._session = self._server.begin_session(self._timeout_ms * 1000)
        self._attach(session)
        self._catch_up()
        assert self._connection is not None
        self._connection.send_back(lambda: self._begun(session, began_ms))

    def _begun(self, session: Session, began_ms: float) -> None:
        if session is self._session:
            self._lease_until_ms = began_ms + self._timeout_ms
            self._on_session(True)

    def _lost(self) -> None:
        self._session = None
        self._lease_until_ms = float("-inf")
        if self._connection is not None:
            self._disconnected("the session is over")
        self._on_session(False)

    def _catch_up(self) -> None:
        if self._connection is not None:
            self._connection.changed()

    # -- what comes back --------------------------------------------------------------------------------

    def deliver_events(self, up_to: int) -> None:
        """Tell the broker what it has not heard yet; of several changes to one path the last one will do."""
        events = self._server.events[self._seen : up_to]
        if not events:
            return
        self._seen = up_to
        if self._random.random() < 0.3:
            events = list({path: (path, entry) for path, entry in events}.values())
        self._on_events(events)

    def pinged(self, sent_ms: float) -> None:
        if self._session is not None:
            self._lease_until_ms = max(self._lease_until_ms, sent_ms + self._timeout_ms)

    def expired(self) -> None:
        if self._session is not None:
            self._lost()


class _Way:
    """One direction: messages arrive in order, and wait while they cannot get through."""

    def __init__(
        self, network: SimulatedNetwork, source: str, target: str, taken: Callable[[], bool]
    ) -> None:
        self._network = network
        self._world = network.world
        self._source = source
        self._target = target
        self._taken = taken
        self._last_us = 0
        self._held: deque[Callable[[], object]] = deque()

    def send(self, arrive: Callable[[], object]) -> None:
        self._last_us = max(self._last_us, self._world.now_us + self._network.delay_us())
        self._world.at(self._last_us, None, self._arrive, arrive)

    def _open(self) -> bool:
        return self._taken() and self._network.reaches(self._source, self._target)

    def _arrive(self, arrive: Callable[[], object]) -> None:
        if not self._held and self._open():
            arrive()
            return
        self._held.append(arrive)
        if len(self._held) == 1:
            self._world.after(_RETRANSMIT_US, None, self._try_again)

    def _try_again(self) -> None:
        if self._held and not self._open():
            self._world.after(_RETRANSMIT_US, None, self._try_again)
            return
        held, self._held = self._held, deque()
        for arrive in held:
            arrive()

    def drop_held(self) -> None:
        """The connection is broken: what waits will never arrive, though what is under way may."""
        self._held.clear()


class _Connection(Subscriber):
    """Two ordered ways between a client and the server."""

    def __init__(self, store: SimulatedStore, session: Session) -> None:
        self._store = store
        self._session = session
        self._server = store._server
        self._world = store._world
        self._network = store._network
        self._process = store._process
        self.broken = False
        self.heard_ms = store._clock.monotonic_ms()
        self._unanswered: deque[_Finished] = deque()
        host = self._process.host
        self._there = _Way(self._network, host, STORE_HOST, lambda: self._server.up)
        self._back = _Way(self._network, STORE_HOST, host, lambda: True)
        self._notice_under_way = False

    def break_off(self) -> None:
        """The client gives up: what was not answered will never be, done or not."""
        self.broken = True
        self._there.drop_held()
        self._back.drop_held()
        unanswered, self._unanswered = self._unanswered, deque()
        for finished in unanswered:
            finished(None, StoreError("the connection to the metadata store broke"))

    def ask(self, work: _Work, finished: _Finished) -> None:
        self._unanswered.append(finished)
        self._there.send(lambda: self._serve(work))

    def ping(self) -> None:
        sent_ms = self._store._clock.monotonic_ms()
        self._there.send(lambda: self._pong(sent_ms))

    # What follows up to send_back happens at the server.

    def _serve(self, work: _Work) -> None:
        if not self._alive():
            return
        result: int | None = None
        error: BaseException | None = None
        try:
            result = work(self._session)
        except Conflict as conflict:
            error = conflict
        self.send_back(lambda: self._answered(result, error))

    def _pong(self, sent_ms: float) -> None:
        if self._alive():
            self.send_back(lambda: self._store.pinged(sent_ms))

    def _alive(self) -> bool:
        if self._session.connection is not self:
            return False  # the client has come back on another connection: this one's messages are stale
        if self._server.touch(self._session):
            return True
        self.send_back(self._store.expired)
        return False

    def changed(self) -> None:
        if not self._notice_under_way:
            self._notice_under_way = True
            self.send_back(self._notified)

    def send_back(self, receive: Callable[[], object]) -> None:
        # An answer must not overtake the notices of changes that were made before it.
        up_to = len(self._server.events)
        self._back.send(lambda: self._process.soon(self._receive, receive, up_to))

    # At the client again.

    def _receive(self, receive: Callable[[], object], up_to: int) -> None:
        if self.broken:
            return
        self.heard_ms = self._store._clock.monotonic_ms()
        self._store.deliver_events(up_to)
        if not self.broken:
            receive()

    def _notified(self) -> None:
        self._notice_under_way = False
        if self._store._seen < len(self._server.events):
            self.changed()

    def _answered(self, result: int | None, error: BaseException | None) -> None:
        if self._unanswered:
            self._unanswered.popleft()(result, error)
