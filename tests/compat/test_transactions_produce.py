"""Transactional producers and those who read what they write, with three client libraries."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import TopicPartition
from deadlines import eventually
from real_clients import CLIENTS, Sent
from transactional_clients import COMMITTED_READERS, PRODUCERS, TransactionalProducer
from transactional_topics import end_offsets, read_to_end

from culver.testing import Broker

# Longer than any test takes: a reader that is not woken waits for so long.
LONG_POLL_MS = 60_000

each_client = pytest.mark.parametrize("client", CLIENTS)


def write(producer: TransactionalProducer, topic: str, *values: bytes, partition: int = 0) -> None:
    """Begin a transaction and have the values in the log."""
    producer.begin()
    for value in values:
        producer.send(topic, value, partition)
    producer.flush()


@each_client
def test_what_is_committed_is_read_and_what_is_aborted_is_not(
    client: str, bootstrap: str, new_topic: Callable[..., str], group: str
) -> None:
    topic = new_topic(2)
    with PRODUCERS[client](bootstrap, group) as producer:
        for number in range(6):
            producer.begin()
            for partition in (0, 1):
                for part in (b"a", b"b"):
                    producer.send(topic, b"%d%s" % (number, part), partition)
            if number % 2:
                producer.abort()
            else:
                producer.commit()
    of_one_partition = [b"0a", b"0b", b"2a", b"2b", b"4a", b"4b"]
    assert read_to_end(bootstrap, topic, "read_committed") == of_one_partition * 2
    for reader in COMMITTED_READERS.values():
        assert reader(bootstrap, topic, len(of_one_partition)) == of_one_partition
    everything = read_to_end(bootstrap, topic, "read_uncommitted")
    assert set(everything) >= {b"%d%s" % (number, part) for number in (0, 2, 4) for part in (b"a", b"b")}
    assert everything.count(b"2a") == 2


@each_client
def test_an_open_transaction_holds_back_all_that_comes_after_it(
    client: str, bootstrap: str, topic: str, admin: AdminClient, group: str
) -> None:
    plain = CLIENTS["confluent-kafka"]
    plain.produce(bootstrap, topic, [Sent(b"before")])
    with PRODUCERS[client](bootstrap, group) as producer:
        write(producer, topic, b"within", b"too")
        plain.produce(bootstrap, topic, [Sent(b"after")])
        assert end_offsets(admin, topic, "read_committed", 1) == [1]
        assert end_offsets(admin, topic, "read_uncommitted", 1) == [4]
        assert read_to_end(bootstrap, topic, "read_committed", 1) == [b"before"]
        assert read_to_end(bootstrap, topic, "read_uncommitted", 1) == [
            b"before",
            b"within",
            b"too",
            b"after",
        ]
        producer.commit()
    eventually("the marker is there", lambda: end_offsets(admin, topic, "read_committed", 1) == [5])
    assert read_to_end(bootstrap, topic, "read_committed", 1) == [b"before", b"within", b"too", b"after"]


@pytest.mark.parametrize("end", ["commit", "abort"])
def test_a_reader_that_waits_is_woken_by_the_end_of_the_transaction(
    end: str, bootstrap: str, topic: str, group: str
) -> None:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
            "fetch.wait.max.ms": LONG_POLL_MS,
            "socket.timeout.ms": LONG_POLL_MS + 1000,
        }
    )
    consumer.assign([TopicPartition(topic, 0, 0)])
    try:
        with PRODUCERS["confluent-kafka"](bootstrap, group) as producer:
            write(producer, topic, b"within")
            CLIENTS["confluent-kafka"].produce(bootstrap, topic, [Sent(b"after")])
            assert consumer.poll(1) is None
            if end == "commit":
                producer.commit()
            else:
                producer.abort()
        found: Any = consumer.poll(LONG_POLL_MS / 4000)
        assert found is not None, "it went on waiting"
        assert found.value() == (b"within" if end == "commit" else b"after")
    finally:
        consumer.close()


@each_client
def test_the_second_producer_with_an_id_fences_the_first(
    client: str, bootstrap: str, topic: str, admin: AdminClient, group: str
) -> None:
    with PRODUCERS[client](bootstrap, group) as first:
        write(first, topic, b"of the first")
        with PRODUCERS[client](bootstrap, group) as second:
            # Its transaction has been ended for it.
            [stable_offset] = end_offsets(admin, topic, "read_committed", 1)
            assert [stable_offset] == end_offsets(admin, topic, "read_uncommitted", 1) == [2]
            with pytest.raises(first.error) as refused:
                first.commit()
            assert first.fenced_by(refused.value)
            write(second, topic, b"of the second")
            second.commit()
    eventually("the marker is there", lambda: end_offsets(admin, topic, "read_committed", 1) == [4])
    assert read_to_end(bootstrap, topic, "read_committed", 1) == [b"of the second"]


@each_client
def test_a_transaction_that_takes_too_long_is_aborted(
    client: str, bootstrap: str, topic: str, admin: AdminClient, group: str
) -> None:
    with PRODUCERS[client](bootstrap, group, timeout_ms=1000) as producer:
        write(producer, topic, b"too late")
        eventually("it is aborted", lambda: end_offsets(admin, topic, "read_committed", 1) == [2])
        with pytest.raises(producer.error):
            producer.commit()
    with PRODUCERS[client](bootstrap, group) as producer:
        write(producer, topic, b"in time")
        producer.commit()
    eventually("the marker is there", lambda: end_offsets(admin, topic, "read_committed", 1) == [4])
    assert read_to_end(bootstrap, topic, "read_committed", 1) == [b"in time"]


@pytest.mark.parametrize("crash", [False, True], ids=["clean restart", "SIGKILL"])
def test_transactions_go_on_across_a_restart(crash: bool, own_broker: Broker) -> None:
    own_broker.create_topic("t")
    bootstrap = own_broker.bootstrap_servers
    with (
        PRODUCERS["confluent-kafka"](bootstrap, "one") as one,
        PRODUCERS["confluent-kafka"](bootstrap, "other") as other,
    ):
        write(one, "t", b"aborted")
        one.abort()
        write(one, "t", b"open")
        write(other, "t", b"aborted later")
        if crash:
            own_broker.kill()
        else:
            own_broker.stop()
        own_broker.start()
        assert read_to_end(bootstrap, "t", "read_committed", 1) == []
        one.send("t", b"open still")
        one.commit()
        other.abort()
        with AdminClient({"bootstrap.servers": bootstrap}) as admin:
            eventually("all have ended", lambda: end_offsets(admin, "t", "read_committed", 1) == [7])
    assert read_to_end(bootstrap, "t", "read_committed", 1) == [b"open", b"open still"]
