"""Clients of push for tests: a reader of server-sent events and a WebSocket, both aiohttp's."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import aiohttp

from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.groups import committed_offsets

WAIT_SECONDS = 20.0
QUIET_SECONDS = 0.2


class Event(NamedTuple):
    """One event of a stream."""

    id: str | None
    kind: str
    data: dict[str, Any]


class Connection:
    """What both kinds have in common: messages come one after the other, records among them."""

    def __init__(self) -> None:
        self.assigned: set[int] = set()

    async def next(self) -> Event:
        """The next message. EOFError when there are no more."""
        event = await self._read()
        places = {place["partition"] for place in event.data.get("partitions", ())}
        if event.kind == "assigned":
            self.assigned |= places
        elif event.kind == "revoked":
            self.assigned -= places
        return event

    async def _read(self) -> Event:
        raise EOFError

    async def expect(self, kind: str) -> Event:
        """The next message of that kind; what comes before it is skipped, unless it is a record."""
        while True:
            event = await self.next()
            if event.kind == kind:
                return event
            assert event.kind not in ("record", "records", "error"), event

    async def records(self, count: int) -> list[Event]:
        """The next so many records; what comes between is skipped."""
        found: list[Event] = []
        while len(found) < count:
            event = await self.next()
            assert event.kind != "error", event
            if event.kind == "record":
                found.append(event)
        return found

    async def values(self, count: int) -> list[Any]:
        return [record.data["value"] for record in await self.records(count)]

    async def is_quiet(self) -> bool:
        """Does no record come for a while? There is nothing but time to wait for."""
        try:
            async with asyncio.timeout(QUIET_SECONDS):
                await self.records(1)
        except TimeoutError:
            return True
        return False

    async def end(self) -> None:
        """Read on until there is no more."""
        try:
            while True:
                await self.next()
        except EOFError:
            return

    async def partitions(self, count: int) -> set[int]:
        """The partitions that are assigned, as soon as it is so many."""
        while len(self.assigned) != count:
            await self.next()
        return set(self.assigned)


class Events(Connection):
    """A stream of server-sent events."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        super().__init__()
        self._lines = response.content
        self.last_id: str | None = None
        self.comments = 0

    async def _read(self) -> Event:
        fields: dict[str, str] = {}
        async with asyncio.timeout(WAIT_SECONDS):
            while True:
                line = (await self._lines.readline()).decode()
                if not line:
                    raise EOFError
                name, _, text = line.rstrip("\n").partition(": ")
                self.comments += line.startswith(":")
                if name and not line.startswith(":"):
                    fields[name] = text
                elif "event" in fields:
                    break
        self.last_id = fields.get("id", self.last_id)
        return Event(fields.get("id"), fields["event"], json.loads(fields["data"]))


class Socket(Connection):
    """A WebSocket."""

    def __init__(self, websocket: aiohttp.ClientWebSocketResponse) -> None:
        super().__init__()
        self.websocket = websocket
        self.close_code: int | None = None

    async def _read(self) -> Event:
        async with asyncio.timeout(WAIT_SECONDS):
            message = await self.websocket.receive()
        if message.type is aiohttp.WSMsgType.CLOSE:
            self.close_code = message.data
        if message.type is not aiohttp.WSMsgType.TEXT:
            raise EOFError
        data = json.loads(message.data)
        return Event(data.get("id"), data["type"], data)

    async def send(self, kind: str, **fields: Any) -> None:
        await self.websocket.send_json({"type": kind, **fields})

    async def closed(self) -> int | None:
        """Read on until it is closed: the close code."""
        await self.end()
        return self.close_code


def _session() -> aiohttp.ClientSession:
    return aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=None), read_bufsize=2**24)


@asynccontextmanager
async def sse(
    url: str, *topics: str, last_event_id: str | None = None, **query: Any
) -> AsyncIterator[Events]:
    """A stream of the topics; `start` stands for the parameter `from`."""
    parameters = [("topic", topic) for topic in topics]
    parameters += [("from" if name == "start" else name, str(value)) for name, value in query.items()]
    headers = {} if last_event_id is None else {"Last-Event-ID": last_event_id}
    async with _session() as session:
        response = await session.get(f"{url}/push/sse", params=parameters, headers=headers)
        try:
            assert response.status == 200, await response.text()
            yield Events(response)
        finally:
            response.close()


@asynccontextmanager
async def websocket(url: str, *topics: str, **subscribe: Any) -> AsyncIterator[Socket]:
    """A WebSocket that has subscribed to the topics, if there are any; `start` stands for the field `from`."""
    async with _session() as session, session.ws_connect(f"{url}/push/ws", heartbeat=None) as connected:
        socket = Socket(connected)
        if topics:
            if "start" in subscribe:
                subscribe["from"] = subscribe.pop("start")
            await socket.send("subscribe", topics=topics, **subscribe)
        yield socket


async def refusal(url: str, query: str) -> tuple[int, dict[str, Any]]:
    """The status and the body of a stream that is refused."""
    async with _session() as session, session.get(f"{url}/push/sse?{query}") as response:
        return response.status, await response.json()


async def acknowledge(url: str, subscription: str, last_id: str | None) -> tuple[int, dict[str, Any]]:
    """POST /push/ack."""
    body = {"subscription": subscription, "id": last_id}
    async with _session() as session, session.post(f"{url}/push/ack", json=body) as response:
        return response.status, await response.json()


async def committed(cluster: Cluster, group: str) -> dict[int, int]:
    """The committed offsets of a group that reads one topic, by partition."""
    offsets = (await committed_offsets(cluster, [group])).get(group, {})
    return {place.partition: found.offset for place, found in offsets.items()}


def numbered(first: int, count: int) -> list[bytes]:
    """Values of records: numbers, which come back as such."""
    return [b"%d" % number for number in range(first, first + count)]
