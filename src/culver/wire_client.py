"""Ask brokers single questions over a blocking socket, with Culver's own codecs.

For commands and test tools that need requests which Kafka clients for Python do not offer (reassignments, log
directories, elections), or that should not have to load one. It is no general client: one connection, one request at
a time, to any broker, since every broker carries out what it is asked.

    with WireClient("127.0.0.1:9092") as client:
        answer = client.ask(DescribeClusterRequest(...), DescribeClusterResponse)
"""

from __future__ import annotations

import contextlib
import socket
import struct
from collections.abc import Iterable
from types import TracebackType
from typing import Self, TypeVar

from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from culver.protocol.schema import Message, decoder, encoder

CLIENT_ID = b"culver"
DEFAULT_PORT = 9092
DEFAULT_TIMEOUT_SECONDS = 15.0
# Connecting to a broker that is there takes no time; one that is not should not use up the others' share.
CONNECT_TIMEOUT_SECONDS = 3.0
_SHARE_MIN_SECONDS = 2.0
_API_VERSIONS_KEY = 18

Response = TypeVar("Response", bound=Message)


class Unreachable(Exception):
    """No broker could be reached, or the one asked did not answer."""


class WireClient:
    """One connection at a time to one of several brokers; opened when first needed."""

    def __init__(self, bootstrap: str, timeout_s: float = DEFAULT_TIMEOUT_SECONDS) -> None:
        self._addresses = [host_and_port(address) for address in bootstrap.split(",") if address.strip()]
        if not self._addresses:
            raise ValueError("no broker address given: expected HOST:PORT")
        self._timeout_s = timeout_s
        self._socket: socket.socket | None = None
        self._versions: dict[int, tuple[int, int]] = {}
        self._correlation_id = 0

    @property
    def address(self) -> str:
        """The broker that is asked first, or is being asked."""
        host, port = self._addresses[0]
        return f"{host}:{port}"

    def learn(self, addresses: Iterable[tuple[str, int]]) -> None:
        """More brokers to turn to when the connection breaks."""
        self._addresses += [address for address in addresses if address not in self._addresses]

    def ask(self, request: Message, response: type[Response]) -> Response:
        """Send a request that may be sent twice: when a broker does not answer in its time, another is asked."""
        share_s = max(_SHARE_MIN_SECONDS, self._timeout_s / len(self._addresses))
        for _ in range(len(self._addresses) - 1):
            with contextlib.suppress(Unreachable):
                return self._attempt(request, response, min(share_s, self._timeout_s))
        return self._attempt(request, response, self._timeout_s)

    def ask_once(self, request: Message, response: type[Response], *, least_version: int = 0) -> Response:
        """Send a request in the newest version that both sides know. Unreachable: it may have been carried out.

        `least_version` is the first that has all that the request says.
        """
        return self._attempt(request, response, self._timeout_s, least_version)

    def _attempt(
        self, request: Message, response: type[Response], timeout_s: float, least_version: int = 0
    ) -> Response:
        self._connect(timeout_s)
        assert self._socket is not None
        self._socket.settimeout(timeout_s)
        return self._ask(request, response, self._version_of(request, least_version))

    def _version_of(self, request: Message, least_version: int) -> int:
        schema = type(request).SCHEMA
        assert schema.api_key is not None
        assert schema.versions is not None
        theirs = self._versions.get(schema.api_key)
        version = min(schema.versions[1], theirs[1]) if theirs is not None else -1
        if theirs is None or version < max(schema.versions[0], theirs[0], least_version):
            name = type(request).__name__.removesuffix("Request")
            which = f" {least_version}" if theirs is not None and least_version else ""
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self.address} does not know {name}{which}"
            )
        return version

    # -- the connection -------------------------------------------------------------------------------------

    def _connect(self, timeout_s: float) -> None:
        """Connect to the first address that answers, and put it first for the next time."""
        if self._socket is not None:
            return
        reason = ""
        for address in list(self._addresses):
            try:
                self._socket = socket.create_connection(
                    address, timeout=min(CONNECT_TIMEOUT_SECONDS, timeout_s)
                )
            except OSError as error:
                reason = error.strerror or str(error)
                self._addresses.append(self._addresses.pop(0))
                continue
            self._socket.settimeout(timeout_s)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            answer = self._ask(ApiVersionsRequest(), ApiVersionsResponse, 0)
            self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}
            return
        names = ",".join(f"{host}:{port}" for host, port in self._addresses)
        raise Unreachable(f"cannot reach a broker at {names}: {reason}")

    def _ask(self, request: Message, response: type[Response], version: int) -> Response:
        assert self._socket is not None
        self._correlation_id += 1
        schema = type(request).SCHEMA
        flexible = schema.flexible_since is not None and version >= schema.flexible_since
        header = struct.pack(">hhih", schema.api_key, version, self._correlation_id, len(CLIENT_ID))
        header += CLIENT_ID + (b"\x00" if flexible else b"")
        body = b"".join(bytes(part) for part in encoder(type(request), version)(request))
        try:
            self._socket.sendall(struct.pack(">i", len(header) + len(body)) + header + body)
            (size,) = struct.unpack(">i", self._receive(4))
            frame = self._receive(size)
        except OSError as error:
            address = self.address
            self.close()
            self._addresses.append(self._addresses.pop(0))
            reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
            raise Unreachable(f"the broker at {address} did not answer: {reason}") from error
        # The answer to ApiVersions never has tagged fields in its header, nor do they ever hold anything.
        start = 5 if flexible and schema.api_key != _API_VERSIONS_KEY else 4
        try:
            answer, _ = decoder(response, version)(frame, start)
        except MalformedRequest as error:
            self.close()
            raise Unreachable(f"{self.address} does not speak Kafka's protocol: {error}") from error
        return answer

    def _receive(self, size: int) -> bytes:
        assert self._socket is not None
        received = bytearray()
        while len(received) < size:
            chunk = self._socket.recv(min(size - len(received), 1 << 20))
            if not chunk:
                raise ConnectionError("it closed the connection")
            received += chunk
        return bytes(received)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def host_and_port(address: str) -> tuple[str, int]:
    """HOST:PORT, [IPv6]:PORT, or HOST alone for Kafka's own port. ValueError says what is wrong."""
    host, colon, port = address.strip().rpartition(":")
    if not colon:
        return port, DEFAULT_PORT
    if not port.isascii() or not port.isdigit():
        raise ValueError(f"{address!r} is no broker address: expected HOST:PORT")
    return host.strip("[]"), int(port)
