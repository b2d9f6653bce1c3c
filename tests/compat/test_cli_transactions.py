"""`culver txn` against a broker: transactions of a real producer, and one that hangs."""

from __future__ import annotations

import contextlib
import io
import json
import time
from collections.abc import Iterator
from typing import Any

import confluent_kafka
import pytest

from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.protocol.records import Record, encode_batch, parse_header
from culver.testing import Broker

TIMEOUT_SECONDS = 20
TRANSACTION_MS = 60_000


def culver(broker: Broker, *arguments: str, code: ExitCode = ExitCode.OK) -> Any:
    """Runs `culver txn` and gives what it printed: the JSON of a success, the complaint of a failure."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as err:
        ended = run(["txn", *arguments, "-o", "json", "-b", broker.bootstrap_servers])
    assert ended == code, err.getvalue()
    return json.loads(out.getvalue()) if code == ExitCode.OK else err.getvalue()


@pytest.fixture
def producer(
    culver_broker: Broker, culver_topic: str, request: pytest.FixtureRequest
) -> Iterator[confluent_kafka.Producer]:
    """A producer, named after the test, with a transaction open in the topic."""
    made = confluent_kafka.Producer(
        {
            "bootstrap.servers": culver_broker.bootstrap_servers,
            "transactional.id": request.node.name,
            "transaction.timeout.ms": TRANSACTION_MS,
            "log_level": 0,
        }
    )
    made.init_transactions(TIMEOUT_SECONDS)
    made.begin_transaction()
    made.produce(culver_topic, b"one")
    assert made.flush(TIMEOUT_SECONDS) == 0
    yield made
    # A producer that has been fenced complains about that once more, and in its own way.
    with contextlib.suppress(confluent_kafka.KafkaException, SystemError):
        made.close()


def produce(broker: Broker, topic: str, value: bytes) -> None:
    with confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers}) as plain:
        plain.produce(topic, value)
        assert plain.flush(TIMEOUT_SECONDS) == 0


def committed(broker: Broker, topic: str, count: int) -> list[bytes]:
    """The first records that a reader of committed ones gets."""
    with confluent_kafka.Consumer(
        {
            "bootstrap.servers": broker.bootstrap_servers,
            "group.id": "test-cli-txn",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
        }
    ) as consumer:
        consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
        return [message.value() or b"" for message in consumer.consume(count, TIMEOUT_SECONDS)]


def test_an_open_transaction_is_listed_and_described(
    culver_broker: Broker, producer: confluent_kafka.Producer, culver_topic: str
) -> None:
    name = "test_an_open_transaction_is_listed_and_described"
    (shown,) = culver(culver_broker, "describe", name)
    assert shown["state"] == "ongoing"
    assert shown["partitions"] == [f"{culver_topic}:0"]
    assert shown["timeout_ms"] == TRANSACTION_MS
    assert 0 <= shown["open_seconds"] < TRANSACTION_MS / 1000
    listed = {
        "transactional_id": name,
        "coordinator": 1,
        "producer_id": shown["producer_id"],
        "state": "ongoing",
    }
    assert listed in culver(culver_broker, "list")
    assert culver(culver_broker, "list", "--pattern", f"{name[:-3]}.*", "--state", "ongoing") == [listed]
    assert culver(culver_broker, "list", "--producer-id", str(shown["producer_id"])) == [listed]
    assert culver(culver_broker, "list", "--pattern", name[:-3]) == [], "a pattern matches from end to end"
    assert culver(culver_broker, "list", "--pattern", name, "--state", "prepare-abort") == []
    assert culver(culver_broker, "list", "--pattern", name, "--duration", "1h") == []
    assert "regular expression" in culver(culver_broker, "list", "--pattern", "a[", code=ExitCode.FAILED)
    producer.commit_transaction(TIMEOUT_SECONDS)
    # The producer is told once the decision is durable, which is before all partitions have their markers.
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while (shown := culver(culver_broker, "describe", name)[0])["state"] == "prepare-commit":
        assert time.monotonic() < deadline
    assert (shown["state"], shown["partitions"]) == ("complete-commit", [])


def test_abort_ends_the_transaction_and_fences_its_producer(
    culver_broker: Broker, producer: confluent_kafka.Producer, culver_topic: str
) -> None:
    name = "test_abort_ends_the_transaction_and_fences_its_producer"
    assert culver(culver_broker, "abort", name, "--yes")["aborted"] is True
    with pytest.raises(confluent_kafka.KafkaException) as caught:
        producer.commit_transaction(TIMEOUT_SECONDS)
    assert caught.value.args[0].fatal()
    assert "no open transaction" in culver(culver_broker, "abort", name, "--yes", code=ExitCode.FAILED)
    produce(culver_broker, culver_topic, b"after")
    assert committed(culver_broker, culver_topic, 1) == [b"after"]


def test_a_marker_is_for_hanging_transactions_only(
    culver_broker: Broker, producer: confluent_kafka.Producer, culver_topic: str
) -> None:
    place = ("--topic", culver_topic, "--partition", "0")
    refused = culver(culver_broker, "abort", *place, "--start-offset", "0", "--yes", code=ExitCode.FAILED)
    assert "longer than transaction.max.timeout.ms" in refused
    assert "begin at 0" in culver(
        culver_broker, "abort", *place, "--start-offset", "5", "--yes", code=ExitCode.NOT_FOUND
    )
    assert culver(culver_broker, "find-hanging", "--topic", culver_topic, "--older-than", "0ms") == []
    producer.abort_transaction(TIMEOUT_SECONDS)


def test_a_hanging_transaction_is_found_and_ended() -> None:
    # A broker counts a transaction's age from when it first saw it; this one calls it old at once.
    with Broker({"orders": 1}, {"transaction.max.timeout.ms": 1}) as broker:
        produce(broker, "orders", b"before")
        # Such a thing cannot be had by asking: it is put into the log of a broker that is not looking.
        broker.kill()
        (segment,) = (broker.data_dir / "orders-0").glob("*.log")
        content = segment.read_bytes()
        ghost = encode_batch(
            [Record(1, int(time.time() * 1000) - 10 * TRANSACTION_MS, b"key", b"ghost", [])],
            base_offset=1,
            producer_id=4_000_000,
            producer_epoch=2,
            base_sequence=0,
            is_transactional=True,
            partition_leader_epoch=parse_header(content).partition_leader_epoch,
        )
        segment.write_bytes(content + ghost)
        broker.restart()
        produce(broker, "orders", b"after")

        assert culver(broker, "find-hanging", "--topic", "orders", "--older-than", "1h") == []
        (found,) = culver(broker, "find-hanging")
        assert found["idle_seconds"] > TRANSACTION_MS / 1000
        place = {name: found[name] for name in ("topic", "partition", "start_offset", "producer_id")}
        assert place == {"topic": "orders", "partition": 0, "start_offset": 1, "producer_id": 4_000_000}
        where = ("--topic", "orders", "--partition", "0", "--start-offset", "1")
        assert culver(broker, "abort", *where, "--yes")["aborted"] is True
        assert culver(broker, "find-hanging") == []
        assert committed(broker, "orders", 2) == [b"before", b"after"]
