"""kazoo on the broker's thread: its callbacks run there, and a request is made in the session it was meant for.

kazoo keeps the connection on a thread of its own and begins a new session by itself when the old one is lost. Two
things follow. Whatever it has to say goes through an inbox to the broker's thread. And a request that was written for
the old session must not be made in the new one, of which the broker has not heard yet: `request` refuses it.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, TypeAlias

from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped, SessionExpiredError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.serialization import Connect, Watch, int_struct, write_string
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry

from culver.clock import Clock
from culver.coordination.store import StoreError
from culver.coordination.zookeeper_transport import Bell, BufferedSocket, wait
from culver.scheduler import Scheduler

# What came of a request: its result, or why there is none.
Answered: TypeAlias = Callable[[Any, Exception | None], object]
OnConnection: TypeAlias = Callable[[KazooState], object]

DEFAULT_PATH = "/culver"
# Pauses between attempts to connect, in parts of the session's timeout: a blip is not to cost the session.
_RETRY_DELAY_SHARE = 1 / 40
_RETRY_DELAY_MAX_SHARE = 1 / 10
# kazoo reports every failed attempt; the store says once that the connection is gone.
_kazoo_log = logging.getLogger("culver.zookeeper.kazoo")
_kazoo_log.setLevel(logging.ERROR)


def parse_address(address: str) -> tuple[str, str]:
    """`zookeeper://HOST:PORT,HOST:PORT/PATH` as hosts and path. Raises ValueError with what is wrong."""
    form = "zookeeper://HOST:PORT,HOST:PORT/PATH"
    scheme, separator, rest = address.partition("://")
    if not separator or scheme != "zookeeper":
        raise ValueError(f"{address!r} does not have the form {form}")
    hosts, _, path = rest.partition("/")
    for host in hosts.split(","):
        name, colon, port = host.rpartition(":")
        if not (name if colon and not host.endswith("]") else host):
            raise ValueError(f"{address!r} lacks a host: the form is {form}")
        if colon and not host.endswith("]") and not (port.isdecimal() and 0 < int(port) < 65536):
            raise ValueError(f"{port!r} in {address!r} is no port: the form is {form}")
    names = path.strip("/").split("/") if path.strip("/") else []
    if any(name in ("", ".", "..") for name in names):
        raise ValueError(f"the path in {address!r} has an empty or dotted part: the form is {form}")
    return hosts, "/" + "/".join(names) if names else DEFAULT_PATH


class Inbox:
    """Callbacks from any thread, run in their order on the broker's."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._waiting: deque[Callable[[], object]] = deque()
        self._announced = False
        self._arrived = threading.Event()
        self._waited_for = False
        self._closed = False

    def put(self, callback: Callable[[], object]) -> None:
        """May be called on any thread."""
        if self._closed:
            return
        self._waiting.append(callback)
        if self._waited_for:
            self._arrived.set()
        elif not self._announced:
            self._announced = True
            self._scheduler.call_soon_threadsafe(self._run)

    def _run(self) -> None:
        # Cleared before the first look: what is put in after the last look announces itself anew.
        self._announced = False
        try:
            while self._waiting:
                self._waiting.popleft()()
        finally:
            if self._waiting and not self._announced:  # a callback raised: the others still have their turn
                self._announced = True
                self._scheduler.call_soon_threadsafe(self._run)

    def wait(self, condition: Callable[[], bool], timeout_s: float) -> bool:
        """Run callbacks here and now until the condition holds; returns whether it does."""
        self._waited_for = True
        try:
            self._run()
            if not condition() and self._arrived.wait(timeout_s):
                self._arrived.clear()
                self._run()
        finally:
            self._waited_for = False
            self._run()
        return condition()

    def close(self) -> None:
        """Nothing is run any more."""
        self._closed = True
        self._waiting.clear()


