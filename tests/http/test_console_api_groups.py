"""The console's API over groups, transactions, pipelines and events."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import aiohttp
import msgspec
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from console_calls import DEADLINE_S, get, wait_for
from http_call import call, error_code
from http_client import Reply

from culver.gateway.cluster.cluster import Cluster
from culver.gateway.cluster.view import TopicPartition as Place
from culver.gateway.console import offset_reset
from culver.gateway.errors import HttpError, Problem
from culver.pipelines.progress_report import KafkaPublisher, ProgressReport, Report
from culver.testing import Broker


@pytest.fixture(scope="module")
def http_options() -> dict[str, Any]:
    return {"config": {"group.initial.rebalance.delay.ms": 0}}


def produce(broker: Broker, topic: str, count: int, partition: int = 0) -> None:
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(count):
        timestamp_ms = 1_700_000_000_000 + number * 1000
        producer.produce(topic, value=b"%d" % number, partition=partition, timestamp=timestamp_ms)
    assert producer.flush(DEADLINE_S) == 0


def commit(broker: Broker, group: str, topic: str, offsets: dict[int, int]) -> None:
    """As a consumer that has been there and is gone."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": group})
    places = [TopicPartition(topic, partition, offset) for partition, offset in offsets.items()]
    try:
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


@contextmanager
def member(broker: Broker, group: str, topic: str) -> Iterator[Consumer]:
    """A member that has its partitions."""
    consumer = Consumer(
        {"bootstrap.servers": broker.bootstrap_servers, "group.id": group, "client.id": "reader-1"}
        | {"enable.auto.commit": False, "auto.offset.reset": "earliest"}
    )
    try:
        consumer.subscribe([topic])
        deadline_s = time.monotonic() + DEADLINE_S
        while not consumer.assignment():
            assert time.monotonic() < deadline_s
            consumer.poll(0.05)
        yield consumer
    finally:
        consumer.close()


def committed(url: str, group: str) -> dict[int, int]:
    found = get(url, f"/api/groups/{group}")["partitions"]
    return {each["partition"]: each["committed"] for each in found if each["committed"] is not None}


@pytest.fixture
def half_read(url: str, http_broker: Broker, new_topic: Callable[..., str]) -> str:
    """A topic with two partitions of ten records, and a group of the same name that has read five of the first."""
    topic = new_topic(2)
    for partition in (0, 1):
        produce(http_broker, topic, 10, partition)
    commit(http_broker, topic, topic, {0: 5, 1: 10})
    return topic


def reset(url: str, group: str, **wanted: Any) -> Reply:
    return call("POST", f"{url}/api/groups/{group}/offsets", wanted)


def after(answer: Reply) -> dict[int, int | None]:
    assert answer.status == 200, answer.body
    return {each["partition"]: each["after"] for each in answer.json["offsets"]}


# --- looking ---


def test_a_list_of_groups_says_how_far_they_are(url: str, half_read: str) -> None:
    found = wait_for(lambda: get(url, f"/api/groups?q={half_read}"), lambda found: found["total"] == 1)
    (item,) = found["items"]
    assert item["group"] == half_read
    assert (item["members"], item["lag"], item["partitions"], item["topics"]) == (0, 5, 2, [half_read])
    assert found["totals"]["groups"] >= 1
    assert found["states"][item["state"]] >= 1
    state = item["state"].lower()
    assert get(url, f"/api/groups?q={half_read}&state={state}")["total"] == 1
    assert get(url, f"/api/groups?q={half_read}&state=nosuch")["total"] == 0


