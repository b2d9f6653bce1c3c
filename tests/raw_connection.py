"""A connection that sends exactly the bytes a test wants, and tells an answer from a closed connection."""

from __future__ import annotations

import socket
import struct
from types import TracebackType
from typing import Any, Self, TypeVar

from culver.protocol.apis import APIS, PRIVATE_APIS, Api
from culver.protocol.schema import Message, decoder, encoder

CLIENT_ID = "tests"
TIMEOUT_SECONDS = 10.0

M = TypeVar("M", bound=Message)


class Closed(Exception):
    """The broker closed the connection where an answer was expected."""


class NoAnswer(Exception):
    """The broker said nothing for as long as the test was ready to wait; the connection is still open."""


def api_of(request: Message) -> Api:
    key = type(request).SCHEMA.api_key
    assert key is not None
    return APIS.get(key) or PRIVATE_APIS[key]


def request_header(api: Api, version: int, correlation_id: int, client_id: str | None = CLIENT_ID) -> bytes:
    """The header as the API's version has it; a version that nobody knows gets the newest one's."""
    known = min(version, api.max_version)
    header = struct.pack(">hhi", api.key, version, correlation_id)
    if client_id is None:
        header += struct.pack(">h", -1)
    else:
        encoded = client_id.encode()
        header += struct.pack(">h", len(encoded)) + encoded
    if api.request_header_version(known) >= 2:
        header += b"\x00"
    return header


def encode_body(request: Message, version: int) -> bytes:
    return b"".join(bytes(part) for part in encoder(type(request), version)(request))


def encode_request(
    request: Message, version: int, correlation_id: int = 1, client_id: str | None = CLIENT_ID
) -> bytes:
    """Header and body, without the size in front."""
    return request_header(api_of(request), version, correlation_id, client_id) + encode_body(request, version)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def decode_response(api: Api, version: int, frame: bytes) -> tuple[int, Any]:
    """(correlation id, response); all bytes must be accounted for."""
    (correlation_id,) = struct.unpack_from(">i", frame)
    position = 4
    if api.response_header_version(version) >= 1:
        assert frame[position] == 0, "no tagged fields are known in response headers"
        position += 1
    response, end = decoder(api.response, version)(frame, position)
    assert end == len(frame), f"{len(frame) - end} bytes are left over behind the {api.name} response"
    return correlation_id, response


class RawConnection:
    """One blocking connection."""

    def __init__(self, address: tuple[str, int], timeout_seconds: float = TIMEOUT_SECONDS) -> None:
        self.socket = socket.create_connection(address, timeout=timeout_seconds)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._timeout_seconds = timeout_seconds
        self._next_correlation_id = 1

    def send(self, data: bytes) -> None:
        """Send bytes as they are. A connection that is already closed is found out when reading."""
        try:
            self.socket.sendall(data)
        except (BrokenPipeError, ConnectionResetError):
            return

    def receive_frame(self, timeout_seconds: float | None = None) -> bytes:
        """The next response without its size. Raises Closed or NoAnswer."""
        self.socket.settimeout(self._timeout_seconds if timeout_seconds is None else timeout_seconds)
        (size,) = struct.unpack(">i", self._receive(4))
        assert size >= 4, f"a response of {size} bytes cannot be"
        self.socket.settimeout(self._timeout_seconds)
        return self._receive(size)

    def _receive(self, size: int) -> bytes:
        received = bytearray()
        while len(received) < size:
            try:
                chunk = self.socket.recv(size - len(received))
            except TimeoutError:
                if received:
                    raise AssertionError("the broker stopped in the middle of a response") from None
                raise NoAnswer from None
            except ConnectionResetError:
                raise Closed from None
            if not chunk:
                raise Closed
            received += chunk
        return bytes(received)

    def begin(
        self, request: Message, version: int, client_id: str | None = CLIENT_ID
    ) -> tuple[Api, int, int]:
        """Send a request; what comes back is to be given to `finish`."""
        correlation_id = self._next_correlation_id
        self._next_correlation_id += 1
        self.send(framed(encode_request(request, version, correlation_id, client_id)))
        return api_of(request), version, correlation_id

    def finish(self, begun: tuple[Api, int, int], timeout_seconds: float | None = None) -> Any:
        api, version, expected = begun
        correlation_id, response = decode_response(api, version, self.receive_frame(timeout_seconds))
        assert correlation_id == expected, "responses come in the order of the requests"
        return response

    def call(
        self,
        request: Message,
        version: int,
        client_id: str | None = CLIENT_ID,
        timeout_seconds: float | None = None,
    ) -> Any:
        return self.finish(self.begin(request, version, client_id), timeout_seconds)

    def half_close(self) -> None:
        self.socket.shutdown(socket.SHUT_WR)

    def is_closed_by_peer(self, timeout_seconds: float = TIMEOUT_SECONDS) -> bool:
        """Whether the broker closes the connection within the time, whatever it sends before."""
        self.socket.settimeout(timeout_seconds)
        try:
            while self.socket.recv(1 << 16):
                pass
        except TimeoutError:
            return False
        except ConnectionResetError:
            return True
        return True

    def close(self) -> None:
        self.socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
