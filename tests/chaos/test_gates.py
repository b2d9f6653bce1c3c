"""The network of a chaos run: who is cut off is, on the way that is cut, and clients never are."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from collections.abc import Iterator

import pytest

from culver.protocol.messages.broker_hello import BrokerHelloRequest
from culver.protocol.schema import encoder
from culver.testing.chaos.gates import STORE, Network, between

ANSWER_SECONDS = 20.0


class Echo:
    """A server that sends back what it gets, and remembers it."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._received = b""
        self._arrived = threading.Condition()
        self._sockets: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._accept)]
        self._threads[0].start()

    @property
    def address(self) -> tuple[str, int]:
        host, port = self._listener.getsockname()
        return host, port

    def has(self, data: bytes) -> bool:
        with self._arrived:
            return data in self._received

    def wait_for(self, data: bytes) -> None:
        with self._arrived:
            assert self._arrived.wait_for(lambda: data in self._received, ANSWER_SECONDS)

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                connection, _ = self._listener.accept()
                self._sockets.append(connection)
                self._threads.append(threading.Thread(target=self._serve, args=(connection,)))
                self._threads[-1].start()

    def _serve(self, connection: socket.socket) -> None:
        with contextlib.suppress(OSError), connection:
            while data := connection.recv(4096):
                with self._arrived:
                    self._received += data
                    self._arrived.notify_all()
                connection.sendall(data)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._sockets:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()


@pytest.fixture
def network() -> Iterator[Network]:
    network = Network()
    yield network
    network.close()


@pytest.fixture
def echo() -> Iterator[Echo]:
    echo = Echo()
    yield echo
    echo.close()


@contextlib.contextmanager
def connected(address: str) -> Iterator[socket.socket]:
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=ANSWER_SECONDS) as connection:
        yield connection


def frame(api_key: int, body: bytes) -> bytes:
    return struct.pack(">ihhih", 10 + len(body), api_key, 0, 1, 0) + body


def hello(broker: int) -> bytes:
    request = BrokerHelloRequest(cluster_id="c", broker_id=broker, broker_epoch=1, secret="s")
    return frame(30_000, b"".join(bytes(part) for part in encoder(BrokerHelloRequest, 0)(request)))


def receive(connection: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        chunk = connection.recv(size - len(data))
        if not chunk:
            break
        data += chunk
    return data


def test_a_cut_between_brokers_holds_back_what_they_say_and_lets_clients_pass(
    network: Network, echo: Echo
) -> None:
    gate = network.broker_gate(1, echo.address)
    with connected(gate.address) as broker, connected(gate.address) as client:
        broker.sendall(hello(2))
        assert receive(broker, len(hello(2))) == hello(2)
        network.cut(between([1], [2]))
        broker.sendall(b"from broker 2")
        request = frame(18, b"from a client")
        client.sendall(request)
        assert receive(client, len(request)) == request
        assert not echo.has(b"from broker 2")
        network.heal()
        assert receive(broker, 13) == b"from broker 2"


def test_a_cut_in_one_direction_lets_the_other_pass(network: Network, echo: Echo) -> None:
    gate = network.broker_gate(1, echo.address)
    with connected(gate.address) as broker:
        broker.sendall(hello(2))
        assert receive(broker, len(hello(2))) == hello(2)
        network.cut([(1, 2)])  # what broker 1 says is not heard by broker 2
        broker.sendall(b"a request")
        echo.wait_for(b"a request")
        broker.settimeout(0.05)
        with pytest.raises(TimeoutError):
            broker.recv(1)
        broker.settimeout(ANSWER_SECONDS)
        network.heal([(1, 2)])
        assert receive(broker, 9) == b"a request"


def test_a_cut_with_resets_ends_connections_and_lets_no_new_one_through(network: Network, echo: Echo) -> None:
    gate = network.broker_gate(1, echo.address)
    with connected(gate.address) as broker:
        broker.sendall(hello(2))
        assert receive(broker, len(hello(2))) == hello(2)
        network.cut(between([1], [2]), reset=True)
        assert_ended(broker)
    with connected(gate.address) as broker:
        broker.sendall(hello(2))
        assert_ended(broker)
    with connected(gate.address) as other:
        other.sendall(hello(3))
        assert receive(other, len(hello(3))) == hello(3)


def assert_ended(connection: socket.socket) -> None:
    with contextlib.suppress(ConnectionResetError):
        assert connection.recv(1) == b""


def test_the_way_to_the_store_is_the_brokers_own(network: Network, echo: Echo) -> None:
    one, other = (network.store_gate(broker, echo.address) for broker in (1, 2))
    network.cut(between([1], [STORE]))
    with connected(one.address) as first, connected(other.address) as second:
        first.sendall(b"from 1")
        second.sendall(b"from 2")
        assert receive(second, 6) == b"from 2"
        assert not echo.has(b"from 1")
        network.heal()
        assert receive(first, 6) == b"from 1"


def test_a_target_that_is_gone_is_seen_as_gone(network: Network, echo: Echo) -> None:
    gate = network.broker_gate(1, echo.address)
    with connected(gate.address) as client:
        request = frame(18, b"x")
        client.sendall(request)
        assert receive(client, len(request)) == request
        echo.close()
        assert_ended(client)
    with connected(gate.address) as client:
        assert_ended(client)
