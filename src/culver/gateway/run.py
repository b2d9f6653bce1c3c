"""The gateway as a process: uvicorn on uvloop, the line that says it is ready, and the signals that end it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import sys
from collections.abc import Iterator

import uvicorn
import uvloop

from culver.gateway.app import build
from culver.gateway.http_protocol import LimitedHttpProtocol
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings

_BACKLOG = 2048
_SWITCH_INTERVAL_SECONDS = 0.0005
# Streams are told to end at once; a request that waits for the cluster may still get its answer.
_STOP_SECONDS = 10
_FLUSH_SECONDS = 2.0
# Clients that send something now and then find their connection as they left it.
_KEEP_ALIVE_SECONDS = 75
# Beyond it WebSocket messages are refused; what is larger belongs into a request.
_WEBSOCKET_MAX_BYTES = 16 * 1024 * 1024
_UNSENT_MAX_BYTES = 128 * 1024


def serve(settings: GatewaySettings, listener: socket.socket) -> int:
    """Run the gateway on a socket that listens, until SIGTERM or SIGINT; the exit code.

    ValueError when the address of the cluster, or a setting of the Kafka client, is none.
    """
    # The thread that brings delivery reports must not wait five milliseconds, Python's default, for its turn.
    sys.setswitchinterval(_SWITCH_INTERVAL_SECONDS)
    # Accepted connections inherit it. The kernel alone knows whether the other side takes anything, and closes a
    # connection with a full buffer, which a server that wants to send the rest first never would.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, settings.push_receiver_timeout_ms)
    # What the kernel has not sent yet it holds for each connection, and of that there would be megabytes.
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, _UNSENT_MAX_BYTES)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(_serve(settings, listener))


async def _serve(settings: GatewaySettings, listener: socket.socket) -> int:
    services = Services(settings)
    app = build(services)
    config = uvicorn.Config(
        app,
        http=LimitedHttpProtocol,
        ws="websockets-sansio",
        loop="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_STOP_SECONDS,
        timeout_keep_alive=_KEEP_ALIVE_SECONDS,
        ws_max_size=_WEBSOCKET_MAX_BYTES,
        ws_ping_interval=settings.push_receiver_timeout_ms / 2000,
        ws_ping_timeout=settings.push_receiver_timeout_ms / 2000,
        # One record goes to many receivers: compressed for each of them anew, it would cost more than all the rest.
        ws_per_message_deflate=False,
        # Not behind a proxy that it knows of: what a client says about itself counts for nothing.
        proxy_headers=False,
    )
    await services.start()
    try:
        await _Server(config, services, _url(settings.http, listener)).serve(sockets=[listener])
    finally:
        await services.close()
    return 0


def _url(address: str, listener: socket.socket) -> str:
    """Where a person finds the gateway: the host as it was given, and the real port."""
    host = address.rpartition(":")[0] or "0.0.0.0"
    return f"http://{host}:{listener.getsockname()[1]}"


class _Server(uvicorn.Server):
    """uvicorn's server, which says when it is ready and ends without raising the signal again."""

    def __init__(self, config: uvicorn.Config, services: Services, url: str) -> None:
        super().__init__(config)
        self._services = services
        self._url = url

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            gc.freeze()  # what is there now stays: no collection needs to look at it again
            gc.set_threshold(20_000, 50, 100)
            # Whoever read the broker's first line may have closed the pipe since: no reason to end.
            with contextlib.suppress(BrokenPipeError):
                os.write(sys.stdout.fileno(), f"http {self._url}\n".encode())

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._services.stopping.set()
        giving_up = asyncio.get_running_loop().call_later(_FLUSH_SECONDS, self._abort_closed)
        await super().shutdown(sockets)
        giving_up.cancel()

    def _abort_closed(self) -> None:
        """Closed on this side, but the other side takes nothing: it would be waited for to the end."""
        for connection in list(self.server_state.connections):
            if connection.transport.is_closing():
                connection.transport.abort()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.handle_exit, number, None)
        try:
            yield
        finally:
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
