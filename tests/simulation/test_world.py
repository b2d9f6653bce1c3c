"""The simulated world keeps its own rules: time, frozen and killed processes, and TCP at its worst."""

from __future__ import annotations

import asyncio

import pytest

from culver.testing.simulation.loop import Process, SimulationStuck, World
from culver.testing.simulation.network import SimulatedNetwork
from culver.testing.simulation.scheduler import SimulatedScheduler

SECOND = 1_000_000


class Recorder(asyncio.Protocol):
    """Remembers what happened to a connection."""

    def __init__(self) -> None:
        self.received = bytearray()
        self.lost: list[Exception | None] = []
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.received += data

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Pair:
    """A client and a server on two hosts, connected."""

    def __init__(self, seed: int = 1) -> None:
        self.world = World(seed)
        self.network = SimulatedNetwork(self.world)
        self.server_process = Process(self.world, "server", "s")
        self.client_process = Process(self.world, "client", "c")
        self.server, self.client = Recorder(), Recorder()
        self.failures: list[OSError] = []
        self.network.bind(self.server_process, "s", 1, lambda: self.server)
        self.connect()
        self.world.run(lambda: self.client.transport is not None, SECOND)

    def connect(self) -> None:
        self.network.of(self.client_process).connect("s", 1, lambda: self.client, self.failures.append)

    def run(self, seconds: float) -> None:
        over: list[bool] = []
        end = self.world.after(round(seconds * SECOND), None, over.append, True)
        self.world.run(lambda: bool(over), end.when_us)

    def write(self, data: bytes) -> None:
        assert self.client.transport is not None
        self.client.transport.write(data)


def test_time_jumps_from_event_to_event() -> None:
    world = World(1)
    process = Process(world, "p", "h")
    seen: list[tuple[str, float]] = []

    async def work() -> None:
        for name in ("first", "second"):
            await asyncio.sleep(1_000)
            seen.append((name, asyncio.get_running_loop().time()))

    process.start(work())
    world.run(lambda: len(seen) == 2, 10_000 * SECOND)
    assert seen == [("first", 1_000.0), ("second", 2_000.0)]
    with pytest.raises(SimulationStuck):
        world.run(lambda: False, 10_000 * SECOND)


def test_what_nobody_expected_is_remembered() -> None:
    world = World(1)
    Process(world, "p", "h").soon(lambda: 1 // 0)
    world.after(1, None, lambda: None)
    with pytest.raises(SimulationStuck):
        world.run(lambda: False, SECOND)
    assert world.errors == ["p: ZeroDivisionError: integer division or modulo by zero"]


def test_a_frozen_process_does_late_what_fell_due() -> None:
    world = World(1)
    process = Process(world, "p", "h")
    seen: list[int] = []
    for delay_us in (10, 20, 30):
        process.later(delay_us, lambda: seen.append(world.now_us))
    world.after(15, None, process.pause)
    world.after(SECOND, None, process.resume)
    world.run(lambda: len(seen) == 3, 2 * SECOND)
    assert seen == [10, SECOND, SECOND]


def test_a_killed_process_does_nothing_any_more() -> None:
    world = World(1)
    process = Process(world, "p", "h")
    seen: list[str] = []
    process.later(10, seen.append, "never")
    scheduler = SimulatedScheduler(process, world.random("threads"))
    scheduler.run_blocking(lambda: seen.append("nor this"), lambda _result, _error: None)
    process.kill()
    world.after(SECOND, None, seen.append, "end")
    world.run(lambda: bool(seen), 2 * SECOND)
    assert seen == ["end"]


def test_bytes_arrive_in_order_and_in_pieces() -> None:
    pair = Pair()
    pair.network.fragment_share = 0.5
    sent = bytes(range(256)) * 20
    for at in range(0, len(sent), 100):
        pair.write(sent[at : at + 100])
    pair.run(5)
    assert bytes(pair.server.received) == sent


def test_a_short_cut_delays_and_loses_nothing() -> None:
    pair = Pair()
    pair.network.cut("c", "s")
    pair.write(b"hello")
    pair.run(0.5)
    assert not pair.server.received
    pair.network.heal("c", "s")
    pair.run(1)
    assert pair.server.received == b"hello"
    assert not pair.client.lost


def test_a_long_cut_ends_the_connection_for_the_sender_alone() -> None:
    pair = Pair()
    pair.network.cut("c", "s")
    pair.write(b"hello")
    pair.run(10)
    assert isinstance(pair.client.lost[0], ConnectionResetError)
    assert not pair.server.lost
    # The other end finds out when it has something to say.
    pair.network.heal("c", "s")
    assert pair.server.transport is not None
    pair.server.transport.write(b"anybody there?")
    pair.run(1)
    assert pair.server.lost


def test_a_one_way_cut_lets_bytes_through_but_not_their_acknowledgement() -> None:
    pair = Pair()
    pair.network.cut("s", "c")
    pair.write(b"hello")
    pair.run(0.5)
    assert pair.server.received == b"hello"
    pair.run(10)
    assert pair.client.lost


def test_a_killed_process_is_missed_at_once_and_an_unplugged_machine_is_not() -> None:
    killed = Pair()
    killed.server_process.kill()
    killed.network.process_died(killed.server_process, silently=False)
    killed.run(1)
    assert killed.client.lost

    unplugged = Pair()
    unplugged.server_process.kill()
    unplugged.network.process_died(unplugged.server_process, silently=True)
    unplugged.network.host_down("s")
    unplugged.run(1)
    assert not unplugged.client.lost
    unplugged.write(b"hello")
    unplugged.run(10)
    assert unplugged.client.lost


def test_connecting_to_nobody_fails_and_can_be_given_up() -> None:
    pair = Pair()
    pair.network.process_died(pair.server_process, silently=False)
    pair.connect()
    pair.run(1)
    assert isinstance(pair.failures[0], ConnectionRefusedError)
    connecting = pair.network.of(pair.client_process).connect(
        "s", 1, lambda: pair.client, pair.failures.append
    )
    connecting.cancel()
    pair.run(1)
    assert len(pair.failures) == 1


def test_the_same_seed_gives_the_same_world() -> None:
    def digest(seed: int) -> str:
        pair = Pair(seed)
        for _ in range(20):
            pair.write(b"x" * 50)
        pair.run(1)
        return pair.world.trace.digest

    assert digest(1) == digest(1)
    assert digest(1) != digest(2)
