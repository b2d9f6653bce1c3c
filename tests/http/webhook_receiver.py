"""A receiver of webhooks in a thread of the test: checks every signature, keeps what it gets, answers as it is told."""

from __future__ import annotations

import asyncio
import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

SECRET = "whsec_" + base64.b64encode(b"a secret for tests, 32 bytes....").decode()
WAIT_SECONDS = 20.0


@dataclass(frozen=True)
class Received:
    """One call."""

    id: str
    timestamp: int
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def records(self) -> list[dict[str, Any]]:
        return json.loads(self.body)["records"]

    @property
    def values(self) -> list[Any]:
        return [record["value"] for record in self.records]

    @property
    def keys(self) -> list[str | None]:
        return [record["key"] for record in self.records]


# A status, or an answer that is made by hand.
Behaviour = Callable[[Received, web.Request], Awaitable[int | web.StreamResponse]]


async def _fine(received: Received, request: web.Request) -> int:
    return 200


@dataclass
class Receiver:
    """`with Receiver() as receiver:` listens on a free port, or on `port`, of 127.0.0.1. `behave` may be replaced."""

    port: int = 0
    behave: Behaviour = _fine
    secret: str = SECRET
    # All calls in the order in which they came, and those that were answered with 2xx, in the order of the answers.
    calls: list[Received] = field(default_factory=list)
    taken: list[Received] = field(default_factory=list)
    at_once: int = 0
    at_once_max: int = 0
    faults: list[str] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"

    @property
    def values(self) -> list[Any]:
        """The values of the records that were taken."""
        return [value for each in self.taken for value in each.values]

    def __enter__(self) -> Receiver:
        started: Future[None] = Future()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._serve(started)), name="receiver")
        self._thread.start()
        started.result(WAIT_SECONDS)
        return self

    def __exit__(self, *_: object) -> None:
        self._loop.call_soon_threadsafe(self._stop.set)
        self._thread.join()
        assert not self.faults, self.faults

    async def _serve(self, started: Future[None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        app = web.Application(client_max_size=1 << 26)
        app.router.add_route("*", "/{path:.*}", self._handle)
        runner = web.AppRunner(app, handler_cancellation=True, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", self.port, reuse_address=True)
        try:
            await site.start()
            self.port = runner.addresses[0][1]
        except OSError as error:
            started.set_exception(error)
            raise
        started.set_result(None)
        await self._stop.wait()
        await runner.cleanup()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        self.at_once += 1
        self.at_once_max = max(self.at_once_max, self.at_once)
        try:
            body = await request.read()
            headers = {name.lower(): value for name, value in request.headers.items()}
            received = Received(
                headers["webhook-id"], int(headers["webhook-timestamp"]), request.path, headers, body
            )
            self._check(received)
            self.calls.append(received)
            answer = await self.behave(received, request)
            status = answer if isinstance(answer, int) else answer.status
            if 200 <= status < 300:
                self.taken.append(received)
            return web.Response(status=answer, text="as told") if isinstance(answer, int) else answer
        finally:
            self.at_once -= 1

    def _check(self, received: Received) -> None:
        key = base64.b64decode(self.secret.removeprefix("whsec_"))
        signed = f"{received.id}.{received.timestamp}.".encode() + received.body
        expected = "v1," + base64.b64encode(hmac.new(key, signed, hashlib.sha256).digest()).decode()
        if expected not in received.headers["webhook-signature"].split(" "):
            self.faults.append(f"wrong signature of {received.id}")
        if abs(time.time() - received.timestamp) > 60:
            self.faults.append(f"wrong time of {received.id}")


def until(condition: Callable[[], Any], what: str, timeout_s: float = WAIT_SECONDS) -> Any:
    """Wait for a condition; what it gave."""
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        threading.Event().wait(0.01)
    return found
