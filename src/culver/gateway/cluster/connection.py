"""One connection to a broker: requests go out one behind another, answers come back in the same order.

Whoever breaks that order, announces an absurd size or sends what cannot be read loses the connection: everyone who
still waits for an answer hears Unreachable.
"""

from __future__ import annotations

import asyncio
import struct
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeVar, cast

from culver.errors import ErrorCode, KafkaError, MalformedRequest
from culver.protocol.apis import APIS, PRIVATE_APIS, Api
from culver.protocol.framing import after_response_header
from culver.protocol.messages.api_versions import ApiVersionsRequest, ApiVersionsResponse
from culver.protocol.schema import Message, decoder, encoder
from culver.wire_client import Unreachable

Address = tuple[str, int]
R = TypeVar("R", bound=Message)
# Reads an answer, given what is behind its header and the version.
Decode = Callable[[memoryview, int], R]

# The largest answer that is taken: a batch may be as large as a broker's message.max.bytes, and a view of a large
# cluster has megabytes too. It bounds what a broker can make the gateway hold.
ANSWER_MAX_BYTES = 128 << 20
CLIENT_ID_MAX_BYTES = 249

_SIZE = struct.Struct(">i")
_REQUEST_START = struct.Struct(">ihhih")
_ANSWER_MIN_BYTES = 4  # a correlation id
_API_VERSIONS_KEY = 18


class _Asked:
    """A request that waits for its answer."""

    __slots__ = ("answer", "correlation_id", "decode", "due", "key", "version")

    def __init__(
        self,
        answer: asyncio.Future[Any],
        correlation_id: int,
        key: int,
        version: int,
        decode: Decode[Any],
        due: float,
    ) -> None:
        self.answer = answer
        self.correlation_id = correlation_id
        self.key = key
        self.version = version
        self.decode = decode
        self.due = due


class Connection(asyncio.Protocol):
    """To `address`. Made by `connect`; when it is `closed`, another has to be made."""

    def __init__(self, loop: asyncio.AbstractEventLoop, address: Address, client_id: str) -> None:
        self.address = address
        self.closed = False
        self.idle_since = loop.time()
        self._loop = loop
        self._client_id = client_id.encode()
        self._transport: asyncio.Transport | None = None
        self._versions: dict[int, tuple[int, int]] = {_API_VERSIONS_KEY: (0, 0)}
        self._asked: deque[_Asked] = deque()
        self._correlation_id = 0
        self._received = bytearray()
        self._needed = _SIZE.size
        self._watch: asyncio.TimerHandle | None = None

    def __str__(self) -> str:
        return f"{self.address[0]}:{self.address[1]}"

    @property
    def idle(self) -> bool:
        """Whether nobody waits for an answer."""
        return not self._asked

    # -- asking ---------------------------------------------------------------------------------------------

    def ask(
        self,
        request: Message,
        response: type[R],
        *,
        timeout_ms: float,
        least_version: int = 0,
        newest_version: int | None = None,
        client_id: str | None = None,
        decode: Decode[R] | None = None,
    ) -> asyncio.Future[R]:
        """Send a request in the newest version that both sides know; the answer is yet to come.

        It is read by `decode` if given, which may know a shorter way than to read it all. Memory that the answer's
        records refer to is not used again. A broker that has not answered after `timeout_ms` loses the connection.
        Raises Unreachable, KafkaError(UNSUPPORTED_VERSION), or KafkaError(INVALID_REQUEST) for a number or a name
        that the protocol has no room for.
        """
        if self.closed or self._transport is None:
            raise Unreachable(f"the connection to the broker at {self} is closed")
        kind = type(request)
        version = self.version_of(kind, least_version, newest_version)
        key = cast("int", kind.SCHEMA.api_key)
        correlation_id = (self._correlation_id + 1) & 0x7FFFFFFF
        name = (
            self._client_id if client_id is None else client_id.encode(errors="replace")[:CLIENT_ID_MAX_BYTES]
        )
        try:
            frame = _frame(key, version, correlation_id, name, encoder(kind, version)(request))
        except (struct.error, ValueError, OverflowError) as error:
            raise KafkaError(
                ErrorCode.INVALID_REQUEST, f"a {kind.__name__} cannot be written: {error}"
            ) from error
        self._correlation_id = correlation_id
        future: asyncio.Future[R] = self._loop.create_future()
        due = self._loop.time() + timeout_ms / 1000
        read = decode or partial(decode_answer, response)
        self._asked.append(_Asked(future, correlation_id, key, version, read, due))
        if self._watch is None:
            self._watch = self._loop.call_at(due, self._look_for_overdue)
        self._transport.write(frame)
        return future

    def version_of(
        self, kind: type[Message], least_version: int = 0, newest_version: int | None = None
    ) -> int:
        """The newest version of a request that both sides know, within the limits."""
        schema = kind.SCHEMA
        assert schema.api_key is not None
        assert schema.versions is not None
        # What is never advertised is tried: a broker that does not know it closes the connection.
        private = PRIVATE_APIS.get(schema.api_key)
        unknown = (0, -1) if private is None else (private.min_version, private.max_version)
        least, newest = self._versions.get(schema.api_key, unknown)
        version = min(newest, schema.versions[1] if newest_version is None else newest_version)
        if version < max(schema.versions[0], least, least_version):
            name = kind.__name__.removesuffix("Request")
            which = f" {least_version}" if newest >= 0 and least_version else ""
            raise KafkaError(
                ErrorCode.UNSUPPORTED_VERSION, f"the broker at {self} does not know {name}{which}"
            )
        return version

    def _look_for_overdue(self) -> None:
        """One timer for all requests. Answers come in order, so only the first can be the one that holds them up."""
        self._watch = None
        if not self._asked:
            return
        if self._asked[0].due <= self._loop.time():
            self.abort("it does not answer")
        else:
            self._watch = self._loop.call_at(self._asked[0].due, self._look_for_overdue)

    # -- answers --------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        received: bytes | bytearray = data
        if self._received:
            self._received += data
            if len(self._received) < self._needed:
                return
            received, self._received = self._received, bytearray()
        view = memoryview(received)
        position, end = 0, len(received)
        self._needed = _SIZE.size
        while end - position >= _SIZE.size:
            (size,) = _SIZE.unpack_from(received, position)
            if not _ANSWER_MIN_BYTES <= size <= ANSWER_MAX_BYTES:
                self.abort(f"it announced an answer of {size} bytes")
                return
            after = position + _SIZE.size + size
            if after > end:
                self._needed = _SIZE.size + size
                break
            if not self._answered(view[position + _SIZE.size : after]):
                return
            position = after
        self._received += view[position:]

    def _answered(self, frame: memoryview) -> bool:
        """Take one answer, without its size. False when the connection has been given up over it."""
        (correlation_id,) = _SIZE.unpack_from(frame)
        if not self._asked or self._asked[0].correlation_id != correlation_id:
            self.abort("it sent an answer to nothing that was asked")
            return False
        asked = self._asked.popleft()
        try:
            answer = asked.decode(_body(frame, asked.key, asked.version), asked.version)
        except MalformedRequest as error:
            self._asked.appendleft(asked)
            self.abort(f"its answer cannot be read: {error}")
            return False
        self.idle_since = self._loop.time()
        if not asked.answer.done():
            asked.answer.set_result(answer)
        return True

    # -- the end --------------------------------------------------------------------------------------------

    def connection_lost(self, exc: Exception | None) -> None:
        self.abort(str(exc) if exc is not None else "it closed the connection")

    def abort(self, reason: str) -> None:
        """Give the connection up. Nobody gets an answer any more."""
        if self.closed:
            return
        self.closed = True
        self._received = bytearray()
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if self._transport is not None:
            self._transport.abort()
        while self._asked:
            answer = self._asked.popleft().answer
            if not answer.done():
                answer.set_exception(Unreachable(f"no answer from the broker at {self}: {reason}"))
                # Whoever asked may have gone meanwhile; then there is nobody to be told.
                answer.exception()

    def learn(self, versions: ApiVersionsResponse) -> None:
        self._versions = {api.api_key: (api.min_version, api.max_version) for api in versions.api_keys}


