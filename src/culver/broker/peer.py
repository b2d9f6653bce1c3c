"""A connection to another broker of the cluster: introduces itself, asks, hands answers over, comes back if lost."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from struct import Struct
from typing import TYPE_CHECKING, Any

from culver.broker.peer_link import PeerLink
from culver.errors import ErrorCode, MalformedRequest
from culver.logging import get_logger
from culver.protocol.apis import APIS, BROKER_HELLO_KEY, PRIVATE_APIS
from culver.protocol.framing import after_response_header
from culver.protocol.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from culver.protocol.schema import Message, decoder, encoder

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.network import Connecting
    from culver.scheduler import Timer

_log = get_logger("culver.replication")

BACKOFF_MIN_MS = 20.0
BACKOFF_MAX_MS = 1_000.0
# To be connected and let in. A host that is gone answers nothing at all.
GREETING_MAX_MS = 3_000.0

_NOT_THERE = "it is not in the cluster"
_HUNG_UP = "it closed the connection"

_REQUEST_START = Struct(">ihhih")
_CORRELATION_ID = Struct(">i")
# What an answer may have beside the records asked for. One batch that is larger than the limit comes whole.
_ANSWER_SLACK_BYTES = 1 << 20


class Call:
    """How requests of one API in one version are written, and their answers read."""

    __slots__ = ("_answer_header_version", "_decode", "_encode", "_has_tags", "_key", "_version")

    def __init__(self, key: int, version: int) -> None:
        api = APIS.get(key) or PRIVATE_APIS[key]
        self._key = key
        self._version = version
        self._encode = encoder(api.request, version)
        self._decode = decoder(api.response, version)
        self._has_tags = api.request_header_version(version) >= 2
        self._answer_header_version = api.response_header_version(version)

    def frame(self, correlation_id: int, client_id: bytes, request: Message) -> list[Any]:
        """The request's buffers, with its size and header in front."""
        body = self._encode(request)
        header = client_id + b"\0" if self._has_tags else client_id
        size = sum(map(len, body)) + len(header) + _REQUEST_START.size - 4
        start = _REQUEST_START.pack(size, self._key, self._version, correlation_id, len(client_id))
        return [start + header, *body]

    def read(self, frame: memoryview) -> Any:
        """The answer in a frame, behind its correlation id. MalformedRequest when it cannot be read."""
        position = after_response_header(frame, _CORRELATION_ID.size, self._answer_header_version)
        return self._decode(frame, position)[0]


_HELLO = Call(BROKER_HELLO_KEY, 0)


class _Asked:
    """A request that waits for its answer."""

    __slots__ = ("answered", "call", "correlation_id", "due_ms")

    def __init__(
        self, correlation_id: int, call: Call, answered: Callable[[Any], object], due_ms: float
    ) -> None:
        self.correlation_id = correlation_id
        self.call = call
        self.answered = answered
        self.due_ms = due_ms


