"""The topic that holds the secrets of webhooks: no client of the gateway reads it or writes to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from http_call import call
from push_clients import websocket
from webhook_api import created
from webhook_receiver import Receiver, until
from wire_produce import run as run_async

TOPIC = "__culver_webhooks"
V2 = "application/vnd.kafka.v2+json"


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"culver.http.webhook.allow.private": "127.0.0.0/8"}, "topics": {"orders": 1}}


@pytest.fixture(scope="module")
def gateway(url: str) -> str:
    """One in whose cluster there is a webhook, with a secret."""
    with Receiver() as receiver:
        created(url, "kept", ["orders"], receiver.url, paused=True)
    return url


@pytest.mark.parametrize(
    "path",
    [
        f"/api/topics/{TOPIC}/records?from=earliest",
        f"/api/topics/{TOPIC}/records/0/0",
        f"/api/topics/{TOPIC}/records/0/0/value",
        f"/api/topics/{TOPIC}/records/0/0/key",
        f"/api/topics/{TOPIC}/export",
        f"/api/topics/{TOPIC}/tail?from=earliest",
        f"/push/sse?topic={TOPIC}&from=earliest",
        f"/push/sse?topic=orders&topic={TOPIC}&group=readers",
    ],
)
def test_it_is_not_read(gateway: str, path: str) -> None:
    reply = call("GET", gateway + path)
    assert reply.status == 403, reply.body
    assert "secrets" in reply.json["message"]
    assert b"whsec_" not in reply.body


def test_it_is_not_pushed_over_a_websocket_either(gateway: str) -> None:
    async def scenario() -> None:
        async with websocket(gateway, "orders", TOPIC, start="earliest") as socket:
            told = await socket.next()
            assert told.kind == "error"
            assert "secrets" in told.data["message"]

    run_async(scenario)


@pytest.mark.parametrize(
    ("path", "body", "media_type"),
    [
        (f"/topics/{TOPIC}", b"{}", "application/json"),
        (f"/topics/{TOPIC}/partitions/0", b"{}", "application/json"),
        (f"/topics/{TOPIC}", b'{"records":[{"value":{}}]}', "application/vnd.kafka.json.v2+json"),
        (f"/ingest/{TOPIC}", b"line", "text/plain"),
        (f"/v1/logs?topic={TOPIC}", b'{"resourceLogs":[]}', "application/json"),
        (f"/loki/api/v1/push?topic={TOPIC}", b'{"streams":[]}', "application/json"),
        (f"/api/topics/{TOPIC}/records", b'{"key":"evil","value":"{}"}', "application/json"),
    ],
)
def test_it_is_not_written(gateway: str, path: str, body: bytes, media_type: str) -> None:
    assert call("POST", gateway + path, body, media_type).status == 403


def test_a_bulk_of_documents_does_not_reach_it(gateway: str) -> None:
    lines = [{"create": {"_index": TOPIC}}, {"name": "evil"}]
    body = "".join(json.dumps(line) + "\n" for line in lines)
    reply = call("POST", f"{gateway}/_bulk", body, "application/x-ndjson")
    assert [item["create"]["status"] for item in reply.json["items"]] == [403]


def test_no_webhook_sends_it_on_and_none_sends_dead_letters_there(gateway: str) -> None:
    body = {"name": "leak", "topics": [TOPIC], "url": "http://127.0.0.1:9/"}
    assert call("POST", f"{gateway}/api/webhooks", body).status == 403
    letters = {**body, "topics": ["orders"], "dead_letter_topic": TOPIC}
    assert call("POST", f"{gateway}/api/webhooks", letters).status == 422


def test_no_consumer_over_http_reads_it_and_patterns_do_not_match_it(gateway: str) -> None:
    made = call("POST", f"{gateway}/consumers/curious", {"auto.offset.reset": "earliest"}, V2).json
    instance = made["base_uri"]
    assert call("POST", f"{instance}/subscription", {"topics": [TOPIC]}, V2).status == 403
    place = {"topic": TOPIC, "partition": 0}
    assert call("POST", f"{instance}/assignments", {"partitions": [place]}, V2).status == 403
    assert (
        call("POST", f"{instance}/subscription", {"topic_pattern": "(__culver_.*|orders)"}, V2).status == 204
    )
    assert call("GET", f"{instance}/subscription").json == {"topics": ["orders"]}
    call("POST", f"{gateway}/topics/orders", b'"seen"', "application/json")
    seen: list[dict[str, Any]] = []

    def arrived() -> bool:
        seen.extend(call("GET", f"{instance}/records", accept="application/vnd.kafka.binary.v2+json").json)
        return bool(seen)

    until(arrived, "a record of the other topic that matches")
    assert {record["topic"] for record in seen} == {"orders"}
    assignment = call("GET", f"{instance}/assignments").json["partitions"]
    assert {place["topic"] for place in assignment} == {"orders"}
    call("DELETE", instance)
