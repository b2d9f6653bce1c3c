"""The Java client's transactions, second generation: records, offsets, fencing, timeouts, the admin's view of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import confluent_kafka
import pytest
from anchors import Unavailable, kafka
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from culver.testing import Broker

pytestmark = [pytest.mark.interop, pytest.mark.timeout(300)]

PROGRAM = Path(__file__).parent / "java" / "Transactions.java"

Findings = Mapping[str, str]


@pytest.fixture(scope="module")
def prefix(unique: Callable[[str], str], bootstrap: str) -> str:
    name = unique("java-transactions")
    with AdminClient({"bootstrap.servers": bootstrap}) as admin:
        topics = [
            NewTopic(f"{name}-{part}", count, 1)
            for part, count in (("records", 3), ("source", 1), ("admin", 1))
        ]
        for created in admin.create_topics(topics).values():
            created.result()
    with confluent_kafka.Producer({"bootstrap.servers": bootstrap}) as producer:
        for number in range(10):
            producer.produce(f"{name}-source", b"%d" % number)
        assert producer.flush(20) == 0
    return name


@pytest.fixture(scope="module")
def findings(bootstrap: str, prefix: str) -> Findings:
    try:
        result = kafka.java_source(PROGRAM, bootstrap, prefix, timeout_seconds=240)
    except Unavailable as reason:
        pytest.skip(str(reason))
    return dict(line.split("\t", 1) for line in result.stdout.splitlines())


def values(partition: int, *, committed_only: bool) -> list[str]:
    return [
        f"{number}/{place}"
        for number in range(10)
        if not (committed_only and number % 3 == 2)
        for place in range(30)
        if place % 3 == partition
    ]


@pytest.mark.parametrize("partition", range(3))
def test_committed_records_are_read_in_order_and_aborted_ones_are_not(
    findings: Findings, partition: int
) -> None:
    assert findings[f"read_committed {partition}"].split() == values(partition, committed_only=True)


@pytest.mark.parametrize("partition", range(3))
def test_who_reads_uncommitted_sees_them_all(findings: Findings, partition: int) -> None:
    expected = values(partition, committed_only=False) + (["open"] if partition == 0 else [])
    assert findings[f"read_uncommitted {partition}"].split() == expected


@pytest.mark.parametrize(
    ("name", "value"),
    {
        "epoch raised by each transaction": "10",
        "last committed": "true",
        "fenced commit": "ProducerFencedException",
        "fenced begin": "ProducerFencedException",
        "fenced record is gone": "true",
        "successor's record is there": "true",
        "offsets read": "0-3 3-6 3-6",
        "offset committed": "6",
        "offsets of a stale member": "CommitFailedException",
        "timed out": "CompleteAbort",
        "commit after that": "InvalidTxnStateException",
        "read after the timeout": "quick",
        "a timeout that is too long": "KafkaException",
        "described unknown": "TransactionalIdNotFoundException",
        "listed ongoing": "true",
        "listed empty": "false",
        "listed by pattern": "1",
        "producer in a transaction": "true",
        "fenced producer": "true",
        "commit after being fenced": "ProducerFencedException",
        "described after being fenced": "Empty",
        "commit after being terminated": "ProducerFencedException",
        "read in the end": "quick",
    }.items(),
)
def test_the_client_finds(name: str, value: str, findings: Findings) -> None:
    assert findings[name] == value


def test_an_open_transaction_is_described(findings: Findings, prefix: str) -> None:
    assert findings["described"] == f"Ongoing [{prefix}-admin-0] 60000"


def test_only_hanging_transactions_are_aborted_by_hand(
    findings: Findings, broker_or_none: Broker | None
) -> None:
    # Kafka writes the marker, whoever asks; docs/compatibility.md has the reason why Culver does not.
    expected = "none" if broker_or_none is None else "ClusterAuthorizationException"
    assert findings["abort of one that does not hang"] == expected
