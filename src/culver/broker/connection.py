"""Connections: bytes in, requests to their handlers, responses out in the order of the requests."""

from __future__ import annotations

import asyncio
from collections import deque
from struct import Struct
from typing import TYPE_CHECKING, Any, cast

from culver.broker.direct_sender import DirectSender
from culver.broker.exchange import NO_RESPONSE, Exchange
from culver.errors import MalformedRequest
from culver.filesystem import FileRange
from culver.logging import get_logger

if TYPE_CHECKING:
    from culver.broker.dispatch import Route
    from culver.broker.follower_feed import FollowerFeed
    from culver.broker.refused_batches import RefusedBatches
    from culver.broker.server import Server

_SIZE = Struct(">i")
_log = get_logger("culver.server")

# A response this large goes out buffer by buffer; smaller ones are cheaper joined into one write.
_JOIN_MAX_BYTES = 64 << 10
# Requests of one connection that may wait for their answers before it is read no further.
_PENDING_MAX = 512
_WRITE_HIGH_WATER_BYTES = 4 << 20
# A client may send thousands of requests at once. They are handled in turns: responses go out when so many bytes
# of them have come together, or after so many requests; then, if the turn took long, others come first.
_SEND_AT_BYTES = 64 << 10
_SEND_AT_REQUESTS = 32
_TURN_MAX_MS = 5.0
# Answers that wait for the answer to an earlier request, per connection: beyond it no more requests are taken up.
_HELD_MAX_BYTES = 1 << 20


