"""All connections of the gateway to brokers: one for each broker and purpose, made when needed, closed when idle."""

from __future__ import annotations

import asyncio

from culver.gateway.cluster.connection import Address, Connection, connect
from culver.logging import get_logger
from culver.wire_client import Unreachable

_log = get_logger("culver.gateway.cluster")

# Connecting to a broker that is there takes no time; one that is not should not use up the others' share.
_CONNECT_MAX_MS = 3_000.0
_BACKOFF_FIRST_S = 0.02
_BACKOFF_MAX_S = 1.0
_IDLE_MAX_S = 120.0
_LOOK_FOR_IDLE_S = 30.0
_SHUTTING_DOWN = "the gateway is shutting down"

Key = tuple[Address, str]


class _Trouble:
    """A broker that could not be reached: it is left alone for a while, longer each time."""

    __slots__ = ("again_at", "backoff_s", "reason")

    def __init__(self) -> None:
        self.again_at = 0.0
        self.backoff_s = _BACKOFF_FIRST_S
        self.reason = ""


class Connections:
    """Connections by address and purpose."""

    def __init__(self, client_id: str) -> None:
        self._client_id = client_id
        self._open: dict[Key, Connection] = {}
        self._connecting: dict[Key, asyncio.Task[Connection]] = {}
        self._trouble: dict[Address, _Trouble] = {}
        self._sweep: asyncio.TimerHandle | None = None
        self._closed = False

    async def get(self, address: Address, purpose: str) -> Connection:
        """A connection that was open a moment ago. Everyone who asks at once waits for the same attempt.

        Unreachable, at once while the broker is being left alone after an attempt that failed.
        """
        key = address, purpose
        connection = self._open.get(key)
        if connection is not None and not connection.closed:
            return connection
        attempt = self._connecting.get(key)
        if attempt is None:
            if self._closed:
                raise Unreachable(_SHUTTING_DOWN)
            trouble = self._trouble.get(address)
            if trouble is not None and asyncio.get_running_loop().time() < trouble.again_at:
                raise Unreachable(trouble.reason)
            attempt = self._connecting[key] = asyncio.create_task(self._connect(key))
            attempt.add_done_callback(lambda done: self._attempted(key, done))
        try:
            return await asyncio.shield(attempt)
        except asyncio.CancelledError:
            current = asyncio.current_task()
            if attempt.cancelled() and not (current is not None and current.cancelling()):
                raise Unreachable(_SHUTTING_DOWN) from None
            raise

    def _attempted(self, key: Key, attempt: asyncio.Task[Connection]) -> None:
        self._connecting.pop(key, None)
        if not attempt.cancelled():
            # Everyone who waited may have gone: then nobody has looked at it, which asyncio would complain about.
            attempt.exception()

    async def _connect(self, key: Key) -> Connection:
        address, purpose = key
        loop = asyncio.get_running_loop()
        try:
            connection = await connect(address, self._client_id, _CONNECT_MAX_MS)
        except Unreachable as error:
            trouble = self._trouble.setdefault(address, _Trouble())
            if not trouble.reason:
                _log.warning("no connection to a broker", reason=str(error), purpose=purpose)
            trouble.reason = str(error)
            trouble.again_at = loop.time() + trouble.backoff_s
            trouble.backoff_s = min(2 * trouble.backoff_s, _BACKOFF_MAX_S)
            raise
        if self._trouble.pop(address, None) is not None:
            _log.info("connected to a broker again", address=str(connection), purpose=purpose)
        self._open[key] = connection
        if self._sweep is None:
            self._sweep = loop.call_later(_LOOK_FOR_IDLE_S, self._close_idle)
        return connection

    def _close_idle(self) -> None:
        loop = asyncio.get_running_loop()
        for key, connection in list(self._open.items()):
            if connection.idle and loop.time() - connection.idle_since > _IDLE_MAX_S:
                connection.abort("nobody needs it")
            if connection.closed:
                del self._open[key]
        self._sweep = loop.call_later(_LOOK_FOR_IDLE_S, self._close_idle) if self._open else None

    async def close(self) -> None:
        """For good."""
        self._closed = True
        if self._sweep is not None:
            self._sweep.cancel()
        attempts = list(self._connecting.values())
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)
        for connection in self._open.values():
            connection.abort(_SHUTTING_DOWN)
        self._open.clear()
        await asyncio.sleep(0)  # sockets are closed in the event loop's next round
