"""The network between brokers, clients and the metadata store: a TCP gate in front of each, cut and slowed at will.

A broker advertises its gate's address, so everybody comes through it. The first request on a connection tells who
comes: a broker begins with BrokerHello. What is cut is the way from one to another, as packets go: requests of one and
answers to the other. While a way is cut its bytes are held back, as by a network that loses packets, or connections are
reset. Clients always pass.
"""

from __future__ import annotations

import asyncio
import struct
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeAlias

from culver.protocol.apis import BROKER_HELLO_KEY, PRIVATE_APIS
from culver.protocol.messages.broker_hello import BrokerHelloRequest
from culver.protocol.schema import decoder

# Stands for the metadata store where a broker's id is expected; brokers of a run have ids from 1 on.
STORE = 0

_CHUNK_BYTES = 1 << 16
_CONNECT_SECONDS = 5.0
_FRAME_START = struct.Struct(">ih")
_HELLO_START = struct.Struct(">ihhih")
_HELLO_MAX_BYTES = 1 << 16

# From whom to whom.
Way: TypeAlias = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Gate:
    """Where one broker, or the store for one broker, is reached."""

    address: str


@dataclass(eq=False, slots=True)
class _Connection:
    """Two sockets that belong together, and whose they are; `near` is the side of the one who connected."""

    source: int | None
    target: int
    near: asyncio.StreamWriter
    far: asyncio.StreamWriter

    def runs_over(self, way: Way) -> bool:
        return way in ((self.source, self.target), (self.target, self.source))

    def reset(self) -> None:
        for end in (self.near, self.far):
            end.transport.abort()


