"""Rows: transactions with real clients, one broker, no fsync on either side; and what read_committed costs a reader."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from statistics import median

from anchors import Unavailable, kafka
from anchors.broker_process import BrokerProcess
from confluent_kafka import Consumer, Producer, TopicPartition

from bench import load, wire
from bench.administration import Connection
from bench.fetch import IN_FLIGHT, RESPONSE_BYTES
from bench.load import Load
from bench.session import DELETE_AT_ONCE, Session, progress, settle
from bench.table import Growth

GROUP = "transactions"
SMALL = "librdkafka, one message each"
LARGE = "librdkafka, 1,000 messages of 100 B over four partitions each"
COPY = "copy: consume, produce, offsets in the transaction, 500 messages each"
JAVA = "Java client, one message each"
READ_PLAIN = "fetch, read_uncommitted to read_committed"
READ_TRANSACTIONS = "the same, of transactions of 100 messages, one in ten aborted"
PARTITIONS = 4
MESSAGE = bytes(100)
PER_LARGE = 1_000
PER_COPY = 500
PER_READ = 100
TIMEOUT_SECONDS = 60
# What read_committed may cost beyond read_uncommitted.
READ_TARGET = 1.05
JAVA_SOURCE = Path(__file__).parent / "TransactionLoad.java"


def labels() -> list[str]:
    return [SMALL, LARGE, COPY, JAVA, READ_PLAIN, READ_TRANSACTIONS]


def run(session: Session) -> None:
    wanted = [label for label in labels() if session.wanted(GROUP, label)]
    if not wanted:
        return
    session.report.settings[GROUP] = (
        "Culver culver.flush=os for every topic, Kafka its defaults, one broker each; librdkafka with linger.ms=0 "
        "(one message each) or its default; latencies from the call of commit to its return"
    )
    with ExitStack() as stack:
        brokers = [
            stack.enter_context(
                session.new_broker(name, {"culver.flush": "os"} if name == "Culver" else None)
            )
            for name in session.names
        ]
        if SMALL in wanted:
            _commits(session, brokers, SMALL, _small)
        if JAVA in wanted:
            _java(session, brokers)
        for label, measure in ((LARGE, _large), (COPY, _copy)):
            if label in wanted:
                session.alternate(brokers, 1, lambda broker, measure=measure: measure(session, broker))  # type: ignore[misc]
                rates = session.alternate(
                    brokers,
                    session.scale.rounds,
                    lambda broker, measure=measure: measure(session, broker),  # type: ignore[misc]
                )
                session.compare(GROUP, label, "k messages/s", rates, higher_is_better=True, target=1.0)
        for label in (READ_PLAIN, READ_TRANSACTIONS):
            if label in wanted:
                for broker in brokers:
                    _read(session, broker, label)


# -- commits ------------------------------------------------------------------------------------------------


def _commits(
    session: Session,
    brokers: list[BrokerProcess],
    label: str,
    measure: Callable[[Session, BrokerProcess], tuple[float, float, float]],
) -> None:
    """Transactions a second, and how long a commit takes (ms)."""
    session.alternate(brokers, 1, lambda broker: measure(session, broker))  # unmeasured
    results = session.alternate(brokers, session.scale.rounds, lambda broker: measure(session, broker))
    for index, (name, unit, higher) in enumerate(
        (
            ("transactions a second", "1/s", True),
            ("commit p50", "ms", False),
            ("commit p99", "ms", False),
        )
    ):
        values = {broker: [round_[index] for round_ in rounds] for broker, rounds in results.items()}
        session.compare(GROUP, f"{label}, {name}", unit, values, higher_is_better=higher, target=1.0)


def _small(session: Session, broker: BrokerProcess) -> tuple[float, float, float]:
    topic = _new_topic(broker, "small")
    producer = _producer(broker, "small", {"linger.ms": 0})
    latencies: list[float] = []
    begun = time.perf_counter()
    while time.perf_counter() - begun < session.scale.seconds * 2:
        producer.begin_transaction()
        producer.produce(topic, MESSAGE)
        committing = time.perf_counter()
        producer.commit_transaction(TIMEOUT_SECONDS)
        latencies.append((time.perf_counter() - committing) * 1000)
    rate = len(latencies) / (time.perf_counter() - begun)
    _delete(broker, topic)
    latencies.sort()
    return rate, latencies[len(latencies) // 2], latencies[int(len(latencies) * 0.99)]


def _java(session: Session, brokers: list[BrokerProcess]) -> None:
    try:
        kafka.jars()
    except Unavailable as reason:
        session.skip(GROUP, JAVA, str(reason))
        return

    def measure(session: Session, broker: BrokerProcess) -> tuple[float, float, float]:
        topic = _new_topic(broker, "java")
        seconds = str(session.scale.seconds * 2)
        result = kafka.java_source(JAVA_SOURCE, broker.bootstrap, topic, seconds)
        _delete(broker, topic)
        measured = json.loads(result.stdout.splitlines()[-1])
        return measured["rate"], measured["p50"], measured["p99"]

    _commits(session, brokers, JAVA, measure)


# -- throughput ---------------------------------------------------------------------------------------------


def _large(session: Session, broker: BrokerProcess) -> float:
    """Thousands of messages a second."""
    topic = _new_topic(broker, "large")
    producer = _producer(broker, "large", {})
    sent = 0
    begun = time.perf_counter()
    while time.perf_counter() - begun < session.scale.seconds * 2:
        _send(producer, topic, PER_LARGE, commit=True)
        sent += PER_LARGE
    rate = sent / (time.perf_counter() - begun) / 1000
    _delete(broker, topic)
    return rate


def _copy(session: Session, broker: BrokerProcess) -> float:
    """Thousands of messages copied a second: what a service that reads, transforms and writes does."""
    source, target = _new_topic(broker, "source", 1), _new_topic(broker, "target")
    filler = Producer({"bootstrap.servers": broker.bootstrap, "queue.buffering.max.messages": 1_000_000})
    total = int(session.scale.seconds * 30_000)
    for _ in range(total):
        filler.produce(source, MESSAGE)
    filler.flush(TIMEOUT_SECONDS)
    consumer = Consumer(
        {
            "bootstrap.servers": broker.bootstrap,
            "group.id": f"copy-{source}",
            "isolation.level": "read_committed",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
        }
    )
    consumer.assign([TopicPartition(source, 0, 0)])
    producer = _producer(broker, "copy", {})
    copied = 0
    begun = 0.0
    while copied < total:
        messages = consumer.consume(PER_COPY, timeout=TIMEOUT_SECONDS)
        begun = begun or time.perf_counter()
        producer.begin_transaction()
        for message in messages:
            producer.produce(target, message.value())
        position = consumer.position(consumer.assignment())
        producer.send_offsets_to_transaction(position, consumer.consumer_group_metadata(), TIMEOUT_SECONDS)
        producer.commit_transaction(TIMEOUT_SECONDS)
        copied += len(messages)
    rate = copied / (time.perf_counter() - begun) / 1000
    consumer.close()
    _delete(broker, source)
    _delete(broker, target)
    return rate


# -- reading ------------------------------------------------------------------------------------------------


def _read(session: Session, broker: BrokerProcess, label: str) -> None:
    """The time for a megabyte, in turn with one isolation level and the other."""
    topic = _new_topic(broker, "read", 1)
    total_bytes = session.scale.fetch_log_bytes // 2
    if label == READ_PLAIN:
        batch, messages = wire.batch_of_bytes(100_000, len(MESSAGE))
        request = wire.produce_request(topic, 0, batch, 1)
        count = total_bytes // len(batch)
        offset = wire.PRODUCE_ERROR_OFFSET + len(topic)
        load.run(broker, Load([request], offset, 5, requests_max=count), session.directory)
        end_offset = count * messages
    else:
        producer = _producer(broker, "read", {})
        for number in range(total_bytes // (10 * PER_READ * len(MESSAGE))):
            _send(producer, topic, PER_READ, commit=number % 10 != 0)
        end_offset = number * (PER_READ + 1)
    # Bytes of a message as it lies there, roughly: every fetch begins where the one before ended.
    step = RESPONSE_BYTES // (len(MESSAGE) + 8)
    costs_us: dict[int, list[float]] = {0: [], 1: []}
    for round_number in range(1 + max(3, session.scale.rounds)):
        for isolation in (0, 1) if round_number % 2 else (1, 0):
            requests = [
                wire.fetch_request(topic, 0, offset, RESPONSE_BYTES, isolation)
                for offset in range(0, max(end_offset - 2 * step, 1), step)
            ]
            settle()
            measured = Load(
                requests,
                wire.FETCH_ERROR_OFFSET + len(topic),
                IN_FLIGHT,
                seconds_max=session.scale.seconds,
            )
            result = load.run(broker, measured, session.directory)
            costs_us[isolation].append(1e6 / result.received_mb_per_second)
    small, large = median(costs_us[0][1:]), median(costs_us[1][1:])
    target = READ_TARGET if broker.name == "Culver" else None
    row = Growth(broker.name, f"{GROUP}: {label}", "us/MB", small, large, target)
    session.report.growths.append(row)
    progress(f"{GROUP}: {broker.name}: {label}: {small:.4g} -> {large:.4g} us/MB")
    _delete(broker, topic)


# -- clients ------------------------------------------------------------------------------------------------


def _new_topic(broker: BrokerProcess, stem: str, partitions: int = PARTITIONS) -> str:
    topic = f"{stem}-{time.monotonic_ns()}"
    with Connection(broker.address) as connection:
        connection.create_topic(topic, partitions, DELETE_AT_ONCE)
    return topic


def _delete(broker: BrokerProcess, topic: str) -> None:
    with Connection(broker.address) as connection:
        connection.delete_topic(topic)


def _producer(broker: BrokerProcess, stem: str, settings: dict[str, int]) -> Producer:
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": stem, **settings})
    producer.init_transactions(TIMEOUT_SECONDS)
    return producer


def _send(producer: Producer, topic: str, messages: int, *, commit: bool) -> None:
    producer.begin_transaction()
    for _ in range(messages):
        producer.produce(topic, MESSAGE)
    if commit:
        producer.commit_transaction(TIMEOUT_SECONDS)
    else:
        producer.flush(TIMEOUT_SECONDS)
        producer.abort_transaction(TIMEOUT_SECONDS)
