"""Kafka's tools for transactions: they read from Culver, of its coordinator and of its files, what is so."""

from __future__ import annotations

import contextlib
import re
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import confluent_kafka
import pytest
from anchors import Unavailable, kafka
from confluent_kafka.admin import AdminClient

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

    return partial(rows, bootstrap)


def rows(bootstrap: str, *arguments: str) -> list[dict[str, str]]:
    """The table that the transactions tool prints."""
    printed = kafka.run_tool(TRANSACTIONS, "--bootstrap-server", bootstrap, *arguments).stdout
    heading, *lines = (line.split("\t") for line in printed.splitlines() if line.strip())
    names = [name.strip() for name in heading]
    return [dict(zip(names, (cell.strip() for cell in line), strict=False)) for line in lines]


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
    with contextlib.suppress(confluent_kafka.KafkaException):  # one that was fenced says so once more
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


def test_a_transaction_is_terminated_by_its_id(
    tool: Tool, bootstrap: str, producer: confluent_kafka.Producer, topic: str, transactional_id: str
) -> None:
    kafka.run_tool(
        TRANSACTIONS,
        *(
            "--bootstrap-server",
            bootstrap,
            "forceTerminateTransaction",
            "--transactionalId",
            transactional_id,
        ),
    )
    [seen] = tool("describe-producers", "--topic", topic, "--partition", "1")
    assert seen["CurrentTransactionStartOffset"] == "None"
    with pytest.raises(confluent_kafka.KafkaException, match="_FENCED"):
        producer.commit_transaction(TIMEOUT_SECONDS)


def test_a_transaction_that_hangs_is_found_and_aborted(tool: Tool, tmp_path: Path) -> None:
    """One whose coordinator has forgotten it: its log is gone."""
    hour_ago_ms = int(time.time() * 1000) - 3_600_000
    with Broker(topics={"t": 1}, data_dir=tmp_path) as broker:
        servers = {"bootstrap.servers": broker.bootstrap_servers, "log_level": 0}
        with confluent_kafka.Producer({**servers, "transactional.id": "forgotten"}) as lost:
            lost.init_transactions(TIMEOUT_SECONDS)
            lost.begin_transaction()
            lost.produce("t", b"hanging", timestamp=hour_ago_ms)
            assert lost.flush(TIMEOUT_SECONDS) == 0
            with AdminClient(servers) as admin:
                admin.delete_topics(["__transaction_state"])["__transaction_state"].result()
        with confluent_kafka.Producer(servers) as producer:
            producer.produce("t", b"behind it")
            assert producer.flush(TIMEOUT_SECONDS) == 0
    with Broker(data_dir=tmp_path, config={"transaction.max.timeout.ms": 1}) as broker:
        run = partial(rows, broker.bootstrap_servers)
        [found] = run("find-hanging", "--broker-id", "1")
        assert (found["Topic"], found["Partition"], found["StartOffset"]) == ("t", "0", "0")
        place = ("--topic", "t", "--partition", "0")
        abort = ("--bootstrap-server", broker.bootstrap_servers, "abort", *place, "--start-offset", "0")
        kafka.run_tool(TRANSACTIONS, *abort)
        assert run("find-hanging", "--broker-id", "1") == []
        settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g"}
        consumer = confluent_kafka.Consumer({**settings, "isolation.level": "read_committed"})
        try:
            consumer.assign([confluent_kafka.TopicPartition("t", 0, 0)])
            message = consumer.poll(TIMEOUT_SECONDS)
            assert message is not None
            assert message.value() == b"behind it"
        finally:
            consumer.close()


def test_offsets_in_transactions_are_read_by_the_dump_tool(
    tool: Tool,
    bootstrap: str,
    broker_or_none: Broker | None,
    producer: confluent_kafka.Producer,
    topic: str,
    unique: Callable[[str], str],
) -> None:
    if broker_or_none is None:
        pytest.skip("the broker's files are elsewhere")
    group = unique("tool-group")
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group, "log_level": 0})
    try:
        offsets = [confluent_kafka.TopicPartition(topic, 0, 17)]
        metadata = consumer.consumer_group_metadata()
        producer.send_offsets_to_transaction(offsets, metadata, TIMEOUT_SECONDS)
        producer.commit_transaction(TIMEOUT_SECONDS)
    finally:
        consumer.close()
    data = broker_or_none.data_dir
    logs = [str(path) for path in data.glob("__consumer_offsets-*/*.log") if path.stat().st_size]
    printed = kafka.run_tool(DUMP, "--files", ",".join(logs), "--offsets-decoder").stdout
    lines = printed.splitlines()
    [place] = [place for place, line in enumerate(lines) if group in line and '"offset":17' in line]
    batch = next(line for line in reversed(lines[:place]) if line.startswith("baseOffset"))
    assert "isTransactional: true" in batch
    producer_id = re.search(r"producerId: (\d+)", batch)
    assert producer_id is not None
    behind = [line for line in lines[place:] if f"producerId: {producer_id[1]} " in line]
    assert "isControl: true" in behind[0]
