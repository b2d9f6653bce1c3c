"""Records with headers whose names are no text: anybody can write them, and nobody who reads over HTTP suffers."""

from __future__ import annotations

from typing import Any

import pytest
from http_call import call, error_code
from push_clients import sse
from webhook_receiver import until
from wire_produce import connected, produce, run

from culver.testing import Broker

V2 = "application/vnd.kafka.v2+json"


@pytest.fixture
def written(http_broker: Broker, topic: str) -> str:
    """A topic with such a record, and one behind it."""

    async def write() -> None:
        async with connected(http_broker.bootstrap_servers) as cluster:
            await produce(cluster, topic, [b"1"], headers=(("\udcff", b"x"),))
            await produce(cluster, topic, [b"2"], headers=(("name", b"x"),))

    run(write)
    return topic


def test_push_goes_on_behind_it(url: str, written: str) -> None:
    async def scenario() -> None:
        async with sse(url, written, start="earliest") as stream:
            assert await stream.values(2) == [1, 2]

    run(scenario)


def test_the_console_shows_it(url: str, written: str) -> None:
    found = call("GET", f"{url}/api/topics/{written}/records?from=earliest")
    assert found.status == 200
    assert [record["headers"][0]["name"] for record in found.json["records"]] == ["\ufffd", "name"]


def test_a_consumer_over_http_gets_the_record_without_its_headers(url: str, written: str) -> None:
    wanted = {"auto.offset.reset": "earliest", "format": "json"}
    instance = call("POST", f"{url}/consumers/{written}", wanted, V2).json["base_uri"]
    assert call("POST", f"{instance}/subscription", {"topics": [written]}, V2).status == 204
    records: list[dict[str, Any]] = []

    def arrived() -> bool:
        reply = call("GET", f"{instance}/records", accept="application/vnd.kafka.json.v2+json")
        assert reply.status == 200, reply.body
        records.extend(reply.json)
        return len(records) == 2

    until(arrived, "both records")
    assert [record["value"] for record in records] == [1, 2]
    assert call("DELETE", instance).status == 204


@pytest.mark.parametrize("path", ["/api/topics", "/api/webhooks", "/consumers/group"])
def test_a_body_whose_text_is_no_text_is_refused(url: str, path: str) -> None:
    reply = call("POST", url + path, b'{"name":"\xff"}', V2 if "consumers" in path else "application/json")
    assert (reply.status, error_code(reply)) == (422, 42201)
