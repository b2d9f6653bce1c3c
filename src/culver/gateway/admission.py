"""What may come in: from where, how large, how long it may take, and how much of it at a time.

Memory is taken for what has arrived, never for what a client announces. A body over the limit is kept no further
than the limit, whether it was announced or comes in chunks.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import ipaddress
import zlib
from collections.abc import Iterable
from urllib.parse import urlsplit

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

from culver.config import parse_address
from culver.errors import ErrorCode, KafkaError
from culver.gateway.errors import HttpError, Problem
from culver.gateway.problems import error_response
from culver.gateway.settings import GatewaySettings
from culver.protocol.compression import Codec, decompress

RETRY_AFTER_SECONDS = 1
# What is taken of a refused body, to give the client a chance to read why.
_DISCARD_MAX_BYTES = 64 * 1024 * 1024
_DISCARD_SECONDS = 2.0

_CODECS = {"gzip": Codec.GZIP, "x-gzip": Codec.GZIP, "zstd": Codec.ZSTD}
_SAFE_METHODS = frozenset({"GET", "HEAD", "OPTIONS"})


class Busy(HttpError):
    """Too much is in memory already: 429, and when to come again."""

    def __init__(self, message: str) -> None:
        headers = {"retry-after": str(RETRY_AFTER_SECONDS)}
        super().__init__(Problem.TOO_MANY_REQUESTS, message, headers=headers)


class Admission:
    """The budget of memory for bodies, and the one way to read a body."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._body_max_bytes = settings.body_max_bytes
        self._body_timeout_s = settings.body_timeout_ms / 1000
        self._in_flight_max_bytes = settings.in_flight_max_bytes
        self.in_flight_bytes = 0

    def body(self, request: Request, *, max_bytes: int | None = None) -> Body:
        """The body, decompressed: `async with admission.body(request) as body`.

        It counts as in flight until the block ends, so end it with the work that it causes. HttpError: 408 too slow,
        413 too large, 415 an unknown Content-Encoding, 422 damaged, 429 no room.
        """
        limit = self._body_max_bytes if max_bytes is None else min(max_bytes, self._body_max_bytes)
        return Body(self, request, limit, self._body_timeout_s)

    def check_room(self, size: int) -> None:
        """Busy when so much more would be too much; a lone request always has room."""
        if self.in_flight_bytes and self.in_flight_bytes + size > self._in_flight_max_bytes:
            raise Busy(f"requests with {self.in_flight_bytes} bytes are under way; try again in a moment")

    def take(self, size: int) -> None:
        """Count memory as in use. Busy when there is no room."""
        self.check_room(size)
        self.in_flight_bytes += size

    def give_back(self, size: int) -> None:
        self.in_flight_bytes -= size


class Body:
    """One body: read when the block begins, counted as in flight until it ends.

    A class and not a generator, and no generator inside: every request goes through here.
    """

    __slots__ = ("_admission", "_limit", "_request", "_taken_bytes", "_timeout_s")

    def __init__(self, admission: Admission, request: Request, limit: int, timeout_s: float) -> None:
        self._admission = admission
        self._request = request
        self._limit = limit
        self._timeout_s = timeout_s
        self._taken_bytes = 0

    async def __aenter__(self) -> bytes:
        try:
            body = await self._arrived()
            encodings = _encodings(self._request)
            if encodings:
                body = _decoded(body, encodings, self._limit)
                self._take(len(body))
        except BaseException:
            self._release()
            raise
        return body

    async def __aexit__(self, *_: object) -> None:
        self._release()

    def _take(self, size: int) -> None:
        self._admission.take(size)
        self._taken_bytes += size

    def _release(self) -> None:
        self._admission.give_back(self._taken_bytes)
        self._taken_bytes = 0

    async def _arrived(self) -> bytes:
        """The body as it was sent."""
        try:
            announced = _announced_bytes(self._request)
            if announced > self._limit:
                raise _too_large(self._limit)
            self._admission.check_room(announced)
            async with asyncio.timeout(self._timeout_s):
                return await self._read()
        except TimeoutError:
            raise HttpError(
                Problem.REQUEST_TIMEOUT,
                f"the body did not arrive within {self._timeout_s:g} seconds",
                headers={"connection": "close"},
            ) from None
        except HttpError:
            if _closes(self._request):
                self._release()
                await _discard(self._request)
            raise

    async def _read(self) -> bytes:
        chunks: list[bytes] = []
        size = 0
        more = True
        while more:
            chunk, more = await _next_chunk(self._request)
            size += len(chunk)
            if size > self._limit:
                raise _too_large(self._limit)
            self._take(len(chunk))
            chunks.append(chunk)
        return chunks[0] if len(chunks) == 1 else b"".join(chunks)


async def _next_chunk(request: Request) -> tuple[bytes, bool]:
    """The next part of the body, and whether there are more."""
    message = await request.receive()
    if message["type"] == "http.disconnect":
        # Nobody is there to read the answer; it only ends the request.
        raise HttpError(Problem.BAD_REQUEST, "the client went away before the body was complete")
    return message.get("body", b""), message.get("more_body", False)


