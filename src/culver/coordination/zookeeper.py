"""The metadata store of many machines: a ZooKeeper ensemble.

An entry is a node under the path that the address names, a change is one ZooKeeper transaction, an ephemeral entry is
an ephemeral node. ids are counters under PATH/ids. The ensemble must be open to the brokers only: who can reach it can
read and change everything, the cluster's secret included.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    BadVersionError,
    ConnectionLoss,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.protocol.states import KazooState

from culver.clock import Clock
from culver.coordination.store import (
    Change,
    Check,
    Conflict,
    Create,
    Done,
    Entry,
    Event,
    IdsDone,
    OnEvents,
    OnSession,
    StoreError,
)
from culver.coordination.zookeeper_changes import conflict_in, error_text, transaction_of, why_too_large
from culver.coordination.zookeeper_client import Inbox, ZooKeeperClient, parse_address
from culver.coordination.zookeeper_mirror import IDS, Countdown, Mirror
from culver.logging import get_logger
from culver.scheduler import Scheduler, Timer

_log = get_logger("culver.zookeeper")

CONNECT_TIMEOUT_MS = 30_000
# How often the session is renewed, in parts of its timeout.
_RENEWALS = 10
# How much of the timeout is certain after a renewal. A server of an ensemble tells its leader, who lets sessions
# expire, of its clients every half tick; a tick is at most half the timeout. So when a renewal is answered the leader
# may last have heard of us a quarter of the timeout before, and of the renewal before that one.
_CERTAIN_SHARE = 1 - 1 / 4 - 1 / _RENEWALS - 0.05
_WAIT_SECONDS = 0.1


@dataclass(slots=True, eq=False)
class _Job:
    """A call that was made; its outcome is reported after those of all earlier ones."""

    begin: Callable[[_Job], object]
    report: Callable[[int | None, BaseException | None], object]
    asked_ms: float
    finished: bool = False
    result: int | None = None
    error: BaseException | None = None


@dataclass(slots=True, eq=False)
class _Renewal:
    """A request that keeps the session alive, and when it was sent."""

    sent_ms: float


class ZooKeeperStore:
    """Calls made while no server answers wait for one, for a session's timeout at most, and never for a new session."""

    def __init__(
        self,
        address: str,
        scheduler: Scheduler,
        clock: Clock,
        session_timeout_ms: int,
        *,
        connect_timeout_ms: int = CONNECT_TIMEOUT_MS,
    ) -> None:
        try:
            self._hosts, self._root = parse_address(address)
        except ValueError as error:
            raise StoreError(str(error)) from error
        self._scheduler = scheduler
        self._clock = clock
        self._connect_timeout_ms = connect_timeout_ms
        self._inbox = Inbox(scheduler)
        self._client = ZooKeeperClient(
            self._hosts, session_timeout_ms, self._inbox, clock, self._connection_changed, self._noticed
        )
        self._mirror = Mirror(self._client, self._root, self._tell)
        self._on_events: OnEvents = lambda _events: None
        self._on_session: OnSession = lambda _begun: None
        self._lease_until_ms = -math.inf
        self._renewal: _Renewal | None = None  # the one under way
        self._timer: Timer | None = None
        self._notices = False  # whether any has come, since the last connection was made
        self._all_read = False  # since the last connection was made
        self._begun = False  # whether the session can be used: all has been read, and the lease is certain
        self._told_of_session = True
        self._opening = False
        self._failure: Exception | None = None
        self._jobs: deque[_Job] = deque()
        self._held: deque[_Job] = deque()
        self._closed = False

    # --- the port ---

    @property
    def lease_until_ms(self) -> float:
        return self._lease_until_ms

    def open(self, on_events: OnEvents, on_session: OnSession) -> Mapping[str, Entry]:
        self._opening = True
        started_ms = self._clock.monotonic_ms()
        self._client.start()
        self._wait_until_begun(started_ms)
        self._opening = False
        self._on_events, self._on_session = on_events, on_session
        self._tick()
        _log.info(
            "opened",
            hosts=self._hosts,
            path=self._root,
            entries=len(self._mirror.entries),
            session_timeout_ms=self._client.session_timeout_ms,
            took_ms=round(self._clock.monotonic_ms() - started_ms),
        )
        return dict(self._mirror.entries)

    def change(self, changes: Sequence[Change], done: Done) -> None:
        too_large = why_too_large(changes)

        def begin(job: _Job) -> None:
            if too_large is not None:
                self._finish(job, too_large)
            else:
                self._make(job, changes)

        self._submit(begin, lambda _result, error: done(error))

    def allocate_ids(self, kind: str, count: int, done: IdsDone) -> None:
        assert count > 0
        self._submit(lambda job: self._allocate(job, f"{self._root}/{IDS}/{kind}", count), done)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._lease_until_ms = -math.inf
        if self._timer is not None:
            self._timer.cancel()
        self._client.close()

    # --- opening ---

    def _wait_until_begun(self, started_ms: float) -> None:
        """Runs what arrives, here, because the broker's thread is in here."""
        deadline_ms = started_ms + self._connect_timeout_ms
        told = False
        while not self._inbox.wait(lambda: self._begun or self._failure is not None, _WAIT_SECONDS):
            self._keep_alive()
            now_ms = self._clock.monotonic_ms()
            if now_ms > deadline_ms:
                self.close()
                raise StoreError(
                    f"no ZooKeeper server at {self._hosts} answered within {self._connect_timeout_ms / 1000:g} s: "
                    "start it, or correct the address (culver.coordination)"
                )
            if not told and now_ms > started_ms + 1000:
                told = True
                _log.warning("waiting for ZooKeeper", hosts=self._hosts, connected=self._client.connected)
        if self._failure is not None:
            self.close()
            raise StoreError(
                f"cannot use {self._root} in ZooKeeper at {self._hosts}: {error_text(self._failure)}"
            )

    def _make_root(self) -> None:
        names = self._root.split("/")[1:]
        paths = ["/" + "/".join(names[:count]) for count in range(1, len(names) + 1)]
        for path in [*paths, f"{self._root}/{IDS}"]:
            self._create_directory(path)

    def _create_directory(self, path: str) -> None:
        self._client.request(lambda kazoo: kazoo.create_async(path, None), self._made_directory)

    def _made_directory(self, _value: Any, error: Exception | None) -> None:
        if error is not None and not isinstance(error, NodeExistsError):
            self._failed(error)

    # --- the connection and the session ---

    def _connection_changed(self, state: KazooState) -> None:
        self._renewal = None
        self._notices = self._all_read = False
        self._mirror.disconnected(ConnectionLoss())
        if state == KazooState.CONNECTED:
            _log.info("connected", session=f"{self._client.session:#x}")
            if self._opening or not self._told_of_session:
                self._make_root()
            # A new session may be with a server that lags behind the one that the last was with.
            self._renew()
            self._read_all()
            if self._begun:
                self._go_on()
        elif state == KazooState.SUSPENDED:
            _log.warning("no connection", hosts=self._hosts, session=f"{self._client.session or 0:#x}")
        else:
            self._lose_session()

    def _lose_session(self) -> None:
        _log.warning("the session is lost", hosts=self._hosts)
        self._lease_until_ms = -math.inf
        self._begun = False
        self._refuse_held("the session was lost", math.inf)
        if self._told_of_session and not self._opening:
            self._told_of_session = False
            self._on_session(False)

    def _read_all(self) -> None:
        """Ask for notices, see that they come, and read everything."""
        tested = f"{self._root}/{IDS}"
        self._client.watch_all(self._root, self._watched)
        self._client.request(lambda kazoo: kazoo.set_async(tested, None), self._tested)
        self._mirror.read_all(self._all_is_read)

    def _watched(self, _value: Any, error: Exception | None) -> None:
        if isinstance(error, UnimplementedError):
            self._failed(StoreError("ZooKeeper 3.6 or newer is needed"))
        elif error is not None:
            self._failed(error)

    def _noticed(self, path: str) -> None:
        self._notices = True
        self._mirror.notice(path)

    def _tested(self, _value: Any, error: Exception | None) -> None:
        if error is not None:
            self._failed(error)
        elif not self._notices:
            # Without them all would seem well, and nothing would ever change.
            self._failed(StoreError("no notices of changes come: install kazoo 2.11"))

    def _all_is_read(self, error: Exception | None) -> None:
        if error is None:
            self._all_read = True
            self._begin_session()
        else:
            self._failed(error)

    def _begin_session(self) -> None:
        if self._begun or not self._all_read or self._lease_until_ms == -math.inf:
            return
        self._begun = True
        if not self._told_of_session:
            self._told_of_session = True
            _log.info("a new session has begun", session=f"{self._client.session:#x}")
            self._on_session(True)
        self._go_on()

    def _failed(self, error: Exception) -> None:
        """A lost connection comes back. But ZooKeeper may refuse what must not be refused: access, say."""
        if isinstance(error, (ConnectionLoss, SessionExpiredError)):
            return
        if self._opening:
            self._failure = error
        else:
            _log.error("ZooKeeper refused a request", error=error_text(error))

    def _keep_alive(self) -> None:
        self._client.note_alive()
        if self._client.connected and self._renewal is None:
            self._renew()

    def _tick(self) -> None:
        self._keep_alive()
        self._refuse_held(
            "no ZooKeeper server answers", self._clock.monotonic_ms() - self._client.session_timeout_ms
        )
        self._timer = self._scheduler.call_later(self._client.session_timeout_ms / _RENEWALS, self._tick)

    def _renew(self) -> None:
        """Touch the session, by a request that goes through to the ensemble's leader.

        A server that has lost its leader goes on answering reads while the leader lets its sessions expire; a sync
        it cannot answer. There is one renewal under way at most, and nothing else is sent while it is late: kazoo
        takes a connection for dead only when it has been silent both ways.
        """
        renewal = self._renewal = _Renewal(self._clock.monotonic_ms())

        def answered(_value: Any, error: Exception | None) -> None:
            if renewal is not self._renewal:  # of an earlier connection
                return
            self._renewal = None
            if error is None:
                until_ms = renewal.sent_ms + self._client.session_timeout_ms * _CERTAIN_SHARE
                self._lease_until_ms = max(self._lease_until_ms, until_ms)
                self._begin_session()
                self._go_on()

        self._client.request(lambda kazoo: kazoo.sync_async(self._root), answered)

    # --- calls ---

    @property
    def _usable(self) -> bool:
        if not (self._begun and self._client.connected):
            return False
        renewal = self._renewal
        late_ms = 0.0 if renewal is None else self._clock.monotonic_ms() - renewal.sent_ms
        return late_ms < self._client.session_timeout_ms / 3

    def _submit(
        self,
        begin: Callable[[_Job], object],
        report: Callable[[int | None, BaseException | None], object],
    ) -> None:
        if self._closed:
            raise StoreError("the metadata store is closed")
        job = _Job(begin, report, self._clock.monotonic_ms())
        self._jobs.append(job)
        self._held.append(job)
        self._go_on()

    def _go_on(self) -> None:
        while self._held and self._usable:
            job = self._held.popleft()
            job.begin(job)

    def _refuse_held(self, why: str, asked_before_ms: float) -> None:
        while self._held and self._held[0].asked_ms <= asked_before_ms:
            self._finish(self._held.popleft(), StoreError(why))

    def _finish(self, job: _Job, error: BaseException | None, result: int | None = None) -> None:
        job.finished, job.error, job.result = True, error, result
        # In its own turn: whoever made the call is never answered before it has returned.
        self._inbox.put(self._report_finished)

    def _report_finished(self) -> None:
        while self._jobs and self._jobs[0].finished and not self._closed:
            job = self._jobs.popleft()
            job.report(job.result, job.error)

    def _tell(self, events: Sequence[Event]) -> None:
        if not (self._opening or self._closed):
            self._on_events(events)

    # --- changes ---

    def _make(self, job: _Job, changes: Sequence[Change]) -> None:
        """The transaction, and behind it, without waiting for its answer, the readings that bring the events."""
        for change in changes:
            if isinstance(change, Create):
                self._make_directory(change.path)
        outcome: list[Exception | None] = []

        def make(kazoo: KazooClient) -> Any:
            return transaction_of(kazoo, self._root, changes).commit_async()

        def answered(results: Any, error: Exception | None) -> None:
            failed = StoreError(error_text(error)) if error is not None else conflict_in(changes, results)
            outcome.append(failed)
            if isinstance(failed, Conflict):  # why it was refused is told before that it was
                self._mirror.read(failed.path, parts)
            else:
                parts(None)

        def read(error: Exception | None) -> None:
            if error is None:
                self._mirror.when_told(told)
            else:
                told(error)

        def told(error: Exception | None) -> None:
            failed = outcome[0]
            if failed is None and error is not None:
                failed = StoreError(error_text(error))
            self._finish(job, failed)

        paths = {change.path for change in changes if not isinstance(change, Check)}
        parts = Countdown(1 + len(paths), read)
        self._client.request(make, answered)
        for path in paths:
            self._mirror.read(path, parts)

    def _make_directory(self, path: str) -> None:
        directory = path[: path.rindex("/")]
        if directory and directory not in self._mirror.directories:
            self._create_directory(self._root + directory)
            self._mirror.directories.add(directory)
            self._mirror.read(directory, lambda _error: None)

    def _allocate(self, job: _Job, path: str, count: int) -> None:
        """Read the counter, then move it if nobody else did meanwhile, else again."""

        def counted(value: Any, error: Exception | None) -> None:
            if isinstance(error, NoNodeError):
                first = 0
                self._client.request(lambda kazoo: kazoo.create_async(path, b"%d" % count), moved(first))
            elif error is not None:
                self._finish(job, StoreError(error_text(error)))
            else:
                data, facts = value
                first = int(data)
                self._client.request(
                    lambda kazoo: kazoo.set_async(path, b"%d" % (first + count), facts.version), moved(first)
                )

        def moved(first: int) -> Callable[[Any, Exception | None], None]:
            def answered(_value: Any, error: Exception | None) -> None:
                if isinstance(error, (NodeExistsError, BadVersionError)):
                    self._allocate(job, path, count)
                elif error is not None:
                    self._finish(job, StoreError(error_text(error)))
                else:
                    self._finish(job, None, first)

            return answered

        self._client.request(lambda kazoo: kazoo.get_async(path), counted)
