"""A cluster with something to see in every page of the console."""

from __future__ import annotations

import json
import time
from pathlib import Path

import confluent_kafka
import pyarrow as pa
from confluent_kafka import Consumer, Producer, TopicPartition

from culver.pipelines.log_store.store import LogStore
from culver.pipelines.parsing.events import EVENT_SCHEMA
from culver.pipelines.progress_report import ProgressReport
from culver.testing import Broker

ORDERS = 90
PARTITIONS = 3
TOPICS = {"orders": PARTITIONS, "hostile": 1, "seek": 1, "empty": 1, "ledger": 1}
HOSTILE = "<img src=x onerror=\"window.pwned='yes'\"><script>window.pwned='yes'</script>"


def fill_log_store(directory: Path) -> None:
    """A few lines of the last hour, one of them with the word that is searched for."""
    now_us = int(time.time() * 1_000_000)
    lines = [
        {
            "ts": now_us - row * 60_000_000,
            "message": f"request timeout {HOSTILE}" if row == 3 else f"line {row} went well",
            "format": "plain",
            "level": "ERROR" if row == 3 else "INFO",
            "service": "checkout",
        }
        for row in range(20)
    ]
    for line in lines:
        line["raw"] = line["message"]
    columns = {
        field.name: pa.array([line.get(field.name) for line in lines], field.type) for field in EVENT_SCHEMA
    }
    LogStore(str(directory)).write_batch(
        pa.table(columns), query_id="q", batch_id=0, offsets={"logs": {"0": 20}}
    )


def fill_topics(broker: Broker) -> None:
    """Messages, one of them hostile, and what a pipeline reports."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "linger.ms": 0})
    for number in range(ORDERS):
        value = json.dumps({"order": number, "customer": {"id": number % 7, "tags": ["eu"]}})
        headers = [("source", b"checkout")]
        producer.produce(
            "orders", value, key=f"customer-{number % 7}", partition=number % PARTITIONS, headers=headers
        )
    for number in range(30):
        producer.produce(
            "seek", f"message {number}", partition=0, timestamp=1_790_000_000_000 + number * 60_000
        )
    producer.produce("hostile", HOSTILE, key=HOSTILE, headers=[("<b>name</b>", HOSTILE.encode())])
    assert producer.flush(10) == 0
    with ProgressReport(broker.bootstrap_servers, "culver-logs", kind="logs", topics="logs") as report:
        report.tell(batches=3, rows=4711)


def commit(broker: Broker, group: str, offset: int) -> None:
    """A group without members that has read so far in every partition of `orders`."""
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition("orders", partition, offset) for partition in range(PARTITIONS)]
        consumer.commit(offsets=places, asynchronous=False)
    finally:
        consumer.close()


def committed(broker: Broker, group: str) -> list[int]:
    settings = {"bootstrap.servers": broker.bootstrap_servers, "group.id": group}
    consumer = Consumer(settings)
    try:
        places = [TopicPartition("orders", partition) for partition in range(PARTITIONS)]
        return [place.offset for place in consumer.committed(places, timeout=10)]
    finally:
        consumer.close()


def begin_transaction(broker: Broker) -> confluent_kafka.Producer:
    """Open, until its producer aborts it."""
    producer = Producer({"bootstrap.servers": broker.bootstrap_servers, "transactional.id": "console-open"})
    producer.init_transactions(10)
    producer.begin_transaction()
    producer.produce("ledger", "not committed")
    producer.flush(10)
    return producer
