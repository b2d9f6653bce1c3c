"""One blocking connection to one broker, made for reading much: the next request goes out before the answer is used.

Answers are received into one buffer that is used again, so what an answer's records refer to is overwritten by the
next answer.
"""

from __future__ import annotations

import socket
import struct
from typing import TypeVar

from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from culver.protocol.schema import Message, decoder, encoder
from culver.wire_client import CONNECT_TIMEOUT_SECONDS, Unreachable

_API_VERSIONS_KEY = 18
_FIRST_BUFFER_BYTES = 64 << 10
_ANSWER_BYTES_MAX = 1 << 30
_LENGTH = struct.Struct(">i")
_HEADER = struct.Struct(">hhih")

Response = TypeVar("Response", bound=Message)


class Connection:
    """To `address`, opened at once. At most one request is under way."""

    def __init__(self, address: tuple[str, int], timeout_s: float, client_id: str) -> None:
        self.address = address
        self._client_id = client_id.encode()
        self._correlation_id = 0
        self._sent: tuple[type[Message], int] | None = None
        self._buffer = bytearray(_FIRST_BUFFER_BYTES)
        try:
            self._socket = socket.create_connection(address, timeout=min(timeout_s, CONNECT_TIMEOUT_SECONDS))
        except OSError as error:
            raise Unreachable(f"cannot reach the broker at {self}: {error.strerror or error}") from error
        self._socket.settimeout(timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._versions = {_API_VERSIONS_KEY: (0, 0)}
        answer = self.ask(ApiVersionsRequest(), ApiVersionsResponse)
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in answer.api_keys}

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    def ask(self, request: Message, response: type[Response], *, newest: int | None = None) -> Response:
        self.send(request, newest=newest)
        return self.receive(response)

    def send(self, request: Message, *, newest: int | None = None) -> None:
        """Send in the newest version that both sides know, or in `newest` if that is older."""
        assert self._sent is None, "the answer to the last request has not been received"
        kind = type(request)
        version = self._version(kind, newest)
        self._correlation_id += 1
        header = _HEADER.pack(kind.SCHEMA.api_key, version, self._correlation_id, len(self._client_id))
        header += self._client_id + (b"\x00" if _flexible(kind, version) else b"")
        body = b"".join(bytes(part) for part in encoder(kind, version)(request))
        self._sent = kind, version
        try:
            self._socket.sendall(_LENGTH.pack(len(header) + len(body)) + header + body)
        except OSError as error:
            raise self._broken(error) from error

    def receive(self, response: type[Response]) -> Response:
        """The answer to what was sent. It is valid until the next one is received."""
        assert self._sent is not None, "nothing has been sent"
        kind, version = self._sent
        try:
            frame = self._frame()
        except OSError as error:
            raise self._broken(error) from error
        self._sent = None
        # The answer to ApiVersions never has tagged fields in its header.
        start = 5 if _flexible(kind, version) and kind.SCHEMA.api_key != _API_VERSIONS_KEY else 4
        try:
            answer, _ = decoder(response, version)(frame, start)
        except MalformedRequest as error:
            self.close()
            raise Unreachable(f"{self} does not speak Kafka's protocol: {error}") from error
        return answer

    def _frame(self) -> memoryview:
        prefix = bytearray(_LENGTH.size)
        self._receive_into(memoryview(prefix))
        (size,) = _LENGTH.unpack(prefix)
        if not _LENGTH.size <= size <= _ANSWER_BYTES_MAX:
            raise ConnectionError(f"it announced an answer of {size} bytes")
        if size > len(self._buffer):
            # With some room, so that answers of about the same size do not make a new buffer each.
            self._buffer = bytearray(size + size // 4)
        frame = memoryview(self._buffer)[:size]
        self._receive_into(frame)
        return frame

    def _receive_into(self, target: memoryview) -> None:
        received = 0
        while received < len(target):
            count = self._socket.recv_into(target[received:])
            if not count:
                raise ConnectionError("it closed the connection")
            received += count

    def _version(self, kind: type[Message], newest: int | None) -> int:
        schema = kind.SCHEMA
        assert schema.api_key is not None
        assert schema.versions is not None
        theirs = self._versions.get(schema.api_key, (0, -1))
        version = min(schema.versions[1], theirs[1], schema.versions[1] if newest is None else newest)
        if version < max(schema.versions[0], theirs[0]):
            name = kind.__name__.removesuffix("Request")
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self} serves no {name} that we know"
            )
        return version

    def _broken(self, error: OSError) -> Unreachable:
        self.close()
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        return Unreachable(f"the broker at {self} did not answer: {reason}")

    def close(self) -> None:
        self._socket.close()


def _flexible(kind: type[Message], version: int) -> bool:
    since = kind.SCHEMA.flexible_since
    return since is not None and version >= since
