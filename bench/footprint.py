"""Rows: start to ready, memory at rest, creating many topics, restarting with many partitions."""

from __future__ import annotations

import time
from collections.abc import Callable

from anchors.broker_process import BrokerProcess

from bench import wire
from bench.administration import Connection
from bench.session import Session, settle, topic_configuration

START, MEMORY, TOPICS, RESTART = "start", "memory", "topics", "restart"
SETTLING_SECONDS = 1.0
PARTITIONS_PER_TOPIC = 100
TARGET_START = 0.2
TARGET_MEMORY = 0.1
TARGET_TOPICS_ONE_BY_ONE = 0.1
TARGET_TOPICS_IN_ONE = 1.0
TARGET_RESTART = 0.25


def run(session: Session) -> None:
    if session.wanted(START, "process start to first answer") or session.wanted(MEMORY, "idle"):
        _start_and_idle(session)
    if session.wanted(TOPICS, "create"):
        _topics(session)
    if session.wanted(RESTART, "partitions"):
        _restart(session)


def _start_and_idle(session: Session) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in session.names}
    idle: dict[str, list[float]] = {name: [] for name in session.names}
    for _ in range(session.scale.starts):
        for name in session.names:
            with session.new_broker(name) as broker:
                seconds[name].append(broker.start_seconds)
                # A JVM still loads classes for a moment after its first answer.
                time.sleep(SETTLING_SECONDS)
                idle[name].append(broker.resident_bytes() / 1e6)
    session.compare(
        START, "process start to first answer", "s", seconds, higher_is_better=False, target=TARGET_START
    )
    session.compare(MEMORY, "resident, idle", "MB", idle, higher_is_better=False, target=TARGET_MEMORY)


def memory_loaded(session: Session, brokers: list[BrokerProcess]) -> None:
    """Resident memory after all the load of the rows before."""
    if not session.wanted(MEMORY, "resident, loaded"):
        return
    loaded = {broker.name: [broker.resident_bytes() / 1e6] for broker in brokers}
    session.compare(MEMORY, "resident, loaded", "MB", loaded, higher_is_better=False, target=TARGET_MEMORY)


def _topics(session: Session) -> None:
    count = session.scale.topics
    one_by_one: dict[str, list[float]] = {}
    in_one: dict[str, list[float]] = {}
    for name in session.names:
        settle()
        with session.new_broker(name) as broker, Connection(broker.address) as connection:
            connection.create_topics(["first"])  # unmeasured: the code that creates topics is loaded
            begun = time.perf_counter()
            for index in range(count):
                connection.create_topics([f"single-{index}"])
            one_by_one[name] = [time.perf_counter() - begun]
        settle()
        with session.new_broker(name) as broker, Connection(broker.address) as connection:
            connection.create_topics(["first"])
            begun = time.perf_counter()
            connection.create_topics([f"together-{index}" for index in range(count)])
            in_one[name] = [time.perf_counter() - begun]
    session.compare(
        TOPICS,
        f"create {count} one by one",
        "s",
        one_by_one,
        higher_is_better=False,
        target=TARGET_TOPICS_ONE_BY_ONE,
    )
    session.compare(
        TOPICS,
        f"create {count} in one request",
        "s",
        in_one,
        higher_is_better=False,
        target=TARGET_TOPICS_IN_ONE,
    )


def _restart(session: Session) -> None:
    partitions = session.scale.partitions
    clean: dict[str, list[float]] = {name: [] for name in session.names}
    killed: dict[str, list[float]] = {name: [] for name in session.names}
    for name in session.names:
        with session.new_broker(name) as broker:
            topics = [f"restart-{index}" for index in range(partitions // PARTITIONS_PER_TOPIC)]
            _fill_partitions(broker, topics)
            settle()
            for _ in range(session.scale.restarts):
                clean[name].append(_seconds_to_serve(broker, topics, broker.stop))
                killed[name].append(_seconds_to_serve(broker, topics, broker.kill))
    for label, values in (("after a clean stop", clean), ("after SIGKILL", killed)):
        session.compare(
            RESTART,
            f"{partitions} partitions, {label}",
            "s",
            values,
            higher_is_better=False,
            target=TARGET_RESTART,
        )


def _fill_partitions(broker: BrokerProcess, topics: list[str]) -> None:
    batch, _ = wire.batch_of_bytes(10_240, 100)
    with Connection(broker.address) as connection:
        connection.create_topics(topics, PARTITIONS_PER_TOPIC, topic_configuration(broker))
        for topic in topics:
            for partition in range(PARTITIONS_PER_TOPIC):
                connection.await_partition(topic, partition)
                connection.produce(topic, partition, batch)


def _seconds_to_serve(broker: BrokerProcess, topics: list[str], end: Callable[[], None]) -> float:
    """From the start of the process until the last partition of every topic takes a message again."""
    end()
    begun = time.perf_counter()
    broker.start()
    with Connection(broker.address) as connection:
        for topic in topics:
            connection.await_partition(topic, PARTITIONS_PER_TOPIC - 1)
    return time.perf_counter() - begun