class _Handler(SequentialThreadingHandler):  # type: ignore[misc]
    """Puts into the inbox what kazoo would run on two more threads, and makes its sockets cheap."""

    running = True

    def __init__(self, inbox: Inbox) -> None:
        super().__init__()
        self.completion_queue = inbox
        # To be called with the result of the next request.
        self.answered: Callable[[Any], object] | None = None

    def async_result(self) -> Any:
        # Linked before the request goes out: linked after, an answer could come to the inbox behind what came later.
        result = super().async_result()
        answered, self.answered = self.answered, None
        if answered is not None:
            result.rawlink(answered)
        return result

    def start(self) -> None: ...

    def stop(self) -> None: ...

    def dispatch_callback(self, callback: Any) -> None:
        self.completion_queue.put(partial(callback.func, *callback.args))

    def create_connection(self, *arguments: Any, **options: Any) -> BufferedSocket:
        return BufferedSocket(super().create_connection(*arguments, **options))

    def create_socket_pair(self) -> tuple[Bell, Bell]:
        bell = Bell()
        return bell, bell

    def select(
        self, reading: list[Any], writing: list[Any], _other: list[Any], timeout_s: float | None = None
    ) -> tuple[list[Any], list[Any], list[Any]]:
        readable, writable = wait(reading, writing, timeout_s)
        return readable, writable, []


@dataclass(frozen=True)
class _WatchAll:
    """The request for a notice of everything that happens under a path, which kazoo lacks; since ZooKeeper 3.6."""

    path: str

    type: ClassVar[int] = 106
    persistent_recursive: ClassVar[int] = 1

    def serialize(self) -> bytes:
        encoded: bytes = write_string(self.path) + int_struct.pack(self.persistent_recursive)
        return encoded

    @classmethod
    def deserialize(cls, _answer: bytes, _offset: int) -> bool:
        return True


