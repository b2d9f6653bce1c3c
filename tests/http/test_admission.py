"""What the gateway lets in: how much, how fast, from where, and that nothing of what it refuses stays."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import pytest
from http_client import TIMEOUT_SECONDS, Reply, call, post

from culver.testing import Broker, Gateway

BODY_MAX = 300_000
IN_FLIGHT_MAX = 1_000_000


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {
        "topics": {"orders": 1},
        "config": {
            "culver.http.body.max.bytes": BODY_MAX,
            "culver.http.in.flight.max.bytes": IN_FLIGHT_MAX,
            "culver.http.body.timeout.ms": 3000,
        },
    }


def connect(url: str) -> socket.socket:
    address = urlsplit(url)
    assert address.hostname is not None
    connection = socket.create_connection((address.hostname, address.port), timeout=TIMEOUT_SECONDS)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def begin(url: str, sent: int, announced: int) -> socket.socket:
    """A connection on which a request has begun, and no more of its body comes."""
    connection = connect(url)
    head = "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
    connection.sendall(f"{head}Content-Length: {announced}\r\n\r\n".encode() + b"x" * sent)
    return connection


def ask(url: str, size: int) -> Reply:
    return post(url, "/topics/orders", b"x" * size, "application/octet-stream")


def wait_for_status(url: str, size: int, status: int) -> Reply:
    """Ask until the answer has the status: what others sent a moment ago may still be on its way."""
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (reply := ask(url, size)).status != status:
        assert time.monotonic() < deadline, reply
    return reply


class TestSize:
    def test_a_body_up_to_the_limit_is_taken_and_one_byte_more_is_not(self, url: str) -> None:
        assert ask(url, BODY_MAX).status == 200
        reply = ask(url, BODY_MAX + 1)
        assert (reply.status, reply.json["error_code"]) == (413, 413)

    def test_an_announced_size_is_enough_to_refuse(self, url: str) -> None:
        with begin(url, sent=0, announced=10 * BODY_MAX) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")

    def test_chunks_without_an_announced_size_are_counted(self, url: str) -> None:
        def endless() -> Iterator[bytes]:
            for _ in range(100):
                yield b"x" * 50_000

        reply = post(url, "/topics/orders", endless(), "application/octet-stream")
        assert (reply.status, reply.json["error_code"]) == (413, 413)

    def test_a_client_that_closes_behind_its_request_still_hears_why(self, url: str) -> None:
        reply = post(
            url, "/topics/orders", b"x" * 20 * BODY_MAX, "application/octet-stream", Connection="close"
        )
        assert reply.status == 413

    def test_a_client_that_asks_before_it_sends_is_spared_the_sending(self, url: str) -> None:
        with connect(url) as connection:
            head = "POST /topics/orders HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\n"
            expect = f"Content-Length: {BODY_MAX + 1}\r\nExpect: 100-continue\r\n\r\n"
            connection.sendall((head + expect).encode())
            assert connection.recv(4096).startswith(b"HTTP/1.1 413 ")


class TestHead:
    @pytest.mark.parametrize("start", ["GET /", "GET / HTTP/1.1\r\nX-Long: "])
    def test_a_head_without_end_is_refused(self, url: str, start: str) -> None:
        with connect(url) as connection:
            connection.sendall(start.encode() + b"x" * 200_000)
            assert connection.recv(4096).startswith(b"HTTP/1.1 431 ")

    def test_a_head_may_come_byte_by_byte(self, url: str) -> None:
        with connect(url) as connection:
            for byte in b"GET /no/such/address HTTP/1.1\r\nHost: localhost\r\n\r\n":
                connection.sendall(bytes([byte]))
            assert connection.recv(4096).startswith(b"HTTP/1.1 404 ")

    def test_what_is_no_http_is_told_so(self, url: str) -> None:
        with connect(url) as connection:
            connection.sendall(b"\x16\x03\x01 hello\r\n\r\n")
            assert connection.recv(4096).startswith(b"HTTP/1.1 400 ")


class TestInFlight:
    def test_too_much_at_a_time_is_refused_until_there_is_room_again(self, url: str) -> None:
        with ExitStack() as connections:
            for _ in range(4):  # 800 kB that stay where they are
                connections.enter_context(begin(url, sent=200_000, announced=250_000))
            reply = wait_for_status(url, 250_000, 429)
            assert reply.json["error_code"] == 429
            assert int(reply.headers["Retry-After"]) >= 1
            assert ask(url, 1000).status == 200  # a small one still fits
        wait_for_status(url, 250_000, 200)

    def test_clients_that_go_away_in_the_middle_leave_nothing_behind(self, url: str) -> None:
        for _ in range(20):  # four times what may be in flight
            begin(url, sent=200_000, announced=250_000).close()
        wait_for_status(url, 250_000, 200)

    def test_what_is_announced_takes_no_memory(self, url: str) -> None:
        with ExitStack() as connections:
            for _ in range(20):
                connections.enter_context(begin(url, sent=10, announced=250_000))
            assert ask(url, 250_000).status == 200

    def test_a_cluster_that_takes_nothing_is_felt_and_what_waited_for_it_is_written(
        self, url: str, http_broker: Broker
    ) -> None:
        """The budget is full of records that the broker has not acknowledged; when it goes on, they are."""

        async def send(session: aiohttp.ClientSession) -> int:
            headers = {"Content-Type": "application/octet-stream"}
            async with session.post(f"{url}/topics/orders", data=b"x" * 200_000, headers=headers) as reply:
                return reply.status

        async def run() -> list[int]:
            async with aiohttp.ClientSession() as session:
                assert await send(session) == 200
                http_broker.suspend()
                try:
                    sending = {asyncio.create_task(send(session)) for _ in range(12)}
                    done, waiting = await asyncio.wait(sending, return_when=asyncio.FIRST_COMPLETED)
                    assert {task.result() for task in done} == {429}
                finally:
                    http_broker.resume()
                return [task.result() for task in done] + list(await asyncio.gather(*waiting))

        statuses = asyncio.run(run())
        assert set(statuses) == {200, 429}
        assert statuses.count(200) * 200_000 <= IN_FLIGHT_MAX

    def test_a_body_that_never_ends_is_given_up(self, url: str) -> None:
        with begin(url, sent=10, announced=20) as connection:
            assert connection.recv(4096).startswith(b"HTTP/1.1 408 ")


class TestPlace:
    @pytest.mark.parametrize(
        "origin", ["http://evil.example", "null", "http://127.0.0.1:1", "https://localhost"]
    )
    def test_pages_of_others_may_change_nothing(self, url: str, origin: str) -> None:
        headers = {"Origin": origin, "Content-Type": "text/plain"}
        reply = call(url, "POST", "/topics/orders", b"x", headers)
        assert (reply.status, reply.json["error_code"]) == (403, 403)
        assert call(url, "GET", "/openapi.json", headers={"Origin": origin}).status == 200

    def test_its_own_pages_may(self, url: str) -> None:
        headers = {"Origin": url, "Content-Type": "text/plain"}
        assert call(url, "POST", "/topics/orders", b"x", headers).status == 200

    @pytest.mark.parametrize(
        ("host", "status"),
        [
            ("localhost", 200),
            ("LOCALHOST:80", 200),
            ("[::1]:8080", 200),
            ("127.0.0.5", 200),
            ("evil.example", 403),
            ("evil.example:80", 403),
            ("127.0.0.1.evil.example", 403),
            ("10.0.0.1", 403),
        ],
    )
    def test_on_a_loopback_address_only_loopback_names_are_answered_to(
        self, url: str, host: str, status: int
    ) -> None:
        assert call(url, "GET", "/openapi.json", headers={"Host": host}).status == status

    def test_on_other_addresses_every_name_is(self, http_broker: Broker) -> None:
        with Gateway(http_broker.bootstrap_servers, http="0.0.0.0:0") as gateway:
            url = gateway.url.replace("0.0.0.0", "127.0.0.1")
            assert call(url, "GET", "/openapi.json", headers={"Host": "queue.example"}).status == 200

    async def _socket_status(self, url: str, origin: str) -> int:
        async with aiohttp.ClientSession() as session:
            try:
                async with session.ws_connect(f"{url}/push/ws", origin=origin):
                    return 101
            except aiohttp.WSServerHandshakeError as error:
                return error.status

    def test_web_sockets_of_other_pages_are_refused(self, url: str) -> None:
        assert asyncio.run(self._socket_status(url, "http://evil.example")) == 403


def test_an_unknown_address_is_told_in_the_same_form(url: str) -> None:
    reply = call(url, "GET", "/no/such/address/anywhere")
    assert (reply.status, reply.json["error_code"]) == (404, 404)
