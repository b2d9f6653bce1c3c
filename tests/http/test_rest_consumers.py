"""Consumer instances of the REST proxy's kind: records arrive once, in order, and nothing is lost on the way."""

from __future__ import annotations

import base64
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import pytest
from confluent_kafka import Producer
from http_call import call, error_code
from http_client import Reply

from culver.testing import Broker

V2 = "application/vnd.kafka.v2+json"
JSON_V2 = "application/vnd.kafka.json.v2+json"
BINARY_V2 = "application/vnd.kafka.binary.v2+json"
INSTANCES_MAX = 4


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {
        "config": {
            "culver.http.consumer.instances.max": INSTANCES_MAX,
            "culver.http.consumer.instance.timeout.ms": 60_000,
            "group.initial.rebalance.delay.ms": 0,
        }
    }


class Instance:
    """A consumer instance, as a client of the REST proxy uses it."""

    def __init__(self, url: str, group: str, **config: Any) -> None:
        made = call("POST", f"{url}/consumers/{group}", config, V2)
        assert made.status == 200, made.body
        self.id: str = made.json["instance_id"]
        self.base_uri: str = made.json["base_uri"]

    def get(self, path: str, body: Any = None, **headers: str) -> Reply:
        return call("GET", f"{self.base_uri}/{path}", body, V2 if body else None, **headers)

    def post(self, path: str, body: Any = None) -> Reply:
        return call("POST", f"{self.base_uri}/{path}", body, V2)

    def delete(self, path: str = "") -> Reply:
        return call("DELETE", f"{self.base_uri}{path and '/'}{path}")

    def assign(self, topic: str, *partitions: int) -> None:
        assert self.post("assignments", {"partitions": places(topic, *partitions)}).status == 204

    def read(self, count: int, query: str = "timeout=1000") -> list[dict[str, Any]]:
        """So many records, over as many reads as it takes."""
        records: list[dict[str, Any]] = []
        deadline = time.monotonic() + 30
        while len(records) < count:
            assert time.monotonic() < deadline, f"read {len(records)} of {count} records"
            answer = self.get(f"records?{query}")
            assert answer.status == 200, answer.body
            records += answer.json
        return records


def places(topic: str, *partitions: int) -> list[dict[str, Any]]:
    return [{"topic": topic, "partition": partition} for partition in partitions]


Make = Callable[..., Instance]


@pytest.fixture
def make(url: str) -> Iterator[Make]:
    """Makes instances, which are gone after the test."""
    made: list[Instance] = []

    def create(group: str, **config: Any) -> Instance:
        made.append(Instance(url, group, **{"auto.offset.reset": "earliest", **config}))
        return made[-1]

    yield create
    for instance in made:
        assert instance.delete().status in (204, 404)


@pytest.fixture
def produce(http_broker: Broker) -> Callable[..., None]:
    """Writes values to a partition of a topic."""

    def write(topic: str, *values: bytes | None, partition: int = 0, **more: Any) -> None:
        producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers})
        for value in values:
            producer.produce(topic, value, partition=partition, **more)
        assert producer.flush(10) == 0

    return write


# --- reading ---


def test_a_subscribed_instance_reads_its_topic_and_commits(
    url: str, make: Make, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b'{"n": 1}', b'{"n": 2}', key=b'"k"')
    instance = make("readers", name="first", format="json", **{"auto.commit.enable": "false"})
    assert instance.base_uri == f"{url}/consumers/readers/instances/first"
    assert instance.post("subscription", {"topics": [topic]}).status == 204
    assert instance.get("subscription").json == {"topics": [topic]}
    records = instance.read(2)
    assert records == [
        {"topic": topic, "key": "k", "value": {"n": number}, "partition": 0, "offset": number - 1}
        for number in (1, 2)
    ]
    assert instance.get("assignments").json == {"partitions": places(topic, 0)}
    where = {"partitions": places(topic, 0)}
    assert instance.get("offsets", where).json == {"offsets": []}
    assert instance.post("offsets").status == 200
    (committed,) = instance.get("offsets", where).json["offsets"]
    assert committed == {"topic": topic, "partition": 0, "offset": 2, "metadata": ""}