class Peer:
    """Another broker. Its address is looked up in the image for every attempt to reach it.

        waiting ──> connecting ──> greeting ──> ready
           ^            |              |           |
           └────────────┴──── lost ────┴───────────┘

    `on_ready` is called whenever requests can be sent, `on_lost` when they no longer can: those not answered
    by then never will be. With a `sole_purpose` the other side has given up any earlier connection of that purpose by
    the time that this one is ready: what was sent on that and has not been done by then is never done.
    """

    def __init__(
        self,
        node: Node,
        broker_id: int,
        on_ready: Callable[[], object],
        on_lost: Callable[[], object],
        sole_purpose: str = "",
    ) -> None:
        self.broker_id = broker_id
        self.ready = False
        self.greeted_as = -1  # the epoch in which this broker introduced itself
        self._node = node
        self._on_ready = on_ready
        self._on_lost = on_lost
        self._sole_purpose = sole_purpose
        self._client_id = f"culver-broker-{node.broker_id}".encode()
        self._link: PeerLink | None = None
        self._connecting: Connecting | None = None
        self._timer: Timer | None = (
            None  # until the next attempt, or until the one under way has taken too long
        )
        self._watch: Timer | None = None  # looks for answers that are overdue
        self._asked: deque[_Asked] = deque()
        self._correlation_id = 0
        self._backoff_ms = BACKOFF_MIN_MS
        self._complained = ""
        self._closed = False
        self._connect()

    # -- asking -----------------------------------------------------------------------------------------

    def ask(
        self, call: Call, request: Message, answered: Callable[[Any], object], wait_ms: float = 0
    ) -> None:
        """Send a request. Views in the answer point into the receive buffer: they die when `answered` returns.

        `wait_ms` is how long the other side was told that it may take beyond the usual.
        """
        assert self.ready, "a peer is asked only while it is ready"
        self._send(call, request, answered, wait_ms)

    def _send(
        self, call: Call, request: Message, answered: Callable[[Any], object], wait_ms: float = 0
    ) -> None:
        assert self._link is not None
        node = self._node
        self._correlation_id = correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        timeout_ms = node.config.replica_socket_timeout_ms + wait_ms
        due_ms = node.clock.monotonic_ms() + timeout_ms
        self._asked.append(_Asked(correlation_id, call, answered, due_ms))
        if self._watch is None:
            self._watch = node.scheduler.call_later(timeout_ms, self._look_for_overdue)
        self._link.send(call.frame(correlation_id, self._client_id, request))

    def _look_for_overdue(self) -> None:
        """One timer for all requests: it is set anew when it goes off too early, which is cheaper than one for each."""
        self._watch = None
        if not self._asked:
            return
        left_ms = self._asked[0].due_ms - self._node.clock.monotonic_ms()
        if left_ms > 0:
            self._watch = self._node.scheduler.call_later(left_ms, self._look_for_overdue)
        else:
            self._drop("it does not answer")

    def received(self, link: PeerLink, frame: memoryview) -> None:
        """An answer has arrived: everything behind its size."""
        if link is not self._link:
            return
        (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
        if not self._asked or self._asked[0].correlation_id != correlation_id:
            self._drop("it sent an answer to nothing that was asked")
            return
        asked = self._asked.popleft()
        try:
            response = asked.call.read(frame)
        except MalformedRequest as error:
            self._drop(f"its answer cannot be read: {error}")
            return
        try:
            asked.answered(response)
        except Exception:  # noqa: BLE001 - the boundary: this connection is lost, not the broker
            _log.exception("an answer could not be dealt with", broker=self.broker_id)
            self._drop("its answer could not be dealt with")

    # -- connecting -------------------------------------------------------------------------------------

    def hurry(self) -> None:
        """There is reason to believe that the broker can be reached now: do not wait any longer."""
        if self._link is None and self._connecting is None and not self._closed:
            self._stop_timer()
            self._backoff_ms = BACKOFF_MIN_MS
            self._connect()

    def _connect(self) -> None:
        self._timer = None
        if self._closed:
            return
        broker = self._node.image.brokers.get(self.broker_id)
        if broker is None:
            self._retry(_NOT_THERE)
            return
        config = self._node.config
        answer_max_bytes = (
            config.replica_fetch_response_max_bytes + config.socket_request_max_bytes + _ANSWER_SLACK_BYTES
        )
        link = PeerLink(self, answer_max_bytes)
        self._link = link
        self._timer = self._node.scheduler.call_later(GREETING_MAX_MS, self._too_slow)
        self._connecting = self._node.network.connect(
            broker.host, broker.port, lambda: link, lambda error: self._refused(link, error)
        )

    def _too_slow(self) -> None:
        self._timer = None
        self._drop("it does not answer")

    def _refused(self, link: PeerLink, error: OSError) -> None:
        if link is self._link:
            self._connecting = None
            self._drop(str(error))

    def connected(self, link: PeerLink) -> None:
        if link is not self._link:
            link.abort()
            return
        self._connecting = None
        node = self._node
        self.greeted_as = node.broker_epoch
        request = BrokerHelloRequest(
            cluster_id=node.image.cluster_id,
            broker_id=node.broker_id,
            broker_epoch=node.broker_epoch,
            secret=node.cluster_secret,
            sole_purpose=self._sole_purpose,
        )
        self._send(_HELLO, request, self._greeted)

    def _greeted(self, answer: BrokerHelloResponse) -> None:
        if answer.error_code:
            code = ErrorCode(answer.error_code)
            self._drop(f"it refuses this broker ({code.name}): {answer.error_message or code.text}")
            return
        if answer.broker_id != self.broker_id:
            self._drop(f"broker {answer.broker_id} is at its address")
            return
        self._stop_timer()
        self.ready = True
        self._backoff_ms = BACKOFF_MIN_MS
        if self._complained:
            self._complained = ""
            _log.info("connected to a broker again", broker=self.broker_id)
        self._on_ready()

    def lost(self, link: PeerLink, error: Exception | None) -> None:
        if link is self._link:
            self._drop(str(error) if error is not None else _HUNG_UP)

    def give_up(self, reason: str) -> None:
        """Its answers are of no use: begin anew with another connection."""
        if self._link is not None:
            self._drop(reason)

    def _drop(self, reason: str) -> None:
        """Give the connection up, or the attempt to make one, and try again later."""
        was_ready = self.ready
        self._let_go()
        if was_ready:
            self._on_lost()
        if not self._closed:
            self._retry(reason)

    def _retry(self, reason: str) -> None:
        if reason != self._complained:
            self._complained = reason
            # One that stops, or has stopped, is no trouble of this broker's.
            write = _log.info if reason in (_HUNG_UP, _NOT_THERE) else _log.warning
            write("no connection to a broker", broker=self.broker_id, reason=reason)
        self._timer = self._node.scheduler.call_later(self._backoff_ms, self._connect)
        self._backoff_ms = min(self._backoff_ms * 2, BACKOFF_MAX_MS)

    def _let_go(self) -> None:
        self.ready = False
        self._asked.clear()
        self._stop_timer()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._connecting is not None:
            self._connecting.cancel()
            self._connecting = None
        link, self._link = self._link, None
        if link is not None:
            link.abort()

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        """For good. Neither callback is called any more."""
        self._closed = True
        self._let_go()