def _too_large(limit: int) -> HttpError:
    return HttpError(Problem.TOO_LARGE, f"the body is larger than {limit} bytes")


def _announced_bytes(request: Request) -> int:
    text = request.headers.get("content-length")
    return int(text) if text is not None and text.isascii() and text.isdigit() else 0


def _closes(request: Request) -> bool:
    """Whether the connection is closed behind the answer, though the client may still be sending.

    A client that has been told to wait for "100 Continue" has not begun.
    """
    return "close" in request.headers.get("connection", "").lower() and "expect" not in request.headers


async def _discard(request: Request) -> None:
    """Take some of what still comes and drop it: cut off in the middle of sending, a client never reads the answer.

    Connections that stay open need no help: the server drops the rest behind the answer.
    """
    size = 0
    more = True
    with contextlib.suppress(TimeoutError, HttpError):
        async with asyncio.timeout(_DISCARD_SECONDS):
            while more and size < _DISCARD_MAX_BYTES:
                chunk, more = await _next_chunk(request)
                size += len(chunk)


def _encodings(request: Request) -> list[str]:
    """The codings of the body in the order in which they were applied."""
    text = request.headers.get("content-encoding")
    if text is None:
        return []
    names = [name.strip().lower() for name in text.split(",")]
    return [name for name in names if name not in ("", "identity")]


def _decoded(body: bytes, encodings: Iterable[str], limit: int) -> bytes:
    names = list(encodings)
    if len(names) > 2:
        raise HttpError(Problem.UNSUPPORTED_ENCODING, "the body is compressed more than twice")
    for name in reversed(names):
        if name in _CODECS:
            body = _decompressed(_CODECS[name], body, limit)
        elif name == "deflate":
            body = _inflated(body, limit)
        else:
            raise HttpError(
                Problem.UNSUPPORTED_ENCODING,
                f"Content-Encoding {name!r} is not served; use gzip, deflate, zstd or none",
                headers={"accept-encoding": "gzip, deflate, zstd"},
            )
    return body


def _decompressed(codec: Codec, body: bytes, limit: int) -> bytes:
    try:
        return bytes(decompress(codec, body, limit))
    except KafkaError as error:
        if error.code is ErrorCode.MESSAGE_TOO_LARGE:
            raise _too_large(limit) from None
        raise _damaged(codec.name.lower()) from None


def _inflated(body: bytes, limit: int) -> bytes:
    """Deflate is meant to come with zlib's header, and often comes without."""
    for window_bits in (zlib.MAX_WBITS, -zlib.MAX_WBITS):
        unpacker = zlib.decompressobj(window_bits)
        try:
            output = unpacker.decompress(body, limit + 1)
        except zlib.error:
            continue
        if len(output) > limit:
            raise _too_large(limit)
        if unpacker.eof:
            return output
    raise _damaged("deflate")


def _damaged(name: str) -> HttpError:
    return HttpError(Problem.UNPROCESSABLE, f"the body is not what Content-Encoding {name} says")


# --- where a request comes from ---


class PlaceCheck:
    """Refuses what a web page of somebody else makes a browser send, as nobody logs in yet.

    Changes and WebSockets need an Origin, if there is one, that is this server. A server on a loopback address only
    answers to loopback names, so that a name which was pointed at 127.0.0.1 does not make a page its own.
    """

    def __init__(self, app: ASGIApp, *, http: str) -> None:
        self._app = app
        host = parse_address(http)[0]
        self._only_loopback = _is_loopback(host)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] in ("http", "websocket"):
            refusal = self._refusal(scope)
            if refusal is not None:
                # For a WebSocket too: uvicorn turns it into the refusal of the handshake.
                await self._refuse(refusal, scope, receive, send)
                return
        await self._app(scope, receive, send)

    def _refusal(self, scope: Scope) -> str | None:
        host = origin = b""
        for name, value in scope["headers"]:
            if name == b"host":
                host = value
            elif name == b"origin":
                origin = value
        if self._only_loopback and host and not _is_loopback(_host_of(host.decode("latin-1"))):
            return "this server listens on a loopback address and answers only to loopback names"
        if origin and (scope["type"] == "websocket" or scope["method"] not in _SAFE_METHODS):
            said = origin.decode("latin-1")
            if urlsplit(said).netloc.lower() != host.decode("latin-1").lower():
                return f"a page of {said} may not do this here"
        return None

    async def _refuse(self, reason: str, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008, "reason": reason})
            return
        await error_response(HttpError(Problem.FORBIDDEN, reason))(scope, receive, send)


def _host_of(header: str) -> str:
    """The host of a Host header, which may have a port and brackets."""
    if header.startswith("["):
        return header[1:].partition("]")[0]
    return header.rpartition(":")[0] if header.count(":") == 1 else header


@functools.lru_cache(maxsize=64)  # asked for every request, and the answers are few
def _is_loopback(host: str) -> bool:
    if host.lower().rstrip(".") == "localhost" or host.lower().endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
