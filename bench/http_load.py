"""A lean HTTP client for load: the same request over and over on many connections, in a process of its own.

    python -m bench.http_load URL CONNECTIONS SECONDS REQUEST_FILE

prints one JSON object: requests, seconds, failures and latencies in microseconds at p50 and p99. A client library would
be the slowest part of the measurement; this one writes bytes that were made once and looks for the end of the answer.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path
from typing import cast
from urllib.parse import urlsplit

import uvloop

_LENGTH = b"content-length: "


class Connection(asyncio.Protocol):
    """Sends a request, waits for its answer, sends it again."""

    def __init__(self, request: bytes, latencies_us: list[float]) -> None:
        self._request = request
        self._latencies_us = latencies_us
        self._transport: asyncio.Transport | None = None
        self._answer = b""
        self._sent_at_s = 0.0
        self.failures = 0
        self.stopping = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._send()

    def _send(self) -> None:
        assert self._transport is not None
        self._sent_at_s = time.perf_counter()
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        self._answer = self._answer + data if self._answer else data
        head = self._answer.find(b"\r\n\r\n")
        if head < 0:
            return
        at = self._answer.find(_LENGTH) + len(_LENGTH)
        length = int(self._answer[at : self._answer.index(b"\r", at)])
        if len(self._answer) < head + 4 + length:
            return
        self._latencies_us.append((time.perf_counter() - self._sent_at_s) * 1e6)
        if not self._answer.startswith(b"HTTP/1.1 200"):
            self.failures += 1
        self._answer = b""
        if not self.stopping:
            self._send()

    def connection_lost(self, _: Exception | None) -> None:
        if not self.stopping:
            self.failures += 1

    def close(self) -> None:
        self.stopping = True
        if self._transport is not None:
            self._transport.close()


async def load(url: str, connections: int, seconds: float, request: bytes) -> dict[str, float]:
    loop = asyncio.get_running_loop()
    address = urlsplit(url)
    latencies_us: list[float] = []
    opened = [
        (
            await loop.create_connection(
                lambda: Connection(request, latencies_us), address.hostname, address.port
            )
        )[1]
        for _ in range(connections)
    ]
    latencies_us.clear()
    begun = time.perf_counter()
    await asyncio.sleep(seconds)
    took_s = time.perf_counter() - begun
    requests = len(latencies_us)
    for connection in opened:
        connection.close()
    ordered = sorted(latencies_us) or [0.0]
    return {
        "requests": requests,
        "seconds": took_s,
        "failures": sum(connection.failures for connection in opened),
        "p50_us": ordered[len(ordered) // 2],
        "p99_us": ordered[int(len(ordered) * 0.99)],
    }


if __name__ == "__main__":
    _, where, count, duration, file = sys.argv
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(json.dumps(runner.run(load(where, int(count), float(duration), Path(file).read_bytes()))))
