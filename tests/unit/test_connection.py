"""A connection: requests cut out of the byte stream, responses in order, back-pressure both ways."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from culver.broker.connection import Connection
from culver.broker.exchange import NO_RESPONSE, Exchange
from culver.broker.request_statistics import ApiStatistics
from culver.broker.server import Server
from culver.errors import MalformedRequest


class Route:
    def __init__(self) -> None:
        self.statistics = ApiStatistics()

    def encode_response(self, correlation_id: int, response: bytes) -> list[bytes]:
        return [b"[%d:" % correlation_id, response, b"]"]


class Dispatcher:
    """Requests are plain text: 'echo', 'park', 'none', 'bad' or 'crash', numbered as they come."""

    def __init__(self) -> None:
        self.parked: dict[int, Exchange] = {}
        self.seen: list[bytes] = []

    def handle(self, connection: Connection, view: memoryview, start: int, stop: int) -> tuple[Exchange, Any]:
        body = bytes(view[start:stop])
        number = len(self.seen)
        self.seen.append(body)
        exchange = Exchange(connection, Route(), 0, number, "test")  # type: ignore[arg-type]
        if body.startswith(b"park"):
            self.parked[number] = exchange
            return exchange, None
        if body == b"none":
            return exchange, NO_RESPONSE
        if body == b"bad":
            raise MalformedRequest("bad")
        if body == b"crash":
            raise RuntimeError("a bug")
        return exchange, body


class Transport:
    def __init__(self) -> None:
        self.sent = b""
        self.reading = True
        self.closed = False
        self.buffered = 0

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, name: str) -> tuple[str, int]:
        return ("127.0.0.1", 1)

    def get_write_buffer_size(self) -> int:
        return self.buffered

    def write(self, data: bytes) -> None:
        self.sent += data

    def writelines(self, buffers: list[bytes]) -> None:
        self.sent += b"".join(buffers)

    def pause_reading(self) -> None:
        self.reading = False

    def resume_reading(self) -> None:
        self.reading = True

    def close(self) -> None:
        self.closed = True

    abort = close


class Scheduler:
    def __init__(self) -> None:
        self.soon: list[Callable[[], object]] = []

    def call_soon(self, callback: Callable[[], object]) -> None:
        self.soon.append(callback)

    def call_later(self, delay_ms: float, callback: Callable[[], object]) -> Any:
        return SimpleNamespace(cancel=lambda: None)

    def run(self) -> None:
        while self.soon:
            self.soon.pop(0)()


class World:
    def __init__(self, request_max_bytes: int = 10 << 20, budget_bytes: int = 64 << 20) -> None:
        config: Any = SimpleNamespace(
            socket_request_max_bytes=request_max_bytes,
            queued_max_request_bytes=budget_bytes,
            max_connections=100,
            connections_max_idle_ms=600_000,
        )
        self.dispatcher = Dispatcher()
        self.scheduler = Scheduler()
        self.bunches = 0
        self.server = Server(
            config,
            self.dispatcher,  # type: ignore[arg-type]
            self.scheduler,  # type: ignore[arg-type]
            lambda: 0.0,
            self._after,
        )

    def _after(self) -> None:
        self.bunches += 1

    def connect(self) -> tuple[Connection, Transport]:
        connection, transport = self.server.new_connection(), Transport()
        connection.connection_made(transport)  # type: ignore[arg-type]
        return connection, transport


def frame(body: bytes) -> bytes:
    return struct.pack(">i", len(body)) + body


def receive(connection: Connection, data: bytes) -> None:
    """What the event loop does, for as long as the connection has room."""
    while data:
        buffer = connection.get_buffer(-1)
        assert len(buffer) > 0, "a connection that reads has room"
        size = min(len(buffer), len(data))
        buffer[:size] = data[:size]
        connection.buffer_updated(size)
        data = data[size:]


@pytest.fixture
def world() -> World:
    return World()


def test_requests_in_one_read_are_one_bunch(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, frame(b"a") + frame(b"b") + frame(b"c"))
    assert transport.sent == b"[0:a][1:b][2:c]"
    assert world.bunches == 1


@pytest.mark.parametrize("step", [1, 2, 3, 5, 7])
def test_a_request_may_arrive_in_any_pieces(world: World, step: int) -> None:
    connection, _transport = world.connect()
    stream = frame(b"first") + frame(b"") + frame(b"x" * 100)
    for position in range(0, len(stream), step):
        receive(connection, stream[position : position + step])
    assert world.dispatcher.seen == [b"first", b"", b"x" * 100]
    assert world.server.buffers.held_bytes == 0


@pytest.mark.parametrize("size", [70_000, 1 << 20, 5 << 20])
def test_a_large_request_arrives_whole(world: World, size: int) -> None:
    connection, _ = world.connect()
    body = bytes(i % 253 for i in range(1 << 16)) * (size >> 16)
    receive(connection, frame(b"before") + frame(body) + frame(b"after"))
    assert world.dispatcher.seen == [b"before", body, b"after"]
    assert world.server.buffers.held_bytes == 0


def test_responses_leave_in_the_order_of_the_requests(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, frame(b"park") + frame(b"b") + frame(b"park") + frame(b"d"))
    assert transport.sent == b""
    world.dispatcher.parked[2].reply(b"C")
    assert transport.sent == b""
    world.dispatcher.parked[0].reply(b"A")
    assert transport.sent == b"[0:A][1:b][2:C][3:d]"


def test_a_request_without_a_response_holds_nothing_up(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, frame(b"none") + frame(b"b"))
    assert transport.sent == b"[1:b]"


@pytest.mark.parametrize("body", [b"bad", b"crash"])
def test_a_bad_request_closes_its_connection_after_the_good_ones_are_answered(
    world: World, body: bytes
) -> None:
    connection, transport = world.connect()
    other, other_transport = world.connect()
    receive(connection, frame(b"a") + frame(body) + frame(b"c"))
    assert transport.closed
    assert transport.sent == b"[0:a]"
    assert b"c" not in world.dispatcher.seen
    receive(other, frame(b"d"))
    assert other_transport.sent


@pytest.mark.parametrize("size", [-1, -(2**31), (10 << 20) + 1, 2**31 - 1])
def test_an_impossible_size_closes_the_connection_at_once(world: World, size: int) -> None:
    connection, transport = world.connect()
    receive(connection, struct.pack(">i", size))
    assert transport.closed
    assert world.server.buffers.held_bytes == 0


def test_a_reply_to_a_client_that_has_gone_is_harmless(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, frame(b"park"))
    told: list[bool] = []
    world.dispatcher.parked[0].on_abandon = lambda: told.append(True)
    connection.connection_lost(None)
    assert told == [True]
    world.dispatcher.parked[0].reply(b"late")
    assert transport.sent == b""
    assert not world.server.connections


def test_a_client_that_takes_no_responses_is_read_no_further(world: World) -> None:
    connection, transport = world.connect()
    transport.buffered = 300_000
    connection.pause_writing()
    assert world.server.unsent_bytes == 300_000
    receive(connection, frame(b"a") + frame(b"b"))
    assert world.dispatcher.seen == []
    assert not transport.reading
    connection.resume_writing()
    assert world.dispatcher.seen == [b"a", b"b"]
    assert transport.sent == b"[0:a][1:b]"
    assert transport.reading
    assert world.server.unsent_bytes == 0


def test_too_many_waiting_requests_pause_reading_until_some_are_answered(world: World) -> None:
    connection, transport = world.connect()
    receive(connection, frame(b"park") * 600)
    assert len(world.dispatcher.seen) == 512
    assert not transport.reading
    for number in range(100):
        world.dispatcher.parked[number].reply(b"")
    world.scheduler.run()
    assert len(world.dispatcher.seen) == 600
    assert transport.reading


def test_a_client_with_thousands_of_requests_takes_turns_with_others(world: World) -> None:
    connection, transport = world.connect()
    world.server.monotonic_ms = map(float, range(0, 1_000_000, 4)).__next__  # a clock that hurries
    receive(connection, frame(b"a") * 1000)
    assert 0 < len(world.dispatcher.seen) < 200
    assert not transport.reading
    other, other_transport = world.connect()
    receive(other, frame(b"quick"))
    assert other_transport.sent.endswith(b":quick]"), "the other client does not wait for the thousand"
    world.scheduler.run()
    assert len(world.dispatcher.seen) == 1001
    assert transport.sent.count(b"[") == 1000
    assert transport.reading


def test_responses_go_out_before_many_of_them_have_come_together(world: World) -> None:
    connection, transport = world.connect()
    sent_bytes_at: list[int] = []
    handle = world.dispatcher.handle

    def watched(*arguments: Any) -> tuple[Exchange, Any]:
        sent_bytes_at.append(len(transport.sent))
        return handle(*arguments)

    world.dispatcher.handle = watched  # type: ignore[method-assign]
    receive(connection, frame(b"x" * 50_000) * 10)
    unsent = [50_000 * number - sent for number, sent in enumerate(sent_bytes_at)]
    assert max(unsent) <= 100_000


def test_answers_that_wait_for_an_earlier_one_are_bounded(world: World) -> None:
    connection, transport = world.connect()
    unsent = bytearray(frame(b"park") + frame(b"x" * 200_000) * 50)

    def send_while_read() -> None:
        while unsent and transport.reading:
            buffer = connection.get_buffer(-1)
            size = min(len(buffer), len(unsent), 50_000)
            buffer[:size] = unsent[:size]
            connection.buffer_updated(size)
            del unsent[:size]

    send_while_read()
    assert not transport.reading
    assert len(world.dispatcher.seen) < 10, "no more are taken up until the first is answered"
    world.dispatcher.parked[0].reply(b"")
    world.scheduler.run()
    send_while_read()
    assert len(world.dispatcher.seen) == 51
    assert world.server.unsent_bytes == 0


def test_partial_requests_together_stay_within_the_budget_and_all_get_through() -> None:
    world = World(request_max_bytes=1 << 20, budget_bytes=2 << 20)
    clients = [(*world.connect(), bytearray(frame(b"x" * (1 << 20)))) for _ in range(20)]
    held_bytes_max = 0
    for _ in range(1000):
        for connection, transport, unsent in clients:
            if unsent and transport.reading:
                buffer = connection.get_buffer(-1)
                size = min(len(buffer), len(unsent), 50_000)
                buffer[:size] = unsent[:size]
                connection.buffer_updated(size)
                del unsent[:size]
                held_bytes_max = max(held_bytes_max, world.server.buffers.held_bytes)
        world.scheduler.run()
    assert [body for body in world.dispatcher.seen if body != b"x" * (1 << 20)] == []
    assert len(world.dispatcher.seen) == 20
    # The budget, one request beyond it, and the step with which the last one grew.
    assert held_bytes_max < 6 << 20
    assert world.server.buffers.held_bytes == 0
