"""A gateway that is told to end, with streams open and webhooks under way: it ends soon, whatever others do."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest
from aiohttp import web
from push_clients import sse, websocket
from webhook_api import created, write
from webhook_receiver import Received, Receiver, until
from wire_produce import run

from culver.testing import Broker, Gateway

STREAMS = 50
SOCKETS = 20
# Receivers of webhooks have three seconds to answer, receivers of streams two to take what is on its way.
END_SECONDS = 10.0


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"orders": 4}) as started:
        yield started


async def hang(received: Received, request: web.Request) -> int:
    await asyncio.Event().wait()
    return 200


@pytest.mark.parametrize("is_alone", [False, True], ids=["with its cluster", "with its cluster gone"])
def test_it_ends_soon_with_streams_stalled_and_webhooks_under_way(broker: Broker, is_alone: bool) -> None:
    gateway = Gateway(broker.bootstrap_servers, {"culver.http.webhook.allow.private": "127.0.0.0/8"})
    with gateway, Receiver(behave=hang) as hanging, Receiver() as receiver:
        created(gateway.url, "hanging", ["orders"], hanging.url, timeout_ms=60_000)
        created(gateway.url, "fine", ["orders"], receiver.url)

        async def scenario() -> float:
            async with AsyncExitStack() as streams:
                for number in range(STREAMS):
                    group = {"group": f"group-{number % 5}", "ack": "auto"} if number % 2 else {}
                    await streams.enter_async_context(sse(gateway.url, "orders", start="earliest", **group))
                for number in range(SOCKETS):
                    group = {"group": f"socket-{number % 5}"} if number % 2 else {}
                    await streams.enter_async_context(
                        websocket(gateway.url, "orders", start="earliest", **group)
                    )
                records = [(f"k{number}", json.dumps(number)) for number in range(300)]
                await asyncio.to_thread(write, broker.bootstrap_servers, "orders", records)
                await asyncio.to_thread(until, lambda: hanging.calls and receiver.taken, "calls")
                if is_alone:
                    broker.kill()
                began = time.monotonic()
                await asyncio.to_thread(gateway.stop)
                return time.monotonic() - began

        assert run(scenario) < END_SECONDS
        assert "Traceback" not in gateway.log_text
