"""The console while a broker is down: it shows what there is, and says what is missing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from confluent_kafka import Producer
from console_calls import DEADLINE_S, get, wait_for
from http_call import call

from culver.testing import Cluster


@pytest.fixture(scope="module")
def half_a_cluster() -> Iterator[Cluster]:
    """Two brokers, of which one is killed: `single` has lost a partition, `safe` a replica of its one partition."""
    with Cluster(2, {"safe": 1}, http=True) as cluster:
        cluster.create_topic("single", partitions=2, replication_factor=1)
        cluster.wait_until_in_sync("safe")
        producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "log_level": 0})
        for partition in (0, 1):
            for number in range(5):
                producer.produce("single", value=b"%d" % number, partition=partition)
        producer.produce("safe", value=b"here")
        assert producer.flush(DEADLINE_S) == 0
        del producer
        get(cluster.http_url, "/api/cluster")
        cluster.broker(2).kill()
        cluster.wait_for_leader("safe", other_than=2)
        yield cluster


def test_what_is_not_as_it_should_be_is_counted_and_found(half_a_cluster: Cluster) -> None:
    url = half_a_cluster.http_url
    counts = wait_for(
        lambda: get(url, "/api/cluster")["counts"],
        lambda counts: (counts["brokers"], counts["offline"]) == (1, 1) and counts["under_replicated"] >= 1,
    )
    assert counts["groups"] is not None
    assert [item["name"] for item in get(url, "/api/topics?health=offline")["items"]] == ["single"]
    assert "safe" in [item["name"] for item in get(url, "/api/topics?health=under_replicated")["items"]]
    assert counts["brokers_down"] == 1
    up, gone = get(url, "/api/brokers")["items"]
    assert (up["id"], up["is_up"], up["error"]) == (1, True, None)
    assert (gone["id"], gone["is_up"], gone["leaders"], gone["replicas"]) == (2, False, 0, 2)
    down = wait_for(
        lambda: get(url, "/api/events")["items"],
        lambda items: any(item["kind"] == "broker_down" and item["broker"] == 2 for item in items),
    )
    assert any(item["kind"] == "leaderless" and item["topic"] == "single" for item in down)


def test_records_of_the_other_partitions_are_shown(half_a_cluster: Cluster) -> None:
    url = half_a_cluster.http_url
    (lost,) = [each.index for each in half_a_cluster.partitions("single") if each.leader < 0]

    def look() -> Any:
        return get(url, "/api/topics/single/records")

    found = wait_for(look, lambda found: len(found["errors"]) == 1)
    assert found["errors"][0]["partition"] == lost
    assert found["errors"][0]["message"]
    assert [record["value"]["text"] for record in found["records"]] == ["4", "3", "2", "1", "0"]
    partitions = {each["partition"]: each for each in get(url, "/api/topics/single")["partitions"]}
    assert partitions[lost]["leader"] is None
    assert partitions[lost]["latest"] is None
    assert partitions[lost]["error"]
    assert partitions[1 - lost]["latest"] == 5
    (item,) = [each for each in get(url, "/api/topics")["items"] if each["name"] == "single"]
    assert (item["messages"], item["offline"]) == (None, 1)
    # A file with half of what was asked for would look like all of it.
    assert call("GET", url + "/api/topics/single/export").status >= 500
    assert call("GET", f"{url}/api/topics/single/export?partition={1 - lost}").status == 200
    assert get(url, "/api/topics/safe/records")["records"][0]["value"]["text"] == "here"


def test_no_broker_at_all_is_said_so(half_a_cluster: Cluster) -> None:
    url = half_a_cluster.http_url
    half_a_cluster.broker(1).kill()
    answer = wait_for(lambda: call("GET", url + "/api/cluster"), lambda answer: answer.status != 200)
    assert (answer.status, answer.json["error_code"]) == (503, 50301)
    for path in ("/api/topics", "/api/groups", "/api/topics/safe/records", "/api/transactions"):
        refused = wait_for(lambda path=path: call("GET", url + path), lambda answer: answer.status != 200)
        assert (refused.status, refused.json["error_code"]) == (503, 50301), path
    assert get(url, "/api/throughput")["topics"] == {}
    assert get(url, "/api/events")["items"]