def test_a_group_shows_its_members_and_what_each_has_yet_to_read(
    url: str, http_broker: Broker, half_read: str
) -> None:
    with member(http_broker, half_read, half_read):
        found = wait_for(
            lambda: get(url, f"/api/groups/{half_read}"), lambda found: len(found["members"]) == 1
        )
    (reader,) = found["members"]
    assert reader["client_id"] == "reader-1"
    assert reader["partitions_count"] == 2
    assert [(each["committed"], each["latest"], each["lag"]) for each in found["partitions"]] == [
        (5, 10, 5),
        (10, 10, 0),
    ]
    assert {each["client_id"] for each in found["partitions"]} == {"reader-1"}
    assert found["topics"] == [{"topic": half_read, "lag": 5, "partitions": 2}]
    assert found["lag"] == 5
    # Lists of groups are up to two seconds old.
    readers = wait_for(
        lambda: get(url, f"/api/topics/{half_read}/groups"), lambda found: len(found["items"]) == 1
    )
    assert (readers["items"][0]["group"], readers["items"][0]["lag"]) == (half_read, 5)
    assert readers["complete"] is True


def test_a_group_that_is_not_there(url: str) -> None:
    for method, path in (("GET", ""), ("DELETE", ""), ("DELETE", "/offsets?topic=t")):
        answer = call(method, f"{url}/api/groups/nobody{path}")
        assert (answer.status, error_code(answer)) == (404, 40405)
    assert error_code(reset(url, "nobody", to="earliest")) == 40405


# --- setting offsets ---


def test_a_reset_is_shown_first_and_done_when_told(url: str, half_read: str) -> None:
    shown = reset(url, half_read, to="earliest")
    assert shown.json["dry_run"] is True
    assert shown.json["possible"] is True
    assert (shown.json["records_again"], shown.json["records_skipped"]) == (15, 0)
    first = shown.json["offsets"][0]
    assert (first["before"], first["after"], first["change"], first["lag_after"]) == (5, 0, -5, 10)
    assert committed(url, half_read) == {0: 5, 1: 10}
    done = reset(url, half_read, to="earliest", dry_run=False)
    assert done.json["offsets"] == shown.json["offsets"]
    assert committed(url, half_read) == {0: 0, 1: 0}


def test_where_offsets_can_be_set_to(url: str, half_read: str) -> None:
    assert after(reset(url, half_read, to="latest")) == {0: 10, 1: 10}
    assert after(reset(url, half_read, to="shift", shift=-3)) == {0: 2, 1: 7}
    assert after(reset(url, half_read, to="time", time="2023-11-14T22:13:24Z")) == {0: 4, 1: 4}
    assert after(reset(url, half_read, to="time", time=1_700_000_002_000)) == {0: 2, 1: 2}
    beyond = reset(url, half_read, to="offset", offset=99, topics=[half_read])
    assert after(beyond) == {0: 10, 1: 10}
    assert [each["clamped"] for each in beyond.json["offsets"]] == [True, True]
    places = [{"topic": half_read, "partition": 1, "offset": 3}]
    exactly = reset(url, half_read, to="offset", partitions=places, dry_run=False)
    assert after(exactly) == {1: 3}
    assert committed(url, half_read) == {0: 5, 1: 3}


def test_a_group_without_offsets_in_a_topic_can_be_given_some(
    url: str, half_read: str, new_topic: Callable[..., str], http_broker: Broker
) -> None:
    other = new_topic()
    produce(http_broker, other, 4)
    done = reset(url, half_read, to="latest", topics=[other], dry_run=False)
    (change,) = done.json["offsets"]
    assert (change["before"], change["after"], change["change"]) == (None, 4, None)


def test_offsets_of_a_group_at_work_are_left_alone(url: str, http_broker: Broker, half_read: str) -> None:
    with member(http_broker, half_read, half_read):
        shown = reset(url, half_read, to="earliest")
        assert (shown.status, shown.json["possible"], shown.json["members"]) == (200, False, 1)
        assert "active member" in shown.json["reason"]
        refused = reset(url, half_read, to="earliest", dry_run=False)
        assert (refused.status, error_code(refused)) == (409, 40904)
        assert call("DELETE", f"{url}/api/groups/{half_read}").status == 409
    assert committed(url, half_read) == {0: 5, 1: 10}