def test_what_was_read_is_not_read_again_by_the_next_instance(
    make: Make, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"one", b"two")
    first = make("relay")
    first.assign(topic, 0)
    assert first.get("records?timeout=5000&max_bytes=3").json[0]["offset"] == 0
    assert first.delete().status == 204  # commits what was handed out, and no more
    second = make("relay")
    second.assign(topic, 0)
    assert [record["offset"] for record in second.read(1)] == [1]


def test_binary_is_the_format_when_none_is_named(
    make: Make, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"\xff\x00", None, key=None, headers=[("kind", b"\x01"), ("none", None)])
    instance = make("binary")
    instance.assign(topic, 0)
    first, second = instance.read(2)
    assert (first["key"], first["value"]) == (None, base64.b64encode(b"\xff\x00").decode())
    assert first["headers"] == [{"key": "kind", "value": "AQ=="}, {"key": "none", "value": None}]
    assert second["value"] is None


def test_a_long_poll_ends_when_a_record_comes(make: Make, topic: str, produce: Callable[..., None]) -> None:
    instance = make("waiting", format="text")
    instance.assign(topic, 0)
    assert instance.get("records?timeout=0").json == []
    written = threading.Timer(0.3, produce, [topic, b"at last"])
    written.start()
    began = time.monotonic()
    (record,) = instance.get("records?timeout=30000").json
    written.join()
    assert record["value"] == "at last"
    assert time.monotonic() - began < 10


def test_long_polls_do_not_hold_up_other_requests(url: str, make: Make, topic: str) -> None:
    waiting = [make("crowd") for _ in range(INSTANCES_MAX)]
    for instance in waiting:
        instance.assign(topic, 0)
    polls = [threading.Thread(target=instance.get, args=["records?timeout=20000"]) for instance in waiting]
    for poll in polls:
        poll.start()
    began = time.monotonic()
    assert call("GET", f"{url}/topics").status == 200
    for instance in waiting:
        assert instance.delete().status == 204  # which ends its long poll
    for poll in polls:
        poll.join()
    assert time.monotonic() - began < 10


def test_no_answer_is_larger_than_asked_for_and_none_is_empty(
    make: Make, topic: str, produce: Callable[..., None]
) -> None:
    values = [b"x" * size for size in (10, 10, 500, 10, 10)]
    produce(topic, *values)
    instance = make("small")
    instance.assign(topic, 0)
    instance.read(1, "timeout=5000&max_bytes=1")
    sizes = []
    while sum(sizes) < 4:
        sizes.append(len(instance.get("records?timeout=5000&max_bytes=30").json))
    assert sizes == [1, 1, 2]


def test_fetch_min_bytes_is_waited_for(make: Make, topic: str, produce: Callable[..., None]) -> None:
    produce(topic, b"12345")
    instance = make("patient", **{"fetch.min.bytes": 10, "consumer.request.timeout.ms": 20_000})
    instance.assign(topic, 0)
    written = threading.Timer(0.5, produce, [topic, b"67890"])
    written.start()
    assert len(instance.get("records").json) == 2
    written.join()


def test_records_whose_client_went_away_are_for_the_next_read(
    make: Make, topic: str, produce: Callable[..., None]
) -> None:
    instance = make("fickle", format="text")
    instance.assign(topic, 0)
    assert instance.get("records?timeout=0").json == []
    address = urlsplit(f"{instance.base_uri}/records?timeout=30000")
    for value in (b"one", b"two"):
        with socket.create_connection((address.hostname, address.port)) as client:
            request = f"GET {address.path}?{address.query} HTTP/1.1\r\nHost: {address.netloc}\r\n\r\n"
            client.sendall(request.encode())
            client.shutdown(socket.SHUT_RDWR)
        produce(topic, value)
    assert [record["value"] for record in instance.read(2)] == ["one", "two"]


# --- formats ---


