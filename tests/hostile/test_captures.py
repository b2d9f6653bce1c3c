"""What real clients send, recorded on the way through a proxy, then changed and sent again."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct
import threading
from collections.abc import Iterator
from random import Random

import aiokafka
import confluent_kafka
import pytest

import kafka
from culver.protocol.apis import APIS
from culver.testing import Broker
from hostile.victim import PREY, Victim
from raw_connection import framed

GROUP = "captured-group"
MESSAGES = 20


class RecordingProxy:
    """Passes bytes on between clients and a broker, and keeps what the clients sent, by connection."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        host, port = self._listener.getsockname()
        self.bootstrap = f"{host}:{port}"
        self.streams: list[bytearray] = []
        self._threads: list[threading.Thread] = []
        self._sockets: list[socket.socket] = []

    def serve(self, broker_address: tuple[str, int]) -> None:
        self._broker_address = broker_address
        self._start(self._accept)

    def _start(self, target: object, *arguments: object) -> None:
        thread = threading.Thread(target=target, args=arguments)  # type: ignore[arg-type]
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                broker = socket.create_connection(self._broker_address)
                self._sockets += [client, broker]
                stream = bytearray()
                self.streams.append(stream)
                self._start(self._pass_on, client, broker, stream)
                self._start(self._pass_on, broker, client, None)

    def _pass_on(self, source: socket.socket, target: socket.socket, record: bytearray | None) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(1 << 16):
                if record is not None:
                    record += data
                target.sendall(data)
        for side in (source, target):
            with contextlib.suppress(OSError):
                side.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for one in self._sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for one in self._sockets:
            one.close()


def use_confluent_kafka(bootstrap: str) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": True, "compression.type": "lz4"}
    )
    for number in range(MESSAGES):
        producer.produce(PREY, key=b"k%d" % number, value=b"v" * 50, headers=[("h", b"1")])
    assert producer.flush(15) == 0
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": bootstrap, "group.id": GROUP, "auto.offset.reset": "earliest"}
    )
    consumer.subscribe([PREY])
    assert consumer.consume(MESSAGES, timeout=15)
    consumer.commit(asynchronous=False)
    consumer.close()


def use_kafka_python(bootstrap: str) -> None:
    producer = kafka.KafkaProducer(bootstrap_servers=bootstrap, compression_type="gzip")
    for number in range(MESSAGES):
        producer.send(PREY, key=b"k%d" % number, value=b"v" * 50)
    producer.flush(15)
    producer.close()
    consumer = kafka.KafkaConsumer(
        PREY,
        bootstrap_servers=bootstrap,
        group_id=GROUP + "-python",
        auto_offset_reset="earliest",
        consumer_timeout_ms=15_000,
    )
    assert next(iter(consumer))
    consumer.commit()
    consumer.close()


def use_aiokafka(bootstrap: str) -> None:
    async def run() -> None:
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=bootstrap, enable_idempotence=True)
        await producer.start()
        await producer.send_and_wait(PREY, b"value", key=b"key")
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(
            PREY, bootstrap_servers=bootstrap, group_id=GROUP + "-async", auto_offset_reset="earliest"
        )
        await consumer.start()
        assert await asyncio.wait_for(consumer.getone(), 15)
        await consumer.commit()
        await consumer.stop()

    asyncio.run(run())


def requests_in(stream: bytes) -> Iterator[bytes]:
    """The whole requests of a connection, without their sizes."""
    position = 0
    while position + 4 <= len(stream):
        (size,) = struct.unpack_from(">i", stream, position)
        request = stream[position + 4 : position + 4 + size]
        if len(request) == size:
            yield request
        position += 4 + size


@pytest.fixture(scope="module")
def captured() -> list[bytes]:
    """Every request that three clients sent to do their usual work.

    The broker they talk to advertises the proxy, so that they come that way with each of their connections.
    """
    proxy = RecordingProxy()
    port = free_port()
    proxy.serve(("127.0.0.1", port))
    settings = {"group.initial.rebalance.delay.ms": 0}
    try:
        with Broker(
            topics={PREY: 2},
            config=settings,
            listen=f"127.0.0.1:{port}",
            arguments=["--advertise", proxy.bootstrap],
        ):
            use_confluent_kafka(proxy.bootstrap)
            use_kafka_python(proxy.bootstrap)
            use_aiokafka(proxy.bootstrap)
    finally:
        proxy.close()
    return [request for stream in proxy.streams for request in requests_in(bytes(stream))]


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port: int = listener.getsockname()[1]
        return port


def api_key_of(request: bytes) -> int:
    key: int = struct.unpack_from(">h", request)[0]
    return key


def test_the_capture_holds_what_clients_do(captured: list[bytes]) -> None:
    names = {APIS[api_key_of(request)].name for request in captured}
    assert names >= {
        "ApiVersions",
        "Metadata",
        "InitProducerId",
        "Produce",
        "Fetch",
        "ListOffsets",
        "FindCoordinator",
        "JoinGroup",
        "SyncGroup",
        "OffsetCommit",
        "OffsetFetch",
        "LeaveGroup",
    }


def distinct(captured: list[bytes]) -> list[bytes]:
    """A few of each API, version and length: clients repeat themselves."""
    found: dict[tuple[bytes, int], bytes] = {}
    for request in captured:
        found.setdefault((request[:4], len(request)), request)
    return list(found.values())


def test_changed_captures_are_survived(victim: Victim, captured: list[bytes]) -> None:
    rng = Random(5)

    def changed() -> Iterator[bytes]:
        for request in distinct(captured):
            for _ in range(40):
                mutated = bytearray(request)
                for _ in range(rng.randint(1, 4)):
                    at = rng.randrange(len(mutated))
                    mutated[at] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, mutated[at] ^ (1 << rng.randrange(8))))
                yield framed(bytes(mutated))

    victim.attack(changed())


def test_captures_put_together_wrongly_are_survived(victim: Victim, captured: list[bytes]) -> None:
    rng = Random(6)
    pieces = distinct(captured)

    def streams() -> Iterator[bytes]:
        for _ in range(400):
            chosen = [framed(request) for request in rng.choices(pieces, k=rng.randint(2, 8))]
            match rng.randrange(4):
                case 0:  # requests in any order, of any client
                    yield b"".join(chosen)
                case 1:  # one has lost bytes from its middle
                    lost = rng.randrange(len(chosen))
                    middle = len(chosen[lost]) // 2
                    chosen[lost] = chosen[lost][:middle] + chosen[lost][middle + 1 + rng.randrange(9) :]
                    yield b"".join(chosen)
                case 2:  # the size of one is off
                    lying = rng.randrange(len(chosen))
                    size = len(chosen[lying]) - 4 + rng.choice((-3, -1, 1, 2, 50))
                    chosen[lying] = struct.pack(">i", size) + chosen[lying][4:]
                    yield b"".join(chosen)
                case _:  # two requests' halves are one
                    one, other = chosen[0][4:], chosen[1][4:]
                    yield framed(one[: len(one) // 2] + other[len(other) // 2 :])

    victim.attack(streams())
