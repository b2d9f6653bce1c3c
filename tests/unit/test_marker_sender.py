"""Markers on their way: to every leader, again until all have them, and no longer than they are wanted."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from test_peers import Timers

from culver.broker import marker_sender
from culver.broker.marker_sender import MarkerSender
from culver.core.coordinator_effects import Marker, WriteMarkers
from culver.core.image import PartitionImage
from culver.errors import ErrorCode
from culver.protocol.messages.write_txn_markers import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersRequest,
    WriteTxnMarkersResponse,
)

MARKER = Marker(producer_id=7, producer_epoch=1, committed=True, coordinator_epoch=3, transaction_version=2)
HERE, THERE, ELSEWHERE = 1, 2, 3


class World:
    """Broker 1 coordinates; partitions of topic t are led by whom the test says."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.timers = Timers()
        self.leaders: dict[int, int] = {}
        self.brokers = {HERE: object(), THERE: object(), ELSEWHERE: object()}
        self.asked: list[
            tuple[int, WriteTxnMarkersRequest, Callable[[Any], object], Callable[[], object]]
        ] = []
        self.local: list[tuple[str, int, Callable[[ErrorCode], object]]] = []
        self.node: Any = SimpleNamespace(
            scheduler=self.timers,
            broker_id=HERE,
            image=SimpleNamespace(brokers=self.brokers, partition=self._partition),
            marker_peers=SimpleNamespace(
                ask=lambda broker, _call, request, answered, lost: self.asked.append(
                    (broker, request, answered, lost)
                )
            ),
            after_requests=lambda: None,
        )
        monkeypatch.setattr(
            marker_sender,
            "write_marker",
            lambda _node, topic, index, _marker, done: self.local.append((topic, index, done)),
        )
        self.done: list[str] = []
        self.sender = MarkerSender(
            self.node,
            lambda effect: self.done.append(f"{effect.transactional_id} written"),
            lambda effect: self.done.append(f"{effect.transactional_id} refused"),
        )

    def _partition(self, topic: str, index: int) -> PartitionImage | None:
        leader = self.leaders.get(index)
        return None if leader is None else PartitionImage(index, leader, 0, (leader,), (leader,))

    def write(self, name: str, *partitions: int, log_partition: int = 0) -> None:
        self.sender.write(WriteMarkers(log_partition, name, MARKER, [("t", index) for index in partitions]))

    def run(self, ms: float = 0.0) -> None:
        self.timers.advance(ms)
        self.timers.advance(0)

    def answer(self, code: ErrorCode = ErrorCode.NONE) -> list[tuple[int, list[list[int]]]]:
        """Answers all that was asked; what that was, by broker, for each marker."""
        asked, self.asked = self.asked, []
        seen = []
        for broker, request, answered, _ in asked:
            results = []
            for marker in request.markers:
                topics = [
                    WritableTxnMarkerTopicResult(
                        name=topic.name,
                        partitions=[
                            WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in topic.partition_indexes
                        ],
                    )
                    for topic in marker.topics
                ]
                results.append(WritableTxnMarkerResult(producer_id=marker.producer_id, topics=topics))
            seen.append((broker, [marker.topics[0].partition_indexes for marker in request.markers]))
            answered(WriteTxnMarkersResponse(markers=results))
        return seen


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    return World(monkeypatch)


def test_every_leader_gets_it_and_then_it_is_written(world: World) -> None:
    world.leaders = {0: HERE, 1: THERE, 2: THERE, 3: ELSEWHERE}
    world.write("a", 0, 1, 2, 3)
    world.run()
    assert world.answer() == [(THERE, [[1, 2]]), (ELSEWHERE, [[3]])]
    assert world.done == []
    [(topic, index, done)] = world.local
    assert (topic, index) == ("t", 0)
    done(ErrorCode.NONE)
    assert world.done == ["a written"]
    assert len(world.sender) == 0


def test_markers_for_one_broker_travel_together(world: World) -> None:
    world.leaders = {0: THERE, 1: THERE}
    world.write("a", 0)
    world.write("b", 0, 1)
    world.run()
    assert world.answer() == [(THERE, [[0], [0, 1]])]
    assert world.done == ["a written", "b written"]


@pytest.mark.parametrize("code", [ErrorCode.NOT_LEADER_OR_FOLLOWER, ErrorCode.NOT_ENOUGH_REPLICAS])
def test_it_is_sent_again_to_whoever_leads_then(world: World, code: ErrorCode) -> None:
    world.leaders = {0: THERE}
    world.write("a", 0)
    world.run()
    world.answer(code)
    world.leaders = {0: ELSEWHERE}
    world.run(1_000)
    assert world.answer() == [(ELSEWHERE, [[0]])]
    assert world.done == ["a written"]


def test_only_what_is_left_is_sent_again(world: World) -> None:
    world.leaders = {0: THERE, 1: ELSEWHERE}
    world.write("a", 0, 1)
    world.run()
    there, elsewhere = world.asked
    world.asked = [there]
    world.answer()
    elsewhere[3]()  # the connection is lost
    world.run(1_000)
    assert world.answer() == [(ELSEWHERE, [[1]])]
    assert world.done == ["a written"]


def test_a_partition_without_a_leader_is_waited_for(world: World) -> None:
    world.leaders = {0: -1}
    world.write("a", 0)
    world.run()
    assert (world.asked, world.done) == ([], [])
    world.leaders = {0: THERE}
    world.run(1_000)
    assert world.answer() == [(THERE, [[0]])]
    assert world.done == ["a written"]


def test_a_topic_that_is_gone_needs_no_marker(world: World) -> None:
    world.write("a", 0, 1)
    world.run()
    assert world.done == ["a written"]


def test_a_partition_that_knows_a_later_epoch_needs_no_marker(world: World) -> None:
    world.leaders = {0: THERE}
    world.write("a", 0)
    world.run()
    world.answer(ErrorCode.INVALID_PRODUCER_EPOCH)
    assert world.done == ["a written"]


def test_what_a_newer_coordinator_has_overtaken_is_given_up(world: World) -> None:
    world.leaders = {0: THERE}
    world.write("a", 0)
    world.run()
    world.answer(ErrorCode.TRANSACTION_COORDINATOR_FENCED)
    assert world.done == ["a refused"]
    world.run(10_000)
    assert (world.asked, len(world.sender)) == ([], 0)


def test_what_another_coordinates_now_is_dropped(world: World) -> None:
    world.leaders = {0: THERE}
    world.write("a", 0, log_partition=4)
    world.write("b", 0, log_partition=5)
    world.run()
    world.sender.drop(4)
    world.answer()
    assert world.done == ["b written"]
