"""WebSocket: /push/ws, JSON messages both ways; records as they come, credits and acknowledgements back.

Whether the other side is alive is the WebSocket's own business: the server pings, and one that does not answer is
disconnected, so that its partitions go to others.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import suppress

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from culver.errors import KafkaError
from culver.gateway.cluster.cluster import Unreachable
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.errors import HttpError, Problem
from culver.gateway.problems import http_error, unreachable
from culver.gateway.push import messages, positions
from culver.gateway.push.encoding import Encoded
from culver.gateway.push.notices import Notice, failed
from culver.gateway.push.subscription import ReceiverGone, Subscription
from culver.gateway.push.subscriptions import Subscriptions
from culver.gateway.push.wish import Wish, wish
from culver.gateway.services import services_of

SUBSCRIBE_SECONDS = 10.0
FAREWELL_SECONDS = 1.0
# Close codes of RFC 6455.
GOING_AWAY = 1001
UNSUPPORTED_DATA = 1003
POLICY_VIOLATION = 1008
INTERNAL_ERROR = 1011
TRY_AGAIN_LATER = 1013

_encode = msgspec.json.Encoder().encode


class _Refused(Exception):
    """A message that ends the connection: the error to tell, and the close code."""

    def __init__(self, problem: Problem, message: str, close_code: int = POLICY_VIOLATION) -> None:
        super().__init__(message)
        self.error = HttpError(problem, message)
        self.close_code = close_code


async def push(websocket: WebSocket) -> None:
    """The endpoint /push/ws."""
    await websocket.accept()
    try:
        wished = await _first_message(websocket)
        await _serve(websocket, services_of(websocket).subscriptions, wished)
    except (WebSocketDisconnect, ReceiverGone):
        return
    except _Refused as refused:
        await _close(websocket, refused.error, refused.close_code)
    except HttpError as error:
        await _close(websocket, error)
    except KafkaError as error:
        await _close(websocket, http_error(error))
    except Unreachable as error:
        await _close(websocket, unreachable(error))


async def _first_message(websocket: WebSocket) -> Wish:
    try:
        async with asyncio.timeout(SUBSCRIBE_SECONDS):
            said = await _receive(websocket)
    except TimeoutError:
        raise _Refused(
            Problem.REQUEST_TIMEOUT, f"no subscribe came within {SUBSCRIBE_SECONDS:g} seconds"
        ) from None
    if not isinstance(said, messages.Subscribe):
        raise _Refused(Problem.UNPROCESSABLE, "the first message must be a subscribe")
    return wish(
        topics=said.topics,
        group=said.group,
        start=said.start,
        last_event_id=said.last_event_id,
        credits=said.credits,
        acknowledge=said.ack,
        batch=said.batch,
    )


async def _serve(websocket: WebSocket, subscriptions: Subscriptions, wished: Wish) -> None:
    async with subscriptions.open(wished, _FrameReceiver(websocket, wished.batch)) as opened:
        subscription = opened.subscription
        await opened.start()
        listening = asyncio.create_task(_listen(websocket, subscription))
        try:
            await asyncio.wait((listening, subscription.ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            listening.cancel()
        if listening.done():
            listening.result()  # raises: it only ends by an error, such as the other side being gone
    error = subscription.ended.result()
    if error is not None:
        raise error
    await _close(websocket, None, GOING_AWAY)


async def _listen(websocket: WebSocket, subscription: Subscription) -> None:
    while True:
        said = await _receive(websocket)
        try:
            await _obey(subscription, said)
        except positions.BadPosition as error:
            raise _Refused(Problem.INVALID_VALUE, str(error)) from None
        except KafkaError as error:
            subscription.notify(failed(http_error(error)))
        except Unreachable as error:
            subscription.notify(failed(unreachable(error)))


async def _obey(subscription: Subscription, said: messages.Message) -> None:
    match said:
        case messages.Ack(ids, upto):
            for record in [positions.decode_record_id(text) for text in ids]:
                subscription.acknowledge(*record)
            if upto is not None:
                subscription.acknowledge_up_to(*positions.decode_record_id(upto))
        case messages.Credit(n):
            subscription.grant(n)
        case messages.Nack(ids, delay_ms):
            for record in [positions.decode_record_id(text) for text in ids]:
                subscription.refuse(*record, delay_ms)
        case messages.Pause():
            subscription.pause(True)
        case messages.Resume():
            subscription.pause(False)
        case messages.Seek(topic, partition, offset):
            await subscription.seek(TopicPartition(topic, partition), offset)
        case messages.Subscribe():
            raise _Refused(Problem.CONFLICT, "this connection has its subscription already")


async def _receive(websocket: WebSocket) -> messages.Message:
    event = await websocket.receive()
    if event["type"] == "websocket.disconnect":
        raise WebSocketDisconnect(event["code"])
    text = event.get("text")
    if text is None:
        raise _Refused(
            Problem.UNSUPPORTED_MEDIA_TYPE, "messages are JSON as text, not binary", UNSUPPORTED_DATA
        )
    try:
        return messages.decode(text)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise _Refused(Problem.INVALID_JSON, f"this is no message: {error}") from None


async def _close(websocket: WebSocket, error: HttpError | None, close_code: int | None = None) -> None:
    """Say why, and close. A receiver that stalls does not hear it."""
    with suppress(TimeoutError, WebSocketDisconnect, RuntimeError):
        async with asyncio.timeout(FAREWELL_SECONDS):
            if error is not None:
                await websocket.send_text(_encode(failed(error)).decode())
            await websocket.close(close_code if close_code is not None else _close_code(error))


def _close_code(error: HttpError | None) -> int:
    status = 503 if error is None else error.status
    if status in (429, 503):
        return TRY_AGAIN_LATER
    return INTERNAL_ERROR if status >= 500 else POLICY_VIOLATION


class _FrameReceiver:
    """A connection that takes JSON messages."""

    def __init__(self, websocket: WebSocket, batch: bool) -> None:
        self._websocket = websocket
        self._batch = batch

    async def send_records(self, partition: TopicPartition, records: Sequence[Encoded], attempt: int) -> None:
        frames = [_frame(encoded) if attempt == 1 else _frame_again(encoded, attempt) for encoded in records]
        if self._batch:
            await self._send(f'{{"type":"records","records":[{",".join(frames)}]}}')
            return
        for frame in frames:
            await self._send(frame)

    async def send_notice(self, notice: Notice) -> None:
        await self._send(_encode(notice).decode())

    async def _send(self, text: str) -> None:
        try:
            await self._websocket.send({"type": "websocket.send", "text": text})
        except (WebSocketDisconnect, RuntimeError) as error:  # the latter: it is being closed
            raise ReceiverGone from error


def _frame(encoded: Encoded) -> str:
    """The message of a record, made once for all who get it."""
    if encoded.frame is None:
        record = encoded.record
        name = positions.record_id(TopicPartition(record.topic, record.partition), record.offset)
        encoded.frame = f'{{"type":"record","id":"{name}",{encoded.fields.decode()}'
    return encoded.frame


def _frame_again(encoded: Encoded, attempt: int) -> str:
    return _frame(encoded).replace('{"type":"record",', f'{{"type":"record","attempt":{attempt},', 1)
