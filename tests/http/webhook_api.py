"""Webhooks made and watched through the gateway's API, and records written for them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from confluent_kafka import Producer
from http_call import call
from http_client import Reply
from webhook_receiver import SECRET, until

# Quick to fail, quick to come back.
RETRY = {"tries": 1000, "first_ms": 10, "max_ms": 50}


def create(url: str, name: str, topics: list[str], target: str, **fields: Any) -> Reply:
    """Create a webhook that begins at the beginning, unless told otherwise."""
    body = {
        "name": name,
        "topics": topics,
        "url": target,
        "secret": SECRET,
        "from": "earliest",
        "retry": RETRY,
    }
    return call("POST", f"{url}/api/webhooks", {**body, **fields})


def created(url: str, name: str, topics: list[str], target: str, **fields: Any) -> dict[str, Any]:
    answer = create(url, name, topics, target, **fields)
    assert answer.status == 201, answer.body
    return answer.json


def status(url: str, name: str) -> dict[str, Any]:
    return call("GET", f"{url}/api/webhooks/{name}").json["status"]


def wait_for_lag(url: str, name: str, lag: int = 0) -> None:
    """Wait until so many records are not acknowledged, going by what is committed."""
    until(lambda: status(url, name)["lag"] == lag, f"lag {lag} of {name}")


def write(bootstrap: str, topic: str, records: Iterable[tuple[str | None, str]], partition: int = -1) -> None:
    """Write records, key and value, and wait until they are safe."""
    producer = Producer({"bootstrap.servers": bootstrap, "linger.ms": 0})
    for key, value in records:
        producer.produce(topic, value, key, partition)
    assert producer.flush(20) == 0
