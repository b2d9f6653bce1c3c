"""One call to a receiver that fails, hangs or lies: it ends in time, with what a person needs to know."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from webhook_receiver import Received, Receiver
from wire_produce import run

from culver.gateway.webhooks.endpoint import Endpoint, Outcome
from culver.gateway.webhooks.target_check import allowance_of

LOOPBACK = allowance_of("127.0.0.0/8")
HEADERS = {"webhook-id": "msg_1", "webhook-timestamp": str(int(time.time())), "webhook-signature": "v1,none"}
Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def raw_server(serve: Serve) -> AsyncIterator[str]:
    """A server that speaks its own mind."""

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()

    server = await asyncio.start_server(handle, "127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"
    finally:
        server.close()


async def post(url: str, timeout_ms: int = 500, body: bytes = b"{}") -> Outcome:
    endpoint = Endpoint(url, LOOPBACK, concurrency=2, timeout_ms=timeout_ms)
    try:
        return await endpoint.post(body, HEADERS)
    finally:
        await endpoint.close()


def outcome_of(serve: Serve, timeout_ms: int = 500, body: bytes = b"{}") -> tuple[Outcome, float]:
    """What came of a call to the server, and how many seconds it took."""

    async def call() -> tuple[Outcome, float]:
        async with raw_server(serve) as url:
            began = time.monotonic()
            outcome = await post(url, timeout_ms, body)
            return outcome, time.monotonic() - began

    return run(call)


async def until_end_of_headers(reader: asyncio.StreamReader) -> None:
    await reader.readuntil(b"\r\n\r\n")


@pytest.mark.parametrize(
    ("status", "acknowledged"),
    [
        (200, True),
        (204, True),
        (299, True),
        (300, False),
        (400, False),
        (410, False),
        (500, False),
        (999, False),
    ],
)
def test_the_status_decides(status: int, acknowledged: bool) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_end_of_headers(reader)
        writer.write(b"HTTP/1.1 %d Whatever\r\ncontent-length: 0\r\n\r\n" % status)
        await writer.drain()

    outcome, _ = outcome_of(serve)
    assert (outcome.status, outcome.acknowledged) == (status, acknowledged)


def test_nobody_listening_is_a_failure_and_no_exception() -> None:
    outcome = run(lambda: post("http://127.0.0.1:1/"))
    assert outcome.status is None
    assert "127.0.0.1" in outcome.error


def test_a_receiver_that_hangs_is_given_up_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()

    outcome, seconds = outcome_of(serve, timeout_ms=200)
    assert outcome == Outcome(None, "no answer within 0.2 seconds")
    assert seconds < 2


def test_a_receiver_that_does_not_even_read_is_given_up_in_time() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await asyncio.Event().wait()

    outcome, seconds = outcome_of(serve, timeout_ms=300, body=b"x" * (32 << 20))
    assert outcome.error == "no answer within 0.3 seconds"
    assert seconds < 3


def test_an_answer_byte_by_byte_is_cut_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for byte in b"HTTP/1.1 200 OK\r\n" + b"x-slow: yes\r\n" * 1000:
            writer.write(bytes([byte]))
            await writer.drain()
            await asyncio.sleep(0.02)

    outcome, seconds = outcome_of(serve, timeout_ms=300)
    assert outcome.error == "no answer within 0.3 seconds"
    assert seconds < 2


def test_headers_without_end_are_cut_off() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\n")
        while True:
            writer.write(b"x-more: and more\r\n")
            await writer.drain()

    outcome, seconds = outcome_of(serve, timeout_ms=2000)
    assert outcome.status is None
    assert not outcome.acknowledged
    assert seconds < 4


@pytest.mark.parametrize("status", [200, 500])
def test_a_body_without_end_does_not_matter_once_the_status_is_known(status: int) -> None:
    sent = 0

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        await until_end_of_headers(reader)
        writer.write(b"HTTP/1.1 %d Whatever\r\ntransfer-encoding: chunked\r\n\r\n" % status)
        while True:
            writer.write(b"10000\r\n" + b"y" * 65536 + b"\r\n")
            sent += 65536
            await writer.drain()

    outcome, seconds = outcome_of(serve, timeout_ms=5000)
    assert outcome.status == status
    assert seconds < 2
    assert sent < 64 << 20
    assert len(outcome.error) < 300


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"\x16\x03\x01 this is no HTTP",
        b"HTTP/1.1 abc OK\r\n\r\n",
        b"HTTP/1.1 200",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: -5\r\n\r\n",
    ],
)
def test_nonsense_and_dropped_connections_are_failures(answer: bytes) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_end_of_headers(reader)
        writer.write(answer)
        await writer.drain()

    outcome, _ = outcome_of(serve)
    assert outcome.status is None
    assert outcome.error
    assert outcome.error.isprintable()


def test_redirects_are_not_followed() -> None:
    followed = []

    async def elsewhere(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        followed.append(True)

    async def call() -> Outcome:
        async with raw_server(elsewhere) as other:

            async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
                await until_end_of_headers(reader)
                location = other.encode()
                writer.write(b"HTTP/1.1 307 Go\r\nlocation: %b\r\ncontent-length: 0\r\n\r\n" % location)
                await writer.drain()

            async with raw_server(serve) as url:
                return await post(url)

    assert run(call) == Outcome(307, "status 307: redirects are not followed")
    assert not followed


def test_what_a_receiver_says_is_told_in_one_printable_line() -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await until_end_of_headers(reader)
        text = b"no\x1b[31m such\r\n\x00user" + b"!" * 1000
        writer.write(b"HTTP/1.1 422 No\r\nretry-after: 7\r\ncontent-length: %d\r\n\r\n" % len(text) + text)
        await writer.drain()

    outcome, _ = outcome_of(serve)
    assert outcome.error.startswith("status 422: no [31m such user!!!")
    assert outcome.error.isprintable()
    assert outcome.retry_after_ms == 7000


def test_cookies_are_not_kept_and_proxies_of_the_environment_not_used(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:1")
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:1")

    async def behave(received: Received, request: web.Request) -> web.Response:
        return web.Response(headers={"set-cookie": "session=1; Path=/"})

    async def twice(url: str) -> list[Outcome]:
        endpoint = Endpoint(url, LOOPBACK, concurrency=1, timeout_ms=5000)
        try:
            return [await endpoint.post(b"{}", HEADERS) for _ in range(2)]
        finally:
            await endpoint.close()

    with Receiver(behave=behave) as receiver:
        assert [each.status for each in run(lambda: twice(receiver.url))] == [200, 200]
        assert all("cookie" not in each.headers for each in receiver.calls)
        receiver.faults.clear()  # the signature here is none


def test_the_address_is_checked_when_the_connection_is_made() -> None:
    """Also of a webhook that was stored when more was allowed, or by somebody else."""

    async def call(url: str) -> Outcome:
        endpoint = Endpoint(url, allowance_of(""), concurrency=1, timeout_ms=5000)
        try:
            return await endpoint.post(b"{}", HEADERS)
        finally:
            await endpoint.close()

    with Receiver() as receiver:
        for host in ("127.0.0.1", "localhost", "[::ffff:127.0.0.1]", "127.1", "0x7f.1"):
            outcome = run(lambda host=host: call(receiver.url.replace("127.0.0.1", host)))
            assert outcome.status is None, host
        assert "not a public address" in run(lambda: call(receiver.url)).error
        assert receiver.calls == []
