"""A small Kafka client for simulated workloads: connections, metadata and retries, over Culver's own codecs."""

from __future__ import annotations

import asyncio
import random
import struct
from typing import Any, TypeVar

from culver.errors import ErrorCode, KafkaError
from culver.protocol.apis import APIS
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from culver.protocol.schema import Message, decoder, encoder
from culver.testing.simulation.loop import Process
from culver.testing.simulation.network import ProcessNetwork

M = TypeVar("M", bound=Message)

REQUEST_TIMEOUT_SECONDS = 3.0
CONNECT_TIMEOUT_SECONDS = 1.5
_METADATA_VERSION = 12
_COORDINATOR_VERSION = 3
# Kinds of coordinators.
OF_GROUPS = 0
OF_TRANSACTIONS = 1


class Disconnected(Exception):
    """No answer, and none will come: what was asked may have been done."""


class NotSent(Disconnected):
    """There was no connection: what was asked has certainly not been done."""


class Connection(asyncio.Protocol):
    """One connection; requests are answered in order."""

    def __init__(self, process: Process, client_id: str) -> None:
        self._process = process
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._received = bytearray()
        self._correlation_id = 0
        self._waiting: dict[int, tuple[asyncio.Future[Any], Message, int]] = {}
        self.opened: asyncio.Future[None] = process.loop.create_future()
        self.opened.add_done_callback(_noticed)
        self.closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        if self.opened.done():
            transport.abort()
        else:
            self.opened.set_result(None)

    def failed(self, error: OSError) -> None:
        self.closed = True
        if not self.opened.done():
            self.opened.set_exception(NotSent(str(error)))

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed = True
        waiting, self._waiting = self._waiting, {}
        for future, _, _ in waiting.values():
            if not future.done():
                future.set_exception(Disconnected("the connection was lost"))

    def begin(self, request: Message, version: int) -> asyncio.Future[Any]:
        """Send a request now; its answer, or Disconnected, comes with the future."""
        future: asyncio.Future[Any] = self._process.loop.create_future()
        future.add_done_callback(_noticed)
        if self.closed or self._transport is None:
            future.set_exception(NotSent("the connection is closed"))
            return future
        self._correlation_id += 1
        self._transport.write(self._encode(request, version))
        self._waiting[self._correlation_id] = (future, request, version)
        timer = self._process.loop.call_later(REQUEST_TIMEOUT_SECONDS, self._late, future)
        future.add_done_callback(lambda _: timer.cancel())
        return future

    async def ask(self, request: Message, version: int) -> Any:
        return await self.begin(request, version)

    def _late(self, future: asyncio.Future[Any]) -> None:
        # As Kafka's clients do: whoever has waited too long for one answer waits for none of them any more.
        if not future.done():
            self.close()

    def _encode(self, request: Message, version: int) -> bytes:
        api = APIS[type(request).SCHEMA.api_key or 0]
        header = (
            struct.pack(">hhih", api.key, version, self._correlation_id, len(self._client_id))
            + self._client_id
        )
        if api.request_header_version(version) >= 2:
            header += b"\x00"
        body = b"".join(bytes(part) for part in encoder(type(request), version)(request))
        return struct.pack(">i", len(header) + len(body)) + header + body

    def send_and_forget(self, request: Message, version: int) -> None:
        """A request that gets no answer (acks=0)."""
        if self.closed or self._transport is None:
            raise NotSent("the connection is closed")
        self._correlation_id += 1
        self._transport.write(self._encode(request, version))

    def data_received(self, data: bytes) -> None:
        self._received += data
        while len(self._received) >= 4:
            (size,) = struct.unpack_from(">i", self._received)
            if len(self._received) < 4 + size:
                return
            frame = bytes(self._received[4 : 4 + size])
            del self._received[: 4 + size]
            self._answered(frame)

    def _answered(self, frame: bytes) -> None:
        (correlation_id,) = struct.unpack_from(">i", frame)
        future, request, version = self._waiting.pop(correlation_id)
        api = APIS[type(request).SCHEMA.api_key or 0]
        start = 4 + api.response_header_version(version)
        response, _ = decoder(api.response, version)(frame, start)
        if not future.done():
            future.set_result(response)

    def close(self) -> None:
        if self._transport is not None and not self.closed:
            self._transport.abort()
        self.connection_lost(None)


def _noticed(future: asyncio.Future[Any]) -> None:
    """An answer that nobody waits for any more may be an error: asyncio need not complain of it."""
    if not future.cancelled():
        future.exception()