def test_a_record_that_is_not_json_stops_the_reader_and_is_not_lost(
    make: Make, topic: str, produce: Callable[..., None]
) -> None:
    produce(topic, b"1", b"not json", b"3")
    instance = make("strict", format="json")
    instance.assign(topic, 0)
    assert [record["value"] for record in instance.read(1)] == [1]
    for _ in range(2):
        answer = instance.get("records?timeout=5000")
        assert (answer.status, error_code(answer)) == (500, 50002)
        assert f"record 1 of {topic}-0" in answer.json["message"]
    past = {"offsets": [{"topic": topic, "partition": 0, "offset": 2}]}
    assert instance.post("positions", past).status == 204
    assert [record["value"] for record in instance.read(1)] == [3]


def test_json_is_handed_on_as_it_was_written(make: Make, topic: str, produce: Callable[..., None]) -> None:
    value = b'{"exact": 0.10000000000000000001, "big": 123456789012345678901}'
    produce(topic, value, key=b"not json")
    instance = make("exact", format="json")
    instance.assign(topic, 0)
    answer = instance.get("records?timeout=5000", Accept=JSON_V2)
    assert value in answer.body
    assert answer.json[0]["key"] == "not json"
    assert answer.headers["content-type"] == JSON_V2


def test_accepting_another_format_than_the_instances_is_refused(make: Make, topic: str) -> None:
    instance = make("formats", format="json")
    instance.assign(topic, 0)
    answer = instance.get("records?timeout=0", Accept=BINARY_V2)
    assert (answer.status, error_code(answer)) == (406, 40601)
    assert instance.get("records?timeout=0", Accept="text/html").status == 406
    for accept in (JSON_V2, f"{BINARY_V2}, {JSON_V2}", "*/*", V2):
        assert instance.get("records?timeout=0", Accept=accept).status == 200


# --- positions, assignments, subscriptions ---


