"""Questions to other brokers: each ends once, with an answer or with the news that there will be none."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from culver.broker import peers
from culver.broker.peers import Peers


class FakePeer:
    """A connection that is ready, answers and breaks when the test says so."""

    made: list[FakePeer]

    def __init__(
        self,
        node: Any,
        broker_id: int,
        on_ready: Callable[[], object],
        on_lost: Callable[[], object],
        sole_purpose: str,
    ) -> None:
        self.broker_id = broker_id
        self.ready = False
        self.closed = False
        self.asked: list[tuple[Any, Callable[[Any], object]]] = []
        self._on_ready = on_ready
        self._on_lost = on_lost
        self.made.append(self)

    def ask(self, call: Any, request: Any, answered: Callable[[Any], object]) -> None:
        assert self.ready
        self.asked.append((request, answered))

    def hurry(self) -> None:
        pass

    def close(self) -> None:
        self.closed = True

    def become_ready(self) -> None:
        self.ready = True
        self._on_ready()

    def answer(self, response: Any) -> None:
        self.asked.pop(0)[1](response)

    def lose(self) -> None:
        self.ready = False
        self.asked.clear()
        self._on_lost()


class Timers:
    """Whatever is to happen soon or later happens when the test says so."""

    def __init__(self) -> None:
        self.now_ms = 0.0
        self._due: list[tuple[float, SimpleNamespace, Callable[[], object]]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.call_later(0.0, callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Any:
        timer = SimpleNamespace(cancelled=False)
        timer.cancel = lambda: setattr(timer, "cancelled", True)
        self._due.append((self.now_ms + delay_ms, timer, callback))
        return timer

    def advance(self, by_ms: float) -> None:
        self.now_ms += by_ms
        due = [entry for entry in self._due if entry[0] <= self.now_ms]
        self._due = [entry for entry in self._due if entry[0] > self.now_ms]
        for _, timer, callback in due:
            if not timer.cancelled:
                callback()


class World:
    def __init__(self) -> None:
        FakePeer.made = []
        self.timers = Timers()
        self.node: Any = SimpleNamespace(
            scheduler=self.timers,
            clock=SimpleNamespace(monotonic_ms=lambda: self.timers.now_ms),
            image=SimpleNamespace(brokers={2: object(), 3: object()}),
        )
        self.peers = Peers(self.node)
        self.heard: list[str] = []

    def ask(self, broker_id: int, name: str) -> None:
        self.peers.ask(
            broker_id,
            SimpleNamespace(),  # type: ignore[arg-type]
            name,  # type: ignore[arg-type]
            lambda response: self.heard.append(f"{name}: {response}"),
            lambda: self.heard.append(f"{name}: lost"),
        )

    @property
    def peer(self) -> FakePeer:
        return FakePeer.made[-1]


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    monkeypatch.setattr(peers, "Peer", FakePeer)
    return World()


def test_questions_wait_for_the_connection_and_are_answered_in_order(world: World) -> None:
    world.ask(2, "a")
    world.ask(2, "b")
    assert world.peer.asked == []
    world.peer.become_ready()
    world.peer.answer("yes")
    world.peer.answer("no")
    assert world.heard == ["a: yes", "b: no"]
    assert len(FakePeer.made) == 1


def test_what_was_asked_is_lost_with_the_connection_and_can_be_asked_again(world: World) -> None:
    world.ask(2, "a")
    world.peer.become_ready()
    world.ask(2, "b")
    world.peer.lose()
    assert world.heard == ["a: lost", "b: lost"]
    world.ask(2, "c")
    world.peer.become_ready()
    world.peer.answer("yes")
    assert world.heard[2:] == ["c: yes"]


def test_nobody_waits_long_for_a_connection(world: World) -> None:
    world.ask(2, "a")
    world.timers.advance(2_999)
    assert world.heard == []
    world.timers.advance(1)
    assert world.heard == ["a: lost"]


def test_a_broker_that_left_is_not_waited_for(world: World) -> None:
    world.ask(2, "a")
    world.ask(3, "b")
    del world.node.image.brokers[2]
    world.peers.image_changed()
    assert world.heard == ["a: lost"]
    world.ask(2, "c")
    assert world.heard == ["a: lost"]  # not from inside the question
    world.timers.advance(0)
    assert world.heard == ["a: lost", "c: lost"]


def test_a_connection_that_nobody_uses_is_closed(world: World) -> None:
    world.ask(2, "a")
    peer = world.peer
    peer.become_ready()
    peer.answer("yes")
    world.timers.advance(60_000)
    assert peer.closed
    world.ask(2, "b")
    assert world.peer is not peer


def test_after_the_end_every_question_is_lost(world: World) -> None:
    world.peers.close()
    world.ask(2, "a")
    world.timers.advance(0)
    assert world.heard == ["a: lost"]
