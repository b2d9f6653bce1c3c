"""Topics, partitions and brokers, as the REST proxy tells of them."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from http_call import call, error_code

V2 = "application/vnd.kafka.v2+json"
REPLICAS = [{"broker": 1, "leader": True, "in_sync": True}]


def test_topics_are_listed_by_name(url: str, new_topic: Callable[..., str]) -> None:
    names = [new_topic(), new_topic()]
    listed = call("GET", f"{url}/topics", Accept=V2)
    assert listed.headers["content-type"] == V2
    assert set(names) <= set(listed.json)
    assert listed.json == sorted(listed.json)


def test_a_topic_has_its_settings_and_partitions(url: str, new_topic: Callable[..., str]) -> None:
    name = new_topic(partitions=2, retention_ms=12345)
    topic = call("GET", f"{url}/topics/{name}").json
    assert topic["name"] == name
    assert topic["configs"]["retention.ms"] == "12345"
    assert topic["configs"]["cleanup.policy"] == "delete"
    partitions = [{"partition": number, "leader": 1, "replicas": REPLICAS} for number in (0, 1)]
    assert topic["partitions"] == partitions
    assert call("GET", f"{url}/topics/{name}/partitions").json == partitions
    assert call("GET", f"{url}/topics/{name}/partitions/1").json == partitions[1]


def test_a_partition_says_where_it_begins_and_ends(url: str, topic: str) -> None:
    assert call("POST", f"{url}/ingest/{topic}", b"a\nb\nc\n", "text/plain").status == 200
    offsets = call("GET", f"{url}/topics/{topic}/partitions/0/offsets")
    assert offsets.json == {"beginning_offset": 0, "end_offset": 3}


def test_brokers_are_listed_by_id(url: str) -> None:
    assert call("GET", f"{url}/brokers").json == {"brokers": [1]}


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("missing", 40401),
        ("m" * 40_000, 40401),
        ("missing/partitions", 40401),
        ("missing/partitions/0", 40401),
        ("{topic}/partitions/1", 40402),
        ("{topic}/partitions/-1", 40402),
        ("{topic}/partitions/x/offsets", 40402),
        ("{topic}/partitions/99999999999999999999/offsets", 40402),
        ("{topic}/partitions/" + "9" * 5000, 40402),
    ],
)
def test_what_is_not_there_is_not_found(url: str, topic: str, path: str, expected: int) -> None:
    answer = call("GET", f"{url}/topics/{path.format(topic=topic)}")
    assert (answer.status, error_code(answer)) == (404, expected)
