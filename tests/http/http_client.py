"""Requests with the standard library, as a script would make them."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from confluent_kafka import Consumer, TopicPartition

TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class Reply:
    status: int
    headers: http.client.HTTPMessage
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def call(
    url: str,
    method: str,
    path: str,
    body: bytes | Iterable[bytes] | None = None,
    headers: Mapping[str, str] | None = None,
) -> Reply:
    """One request on a connection of its own. A body that is no bytes is sent in chunks."""
    address = urlsplit(url)
    assert address.hostname is not None
    connection = http.client.HTTPConnection(address.hostname, address.port, timeout=TIMEOUT_SECONDS)
    try:
        chunked = body is not None and not isinstance(body, bytes)
        connection.request(method, path, body, dict(headers or {}), encode_chunked=chunked)
        response = connection.getresponse()
        return Reply(response.status, response.headers, response.read())
    finally:
        connection.close()


def post(url: str, path: str, body: bytes | Iterable[bytes], media_type: str, **headers: str) -> Reply:
    chunked = {} if isinstance(body, bytes) else {"Transfer-Encoding": "chunked"}
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return call(url, "POST", path, body, {"Content-Type": media_type, **chunked, **named})


def post_json(url: str, path: str, value: object, media_type: str = "application/json") -> Reply:
    return post(url, path, json.dumps(value).encode(), media_type)


def consumed(bootstrap_servers: str, topic: str, count: int, partition: int = 0) -> list[Any]:
    """The first records of a partition, by a Kafka client."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "reader"})
    try:
        consumer.assign([TopicPartition(topic, partition, 0)])
        messages = consumer.consume(count, TIMEOUT_SECONDS)
    finally:
        consumer.close()
    assert len(messages) == count
    return messages