async def connect(address: Address, client_id: str, timeout_ms: float) -> Connection:
    """A connection that knows which versions the broker speaks. Raises Unreachable."""
    loop = asyncio.get_running_loop()
    connection = Connection(loop, address, client_id)
    try:
        async with asyncio.timeout(timeout_ms / 1000):
            await loop.create_connection(lambda: connection, *address)
            # Version 0 is the one that every broker can answer, and read the refusal of.
            answer = await connection.ask(ApiVersionsRequest(), ApiVersionsResponse, timeout_ms=timeout_ms)
    except OSError as error:
        connection.abort("it cannot be reached")
        reason = "no answer in time" if isinstance(error, TimeoutError) else error.strerror or str(error)
        raise Unreachable(f"cannot reach the broker at {connection}: {reason}") from error
    except BaseException:
        connection.abort("it is not needed any more")
        raise
    if answer.error_code:
        connection.abort("it speaks no version in common")
        raise Unreachable(f"the broker at {connection} refuses to say which versions it speaks")
    connection.learn(answer)
    return connection


def _frame(
    key: int,
    version: int,
    correlation_id: int,
    client_id: bytes,
    body: Sequence[bytes | bytearray | memoryview],
) -> bytes:
    header = client_id + b"\0" if _api(key).request_header_version(version) >= 2 else client_id
    size = sum(map(len, body)) + len(header) + _REQUEST_START.size - _SIZE.size
    start = _REQUEST_START.pack(size, key, version, correlation_id, len(client_id))
    return b"".join([start, header, *body])


def decode_answer(response: type[R], body: memoryview, version: int) -> R:
    """The answer in the part of a frame behind its header. MalformedRequest when it cannot be read."""
    return decoder(response, version)(body, 0)[0]


def _body(frame: memoryview, key: int, version: int) -> memoryview:
    """What is behind the header of an answer."""
    return frame[after_response_header(frame, _SIZE.size, _api(key).response_header_version(version)) :]


def _api(key: int) -> Api:
    return APIS.get(key) or PRIVATE_APIS[key]
