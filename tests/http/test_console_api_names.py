"""Groups and transactional ids may have any names: slashes, spaces, percent signs. All of them have an address."""

from __future__ import annotations

from urllib.parse import quote

import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from console_calls import DEADLINE_S, get
from http_call import call

from culver.testing import Broker

NAMES = ["team/a", "team/a/offsets", "a%2Fb c?&<i>#", "/", "日本/é"]


def escaped(name: str) -> str:
    return quote(name, safe="")


@pytest.mark.parametrize("name", NAMES)
def test_a_group_of_any_name_is_shown_changed_and_deleted(
    url: str, http_broker: Broker, topic: str, name: str
) -> None:
    consumer = Consumer({"bootstrap.servers": http_broker.bootstrap_servers, "group.id": name})
    consumer.commit(offsets=[TopicPartition(topic, 0, 0)], asynchronous=False)
    consumer.close()
    address = f"/api/groups/{escaped(name)}"
    assert get(url, address)["group"] == name
    shown = call("POST", f"{url}{address}/offsets", {"to": "earliest"})
    assert (shown.status, shown.json["group"]) == (200, name)
    gone = call("DELETE", f"{url}{address}")
    assert (gone.status, gone.json["group"]) == (200, name)


def test_a_transactional_id_of_any_name_is_aborted(url: str, http_broker: Broker, topic: str) -> None:
    name = "team/a b%2F"
    producer = Producer({"bootstrap.servers": http_broker.bootstrap_servers, "transactional.id": name})
    producer.init_transactions(DEADLINE_S)
    producer.begin_transaction()
    producer.produce(topic, value=b"perhaps")
    assert producer.flush(DEADLINE_S) == 0
    done = call("POST", f"{url}/api/transactions/{escaped(name)}/abort")
    assert (done.status, done.json["transactional_id"]) == (200, name)


def test_a_rest_consumer_may_be_of_a_group_of_any_name(url: str) -> None:
    made = call(
        "POST", f"{url}/consumers/{escaped('team/a')}", {"name": "one"}, "application/vnd.kafka.v2+json"
    )
    assert made.status == 200, made.body
    assert made.json["base_uri"].endswith("/consumers/team%2Fa/instances/one")
    assert call("DELETE", made.json["base_uri"]).status == 204


def test_a_slash_in_a_name_makes_no_path_of_it(url: str) -> None:
    assert call("GET", f"{url}/api%2Fgroups").status == 404
    assert call("GET", f"{url}/console/groups/{escaped('team/a')}").status == 200
