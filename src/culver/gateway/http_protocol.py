"""uvicorn's HTTP protocol with limits on what comes before a body: how long the head of a request may be, and take.

uvicorn keeps what a client sends of a head for as long as it goes on sending, and a connection that sends nothing for
ever. Neither costs much, but anybody can open many.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus

import msgspec
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from culver.gateway.errors import Problem
from culver.gateway.problems import ErrorAnswer

HEAD_MAX_BYTES = 64 * 1024
HEAD_SECONDS = 30.0


class LimitedHttpProtocol(HttpToolsProtocol):
    """A connection whose requests begin within bounds."""

    # Bytes of a head that is not complete. None: there is none under way.
    _head_bytes: int | None = None
    _head_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._begin_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._end_head()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._head_bytes is not None:
            # Counted behind the parser: what came is part of a head if it has not ended one.
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_MAX_BYTES:
                self._refuse(Problem.HEAD_TOO_LARGE)

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._begin_head()

    def on_headers_complete(self) -> None:
        self._end_head()
        super().on_headers_complete()

    def _begin_head(self) -> None:
        if self._head_bytes is None:
            self._head_bytes = 0
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._give_up)

    def _end_head(self) -> None:
        self._head_bytes = None
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _give_up(self) -> None:
        if self._head_bytes:
            self._refuse(Problem.REQUEST_TIMEOUT)
        else:  # browsers open connections in advance, and would take an answer for that of their next request
            self._end_head()
            self.transport.close()

    def _refuse(self, problem: Problem) -> None:
        self._end_head()
        if self.transport.is_closing():
            return
        body = msgspec.json.encode(ErrorAnswer(int(problem), problem.text))
        head = (
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()
