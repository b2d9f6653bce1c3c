"""The network port over real sockets: connections made, refused, called off."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import uvloop

from culver.network import AsyncioNetwork

SECONDS_MAX = 10.0

uvloop.new_event_loop().close()  # the first one of a process opens a pipe for good, which is no test's leak


class Recorder(asyncio.BufferedProtocol):
    """Keeps what it receives."""

    def __init__(self) -> None:
        self.transport: Any = None
        self.received = b""
        self.made = asyncio.Event()
        self.changed = asyncio.Event()
        self.lost = asyncio.Event()
        self._buffer = bytearray(1024)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport
        self.made.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.received += self._buffer[:nbytes]
        self.changed.set()


@pytest.fixture(params=[asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
def run(request: pytest.FixtureRequest) -> Callable[[Callable[[], Awaitable[None]]], None]:
    def run(main: Callable[[], Awaitable[None]]) -> None:
        async def limited() -> None:
            await asyncio.wait_for(main(), SECONDS_MAX)

        with asyncio.Runner(loop_factory=request.param) as runner:
            runner.run(limited())

    return run


def test_both_ends_are_connected_without_delay_for_small_writes(run: Any) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        client, server, failures = Recorder(), Recorder(), []
        listener = await network.listen("127.0.0.1", 0, lambda: server)
        network.connect(*listener.address, lambda: client, failures.append)
        assert client.transport is None, "nothing is called before it returns"
        await client.made.wait()
        client.transport.write(b"hello")
        await server.changed.wait()
        assert server.received == b"hello"
        for end in (client, server):
            option = end.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
            assert option
        client.transport.close()
        await server.lost.wait()
        listener.close()
        assert failures == []

    run(main)


def test_a_refusal_is_told(run: Any) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        listener = await network.listen("127.0.0.1", 0, Recorder)
        address = listener.address
        listener.close()
        failed: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        network.connect(*address, Recorder, failed.set_result)
        assert isinstance(await failed, ConnectionRefusedError)

    run(main)


def test_a_name_that_nobody_has_is_told(run: Any) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        failed: asyncio.Future[OSError] = asyncio.get_running_loop().create_future()
        network.connect("nobody.invalid", 9092, Recorder, failed.set_result)
        assert isinstance(await failed, OSError)

    run(main)


def test_what_is_called_off_is_neither_made_nor_failed(run: Any) -> None:
    async def main() -> None:
        network = AsyncioNetwork(asyncio.get_running_loop())
        called_off, other, failures = Recorder(), Recorder(), []
        listener = await network.listen("127.0.0.1", 0, Recorder)
        network.connect(*listener.address, lambda: called_off, failures.append).cancel()
        network.connect(*listener.address, lambda: other, failures.append)
        await other.made.wait()
        assert called_off.transport is None
        assert failures == []
        other.transport.close()
        await other.lost.wait()
        listener.close()

    run(main)
