"""Rows: Spark reading a topic, with Culver's source in Python and with Spark's own Kafka connector on the JVM."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from anchors import Unavailable, kafka, spark_connector
from anchors.broker_process import BrokerProcess
from confluent_kafka import Producer

from bench.administration import Connection
from bench.load import LoadFailed
from bench.session import Session, progress, settle, topic_configuration

GROUP = "Spark"
PARTITIONS = 4
TIMEOUT_SECONDS = 1800
# By sink: what the source has to be ahead by, both reading the same topic.
TARGETS = {"noop": 1.3, "parquet": 1.1}
SIZES = (("100 B", 100), ("1 KB", 1000))
SAME_TOPIC = "both from one Culver topic"
KAFKA_TOPIC = "the connector from a Kafka topic"


def labels() -> list[str]:
    return [
        f"topic to {sink}, {size}, {whose}"
        for size, _ in SIZES
        for sink in TARGETS
        for whose in (SAME_TOPIC, KAFKA_TOPIC)
    ]


def run(session: Session) -> None:
    wanted = [label for label in labels() if session.wanted(GROUP, label)]
    if not wanted or "Culver" not in session.names:
        return
    reason = _unavailable()
    if reason:
        for label in wanted:
            session.skip(GROUP, label, reason)
        return
    session.report.settings["Spark"] = (
        f"PySpark {_pyspark_version()} on local[2], {PARTITIONS} partitions, all columns; 'Culver' is its source in "
        f"Python, 'Kafka' Spark's connector {spark_connector.VERSION} on the JVM"
    )
    with ExitStack() as stack:
        brokers = {name: stack.enter_context(session.new_broker(name)) for name in session.names}
        for size, message_bytes in SIZES:
            if any(f", {size}, " in label for label in wanted):
                _measure(session, brokers, size, message_bytes)


def _measure(session: Session, brokers: dict[str, BrokerProcess], size: str, message_bytes: int) -> None:
    messages = session.scale.spark_bytes // message_bytes
    topic = f"spark-{message_bytes}"
    for broker in brokers.values():
        with Connection(broker.address) as connection:
            connection.create_topics([topic], PARTITIONS, topic_configuration(broker))
        _fill(broker, topic, messages, message_bytes)
    settle()
    culver = brokers["Culver"].bootstrap
    reads = [("culver", culver), ("kafka", culver)]
    if "Kafka" in brokers:
        reads.append(("kafka", brokers["Kafka"].bootstrap))
    answer = _spark(
        {
            "jars": [str(jar) for jar in spark_connector.jars()],
            "directory": str(session.directory),
            "rounds": session.scale.rounds,
            "reads": [{"format": name, "bootstrap": where, "topic": topic} for name, where in reads],
        }
    )
    if answer["rows"] != [messages] * len(reads):
        raise LoadFailed(f"{messages} messages were written, but Spark read {answer['rows']}")
    for sink, target in TARGETS.items():
        rates = [[messages / seconds / 1000 for seconds in rounds] for rounds in answer[sink]]
        rows = [(SAME_TOPIC, rates[1], target)]
        if len(reads) > 2:
            rows.append((KAFKA_TOPIC, rates[2], None))
        for whose, theirs, least in rows:
            session.compare(
                GROUP,
                f"topic to {sink}, {size}, {whose}",
                "k rows/s",
                {"Culver": rates[0], "Kafka": theirs},
                higher_is_better=True,
                target=least,
            )
    for broker in brokers.values():
        with Connection(broker.address) as connection:
            connection.delete_topic(topic)


def _fill(broker: BrokerProcess, topic: str, messages: int, message_bytes: int) -> None:
    progress(f"{GROUP}: {messages} messages of {message_bytes} B into {broker.name}")
    source = random.Random(message_bytes)
    values = [source.randbytes(message_bytes) for _ in range(1000)]
    producer = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 1_000_000})
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, values[number % 1000], partition=number % PARTITIONS)
                break
            except BufferError:
                producer.poll(0.05)
    if producer.flush(120):
        raise LoadFailed(f"{broker.name} did not take all messages")


def _spark(asked: dict[str, Any]) -> dict[str, Any]:
    result = subprocess.run(
        [sys.executable, "-m", "bench.spark_load"],
        input=json.dumps(asked),
        capture_output=True,
        text=True,
        timeout=TIMEOUT_SECONDS,
        cwd=Path(__file__).parent.parent,
    )
    if result.returncode != 0:
        raise LoadFailed(f"Spark ended with {result.returncode}: {result.stderr.strip()[-2000:]}")
    answer: dict[str, Any] = json.loads(result.stdout.splitlines()[-1])
    return answer


def _unavailable() -> str:
    """Why these rows cannot be measured here; empty when they can."""
    try:
        kafka.java()
        _pyspark_version()
        spark_connector.jars()
    except Unavailable as reason:
        return str(reason)
    except ImportError:
        return "PySpark is not installed (pip install 'culver[spark]')"
    return ""


def _pyspark_version() -> str:
    import pyspark

    return str(pyspark.__version__)
