"""Questions to other brokers that are not fetches: a connection to each, made when it is first needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from culver.broker.peer import Call, Peer

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.protocol.schema import Message
    from culver.scheduler import Timer

# How long a question waits for a connection before whoever asks is told that there is none.
_CONNECT_MAX_MS = 3_000.0
_IDLE_MAX_MS = 60_000.0


class _Question:
    """Asked, or about to be; ends with an answer or with the loss of the connection."""

    __slots__ = ("answered", "call", "lost", "request")

    def __init__(
        self, call: Call, request: Message, answered: Callable[[Any], object], lost: Callable[[], object]
    ) -> None:
        self.call = call
        self.request = request
        self.answered = answered
        self.lost = lost


class _Line:
    """The connection to one broker and the questions on it."""

    def __init__(
        self, node: Node, broker_id: int, on_idle: Callable[[_Line], object], sole_purpose: str
    ) -> None:
        self.broker_id = broker_id
        self._node = node
        self._on_idle = on_idle
        self._waiting: list[_Question] = []
        self._asked: dict[_Question, None] = {}
        self._timer: Timer | None = None
        self._used_at_ms = 0.0
        self._peer = Peer(node, broker_id, self._ready, self._lost, sole_purpose)
        self._look_later()

    def ask(self, question: _Question) -> None:
        self._used_at_ms = self._node.clock.monotonic_ms()
        if self._peer.ready:
            self._send(question)
            return
        self._peer.hurry()
        self._waiting.append(question)
        if self._timer is None:
            self._timer = self._node.scheduler.call_later(_CONNECT_MAX_MS, self.give_up)

    def _send(self, question: _Question) -> None:
        self._asked[question] = None

        def answered(response: Any) -> None:
            del self._asked[question]
            question.answered(response)

        self._peer.ask(question.call, question.request, answered)

    def _ready(self) -> None:
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            self._send(question)

    def _lost(self) -> None:
        asked, self._asked = self._asked, {}
        for question in asked:
            question.lost()

    def give_up(self) -> None:
        """There is no connection, and none is to be had soon."""
        self._stop_timer()
        waiting, self._waiting = self._waiting, []
        for question in waiting:
            question.lost()

    def _look_later(self) -> None:
        self._node.scheduler.call_later(_IDLE_MAX_MS, self._look)

    def _look(self) -> None:
        if self._waiting or self._asked or self._node.clock.monotonic_ms() - self._used_at_ms < _IDLE_MAX_MS:
            self._look_later()
        else:
            self._on_idle(self)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def close(self) -> None:
        self._stop_timer()
        self._peer.close()


class Peers:
    """Asks other brokers. Every question ends once: `answered`, or `lost` when there is no way to know."""

    def __init__(self, node: Node, sole_purpose: str = "") -> None:
        self._node = node
        self._sole_purpose = sole_purpose
        self._lines: dict[int, _Line] = {}
        self._closed = False

    def ask(
        self,
        broker_id: int,
        call: Call,
        request: Message,
        answered: Callable[[Any], object],
        lost: Callable[[], object],
    ) -> None:
        """Neither callback is called before this returns. Answers come in the order of the questions."""
        if self._closed or broker_id not in self._node.image.brokers:
            self._node.scheduler.call_soon(lost)
            return
        line = self._lines.get(broker_id)
        if line is None:
            line = self._lines[broker_id] = _Line(self._node, broker_id, self._idle, self._sole_purpose)
        line.ask(_Question(call, request, answered, lost))

    def image_changed(self) -> None:
        """Whoever waits for a broker that has left the cluster shall look for another."""
        brokers = self._node.image.brokers
        for broker_id, line in list(self._lines.items()):
            if broker_id not in brokers:
                line.give_up()

    def _idle(self, line: _Line) -> None:
        if self._lines.get(line.broker_id) is line:
            del self._lines[line.broker_id]
            line.close()

    def close(self) -> None:
        self._closed = True
        for line in self._lines.values():
            line.close()
        self._lines.clear()