def test_positions_can_be_set(
    make: Make, new_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    for partition in (0, 1):
        produce(topic, b"a", b"b", b"c", partition=partition)
    instance = make("seekers", format="text")
    instance.assign(topic, 0, 1)
    assert len(instance.read(6)) == 6
    instance.post("positions", {"offsets": [{"topic": topic, "partition": 1, "offset": 1}]})
    assert [(r["partition"], r["offset"]) for r in instance.read(2)] == [(1, 1), (1, 2)]
    assert instance.post("positions/beginning", {"partitions": places(topic, 0)}).status == 204
    assert [(r["partition"], r["offset"]) for r in instance.read(3)] == [(0, 0), (0, 1), (0, 2)]
    instance.post("positions/beginning", {"partitions": places(topic, 0, 1)})
    assert instance.post("positions/end", {"partitions": places(topic, 0, 1)}).status == 204
    produce(topic, b"d")
    assert [(r["partition"], r["value"]) for r in instance.read(1)] == [(0, "d")]


def test_a_subscribed_instance_can_seek_too(make: Make, topic: str, produce: Callable[..., None]) -> None:
    produce(topic, b"a", b"b", b"c")
    instance = make("subscribed-seekers", format="text")
    instance.post("subscription", {"topics": [topic]})
    assert len(instance.read(3)) == 3
    assert instance.post("positions/beginning", {"partitions": places(topic, 0)}).status == 204
    assert [record["value"] for record in instance.read(3)] == ["a", "b", "c"]
    produce(topic, b"d")
    assert [record["value"] for record in instance.read(1)] == ["d"]


def test_two_instances_of_a_group_share_the_partitions_even_if_one_does_not_read(
    make: Make, new_topic: Callable[..., str], produce: Callable[..., None]
) -> None:
    topic = new_topic(partitions=2)
    silent, lively = pair = [make("sharing", format="text") for _ in range(2)]
    for instance in pair:
        instance.post("subscription", {"topic_pattern": f"{topic}|nothing-else"})
    assert silent.get("subscription").json == {"topics": [topic]}
    deadline = time.monotonic() + 30
    while len(lively.get("assignments").json["partitions"]) != 1:
        assert time.monotonic() < deadline, "the group waits for the member that does not read"
        lively.get("records?timeout=100")
    for partition in (0, 1):
        produce(topic, b"hello", partition=partition)
    assert {instance.read(1)[0]["partition"] for instance in pair} == {0, 1}


def test_a_seek_needs_the_partition_to_be_assigned(make: Make, topic: str) -> None:
    instance = make("illegal")
    answer = instance.post("positions/end", {"partitions": places(topic, 0)})
    assert (answer.status, error_code(answer)) == (409, 40903)


def test_subscription_and_assignment_exclude_each_other(make: Make, topic: str) -> None:
    instance = make("mixed")
    assert error_code(instance.get("records?timeout=0")) == 40903
    assert instance.post("subscription", {"topics": [topic]}).status == 204
    assert error_code(instance.post("assignments", {"partitions": places(topic, 0)})) == 40903
    assert instance.delete("subscription").status == 204
    assert instance.get("subscription").json == {"topics": []}
    assert instance.post("assignments", {"partitions": places(topic, 0)}).status == 204
    assert error_code(instance.post("subscription", {"topics": [topic]})) == 40903


def test_an_offset_is_committed_as_that_of_the_last_record_dealt_with(make: Make, topic: str) -> None:
    instance = make("committers")
    offsets = {"offsets": [{"topic": topic, "partition": 0, "offset": 41, "metadata": "note"}]}
    assert instance.post("offsets", offsets).status == 200
    (committed,) = instance.get("offsets", {"partitions": places(topic, 0)}).json["offsets"]
    assert (committed["offset"], committed["metadata"]) == (42, "note")


# --- instances ---


def test_an_instance_has_one_name_in_its_group(url: str, make: Make) -> None:
    make("named", name="only")
    again = call("POST", f"{url}/consumers/named", {"name": "only"}, V2)
    assert (again.status, error_code(again)) == (409, 40902)
    make("other", name="only")


def test_an_instance_that_is_gone_is_not_found(url: str, make: Make) -> None:
    instance = make("gone")
    assert instance.delete().status == 204
    for method, path in (("GET", "/records"), ("POST", "/offsets"), ("GET", "/assignments"), ("DELETE", "")):
        answer = call(method, f"{instance.base_uri}{path}")
        assert (answer.status, error_code(answer)) == (404, 40403)


def test_there_are_only_so_many_instances_at_a_time(url: str, make: Make) -> None:
    for _ in range(INSTANCES_MAX):
        make("many")
    answer = call("POST", f"{url}/consumers/many", {}, V2)
    assert answer.status == 429
    assert int(answer.headers["retry-after"]) > 0


@pytest.mark.parametrize(
    ("body", "content_type", "status"),
    [
        (b"{", V2, 422),
        (b'{"format": "avro"}', V2, 422),
        (b'{"auto.offset.reset": "sometimes"}', V2, 422),
        (b'{"auto.commit.enable": "maybe"}', V2, 422),
        (b'{"fetch.min.bytes": "many"}', V2, 422),
        (b'{"no.such.setting": 1}', V2, 422),
        (b'{"name": "a/b"}', V2, 422),
        (b"{}", "text/plain", 415),
    ],
)
def test_an_instance_that_cannot_be_made_is_refused(
    url: str, body: bytes, content_type: str, status: int
) -> None:
    assert call("POST", f"{url}/consumers/wrong", body, content_type).status == status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("subscription", b"{}"),
        ("subscription", b'{"topics": ["a"], "topic_pattern": "a"}'),
        ("subscription", b'{"topic_pattern": "("}'),
        ("subscription", b'{"topics": ["no topic"]}'),
        ("assignments", b""),
        ("assignments", b'{"partitions": [{"topic": "a"}]}'),
        ("positions", b'{"offsets": [{"topic": "a", "partition": 0, "offset": -5}]}'),
    ],
)
def test_a_request_that_makes_no_sense_is_refused(make: Make, path: str, body: bytes) -> None:
    assert make("sense").post(path, body).status == 422
