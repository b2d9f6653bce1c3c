"""Connections between brokers: introduced first, answers matched, lies punished, attempts repeated."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
from replica_world import ReplicaWorld

from culver.broker.peer import BACKOFF_MAX_MS, GREETING_MAX_MS, Call, Peer
from culver.broker.peer_link import PeerLink
from culver.protocol.apis import APIS, BROKER_HELLO_KEY, BROKER_REPORT_KEY, PRIVATE_APIS
from culver.protocol.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from culver.protocol.messages.metadata import MetadataRequest
from culver.protocol.schema import decoder, encoder

METADATA = Call(3, 9)


class Host:
    """The other side, byte by byte: what it was sent, and what a test makes it answer."""

    def __init__(self) -> None:
        self.received = b""
        self.connections = 0
        self.lost = 0
        self.hello: BrokerHelloRequest | None = None
        self.answer_hello: Callable[[Host, int], None] | None = lambda host, number: host.answer(
            number, encoder(BrokerHelloResponse, 0)(BrokerHelloResponse(broker_id=2))
        )
        self.transport: Any = None
        self._buffer = bytearray(1 << 20)

    def __call__(self) -> Host:
        self.connections += 1
        self.received = b""
        return self

    def connection_made(self, transport: Any) -> None:
        self.transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self.lost += 1

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, size: int) -> None:
        self.received += self._buffer[:size]
        while len(self.received) >= 4:
            (length,) = struct.unpack_from(">i", self.received)
            if len(self.received) < 4 + length:
                break
            frame, self.received = self.received[4 : 4 + length], self.received[4 + length :]
            self._take(frame)

    def _take(self, frame: bytes) -> None:
        key, _version, number, client_length = struct.unpack_from(">hhih", frame)
        assert frame[10 : 10 + client_length] == b"culver-broker-1"
        if key == BROKER_HELLO_KEY:
            self.hello = decoder(BrokerHelloRequest, 0)(memoryview(frame), 10 + client_length)[0]
            if self.answer_hello is not None:
                self.answer_hello(self, number)
        else:
            self.asked(number)

    def asked(self, number: int) -> None:
        """Metadata 9: flexible, so there are tags in its header."""
        self.answer(number, [b"\0", metadata_answer()])

    def answer(self, number: int, body: list[Any]) -> None:
        payload = struct.pack(">i", number) + b"".join(map(bytes, body))
        self.transport.write(struct.pack(">i", len(payload)) + payload)


def metadata_answer(padding: int = 0) -> bytes:
    response = APIS[3].response(cluster_id="x" * padding, brokers=[], topics=[])
    return b"".join(map(bytes, encoder(APIS[3].response, 9)(response)))


class Fixture:
    def __init__(self) -> None:
        self.world = ReplicaWorld(2)
        self.world.network.attempts.clear()
        self.host = Host()
        self.world.network.listeners["host2"] = self.host
        self.ready = 0
        self.lost = 0
        self.peer = Peer(self.world[1], 2, self._ready, self._lost)  # type: ignore[arg-type]

    def _ready(self) -> None:
        self.ready += 1

    def _lost(self) -> None:
        self.lost += 1

    def ask(self, answers: list[Any] | None = None) -> None:
        self.peer.ask(METADATA, MetadataRequest(topics=[]), ([] if answers is None else answers).append)

    @property
    def attempts_ms(self) -> list[float]:
        return [time_ms for _, time_ms in self.world.network.attempts]


@pytest.fixture
def fixture() -> Fixture:
    return Fixture()


def test_it_introduces_itself_first(fixture: Fixture) -> None:
    assert not fixture.peer.ready
    fixture.world.run()
    assert fixture.host.hello == BrokerHelloRequest(
        cluster_id="cluster", broker_id=1, broker_epoch=1, secret="secret"
    )
    assert fixture.peer.ready
    assert fixture.ready == 1


@pytest.mark.parametrize("piece_bytes", [0, 1, 3, 1000])
def test_answers_go_to_those_who_asked_in_order(fixture: Fixture, piece_bytes: int) -> None:
    fixture.world.network.piece_bytes = piece_bytes
    fixture.world.run()
    answers: list[Any] = []
    for _ in range(3):
        fixture.ask(answers)
    fixture.world.run()
    assert [answer.brokers for answer in answers] == [[], [], []]


def test_the_buffer_grows_with_what_arrives_and_shrinks_again(fixture: Fixture) -> None:
    world, host = fixture.world, fixture.host
    world.run()
    link = fixture.peer._link
    assert isinstance(link, PeerLink)
    small = len(link._buffer)
    world.network.piece_bytes = 50_000
    payload = bytes(3 << 20)
    host.asked = lambda number: host.answer(number, [b"\0", metadata_answer(), payload])  # type: ignore[method-assign]
    answers: list[Any] = []
    fixture.ask(answers)
    world.run()
    assert len(answers) == 1
    grown = len(link._buffer)
    assert 3 << 20 < grown < 4 << 20
    payload = bytes(10)
    for _ in range(100):
        fixture.ask(answers)
        world.run()
    assert len(answers) == 101
    assert len(link._buffer) == small


@pytest.mark.parametrize("size", [-1, 0, 3, 2**31 - 1])
def test_a_size_that_cannot_be_costs_the_connection(fixture: Fixture, size: int) -> None:
    fixture.world.run()
    answers: list[Any] = []
    fixture.ask(answers)
    fixture.host.transport.write(struct.pack(">i", size) + bytes(100))
    fixture.world.run()
    assert not fixture.peer.ready
    assert (fixture.lost, fixture.host.lost) == (1, 1)
    fixture.world.run(100)
    assert fixture.ready == 2


def test_an_announced_size_reserves_nothing(fixture: Fixture) -> None:
    fixture.world.run()
    link = fixture.peer._link
    assert link is not None
    fixture.host.transport.write(struct.pack(">i", 50 << 20) + bytes(10))
    fixture.world.run()
    assert fixture.peer.ready
    assert len(link._buffer) <= 64 << 10


@pytest.mark.parametrize("body", [b"", b"\0\xff\xff\xff\xff", b"\xff\xff\xff\xff\xff\xff"])
def test_an_answer_that_cannot_be_read_costs_the_connection(fixture: Fixture, body: bytes) -> None:
    fixture.world.run()
    answers: list[Any] = []
    fixture.host.asked = lambda number: fixture.host.answer(number, [body])  # type: ignore[method-assign]
    fixture.ask(answers)
    fixture.world.run()
    assert answers == []
    assert fixture.lost == 1


def test_an_answer_to_another_question_costs_the_connection(fixture: Fixture) -> None:
    fixture.world.run()
    answers: list[Any] = []
    fixture.host.asked = lambda number: fixture.host.answer(number + 1, [b"\0", metadata_answer()])  # type: ignore[method-assign]
    fixture.ask(answers)
    fixture.world.run()
    assert answers == []
    assert fixture.lost == 1


def test_whoever_fails_to_deal_with_an_answer_costs_only_the_connection(fixture: Fixture) -> None:
    fixture.world.run()

    def fail(answer: Any) -> None:
        raise RuntimeError("a bug")

    fixture.peer.ask(METADATA, MetadataRequest(topics=[]), fail)
    fixture.world.run(100)
    assert (fixture.lost, fixture.ready) == (1, 2)


def test_an_answer_that_does_not_come_costs_the_connection(fixture: Fixture) -> None:
    world = fixture.world
    world.run()
    fixture.ask()
    world.run(20_000)
    fixture.host.asked = lambda number: None  # type: ignore[method-assign]
    fixture.ask()
    world.run(29_000)
    assert fixture.lost == 0
    world.run(1_500)
    assert fixture.lost == 1


def test_a_broker_that_may_take_its_time_gets_it(fixture: Fixture) -> None:
    world = fixture.world
    world.run()
    fixture.host.asked = lambda number: None  # type: ignore[method-assign]
    fixture.peer.ask(METADATA, MetadataRequest(topics=[]), lambda answer: None, wait_ms=10_000)
    world.run(39_000)
    assert fixture.lost == 0
    world.run(1_500)
    assert fixture.lost == 1


def test_attempts_come_less_and_less_often(fixture: Fixture) -> None:
    fixture.world.network.listeners.clear()
    fixture.world.run(10_000)
    waits = [
        after - before for before, after in zip(fixture.attempts_ms, fixture.attempts_ms[1:], strict=False)
    ]
    assert waits[:6] == [20, 40, 80, 160, 320, 640]
    assert set(waits[6:]) == {BACKOFF_MAX_MS}
    assert fixture.ready == fixture.lost == 0


def test_a_good_connection_makes_up_for_bad_ones(fixture: Fixture) -> None:
    world = fixture.world
    world.network.listeners.clear()
    world.run(5000)
    world.network.listeners["host2"] = fixture.host
    world.run(1000)
    assert fixture.ready == 1
    world.network.attempts.clear()
    world.network.cut()
    world.run(21)
    assert len(fixture.attempts_ms) == 1
    assert fixture.ready == 2


def test_a_host_that_says_nothing_is_given_up(fixture: Fixture) -> None:
    fixture.host.answer_hello = None
    fixture.world.run(GREETING_MAX_MS + 50)
    assert fixture.host.connections == 2
    assert fixture.host.lost == 1


def test_a_host_that_does_not_even_refuse_is_tried_again() -> None:
    world = ReplicaWorld(2)
    world.network.silent = True
    peer = Peer(world[1], 2, lambda: None, lambda: None)  # type: ignore[arg-type]
    world.run(2 * GREETING_MAX_MS + 100)
    assert len(world.network.attempts) == 3
    peer.close()


def test_being_refused_is_no_reason_to_hammer(fixture: Fixture) -> None:
    refusal = BrokerHelloResponse(error_code=31, error_message="no", broker_id=2)
    fixture.host.answer_hello = lambda host, number: host.answer(
        number, encoder(BrokerHelloResponse, 0)(refusal)
    )
    fixture.world.run(5000)
    assert fixture.ready == fixture.lost == 0
    assert 8 <= fixture.host.connections <= 11


def test_another_broker_at_the_address_is_not_taken_for_it(fixture: Fixture) -> None:
    other = BrokerHelloResponse(broker_id=3)
    fixture.host.answer_hello = lambda host, number: host.answer(
        number, encoder(BrokerHelloResponse, 0)(other)
    )
    fixture.world.run(1000)
    assert fixture.ready == 0


def test_a_broker_that_is_not_in_the_image_is_waited_for(fixture: Fixture) -> None:
    world = fixture.world
    broker = world.image.brokers[2]
    world.image = world.image.without_broker(2)
    world.run()
    world.network.cut()
    world.run(3000)
    assert fixture.ready == 1
    attempts = len(world.network.attempts)
    world.image = world.image.with_broker(broker)
    fixture.peer.hurry()
    world.run()
    assert len(world.network.attempts) == attempts + 1
    assert fixture.ready == 2


def test_hurrying_does_not_disturb_what_is_under_way(fixture: Fixture) -> None:
    fixture.peer.hurry()
    fixture.world.run()
    fixture.peer.hurry()
    fixture.world.run()
    assert fixture.host.connections == 1


@pytest.mark.parametrize("after_ms", [-1, 0, 5])
def test_after_closing_nothing_happens_any_more(fixture: Fixture, after_ms: int) -> None:
    if after_ms >= 0:
        fixture.world.run(after_ms)
    fixture.peer.close()
    ready = fixture.ready
    fixture.world.run(10_000)
    assert (fixture.ready, fixture.lost) == (ready, 0)
    assert len(fixture.attempts_ms) == 1
    assert fixture.host.lost == fixture.host.connections


def test_private_requests_are_not_among_those_that_clients_hear_of() -> None:
    world = ReplicaWorld(1)
    served = {api.key for api in world[1].dispatcher.served_apis()}
    assert not served & PRIVATE_APIS.keys()
    assert PRIVATE_APIS.keys() == {BROKER_HELLO_KEY, BROKER_REPORT_KEY}
