"""Answers that go on: server-sent events and downloads that end with their reader, a limited number at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping

import msgspec
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from culver.gateway.admission import Busy
from culver.gateway.console.state import STREAMS_MAX, ConsoleState
from culver.gateway.services import Services

EVENT_STREAM = "text/event-stream"
# Something is said so often at least, or those between here and the browser take the connection for dead.
KEEP_ALIVE_S = 15.0
KEEP_ALIVE = b": still here\n\n"

_encode = msgspec.json.Encoder().encode


def sent_event(event: str, data: object, event_id: str | int | None = None) -> bytes:
    """One server-sent event. JSON has no line breaks, so its data is one line."""
    place = b"" if event_id is None else f"id: {event_id}\n".encode()
    return place + f"event: {event}\n".encode() + b"data: " + _encode(data) + b"\n\n"


class LiveResponse(StreamingResponse):
    """An answer whose parts come as they happen; what makes them is closed when nobody reads any more.

    It ends when the gateway is told to end. It is one of the streams that may be open at a time: made, and counted,
    by a handler that has nothing else left to do. Busy when there are too many.
    """

    def __init__(
        self,
        services: Services,
        parts: AsyncGenerator[bytes, None],
        media_type: str,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        check_room(services.console)
        self._console = services.console
        self._parts = parts
        super().__init__(
            _until(services.stopping, parts),
            media_type=media_type,
            headers={"cache-control": "no-store", **(headers or {})},
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self._console.streams += 1
        try:
            if scope["method"] == "HEAD":  # only what stands before the parts, which may never end
                await Response(None, self.status_code, self.headers)(scope, receive, send)
            else:
                await super().__call__(scope, receive, send)
        finally:
            self._console.streams -= 1
            await self._parts.aclose()


async def _until(stopping: asyncio.Event, parts: AsyncGenerator[bytes, None]) -> AsyncIterator[bytes]:
    stopped = asyncio.ensure_future(stopping.wait())
    try:
        while True:
            part = asyncio.ensure_future(anext(parts, None))
            try:
                await asyncio.wait({part, stopped}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                if not part.done():
                    part.cancel()
                    await asyncio.wait({part})
            if part.cancelled() or (content := part.result()) is None:
                return
            yield content
    finally:
        stopped.cancel()


def check_room(state: ConsoleState) -> None:
    """Refuse a stream while too many are open, before anything is done for it."""
    if state.streams >= STREAMS_MAX:
        raise Busy(f"{STREAMS_MAX} tails and exports are open already: close one, or try again later")


def safe_name(topic: str) -> str:
    """A topic's name as a part of a file's name. Culver's topics have only such letters; others' may not."""
    return "".join(
        letter if letter.isascii() and (letter.isalnum() or letter in "._-") else "_" for letter in topic
    )


def download_headers(name: str) -> dict[str, str]:
    """A browser keeps this as a file, and never takes it for a page of this server."""
    return {
        "content-disposition": f'attachment; filename="{name}"',
        "x-content-type-options": "nosniff",
        "content-security-policy": "sandbox; default-src 'none'",
        "cache-control": "no-store",
    }
