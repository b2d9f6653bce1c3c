"""Server-sent events: GET /push/sse, one stream of records and notices, and POST /push/ack.

The id of an event names the positions of all partitions after it, so that a stream which begins with it in
Last-Event-ID goes on exactly there. Nothing of Starlette's streaming is between a record and the connection: each
piece is one call, which waits while the other side does not read.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.push import positions
from culver.gateway.push.encoding import Encoded
from culver.gateway.push.notices import Assigned, Notice, failed
from culver.gateway.push.subscription import Subscription
from culver.gateway.push.subscriptions import Subscriptions
from culver.gateway.push.wish import Wish, wish
from culver.gateway.routing import json_response
from culver.gateway.services import services_of

MEDIA_TYPE = "text/event-stream"
# Proxies and browsers close what says nothing.
KEEP_ALIVE_SECONDS_MAX = 15.0
FAREWELL_SECONDS = 1.0

_HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
_encode = msgspec.json.Encoder().encode


class Acknowledgement(msgspec.Struct, forbid_unknown_fields=True):
    """The body of POST /push/ack: the last event that was done with, and so all before it."""

    subscription: str
    id: str


class Acknowledged(msgspec.Struct):
    """How many records that were waiting for it have been acknowledged."""

    acknowledged: int


async def events(request: Request) -> Response:
    """GET /push/sse."""
    services = services_of(request)
    query = request.query_params
    wished = wish(
        topics=query.getlist("topic"),
        group=query.get("group"),
        start=query.get("from"),
        # A browser that reconnects by itself knows better than the address it reconnects to.
        last_event_id=request.headers.get("last-event-id") or query.get("last_event_id"),
        credits=_whole(query.get("credits")),
        acknowledge=query.get("ack"),
    )
    # A receiver that is gone is found out by what it does not take, so there must be something to take.
    keep_alive_s = min(KEEP_ALIVE_SECONDS_MAX, services.settings.push_receiver_timeout_ms / 2000)
    return EventStream(services.subscriptions, wished, keep_alive_s)


async def acknowledge(request: Request) -> Response:
    """POST /push/ack: answered when it is stored."""
    services = services_of(request)
    async with services.admission.body(request, max_bytes=2 * positions.TEXT_MAX) as body:
        try:
            told = msgspec.json.decode(body, type=Acknowledgement)
            through = positions.decode(told.id)
        except (msgspec.MsgspecError, positions.BadPosition, UnicodeDecodeError) as error:
            raise HttpError(Problem.INVALID_JSON, str(error)) from None
    opened = services.subscriptions.get(told.subscription)
    count = opened.subscription.acknowledge_below(through)
    await opened.assignment.commit()
    return json_response(Acknowledged(count))


def _whole(text: str | None) -> int | None:
    if text is None:
        return None
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise HttpError(Problem.INVALID_VALUE, f"a whole number is expected, not {text[:80]!r}")
    return int(text)


class EventStream(Response):
    """The answer that does not end: an event for each record, as a subscription brings them."""

    media_type = MEDIA_TYPE

    def __init__(self, subscriptions: Subscriptions, wished: Wish, keep_alive_s: float) -> None:
        super().__init__()
        self._subscriptions = subscriptions
        self._wish = wished
        self._keep_alive_s = keep_alive_s

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start = {"type": "http.response.start", "status": 200, "headers": _HEADERS}
        if scope["method"] == "HEAD":
            await send(start)
            await send({"type": "http.response.body", "body": b""})
            return
        receiver = _EventReceiver(send)
        async with self._subscriptions.open(self._wish, receiver) as opened:
            subscription = receiver.subscription = opened.subscription
            # When the headers arrive, everything that is written from then on will be sent.
            await send(start)
            gone = asyncio.create_task(_until_gone(receive))
            try:
                await opened.start()
                await self._keep_alive(subscription, receiver, gone)
            finally:
                gone.cancel()
        if not gone.done() or gone.cancelled():
            error = subscription.ended.result()
            with suppress(TimeoutError):  # a receiver that stalls does not hear it
                async with asyncio.timeout(FAREWELL_SECONDS):
                    await receiver.finish(None if error is None else failed(error))

    async def _keep_alive(
        self, subscription: Subscription, receiver: _EventReceiver, gone: asyncio.Task[None]
    ) -> None:
        """Until the receiver is gone or the subscription has ended."""
        while not gone.done() and not subscription.ended.done():
            sent_before = receiver.pieces_sent
            await asyncio.wait(
                (gone, subscription.ended), timeout=self._keep_alive_s, return_when=asyncio.FIRST_COMPLETED
            )
            if receiver.pieces_sent == sent_before:
                await subscription.keep_alive(receiver.send_comment)


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class _EventReceiver:
    """A connection that takes events."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.subscription: Subscription | None = None
        self.pieces_sent = 0
        # What stands around the position of a partition in ids: it stays while only that partition moves on.
        self._head = self._tail = b""
        self._around_is_for: tuple[TopicPartition, int] | None = None

    async def send_records(self, partition: TopicPartition, records: Sequence[Encoded], attempt: int) -> None:
        assert self.subscription is not None
        window = self.subscription.window
        if self._around_is_for != (partition, window.moves):
            before, after = positions.around(window.positions, partition)
            self._head = f"id: {before}".encode()
            self._tail = f"{after}\nevent: record\ndata: {{".encode()
            self._around_is_for = (partition, window.moves)
        head, tail = self._head, self._tail
        parts: list[bytes] = []
        for encoded in records:
            parts += (head, b"%d" % (encoded.record.offset + 1), tail, encoded.fields, b"\n\n")
        await self._send_piece(b"".join(parts))

    async def send_notice(self, notice: Notice) -> None:
        event = _event(notice)
        if isinstance(notice, Assigned):
            # Who is cut off before the first record must not begin at a later end.
            assert self.subscription is not None
            event = b"id: %s\n%s" % (positions.encode(self.subscription.window.positions).encode(), event)
        await self._send_piece(event)

    async def send_comment(self) -> None:
        """Says nothing, which every reader of events skips."""
        await self._send_piece(b":\n\n")

    async def finish(self, notice: Notice | None) -> None:
        """End the stream, with a last word if there is one."""
        last = b"" if notice is None else _event(notice)
        await self._send({"type": "http.response.body", "body": last, "more_body": False})

    async def _send_piece(self, piece: bytes) -> None:
        self.pieces_sent += 1
        await self._send({"type": "http.response.body", "body": piece, "more_body": True})


def _event(notice: Notice) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (notice.kind.encode(), _encode(notice))
