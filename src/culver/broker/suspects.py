"""Suspects: brokers that have just hung up. Questions about what they lead wait a moment for the election.

When a broker dies its connections break at once; that it is dead the metadata store says a little later. A client
that lost its leader asks for another in that very moment, and whoever still names the dead one sends it away to wait
by the client's own clock, for longer than the whole election takes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from culver.broker.node import Node
    from culver.scheduler import Timer

# As long as a dead broker's session may last. A client waits longer than that for an answer.
WAIT_MAX_MS = 3_000.0


class _Question:
    """Someone who asked about leaders of which one is a suspect."""

    __slots__ = ("answer", "leaders", "timer")

    def __init__(self, leaders: Callable[[], Iterable[int]], answer: Callable[[], object]) -> None:
        self.leaders = leaders
        self.answer = answer
        self.timer: Timer | None = None


class Suspects:
    """Who hung up, and who waits to hear what becomes of it."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._until_ms: dict[int, float] = {}
        self._questions: dict[_Question, None] = {}

    def hung_up(self, broker_id: int) -> None:
        """The connection to a broker that this one follows has broken."""
        self._until_ms[broker_id] = self._node.clock.monotonic_ms() + WAIT_MAX_MS

    def is_back(self, broker_id: int) -> None:
        if self._until_ms.pop(broker_id, None) is not None:
            self.image_changed()

    def wait(self, leaders: Callable[[], Iterable[int]], answer: Callable[[], object]) -> bool:
        """Whether an answer about partitions with these leaders should wait; `answer` is then called in time."""
        if not self._until_ms:
            return False
        until_ms = self._in_doubt_until_ms(leaders())
        if until_ms is None:
            return False
        question = _Question(leaders, answer)
        left_ms = until_ms - self._node.clock.monotonic_ms()
        question.timer = self._node.scheduler.call_later(left_ms, lambda: self._answer(question))
        self._questions[question] = None
        return True

    def image_changed(self) -> None:
        """Look whether questions can be answered by now."""
        for question in list(self._questions):
            if self._in_doubt_until_ms(question.leaders()) is None:
                self._answer(question)

    def _in_doubt_until_ms(self, leaders: Iterable[int]) -> float | None:
        """Until when to wait for another leader than a suspect, or None when none of these is one."""
        now_ms = self._node.clock.monotonic_ms()
        self._until_ms = {broker: until for broker, until in self._until_ms.items() if until > now_ms}
        found = [self._until_ms[broker] for broker in leaders if broker in self._until_ms]
        return max(found, default=None)

    def _answer(self, question: _Question) -> None:
        if self._questions.pop(question, 0) is None:
            assert question.timer is not None
            question.timer.cancel()
            question.answer()
