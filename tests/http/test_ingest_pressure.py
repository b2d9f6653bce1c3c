"""Shippers are told to wait when there is no room or no cluster, in the words of their protocol, and lose nothing."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from typing import Any

import pytest
import shipper_bodies as bodies
from http_call import call
from http_client import Reply
from topic_contents import Held, all_records

from culver.gateway.app import build
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings
from culver.testing import Broker

PROTOBUF = "application/x-protobuf"
NDJSON = "application/x-ndjson"
IN_FLIGHT_MAX_BYTES = 64 * 1024
LINE = "x" * 20_000
PUSH = {"streams": [{"stream": {"app": "a"}, "values": [[str(bodies.TIME_NS), LINE]]}]}
REQUESTS: list[tuple[str, Any, str]] = [
    ("/v1/logs", bodies.export_request(bodies.log_record(LINE)), PROTOBUF),
    ("/v1/logs", json.dumps(bodies.otlp_json(bodies.otlp_json_record(LINE))).encode(), "application/json"),
    ("/loki/api/v1/push", json.dumps(PUSH).encode(), "application/json"),
    ("/_bulk", f'{{"index":{{}}}}\n{{"message":"{LINE}"}}\n'.encode(), NDJSON),
    ("/ingest/{topic}", LINE.encode(), "text/plain"),
]


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"culver.http.in.flight.max.bytes": IN_FLIGHT_MAX_BYTES}}


@pytest.fixture
def read(http_broker: Broker) -> Callable[[str], list[Held]]:
    return lambda topic: all_records(http_broker.bootstrap_servers, topic)


def test_a_cluster_that_stalls_fills_the_budget_and_all_that_was_accepted_is_there_afterwards(
    http_broker: Broker, url: str, topic: str, read: Callable[[str], list[Held]]
) -> None:
    # The topic is known, so that the gateway has no question for the cluster any more.
    assert call("POST", f"{url}/ingest/{topic}", b"first", "text/plain").status == 200
    answers: list[Reply] = []
    answered = threading.Event()

    def send(path: str, body: bytes, content_type: str) -> None:
        answers.append(call("POST", f"{url}{path.format(topic=topic)}?topic={topic}", body, content_type))
        answered.set()

    http_broker.suspend()
    try:
        senders = [threading.Thread(target=send, args=request) for request in REQUESTS * 3]
        for sender in senders:
            sender.start()
        assert answered.wait(20), "nobody was told to wait"
        refused = list(answers)
    finally:
        http_broker.resume()
    for sender in senders:
        sender.join()
    assert {answer.status for answer in refused} == {429}, "something was answered that cannot be durable"
    assert all(int(answer.headers["retry-after"]) > 0 for answer in refused)
    accepted = [answer for answer in answers if answer.status != 429]
    assert {answer.status for answer in accepted} <= {200, 204}
    assert len(read(topic)) == 1 + len(accepted)


async def send_to_nowhere(path: str, body: bytes, content_type: str) -> tuple[int, dict[str, str], bytes]:
    """The answer of a gateway whose cluster is not there."""
    services = Services(GatewaySettings(bootstrap="127.0.0.1:1"))
    app = build(services)
    headers = [(b"host", b"localhost"), (b"content-type", content_type.encode())]
    sent: list[dict[str, Any]] = []
    scope = {
        "type": "http",
        "method": "POST",
        "path": path,
        "query_string": b"",
        "headers": headers,
        "app": app,
    }

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    await services.start()
    try:
        await app(scope, receive, send)
    finally:
        await services.close()
    found = {name.decode(): value.decode() for name, value in sent[0]["headers"]}
    return sent[0]["status"], found, b"".join(message.get("body", b"") for message in sent[1:])


@pytest.mark.parametrize(("path", "body", "content_type"), REQUESTS)
def test_without_a_cluster_shippers_are_told_to_try_again(path: str, body: bytes, content_type: str) -> None:
    status, headers, answer = asyncio.run(send_to_nowhere(path.format(topic="logs"), body, content_type))
    assert status == 503
    assert int(headers["retry-after"]) > 0
    if content_type == PROTOBUF:
        assert (headers["content-type"], answer[:1]) == (PROTOBUF, b"\x12")  # Status.message
    elif path == "/_bulk":
        assert json.loads(answer)["status"] == 503
    else:
        assert b"cluster" in answer or b"broker" in answer
