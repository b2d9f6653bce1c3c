"""Who asks for the leader of a partition while its broker hangs up hears of the next one."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from culver.broker.suspects import LISTED_MS, NEWS_MS, WAIT_MAX_MS, Suspects
from culver.core.image import BrokerInfo, ClusterImage
from culver.core.image_builder import ImageChange


class World:
    """Suspects with a clock and timers that move by hand."""

    def __init__(self) -> None:
        self.now_ms = 1000.0
        self.timers: list[tuple[float, Any]] = []
        self.leaders = {1, 2}
        self.answers = 0
        self.node = node = SimpleNamespace(
            broker_id=1,
            image=ClusterImage("c"),
            clock=SimpleNamespace(monotonic_ms=lambda: self.now_ms),
            scheduler=SimpleNamespace(call_later=self._call_later),
        )
        self.suspects = Suspects(node)  # type: ignore[arg-type]

    def _call_later(self, delay_ms: float, callback: Any) -> Any:
        entry = (self.now_ms + delay_ms, callback)
        self.timers.append(entry)
        return SimpleNamespace(cancel=lambda: self.timers.remove(entry) if entry in self.timers else None)

    def ask(self, *, again: bool = False) -> bool:
        def answer() -> None:
            self.answers += 1

        return self.suspects.wait(lambda: self.leaders, answer, again=again)


def test_nobody_waits_while_nobody_hung_up() -> None:
    assert not World().ask()


def test_a_question_about_a_suspect_waits_for_another_leader() -> None:
    world = World()
    world.suspects.hung_up(2)
    assert world.ask()
    world.suspects.image_changed(ImageChange(ClusterImage("c"), ClusterImage("c")))
    assert world.answers == 0
    world.leaders = {1, 3}
    world.suspects.image_changed(ImageChange(ClusterImage("c"), ClusterImage("c")))
    assert world.answers == 1
    assert world.timers == []
    world.suspects.image_changed(ImageChange(ClusterImage("c"), ClusterImage("c")))
    assert world.answers == 1


def test_a_question_about_others_does_not_wait() -> None:
    world = World()
    world.suspects.hung_up(3)
    assert not world.ask()


def test_one_that_is_back_is_no_suspect() -> None:
    world = World()
    world.suspects.hung_up(2)
    assert world.ask()
    world.suspects.is_back(2)
    assert world.answers == 1
    assert not world.ask()


def test_nobody_waits_for_ever() -> None:
    world = World()
    world.suspects.hung_up(2)
    assert world.ask()
    [(due_ms, callback)] = world.timers
    assert due_ms == world.now_ms + WAIT_MAX_MS
    world.now_ms = due_ms
    callback()
    assert world.answers == 1
    assert not world.ask(), "what has been waited for in vain is not waited for again"


def test_who_asks_again_may_be_faster_than_the_news() -> None:
    world = World()
    assert world.ask(again=True)
    [(due_ms, look)] = world.timers
    assert due_ms == world.now_ms + NEWS_MS
    world.timers.clear()
    world.suspects.hung_up(2)
    look()
    assert world.answers == 0
    world.leaders = {1, 3}
    world.suspects.image_changed(ImageChange(ClusterImage("c"), ClusterImage("c")))
    assert world.answers == 1


def test_who_asks_again_for_no_reason_hears_soon() -> None:
    world = World()
    assert world.ask(again=True)
    [(_, look)] = world.timers
    look()
    assert world.answers == 1
    world.leaders = {1}
    assert not world.ask(again=True), "what this broker leads itself needs no news"


def test_a_broker_that_has_gone_is_named_for_a_moment_longer() -> None:
    world = World()
    one, two = BrokerInfo(1, "a", 1), BrokerInfo(2, "b", 2)
    both = ClusterImage("c", brokers={1: one, 2: two}, registrations={1: one, 2: two})
    world.node.image = both.without_broker(2)
    assert world.suspects.listed() == [one]
    world.suspects.image_changed(ImageChange(both, world.node.image, brokers=True))
    assert world.suspects.listed() == [one, two]
    world.node.image = replace(world.node.image, registrations={1: one})
    assert world.suspects.listed() == [one], "one that was taken out for good"
    world.node.image = both.without_broker(2)
    world.suspects.image_changed(ImageChange(both, world.node.image, brokers=True))
    world.now_ms += LISTED_MS
    assert world.suspects.listed() == [one]


def test_a_broker_that_is_back_is_named_once() -> None:
    world = World()
    one, two, again = BrokerInfo(1, "a", 1), BrokerInfo(2, "b", 2), BrokerInfo(2, "b", 3, epoch=1)
    before = ClusterImage("c", brokers={1: one, 2: two})
    world.suspects.image_changed(ImageChange(before, before.without_broker(2), brokers=True))
    world.node.image = ClusterImage("c", brokers={1: one, 2: again})
    assert world.suspects.listed() == [one, again]