class Client:
    """What a producer or consumer knows of the cluster: brokers, leaders, and connections to them."""

    def __init__(
        self,
        process: Process,
        network: ProcessNetwork,
        bootstrap: list[tuple[str, int]],
        generator: random.Random,
    ) -> None:
        self.process = process
        self._network = network
        self._bootstrap = bootstrap
        self.random = generator
        self._brokers: dict[int, tuple[str, int]] = {}
        # (topic, partition) -> (leader, leader epoch)
        self._leaders: dict[tuple[str, int], tuple[int, int]] = {}
        self._connections: dict[tuple[str, int], Connection] = {}
        self._coordinators: dict[tuple[int, str], tuple[str, int]] = {}

    @property
    def now_ms(self) -> float:
        return self.process.world.now_us / 1000.0

    async def pause(self, low_ms: int, high_ms: int) -> None:
        await asyncio.sleep(self.random.randrange(low_ms, high_ms) / 1000)

    # -- connections ------------------------------------------------------------------------------------

    async def connect(self, address: tuple[str, int]) -> Connection:
        """A connection to this address, the one there is if it is open. NotSent when there is none to be had."""
        connection = self._connections.get(address)
        if connection is None or connection.closed:
            connection = Connection(self.process, self.process.name)
            self._connections[address] = connection
            connecting = self._network.connect(address[0], address[1], lambda: connection, connection.failed)

            def give_up() -> None:
                connecting.cancel()
                connection.failed(TimeoutError("took too long to connect"))

            timer = self.process.loop.call_later(CONNECT_TIMEOUT_SECONDS, give_up)
            connection.opened.add_done_callback(lambda _: timer.cancel())
        if not connection.opened.done():
            await asyncio.wait([connection.opened])
        connection.opened.result()
        return connection

    async def any_broker(self) -> Connection:
        return await self.connect(self.random.choice([*self._brokers.values(), *self._bootstrap]))

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()

    # -- metadata ---------------------------------------------------------------------------------------

    async def refresh(self, *topics: str) -> None:
        """Ask some broker who leads what. Disconnected when it does not answer."""
        connection = await self.any_broker()
        request = MetadataRequest(
            topics=[MetadataRequestTopic(name=topic) for topic in topics], allow_auto_topic_creation=False
        )
        response = await connection.ask(request, _METADATA_VERSION)
        self._brokers = {broker.node_id: (broker.host, broker.port) for broker in response.brokers}
        for topic in response.topics:
            for partition in topic.partitions:
                key = (topic.name, partition.partition_index)
                # Brokers hear of elections at different times: what an older one said does not count.
                if partition.leader_epoch >= self._leaders.get(key, (-1, -1))[1]:
                    self._leaders[key] = (partition.leader_id, partition.leader_epoch)

    async def leader(self, partition: tuple[str, int]) -> tuple[Connection, int]:
        """A connection to the partition's leader, and its epoch. NotSent when there is none now."""
        if partition not in self._leaders:
            await self.refresh(partition[0])
        leader, epoch = self._leaders.get(partition, (-1, -1))
        address = self._brokers.get(leader)
        if address is None:
            raise NotSent(f"{partition} has no leader that is alive")
        return await self.connect(address), epoch

    async def broker(self, number: int) -> Connection:
        """A connection to one broker. NotSent when nobody knows where it is."""
        address = self._brokers.get(number)
        if address is None:
            raise NotSent(f"broker {number} is not known")
        return await self.connect(address)

    async def leader_is_another(self, partition: tuple[str, int]) -> None:
        """The leader did not answer, or says that it does not lead: ask again who does."""
        await self.pause(20, 120)
        try:
            await self.refresh(partition[0])
        except Disconnected:
            await self.pause(20, 120)

    # -- coordinators -----------------------------------------------------------------------------------

    async def coordinator(self, key: str, kind: int = OF_GROUPS) -> Connection:
        """A connection to who coordinates a group or transactional id. KafkaError or Disconnected if nobody does."""
        address = self._coordinators.get((kind, key))
        if address is None:
            connection = await self.any_broker()
            request = FindCoordinatorRequest(key=key, key_type=kind)
            answer = await connection.ask(request, _COORDINATOR_VERSION)
            if answer.error_code:
                raise KafkaError(ErrorCode(answer.error_code))
            address = self._coordinators[kind, key] = (answer.host, answer.port)
        return await self.connect(address)

    def coordinator_is_another(self, key: str, kind: int = OF_GROUPS) -> None:
        self._coordinators.pop((kind, key), None)