class Connection(asyncio.BufferedProtocol):
    """One client's byte stream.

    Handlers run in the order of the requests and may finish in any order; responses leave in the order of
    the requests, because Kafka clients match them by position.
    """

    __slots__ = (
        "_answered",
        "_buffer",
        "_closed",
        "_direct",
        "_end",
        "_held_bytes",
        "_on_hold",
        "_out",
        "_pending",
        "_processing",
        "_reading_paused",
        "_server",
        "_start",
        "_transport",
        "_unsent_bytes",
        "_write_paused",
        "_yielding",
        "asked_for_coordinators",
        "asked_for_leaders",
        "last_active_ms",
        "peer_broker",
        "peer_host",
        "refused_batches",
        "sends_files",
    )

    def __init__(self, server: Server) -> None:
        self._server = server
        self._buffer: bytearray | None = None  # holds part of a request; otherwise the scratch is used
        self._start = 0
        self._end = 0
        self._pending: deque[Exchange] = deque()
        self._out: list[Any] = []
        # Requests whose responses are in `_out`, to be counted when it is sent: of which kind, how many, since when.
        self._answered: tuple[Route, int, float] | None = None
        self._processing = False
        self._reading_paused = False
        self._write_paused = False
        self._yielding = False  # its turn was long: others come first, and then it goes on
        self._held_bytes = 0  # of responses in `_pending`
        self._on_hold = False  # a handler asked that no more requests be taken up
        self._unsent_bytes = 0
        self._closed = False
        self._direct: DirectSender | None = None  # made for the first response that holds a range of a file
        self.sends_files = False
        self.asked_for_leaders = False  # whether it has been told before who leads what
        self.asked_for_coordinators: object = None  # what it last wanted to know the coordinators of
        self.peer_host = ""
        self.peer_broker: FollowerFeed | None = None  # who is there, once it has said BrokerHello
        self.refused_batches: RefusedBatches | None = None  # made for the first refusal
        self.last_active_ms = 0.0

    # -- asyncio's side ---------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=_WRITE_HIGH_WATER_BYTES)
        peer = transport.get_extra_info("peername")
        self.peer_host = str(peer[0]) if isinstance(peer, tuple) else ""
        self.sends_files = hasattr(transport.get_extra_info("socket"), "fileno")
        self._server.opened(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._closed = True
        self._close_direct()
        self._release()
        self._held_bytes = 0
        self._count_unsent()
        self._out.clear()
        for exchange in self._pending:
            exchange.abandoned = True
            if exchange.on_abandon is not None:
                exchange.on_abandon()
        self._pending.clear()
        if self.peer_broker is not None:
            self.peer_broker.close()
        self._server.closed(self)

    def get_buffer(self, sizehint: int) -> memoryview:
        if self._buffer is None:
            return self._server.buffers.scratch_view
        return memoryview(self._buffer)[self._end :]

    def buffer_updated(self, nbytes: int) -> None:
        if self._closed:
            return
        self.last_active_ms = self._server.now_ms
        self._server.received_bytes += nbytes
        if self._buffer is None:
            buffers = self._server.buffers
            scratch = buffers.scratch
            start, needed = self._process(scratch, buffers.scratch_view, 0, nbytes)
            if start < nbytes and not self._closed:
                self._buffer, self._start, self._end = buffers.keep_from_scratch(start, nbytes, needed)
                self._make_room(needed)
        else:
            self._end += nbytes
            self._process_kept()
        self._send()
        self._server.after_requests()

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._write_paused = True
        self._count_unsent()

    def resume_writing(self) -> None:
        self._write_paused = False
        self._count_unsent()
        self._continue()

    def _count_unsent(self) -> None:
        """Keep the sum over all connections right: fetches are cut short while it is too high."""
        size = self._held_bytes
        if self._write_paused and not self._closed:
            size += self._transport.get_write_buffer_size()
        self._server.unsent_bytes += size - self._unsent_bytes
        self._unsent_bytes = size

    def _must_wait(self) -> bool:
        """No more requests are taken up until the client has taken answers, or earlier ones are there."""
        return (
            self._write_paused
            or self._on_hold
            or len(self._pending) >= _PENDING_MAX
            or self._held_bytes > _HELD_MAX_BYTES
        )

    def hold(self) -> None:
        """Take up no more requests until `go_on`: the one at hand must be finished before those behind it begin."""
        self._on_hold = True

    def go_on(self) -> None:
        self._on_hold = False
        if self._reading_paused and not self._closed:
            self._server.continue_later(self)

    # -- requests in ------------------------------------------------------------------------------------

    def _process(self, buffer: bytearray, view: memoryview, start: int, end: int) -> tuple[int, int]:
        """Handle the whole requests in buffer[start:end]; where the rest begins and the bytes it needs."""
        server = self._server
        max_bytes = server.request_max_bytes
        handle = server.dispatcher.handle
        began_ms = server.monotonic_ms()  # once for all of them
        route: Any = None  # of the last request, and how many like it have just been answered
        answered = 0
        self._processing = True
        needed = 4
        out_bytes = requests = 0
        turn_began_ms: float | None = None
        try:
            while end - start >= 4:
                (size,) = _SIZE.unpack_from(buffer, start)
                if size < 0 or size > max_bytes:
                    raise MalformedRequest(
                        f"announced a request of {size} bytes; allowed are {max_bytes} (socket.request.max.bytes)"
                    )
                stop = start + 4 + size
                needed = 4 + size
                if stop > end:
                    break
                if self._must_wait():
                    self._pause_reading()
                    break
                if out_bytes >= _SEND_AT_BYTES or requests >= _SEND_AT_REQUESTS:
                    out_bytes = requests = 0
                    if answered:
                        self._answered = (route, answered, began_ms)
                        answered = 0
                    self._send()
                    now_ms = server.monotonic_ms()
                    if turn_began_ms is None:
                        turn_began_ms = now_ms
                    elif now_ms - turn_began_ms > _TURN_MAX_MS:
                        self._yield_turn()
                        break
                    if self._must_wait():
                        continue
                requests += 1
                exchange, response = handle(self, view, start + 4, stop)
                start = stop
                needed = 4
                if exchange.route is not route:
                    if answered:
                        server.answered(route, answered, began_ms)
                        answered = 0
                    route = exchange.route
                if response is None:
                    exchange.began_ms = began_ms
                    self._pending.append(exchange)
                elif response is NO_RESPONSE:
                    answered += 1
                else:
                    buffers = route.encode_response(exchange.correlation_id, response)
                    size = len(buffers[0]) if len(buffers) == 1 else sum(map(len, buffers))
                    if self._pending:
                        exchange.buffers = buffers
                        exchange.began_ms = began_ms
                        self._pending.append(exchange)
                        self._held_bytes += size
                    else:
                        self._out += buffers
                        out_bytes += size
                        answered += 1
                if self._closed:
                    break
        except MalformedRequest as error:
            _log.info("closed a connection", peer=self.peer_host, reason=str(error))
            self.close()
        except Exception:  # noqa: BLE001 - the boundary: one connection is lost, not the broker
            _log.exception("a request failed in an unexpected way", peer=self.peer_host)
            self.close()
        finally:
            self._processing = False
        if answered:
            self._answered = (route, answered, began_ms)
        return start, needed

    def _process_kept(self) -> None:
        assert self._buffer is not None
        buffer = self._buffer
        start, needed = self._process(buffer, memoryview(buffer), self._start, self._end)
        if self._closed:
            return
        if start == self._end:
            self._release()
            return
        self._start = start
        self._make_room(needed)

    def _make_room(self, needed: int) -> None:
        """See to it that the rest of a partial request can be read, or that nothing is read."""
        assert self._buffer is not None
        capacity = len(self._buffer)
        if self._end - self._start >= needed:
            # Whole requests are lying here because responses cannot go out: they come first.
            self._pause_reading()
        elif self._start + needed > capacity:
            if needed <= capacity or self._server.may_hold_more(self):
                self._buffer, self._start, self._end = self._server.buffers.grow(
                    self._buffer, self._start, self._end, needed
                )
            elif self._end == capacity:
                self._pause_reading()
                self._server.wait_for_memory(self)

    def _release(self) -> None:
        if self._buffer is not None:
            self._server.buffers.give_back(self._buffer)
            self._buffer = None
            self._start = self._end = 0
            self._server.released(self)

    def _pause_reading(self) -> None:
        if not self._reading_paused and not self._closed:
            self._reading_paused = True
            self._transport.pause_reading()

    def _yield_turn(self) -> None:
        self._yielding = True
        self._pause_reading()
        self._server.continue_later(self)

    def _continue(self) -> None:
        """Take up requests that were left lying because answers could not go out, or others came first."""
        if self._closed or self._processing or not self._reading_paused or self._must_wait():
            return
        self._yielding = False
        if self._buffer is not None:
            self._process_kept()
            self._send()
            self._server.after_requests()
        if self._closed or self._yielding or self._must_wait():
            return
        if self._buffer is None or self._end < len(self._buffer):
            self._reading_paused = False
            self._transport.resume_reading()

    def memory_available(self) -> None:
        """Called when buffers were freed while this connection waited for some."""
        self._continue()

    @property
    def holds_up_others(self) -> bool:
        """Part of a request is here and its client sends no more, though it may."""
        return self._buffer is not None and not self._reading_paused

    # -- responses out ----------------------------------------------------------------------------------

    def answered(self, exchange: Exchange) -> None:
        """An exchange of this connection has its response: send what is next in order."""
        self._held_bytes += sum(map(len, exchange.buffers or ()))
        if self._processing:
            return  # the end of _process sends
        self._send()
        if self._held_bytes:
            self._count_unsent()
        if self._reading_paused:
            self._server.continue_later(self)

    def _send(self) -> None:
        pending = self._pending
        out = self._out
        waited: list[Exchange] | None = None
        while pending and pending[0].buffers is not None:
            exchange = pending.popleft()
            buffers = exchange.buffers or ()
            self._held_bytes -= sum(map(len, buffers))
            out += buffers
            if waited is None:
                waited = [exchange]
            else:
                waited.append(exchange)
        if out:
            self._out = []
            if not self._closed:
                self._write(out)
        if self._answered is not None:
            self._server.answered(*self._answered)
            self._answered = None
        if waited is not None:
            self._server.answered_late(waited)

    def _write(self, out: list[Any]) -> None:
        size = len(out[0]) if len(out) == 1 else sum(map(len, out))
        self._server.sent_bytes += size
        if self._direct is not None and self._direct.busy:
            self._send_direct(out)
        elif len(out) == 1:
            self._transport.write(out[0])
        elif size <= _JOIN_MAX_BYTES:
            self._transport.write(b"".join(out))
        elif any(type(piece) is FileRange for piece in out):
            self._send_ranges(out)
        else:
            self._transport.writelines(out)
        if self._unsent_bytes or self._write_paused:
            self._count_unsent()

    def _send_ranges(self, out: list[Any]) -> None:
        """Let the kernel send the files' parts, unless other bytes have to go out before."""
        if self._transport.get_write_buffer_size():
            self._transport.writelines(_without_ranges(out))
            return
        if self._direct is None:
            self._direct = DirectSender(
                self._transport.get_extra_info("socket"), on_drained=self.resume_writing, on_failed=self.abort
            )
        self._send_direct(out)

    def _send_direct(self, out: list[Any]) -> None:
        assert self._direct is not None
        try:
            self._direct.send(out)
        except OSError:
            self.abort()
            return
        if self._direct.busy:
            self._write_paused = True

    def _close_direct(self) -> None:
        if self._direct is not None:
            self._direct.close()
            self._direct = None

    def close(self) -> None:
        """Close after sending what was already answered."""
        if not self._closed:
            self._closed = True
            if self._out:
                self._transport.writelines(_without_ranges(self._out))
                self._out = []
            self._close_direct()
            self._transport.close()

    def abort(self) -> None:
        self._closed = True
        self._close_direct()
        self._transport.abort()


def _without_ranges(pieces: list[Any]) -> list[Any]:
    """The same bytes, those of files read into memory."""
    plain = []
    for piece in pieces:
        if type(piece) is FileRange:
            plain.append(piece.read())
            piece.close()
        else:
            plain.append(piece)
    return plain