def test_a_group_that_was_joined_after_it_was_looked_at_is_left_alone(
    url: str, http_broker: Broker, half_read: str
) -> None:
    async def set_back() -> Problem | None:
        cluster = Cluster(http_broker.bootstrap_servers)
        try:
            await offset_reset.store(cluster, half_read, {Place(half_read, 0): 0})
        except HttpError as error:
            return error.problem
        finally:
            await cluster.close()
        return None

    with member(http_broker, half_read, half_read):
        assert asyncio.run(set_back()) is Problem.GROUP_ACTIVE
    assert committed(url, half_read) == {0: 5, 1: 10}


@pytest.mark.parametrize(
    "wanted",
    [
        {},
        {"to": "somewhere"},
        {"to": "offset"},
        {"to": "offset", "offset": -1},
        {"to": "time"},
        {"to": "time", "time": "soon"},
        {"to": "shift"},
        {"to": "earliest", "surprise": True},
        {"to": "earliest", "partitions": [{"topic": "none", "partition": 0}]},
        {"to": "earliest", "topics": ["none"]},
    ],
)
def test_a_reset_that_cannot_be_understood(url: str, half_read: str, wanted: dict[str, Any]) -> None:
    answer = reset(url, half_read, **wanted)
    assert answer.status in (404, 422), answer.body
    assert answer.json["message"]


def test_offsets_of_a_topic_and_whole_groups_can_be_forgotten(url: str, half_read: str) -> None:
    gone = call("DELETE", f"{url}/api/groups/{half_read}/offsets?topic={half_read}")
    assert gone.json == {"group": half_read, "topic": half_read, "deleted": 2}
    assert call("DELETE", f"{url}/api/groups/{half_read}/offsets").status == 422
    # With its last offsets the group may have gone, too.
    assert call("DELETE", f"{url}/api/groups/{half_read}").status in (200, 404)
    assert error_code(call("GET", f"{url}/api/groups/{half_read}")) == 40405


# --- transactions ---


def test_an_open_transaction_is_shown_and_can_be_aborted(url: str, http_broker: Broker, topic: str) -> None:
    producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers, "transactional.id": topic})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, value=b"perhaps")
    assert producer.flush(DEADLINE_S) == 0
    found = wait_for(
        lambda: get(url, f"/api/transactions?q={topic}&state=ongoing"), lambda found: found["total"] == 1
    )
    (item,) = found["items"]
    assert item["transactional_id"] == topic
    assert item["partitions"] == [{"topic": topic, "partition": 0}]
    assert item["age_ms"] >= 0
    assert item["overdue"] is False
    assert get(url, f"/api/transactions?q={topic}&min_age_ms=3600000")["items"] == []

    # What it has written is seen only by those who ask for it.
    assert get(url, f"/api/topics/{topic}/records")["records"] == []
    assert len(get(url, f"/api/topics/{topic}/records?isolation=uncommitted")["records"]) == 1

    done = call("POST", f"{url}/api/transactions/{topic}/abort")
    assert (done.status, done.json["aborted"], done.json["partitions"]) == (200, True, 1)
    again = call("POST", f"{url}/api/transactions/{topic}/abort")
    assert (again.status, error_code(again)) == (409, 40906)
    assert call("POST", f"{url}/api/transactions/nobody/abort").status == 404
    assert get(url, f"/api/topics/{topic}/records")["records"] == []


# --- pipelines ---