class Network:
    """All gates of a cluster, on a thread with an event loop of its own. Its methods may be called from any other."""

    def __init__(self) -> None:
        self._loop: asyncio.AbstractEventLoop = asyncio.new_event_loop()
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._connections: set[_Connection] = set()
        # Ways that are cut, and whether connections over them are reset.
        self._cuts: dict[Way, bool] = {}
        self._delays_s: dict[Way, float] = {}
        self._changed = asyncio.Event()
        self._thread = threading.Thread(target=self._loop.run_forever, name="chaos-network", daemon=True)
        self._thread.start()

    # -- what a run does ----------------------------------------------------------------------------------------

    def broker_gate(self, broker: int, target: tuple[str, int]) -> Gate:
        """A gate in front of a broker that listens at `target`."""
        return self._gate(broker, target, None)

    def store_gate(self, broker: int, target: tuple[str, int]) -> Gate:
        """A gate through which only this broker reaches the metadata store."""
        return self._gate(STORE, target, broker)

    def cut(self, ways: Iterable[Way], *, reset: bool = False) -> None:
        """Nothing gets through on these ways. Reset: connections over them are closed, now and whenever made."""
        cuts = dict.fromkeys(ways, reset)

        def work() -> None:
            self._cuts.update(cuts)
            if reset:
                for connection in list(self._connections):
                    if any(connection.runs_over(way) for way in cuts):
                        connection.reset()

        self._call(work)

    def slow(self, ways: Iterable[Way], delay_s: float) -> None:
        """Everything on these ways takes so much longer."""
        delays = dict.fromkeys(ways, delay_s)
        self._call(lambda: self._delays_s.update(delays))

    def heal(self, ways: Iterable[Way] | None = None) -> None:
        """These ways, or all, are as they should be; what was held back arrives."""
        healed = None if ways is None else set(ways)

        def work() -> None:
            for way in [*self._cuts, *self._delays_s]:
                if healed is None or way in healed:
                    self._cuts.pop(way, None)
                    self._delays_s.pop(way, None)
            self._changed.set()
            self._changed = asyncio.Event()

        self._call(work)

    def close(self) -> None:
        """Close every gate and connection and end the thread."""

        async def work() -> None:
            for server in self._servers:
                server.close()
            for connection in list(self._connections):
                connection.reset()
            tasks = list(self._tasks)
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            await asyncio.sleep(0)  # transports that were aborted close their sockets in the next turn

        asyncio.run_coroutine_threadsafe(work(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _gate(self, target: int, address: tuple[str, int], source: int | None) -> Gate:
        return asyncio.run_coroutine_threadsafe(self._open(target, address, source), self._loop).result()

    def _call(self, work: Callable[[], object]) -> None:
        async def run() -> None:
            work()

        asyncio.run_coroutine_threadsafe(run(), self._loop).result()

    # -- gates --------------------------------------------------------------------------------------------------

    async def _open(self, target: int, address: tuple[str, int], source: int | None) -> Gate:
        def arrived(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = self._loop.create_task(self._serve(reader, writer, source, target, address))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(arrived, "127.0.0.1", 0, limit=_CHUNK_BYTES)
        self._servers.append(server)
        host, port = server.sockets[0].getsockname()[:2]
        return Gate(f"{host}:{port}")

    async def _serve(
        self,
        near_reader: asyncio.StreamReader,
        near: asyncio.StreamWriter,
        source: int | None,
        target: int,
        address: tuple[str, int],
    ) -> None:
        connection: _Connection | None = None
        try:
            far_reader, far = await asyncio.wait_for(
                asyncio.open_connection(*address, limit=_CHUNK_BYTES), _CONNECT_SECONDS
            )
            connection = _Connection(source, target, near, far)
            first = b""
            if source is None:
                source, first = await _who(near_reader)
                connection.source = source
            self._connections.add(connection)
            there = back = None
            if source is not None:
                there, back = (source, target), (target, source)
                if self._cuts.get(there) or self._cuts.get(back):
                    connection.reset()
                    return
            async with asyncio.TaskGroup() as pumps:
                pumps.create_task(self._pump(near_reader, connection.far, there, first))
                pumps.create_task(self._pump(far_reader, connection.near, back))
        except* (OSError, EOFError, TimeoutError, _Ended):
            pass  # either side is gone: so is the other
        finally:
            if connection is not None:
                self._connections.discard(connection)
                connection.far.close()
            near.close()

    async def _pump(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: Way | None, first: bytes = b""
    ) -> None:
        chunk = first or await reader.read(_CHUNK_BYTES)
        while chunk:
            await self._pass(way)
            writer.write(chunk)
            await writer.drain()
            chunk = await reader.read(_CHUNK_BYTES)
        await self._pass(way)
        raise _Ended  # ends the pump of the other way, too

    async def _pass(self, way: Way | None) -> None:
        """Wait until the way is free."""
        if way is None:
            return
        delay_s = self._delays_s.get(way)
        if delay_s:
            await asyncio.sleep(delay_s)
        while way in self._cuts:
            await self._changed.wait()


class _Ended(Exception):
    """One side has closed the connection."""


async def _who(reader: asyncio.StreamReader) -> tuple[int | None, bytes]:
    """Which broker has connected, None for a client; and the bytes that were read to find out."""
    first = await reader.readexactly(_FRAME_START.size)
    size, api_key = _FRAME_START.unpack(first)
    if api_key != BROKER_HELLO_KEY or size > _HELLO_MAX_BYTES:
        return None, first
    first += await reader.readexactly(4 + size - len(first))
    client_id_bytes = _HELLO_START.unpack_from(first)[4]
    position = _HELLO_START.size + max(client_id_bytes, 0)
    if PRIVATE_APIS[BROKER_HELLO_KEY].request_header_version(0) >= 2:
        position += 1  # no tagged fields
    hello, _ = decoder(BrokerHelloRequest, 0)(first, position)
    return hello.broker_id, first


def between(ones: Iterable[int], others: Iterable[int]) -> list[Way]:
    """Both ways between each of the ones and each of the others."""
    others = list(others)
    return [way for one in ones for other in others if one != other for way in ((one, other), (other, one))]