class ZooKeeperClient:
    """One connection at a time, to one server of the ensemble; one session after another.

    `on_connection` is told CONNECTED, SUSPENDED (the session may live on) and LOST (it does not). `connected` and
    `session` are as of the last of these. `on_notice` is told of each path that changes where `watch_all` was asked
    for, which a connection does not outlive.
    """

    def __init__(
        self,
        hosts: str,
        session_timeout_ms: int,
        inbox: Inbox,
        clock: Clock,
        on_connection: OnConnection,
        on_notice: Callable[[str], object],
    ) -> None:
        self._inbox = inbox
        self._clock = clock
        self._on_connection = on_connection
        self._on_notice = on_notice
        self.connected = False
        self.session: int | None = None
        # What the server granted: at least two and at most twenty of its ticks, whatever was asked for.
        self.session_timeout_ms = session_timeout_ms
        self._granted_ms: int | None = None
        # The session as kazoo's thread knows it, ahead of what the broker has been told; both under the fence.
        self._session_now: int | None = None
        self._fence = threading.Lock()
        self._broker_heard_ms = clock.monotonic_ms()
        self._cut_since_ms: float | None = None  # kazoo's thread alone
        self._stopped_by_itself = False
        self._closed = False
        self._handler = handler = _Handler(inbox)
        timeout_s = session_timeout_ms / 1000.0
        self._kazoo = KazooClient(
            hosts,
            timeout=timeout_s,
            handler=handler,
            connection_retry=KazooRetry(
                max_tries=-1,
                delay=timeout_s * _RETRY_DELAY_SHARE,
                backoff=1.5,
                max_delay=timeout_s * _RETRY_DELAY_MAX_SHARE,
                sleep_func=handler.sleep_func,
            ),
            logger=_kazoo_log,
        )
        self._kazoo.add_listener(self._state_changed)
        self._look_inside(self._kazoo._connection)

    def _look_inside(self, connection: Any) -> None:
        """What kazoo keeps to itself: the timeout that was granted, its own pings, what it has seen, and notices.

        kazoo pings a server on its own thread for as long as the process exists. A broker whose thread hangs would
        keep its session, and its partitions, for ever; so without a sign of life from there, no ping goes out. And
        it takes a connection for dead when a ping is not answered within a time that may be a sixth of the timeout;
        so none goes out before there is reason for doubt. The store renews the session in any case. A server that
        has lost its data turns away whoever has seen more than it has, without a word; to find that out, the client
        says after a session's timeout that it has seen nothing. The store syncs before it reads. Notices, lastly,
        kazoo passes on only to those who asked about that very path.
        """
        try:
            invoke, send_ping = connection._invoke, connection._send_ping
            _ = connection._read_watch_event, self._kazoo._call
        except AttributeError as error:
            raise StoreError(
                f"this version of kazoo is not supported, install kazoo 2.11: {error}"
            ) from error

        def invoke_and_note(timeout: float, request: Any, xid: int | None = None) -> Any:
            if isinstance(request, Connect) and self._out_of_touch:
                request = request._replace(last_zxid_seen=0)
            answer = invoke(timeout, request, xid)
            if isinstance(request, Connect):
                self._granted_ms = answer[0].time_out
            return answer

        def ping_while_alive(timeout: float) -> None:
            doubtful_ms = self.session_timeout_ms / 3
            if connection._socket.silent_ms < doubtful_ms:
                return
            if self._closed:
                raise ConnectionDropped("the end of the session is not confirmed")
            if self._clock.monotonic_ms() - self._broker_heard_ms < doubtful_ms:
                send_ping(timeout)

        def pass_on(buffer: bytes, offset: int) -> None:
            notice, _ = Watch.deserialize(buffer, offset)
            self._inbox.put(partial(self._on_notice, notice.path))

        connection._read_watch_event = pass_on
        connection._invoke = invoke_and_note
        connection._send_ping = ping_while_alive

    @property
    def _out_of_touch(self) -> bool:
        since_ms = self._cut_since_ms
        return since_ms is not None and self._clock.monotonic_ms() > since_ms + self.session_timeout_ms

    def start(self) -> None:
        """Begin to connect; returns at once."""
        self.note_alive()
        self._kazoo.start_async()

    def note_alive(self) -> None:
        """The broker's thread is running; to be said several times in a session's timeout."""
        self._broker_heard_ms = self._clock.monotonic_ms()
        if self._stopped_by_itself:  # it met something that it did not understand, and gave up
            self._stopped_by_itself = False
            self._kazoo.start_async()

    def request(self, make: Callable[[KazooClient], object], answered: Answered) -> None:
        """Send what `make` asks of kazoo, in the session that the broker knows of; answered later, in its own turn."""
        with self._fence:
            # kazoo fails everything that waits in its queue after it has told of a lost session, so what is put
            # there under the fence cannot outlive it.
            in_session = self.session is not None and self.session == self._session_now
            if in_session:
                self._handler.answered = lambda result: answered(result.value, result.exception)
                make(self._kazoo)
        if not in_session:
            self._inbox.put(partial(answered, None, SessionExpiredError()))

    def watch_all(self, path: str, answered: Answered) -> None:
        """Ask for a notice of every change at and under a path, for as long as the connection lasts."""
        self.request(lambda kazoo: kazoo._call(_WatchAll(path), self._handler.async_result()), answered)

    def _state_changed(self, state: KazooState) -> None:
        """On kazoo's thread."""
        if state == KazooState.CONNECTED:
            self._cut_since_ms = None
        elif self._cut_since_ms is None:
            self._cut_since_ms = self._clock.monotonic_ms()
        with self._fence:
            if state == KazooState.CONNECTED:
                self._session_now = self._kazoo.client_id[0]
            elif state == KazooState.LOST:
                self._session_now = None
            session = self._session_now
        stopped = state == KazooState.LOST and self._kazoo.client_state == KeeperState.CLOSED
        self._inbox.put(partial(self._told, state, session, stopped))

    def _told(self, state: KazooState, session: int | None, stopped: bool) -> None:
        """On the broker's thread."""
        if self._closed:
            return
        self.connected = state == KazooState.CONNECTED
        self.session = session
        self._stopped_by_itself = stopped
        if self.connected:
            if self._granted_ms is None:
                raise StoreError("this version of kazoo is not supported, install kazoo 2.11")
            self.session_timeout_ms = self._granted_ms
        self._on_connection(state)

    def close(self) -> None:
        """End the session at the server if it answers; what was requested before is still made."""
        self._closed = True
        self._inbox.close()
        self._kazoo.stop()
        self._kazoo.close()
