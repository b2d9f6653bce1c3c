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
    from culver.core.image import BrokerInfo
    from culver.core.image_builder import ImageChange
    from culver.scheduler import Timer

# As long as a dead broker's session may last. A client waits longer than that for an answer.
WAIT_MAX_MS = 3_000.0
# A client may be faster than the news that its leader has hung up here as well.
NEWS_MS = 10.0
# librdkafka (2.16) drops a broker that is no longer listed while it moves that broker's partitions to their new
# leaders, and then waits another second: it shall see the two changes one after the other. And for one that it has
# dropped while it was somebody's coordinator, and that comes back, it may wait without end (its issue 5511): a broker
# that is only started again stays in the list meanwhile.
LISTED_MS = 30_000.0


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
        self._departed: dict[int, tuple[BrokerInfo, float]] = {}

    def listed(self) -> list[BrokerInfo]:
        """The brokers to name to clients: those alive, and for a moment those that were."""
        image = self._node.image
        living = image.brokers
        if self._node.broker_id not in living:
            # Not one of them yet, or not any more: it cannot tell who is. A client that is told of nobody forgets all.
            return list(image.registrations.values())
        if not self._departed:
            return list(living.values())
        now_ms = self._node.clock.monotonic_ms()
        self._departed = {
            number: (broker, until)
            for number, (broker, until) in self._departed.items()
            if until > now_ms and number not in living and number in image.registrations
        }
        return [*living.values(), *(broker for broker, _ in self._departed.values())]

    def hung_up(self, broker_id: int) -> None:
        """The connection to a broker that this one follows has broken."""
        self._until_ms[broker_id] = self._node.clock.monotonic_ms() + WAIT_MAX_MS

    def is_back(self, broker_id: int) -> None:
        if self._until_ms.pop(broker_id, None) is not None:
            self._answer_what_is_clear()

    def wait(
        self, leaders: Callable[[], Iterable[int]], answer: Callable[[], object], *, again: bool = False
    ) -> bool:
        """Whether an answer about partitions with these leaders should wait; `answer` is then called in time.

        One who asks `again` has a reason, perhaps one that this broker is about to learn of.
        """
        if again and any(leader not in (-1, self._node.broker_id) for leader in leaders()):
            self._node.scheduler.call_later(NEWS_MS, lambda: self.wait(leaders, answer) or answer())
            return True
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

    def image_changed(self, change: ImageChange) -> None:
        """Remember who has gone, and look whether questions can be answered by now."""
        if change.brokers:
            until_ms = self._node.clock.monotonic_ms() + LISTED_MS
            for number, broker in change.before.brokers.items():
                if number not in change.after.brokers:
                    self._departed[number] = (broker, until_ms)
        self._answer_what_is_clear()

    def _answer_what_is_clear(self) -> None:
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
