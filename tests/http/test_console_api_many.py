"""The console with a thousand topics and two thousand groups: a page costs what it shows, not what there is."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import msgspec
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from culver.gateway.app import build
from culver.gateway.cluster.groups import alter_offsets
from culver.gateway.cluster.view import TopicPartition
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings
from culver.protocol.messages.broker_report import BrokerReportRequest
from culver.protocol.messages.metadata import MetadataRequest
from culver.testing import Broker

TOPICS = 1000
GROUPS = 2000
PAGE = 50
# For each of several kinds of questions a page asks every broker, here one, once.
REQUESTS_PER_PAGE_MAX = 10
# What the gateway asks every second, whoever looks.
ASKED_ANYWAY = (BrokerReportRequest, MetadataRequest)


@pytest.fixture(scope="module")
def crowded_broker() -> Iterator[Broker]:
    """With topics named topic-0000 onwards, and one that groups read."""
    with Broker({"read": 1}, {"culver.flush": "os"}) as broker:
        admin = AdminClient({"bootstrap.servers": broker.bootstrap_servers})
        topics = [NewTopic(f"topic-{number:04}", 1, 1) for number in range(TOPICS - 1)]
        for made in admin.create_topics(topics, operation_timeout=60, request_timeout=60).values():
            made.result()
        yield broker
        broker.kill()  # a thousand logs need not be closed in order


class Console:
    """A gateway in this process that counts what it asks the cluster."""

    def __init__(self, services: Services) -> None:
        self._app = build(services)
        self.services = services
        self.asked: Counter[str] = Counter()
        ask = services.cluster.ask

        async def counting_ask(request: Any, *arguments: Any, **options: Any) -> Any:
            if type(request) not in ASKED_ANYWAY:
                self.asked[type(request).__name__] += 1
            return await ask(request, *arguments, **options)

        services.cluster.ask = counting_ask  # type: ignore[method-assign]

    async def get(self, path: str) -> tuple[Any, Counter[str]]:
        """The answer to a request, and what it took to give it. How long it took is printed."""
        before = Counter(self.asked)
        begun_s = time.perf_counter()
        route, _, query = path.partition("?")
        sent: list[Any] = []
        scope = {
            "type": "http",
            "method": "GET",
            "path": route,
            "query_string": query.encode(),
            "headers": [(b"host", b"127.0.0.1")],
        }

        async def receive() -> Any:
            return {"type": "http.request", "body": b""}

        async def send(message: Any) -> None:
            sent.append(message)

        await self._app(scope, receive, send)
        took_ms = (time.perf_counter() - begun_s) * 1000
        body = b"".join(message.get("body", b"") for message in sent)
        asked = self.asked - before
        print(f"{path}: {took_ms:.1f} ms, {len(body)} bytes, {dict(asked)}")
        assert sent[0]["status"] == 200, body
        return msgspec.json.decode(body), asked


@asynccontextmanager
async def console(broker: Broker) -> AsyncIterator[Console]:
    services = Services(GatewaySettings(bootstrap=broker.bootstrap_servers))
    await services.start()
    try:
        yield Console(services)
    finally:
        await services.close()


def test_a_page_of_topics_asks_for_the_topics_of_the_page(crowded_broker: Broker) -> None:
    async def look() -> None:
        async with console(crowded_broker) as looked:
            first, asked = await looked.get(f"/api/topics?limit={PAGE}")
            assert first["total"] == TOPICS
            assert len(first["items"]) == PAGE
            assert asked.total() <= REQUESTS_PER_PAGE_MAX
            names = [item["name"] for item in first["items"]]
            for offset in range(PAGE, TOPICS, 10 * PAGE):
                page, asked = await looked.get(f"/api/topics?limit={PAGE}&offset={offset}")
                assert asked.total() <= REQUESTS_PER_PAGE_MAX
                names += [item["name"] for item in page["items"]]
            assert names == sorted(set(names))
            few, asked = await looked.get("/api/topics?q=PIC-099")
            assert [item["name"] for item in few["items"]] == [f"topic-099{digit}" for digit in range(9)]
            assert asked.total() <= REQUESTS_PER_PAGE_MAX
            by_size, asked = await looked.get(f"/api/topics?limit={PAGE}&sort=-messages")
            assert by_size["total"] == TOPICS
            assert asked.total() <= 2 * REQUESTS_PER_PAGE_MAX
            # From now on the order is known for a while.
            _, asked = await looked.get(f"/api/topics?limit={PAGE}&sort=-messages&offset={PAGE}")
            assert asked.total() <= REQUESTS_PER_PAGE_MAX

    asyncio.run(look())


def test_a_page_of_groups_asks_for_the_groups_of_the_page(crowded_broker: Broker) -> None:
    async def look() -> None:
        async with console(crowded_broker) as looked:
            cluster = looked.services.cluster
            begun_s = time.perf_counter()
            names = [f"group-{number:04}" for number in range(GROUPS)]
            place = TopicPartition("read", 0)
            await asyncio.gather(*(alter_offsets(cluster, name, {place: 0}) for name in names))
            print(f"{GROUPS} groups made in {time.perf_counter() - begun_s:.1f} s")

            first, asked = await looked.get(f"/api/groups?limit={PAGE}")
            assert (first["total"], first["totals"]["groups"]) == (GROUPS, GROUPS)
            assert [item["group"] for item in first["items"]] == names[:PAGE]
            assert {(item["members"], item["lag"], item["partitions"]) for item in first["items"]} == {
                (0, 0, 1)
            }
            assert asked.total() <= REQUESTS_PER_PAGE_MAX

            # The list is kept for a moment: the next page asks for its own groups alone.
            last, asked = await looked.get(f"/api/groups?limit={PAGE}&offset={GROUPS - 10}")
            assert [item["group"] for item in last["items"]] == names[-10:]
            assert asked["ListGroupsRequest"] <= 1
            assert asked.total() <= REQUESTS_PER_PAGE_MAX
            found, _ = await looked.get("/api/groups?q=group-1999")
            assert found["total"] == 1
            nothing, _ = await looked.get(f"/api/groups?offset={GROUPS}")
            assert nothing["items"] == []

            # Any number of people who look at once cost as much as one.
            looked.asked.clear()
            pages = await asyncio.gather(*(looked.get("/api/cluster") for _ in range(20)))
            assert {page["counts"]["groups"] for page, _ in pages} == {GROUPS}
            assert looked.asked["ListGroupsRequest"] <= 2

    asyncio.run(look())