def test_pipelines_show_what_they_report(url: str, http_broker: Broker) -> None:
    def pipelines() -> dict[str, Any]:
        return {each["name"]: each for each in get(url, "/api/pipelines")["items"]}

    assert pipelines() == {}
    bootstrap = http_broker.bootstrap_servers
    # One that was killed a minute ago has never said that it ended.
    killed = Report(name="killed", at_ms=int(time.time() * 1000) - 60_000)
    publisher = KafkaPublisher(bootstrap)
    publisher.publish(b"killed", msgspec.json.encode(killed))
    publisher.close(DEADLINE_S)
    found = wait_for(pipelines, lambda found: "killed" in found)
    assert found["killed"]["state"] == "silent"
    assert call("DELETE", f"{url}/api/pipelines/killed").status == 200
    with ProgressReport(bootstrap, "copy", kind="transform", topics="in", target="out") as report:
        report.tell(batches=3, rows=70, input_rows_per_s=10.5, lag=4)
        running = wait_for(pipelines, lambda found: found.get("copy", {}).get("rows") == 70)["copy"]
        assert (running["state"], running["kind"], running["lag"]) == ("running", "transform", 4)
        assert (running["topics"], running["target"], running["input_rows_per_s"]) == ("in", "out", 10.5)
        assert error_code(call("DELETE", f"{url}/api/pipelines/copy")) == 40907
        report.tell(rows=90)
    ended = wait_for(pipelines, lambda found: found["copy"]["state"] == "ended")["copy"]
    assert ended["history"][-1]["rows"] == 90
    assert [point["at_ms"] for point in ended["history"]] == sorted(
        point["at_ms"] for point in ended["history"]
    )
    with pytest.raises(ValueError, match="no disk"), ProgressReport(bootstrap, "other"):
        raise ValueError("no disk")
    failed = wait_for(pipelines, lambda found: found.get("other", {}).get("state") == "failed")["other"]
    assert failed["error"] == "no disk"
    assert call("DELETE", f"{url}/api/pipelines/other").json == {"name": "other", "forgotten": True}
    assert call("DELETE", f"{url}/api/pipelines/other").status == 404
    wait_for(pipelines, lambda found: set(found) == {"copy"})


# --- events and throughput ---


def test_what_happens_in_the_cluster_is_told_as_it_happens(url: str, new_topic: Callable[..., str]) -> None:
    before = get(url, "/api/events")["last_id"]

    async def watch() -> tuple[str, dict[str, Any]]:
        timeout = aiohttp.ClientTimeout(total=DEADLINE_S)
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(f"{url}/api/events/live?after={before}") as answer,
        ):
            assert answer.headers["content-type"].startswith("text/event-stream")
            await answer.content.readuntil(b"\n\n")  # the comment that says it is connected
            topic = await asyncio.to_thread(new_topic)
            while True:
                lines = (await answer.content.readuntil(b"\n\n")).decode().splitlines()
                fields = dict(line.split(": ", 1) for line in lines if line)
                event = json.loads(fields["data"])
                assert fields["event"] == "event"
                assert int(fields["id"]) == event["id"] > before
                if event["kind"] == "topic_created" and event["topic"] == topic:
                    return topic, event

    topic, event = asyncio.run(watch())
    assert topic in event["text"]
    listed = get(url, f"/api/events?after={before}")
    assert event in listed["items"]
    assert listed["last_id"] >= event["id"]
    ids = [each["id"] for each in listed["items"]]
    assert ids == sorted(set(ids))
    assert get(url, f"/api/events?after={listed['last_id']}")["items"] == []
    assert len(get(url, "/api/events?limit=1")["items"]) == 1


def test_throughput_and_the_busiest_topics(url: str, http_broker: Broker, topic: str) -> None:
    def look() -> Any:
        produce(http_broker, topic, 20)
        return get(url, "/api/throughput?seconds=60")

    found = wait_for(
        look,
        lambda found: topic in found["topics"] and any(point["messages_per_s"] for point in found["items"]),
    )
    assert found["topics"][topic] > 0
    point = next(point for point in found["items"] if point["messages_per_s"])
    assert point["bytes_in_per_s"] > point["messages_per_s"]
    assert [each["at_ms"] for each in found["items"]] == sorted(each["at_ms"] for each in found["items"])
    assert call("GET", url + "/api/throughput?seconds=0").status == 422
