"""Kafka's tools for transactions: they read from Culver, of its coordinator and of its files, what is so."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import confluent_kafka
import pytest
from anchors import Unavailable, kafka

from culver.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
FEATURES = "org.apache.kafka.tools.FeatureCommand"
DUMP = "org.apache.kafka.tools.DumpLogSegments"
TIMEOUT_SECONDS = 30

Tool = Callable[..., list[dict[str, str]]]


@pytest.fixture(scope="module")
def tool(bootstrap: str) -> Tool:
    """Runs the transactions tool against the broker and returns the rows of the table that it prints."""
    try:
        kafka.jars()
    except Unavailable as reason:
        pytest.skip(str(reason))

    def run(*arguments: str) -> list[dict[str, str]]:
        printed = kafka.run_tool(TRANSACTIONS, "--bootstrap-server", bootstrap, *arguments).stdout
        heading, *rows = (line.split() for line in printed.splitlines() if line.strip())
        return [dict(zip(heading, row, strict=False)) for row in rows]

    return run


@pytest.fixture
def transactional_id(unique: Callable[[str], str]) -> str:
    return unique("tool-transaction")


@pytest.fixture
def topic(new_topic: Callable[..., str]) -> str:
    return new_topic("tool-transactions", 2)


@pytest.fixture
def producer(bootstrap: str, topic: str, transactional_id: str) -> Iterator[confluent_kafka.Producer]:
    """A producer with a transaction open in partition 1 of the topic."""
    made = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "log_level": 0}
    )
    made.init_transactions(TIMEOUT_SECONDS)
    made.begin_transaction()
    made.produce(topic, b"value", partition=1)
    assert made.flush(TIMEOUT_SECONDS) == 0
    yield made
    made.close()


def test_a_transaction_is_listed_described_and_seen_in_its_partition(
    tool: Tool, producer: confluent_kafka.Producer, topic: str, transactional_id: str
) -> None:
    [listed] = [row for row in tool("list") if row["TransactionalId"] == transactional_id]
    assert listed["TransactionState"] == "Ongoing"
    [described] = tool("describe", "--transactional-id", transactional_id)
    assert described["ProducerId"] == listed["ProducerId"]
    assert described["TransactionState"] == "Ongoing"
    assert described["TopicPartitions"] == f"{topic}-1"
    assert described["TransactionTimeoutMs"] == "60000"
    [seen] = tool("describe-producers", "--topic", topic, "--partition", "1")
    assert (seen["ProducerId"], seen["CurrentTransactionStartOffset"]) == (listed["ProducerId"], "0")
    assert tool("find-hanging", "--broker-id", "1", "--topic", topic, "--partition", "1") == []
    producer.commit_transaction(TIMEOUT_SECONDS)
    [seen] = tool("describe-producers", "--topic", topic, "--partition", "1")
    assert seen["CurrentTransactionStartOffset"] == "None"


def test_the_transaction_log_and_the_markers_are_read_by_the_dump_tool(
    tool: Tool,
    broker_or_none: Broker | None,
    producer: confluent_kafka.Producer,
    topic: str,
    transactional_id: str,
) -> None:
    if broker_or_none is None:
        pytest.skip("the broker's files are elsewhere")
    producer.abort_transaction(TIMEOUT_SECONDS)
    producer.begin_transaction()
    producer.produce(topic, b"second", partition=1)
    producer.commit_transaction(TIMEOUT_SECONDS)
    data = broker_or_none.data_dir
    logs = [str(path) for path in data.glob("__transaction_state-*/*.log") if path.stat().st_size]
    printed = kafka.run_tool(DUMP, "--files", ",".join(logs), "--transaction-log-decoder").stdout
    records = [line for line in printed.splitlines() if f'"transactionalId":"{transactional_id}"' in line]
    states = [int(state) for line in records for state in re.findall(r'"transactionStatus":(\d+)', line)]
    # Empty, ongoing, prepared to abort and aborted, ongoing, prepared to commit and perhaps committed.
    assert states[:6] == [0, 1, 3, 5, 1, 2]
    assert f'"topic":"{topic}","partitionIds":[1]' in records[1]
    [segment] = (data / f"{topic}-1").glob("*.log")
    markers = kafka.run_tool(DUMP, "--files", str(segment), "--print-data-log").stdout
    assert re.findall(r"endTxnMarker: (\w+)", markers) == ["ABORT", "COMMIT"]
    assert "isvalid: false" not in markers


def test_the_features_that_clients_look_for_are_finalized(tool: Tool, bootstrap: str) -> None:
    printed = kafka.run_tool(FEATURES, "--bootstrap-server", bootstrap, "describe").stdout
    levels = dict(re.findall(r"Feature: (\S+) .*FinalizedVersionLevel: (\d+)", printed))
    assert levels == {"group.version": "1", "transaction.version": "2"}
