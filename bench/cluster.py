"""Rows: three brokers, three replicas, acks=all; a leader that is killed, a follower that catches up, a large group."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import TimeoutError as FutureTimeout
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from anchors import Unavailable
from anchors.broker_process import StartFailed
from anchors.clusters import Cluster, CulverCluster, KafkaCluster
from confluent_kafka import Consumer, Producer

from bench import load, wire
from bench.load import Load
from bench.session import DELETE_AT_ONCE, Session, progress, settle

GROUP = "three brokers"
MESSAGE_BYTES = 100
THROUGHPUT_TARGET = 1.5
TIMEOUT_SECONDS = 180
MEMBERS = 50


@dataclass(frozen=True)
class Wire:
    """One shape of request, sent to the leader as fast as its answers allow."""

    label: str
    batch_bytes: int
    in_flight: int
    unit: str
    target: float | None


WIRE = (
    Wire("1 MB batches, acks=all", 1_000_000, 5, "MB/s", THROUGHPUT_TARGET),
    Wire("10 KB batches of 100 B, acks=all", 10_240, 5, "MB/s", THROUGHPUT_TARGET),
    Wire("single messages, 16 in flight, acks=all", 0, 16, "requests/s", THROUGHPUT_TARGET),
    Wire("single messages, 1 in flight, acks=all", 0, 1, "requests/s", None),
)
LIBRDKAFKA = (("librdkafka produce, 100 B", 100), ("librdkafka produce, 1 KB", 1024))
CATCH_UP = "follower catches up"
PARTITIONS = "1,000 partitions with three replicas, created"
REBALANCE = f"a member joins a group of {MEMBERS - 1}, until all are assigned"
KILLED = "leader killed, to the next acknowledged write"
KILLED_ZOOKEEPER = "the same, Culver with ZooKeeper"


def labels() -> list[str]:
    names = [case.label for case in WIRE] + [label for label, _ in LIBRDKAFKA]
    return [*names, PARTITIONS, REBALANCE, KILLED, CATCH_UP, KILLED_ZOOKEEPER]


def run(session: Session) -> None:
    wanted = [label for label in labels() if session.wanted(GROUP, label)]
    if not wanted:
        return
    session.report.settings["three brokers"] = (
        "both with their defaults (no fsync before an acknowledgement that three replicas have), all on this machine; "
        "Culver over its local store (SQLite)"
    )
    results: dict[str, dict[str, list[float]]] = {}
    # One cluster at a time: six brokers would fight for the same two cores.
    for name in session.names:
        with _cluster(session, name) as cluster:
            progress(f"{GROUP}: {name} is up")
            for label in wanted:
                measure = _measure_of(session, label)
                if measure is None:
                    continue
                settle()
                values = results.setdefault(label, {}).setdefault(name, [])
                try:
                    for _ in range(_rounds(session, label)):
                        values.append(measure(cluster))
                        progress(f"{GROUP}: {name}: {label}: {values[-1]:.4g}")
                except Unavailable as reason:
                    session.skip(GROUP, f"{label} ({name})", str(reason))
                except (StartFailed, load.LoadFailed, FutureTimeout) as error:
                    # One of the two may be in trouble after a kill; the other rows still count.
                    session.report.notes.append(
                        f"{name} gave up on '{label}': {error or 'no answer in time'}"
                    )
                    progress(session.report.notes[-1])
    if KILLED_ZOOKEEPER in wanted:
        results[KILLED_ZOOKEEPER] = _with_zookeeper(session, results.get(KILLED, {}))
    for label in wanted:
        _row(session, label, results.get(label, {}))


def _rounds(session: Session, label: str) -> int:
    return 1 if label in (PARTITIONS, REBALANCE) else session.scale.rounds


def _row(session: Session, label: str, values: dict[str, list[float]]) -> None:
    for case in WIRE:
        if case.label == label:
            session.compare(GROUP, label, case.unit, values, higher_is_better=True, target=case.target)
    if label in dict(LIBRDKAFKA) or label == CATCH_UP:
        target = THROUGHPUT_TARGET if label != CATCH_UP else None
        session.compare(GROUP, label, "MB/s", values, higher_is_better=True, target=target)
    # Kafka is without a leader for ten seconds: a third of that, and a second.
    targets = {KILLED: 0.1, KILLED_ZOOKEEPER: 0.33, PARTITIONS: 1.0, REBALANCE: 1.0}
    if label in targets and values:
        session.compare(GROUP, label, "s", values, higher_is_better=False, target=targets[label])


@contextmanager
def _cluster(session: Session, name: str, zookeeper: str | None = None) -> Iterator[Cluster]:
    cluster = (
        CulverCluster(directory=session.directory, zookeeper=zookeeper)
        if name == "Culver"
        else KafkaCluster(directory=session.directory)
    )
    with cluster:
        _warm_up(session, cluster)
        yield cluster


def _warm_up(session: Session, cluster: Cluster) -> None:
    """A JVM compiles what it runs often."""
    cluster.create_topic("warm-up", 1, DELETE_AT_ONCE)
    for case in WIRE[1:3]:
        _wire_load(session, cluster, "warm-up", case, session.scale.warm_up_seconds)
    cluster.delete_topic("warm-up")


def _measure_of(session: Session, label: str) -> Callable[[Cluster], float] | None:
    for case in WIRE:
        if case.label == label:
            return lambda cluster: _wire(session, cluster, case)
    for name, message_bytes in LIBRDKAFKA:
        if name == label:
            return lambda cluster: _librdkafka(session, cluster, message_bytes)
    others: dict[str, Callable[[Cluster], float]] = {
        CATCH_UP: lambda cluster: _catch_up(session, cluster),
        PARTITIONS: _thousand_partitions,
        REBALANCE: _rebalance,
        KILLED: _killed,
    }
    return others.get(label)


# -- throughput ---------------------------------------------------------------------------------------------


def _wire_load(session: Session, cluster: Cluster, topic: str, case: Wire, seconds: float) -> float:
    batch, _ = wire.batch_of_bytes(case.batch_bytes, MESSAGE_BYTES)
    request = wire.produce_request(topic, 0, batch, -1)
    leader = cluster.nodes[cluster.leader(topic)]
    offset = wire.PRODUCE_ERROR_OFFSET + len(topic)
    result = load.run(leader, Load([request], offset, case.in_flight, seconds_max=seconds), session.directory)
    return result.requests_per_second if case.unit == "requests/s" else result.sent_mb_per_second


@contextmanager
def _topic(cluster: Cluster) -> Iterator[str]:
    name = f"bench-{time.monotonic_ns()}"
    cluster.create_topic(name, 1, DELETE_AT_ONCE)
    try:
        yield name
    finally:
        cluster.delete_topic(name)


def _wire(session: Session, cluster: Cluster, case: Wire) -> float:
    with _topic(cluster) as topic:
        return _wire_load(session, cluster, topic, case, 2 * session.scale.seconds)


def _librdkafka(session: Session, cluster: Cluster, message_bytes: int) -> float:
    program = load.program("rdkafka_load", "rdkafka")
    messages = session.scale.librdkafka_bytes // (message_bytes + 100)
    with _topic(cluster) as topic:
        return _rdkafka_produce(program, cluster, topic, messages, message_bytes)


def _rdkafka_produce(program: Path, cluster: Cluster, topic: str, messages: int, message_bytes: int) -> float:
    command = [str(program), "produce", cluster.bootstrap, topic, str(messages), str(message_bytes)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if result.returncode != 0:
        raise load.LoadFailed(f"produce on {cluster.name}: {result.stderr.strip()[-400:]}")
    measured = json.loads(result.stdout)
    return float(measured["messages"]) * message_bytes / float(measured["seconds"]) / 1e6


def _catch_up(session: Session, cluster: Cluster) -> float:
    """MB/s of a follower that missed everything, from its start until it is in sync, its start not counted."""
    size_bytes = session.scale.librdkafka_bytes // 2
    program = load.program("rdkafka_load", "rdkafka")
    with _topic(cluster) as topic:
        leader = cluster.leader(topic)
        number = next(number for number in cluster.nodes if number != leader)
        follower = cluster.nodes[number]
        follower.kill()
        cluster.wait(lambda: cluster.in_sync(topic) == {2}, "the follower has left the in-sync replicas")
        _rdkafka_produce(program, cluster, topic, size_bytes // 1124, 1024)
        follower.start()
        seconds = cluster.wait(lambda: cluster.in_sync(topic) == {3}, "the follower has caught up")
        cluster.wait(cluster.complete, "all are back")
        return size_bytes / 1e6 / max(seconds, 1e-3)


# -- times --------------------------------------------------------------------------------------------------


def _thousand_partitions(cluster: Cluster) -> float:
    name = f"many-{time.monotonic_ns()}"
    begun = time.perf_counter()
    cluster.create_topic(name, 1000, DELETE_AT_ONCE)
    seconds = time.perf_counter() - begun
    cluster.delete_topic(name)
    return seconds


def _killed(cluster: Cluster) -> float:
    """From SIGKILL of the leader to the next acknowledged write of a producer with librdkafka's defaults."""
    with _topic(cluster) as topic:
        number = cluster.leader(topic)
        others = ",".join(node.bootstrap for other, node in cluster.nodes.items() if other != number)
        acknowledged: list[float] = []
        producer = Producer({"bootstrap.servers": others, "linger.ms": 0, "log_level": 0})

        def on_delivery(error: Any, _message: Any) -> None:
            if error is None:
                acknowledged.append(time.perf_counter())

        def write_until(condition: Callable[[], bool]) -> None:
            deadline = time.perf_counter() + TIMEOUT_SECONDS
            while not condition():
                if time.perf_counter() > deadline:
                    raise load.LoadFailed(f"{cluster.name}: no write was acknowledged after the leader's end")
                producer.produce(topic, b"x" * MESSAGE_BYTES, partition=0, on_delivery=on_delivery)
                producer.poll(0.002)

        write_until(lambda: len(acknowledged) >= 200)
        producer.flush(30)
        killed_at = time.perf_counter()
        cluster.nodes[number].kill()
        write_until(lambda: acknowledged[-1] > killed_at)
        seconds = next(moment for moment in acknowledged if moment > killed_at) - killed_at
        producer.flush(30)
        cluster.nodes[number].start()
        cluster.wait(lambda: cluster.in_sync(topic) == {3}, "the killed broker is in sync again")
        return seconds


def _with_zookeeper(session: Session, measured: dict[str, list[float]]) -> dict[str, list[float]]:
    from culver.testing import ZooKeeper

    values = {name: rounds for name, rounds in measured.items() if name != "Culver"}
    if "Culver" in session.names:
        with ExitStack() as stack:
            server = stack.enter_context(ZooKeeper())
            cluster = stack.enter_context(_cluster(session, "Culver", f"zookeeper://{server.address}/bench"))
            values["Culver"] = [_killed(cluster) for _ in range(session.scale.rounds)]
    return values


def _rebalance(cluster: Cluster) -> float:
    """A group of real consumers is at rest; one more comes. Until every one of them has its new assignment."""
    with _topic_of(cluster, MEMBERS * 2) as topic:
        members = [_Member(cluster.bootstrap, topic, f"group-{topic}") for _ in range(MEMBERS - 1)]
        try:
            cluster.wait(lambda: _even(members, MEMBERS * 2), "the group has settled")
            newcomer = _Member(cluster.bootstrap, topic, f"group-{topic}")
            members.append(newcomer)
            return cluster.wait(lambda: _even(members, MEMBERS * 2), "all have their assignment")
        finally:
            for member in members:
                member.stopping = True
            for member in members:
                member.thread.join(30)


@contextmanager
def _topic_of(cluster: Cluster, partitions: int) -> Iterator[str]:
    name = f"group-{time.monotonic_ns()}"
    cluster.create_topic(name, partitions, DELETE_AT_ONCE)
    try:
        yield name
    finally:
        cluster.delete_topic(name)


class _Member:
    """One consumer of the group, polling in a thread of its own."""

    def __init__(self, bootstrap: str, topic: str, group: str) -> None:
        self.assigned = 0
        self.stopping = False
        self._topic = topic
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": group,
            "partition.assignment.strategy": "range",
            # The time in which members hear of a rebalance; at the default of three seconds nothing else is seen.
            "heartbeat.interval.ms": 300,
            "log_level": 0,
        }
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic], on_assign=self._on_assign, on_revoke=self._on_revoke)
        while not self.stopping:
            consumer.poll(0.1)
        consumer.close()

    def _on_assign(self, _consumer: Any, partitions: list[Any]) -> None:
        self.assigned = len(partitions)

    def _on_revoke(self, _consumer: Any, _partitions: list[Any]) -> None:
        self.assigned = 0


def _even(members: list[_Member], partitions: int) -> bool:
    return (
        all(member.assigned for member in members)
        and sum(member.assigned for member in members) == partitions
    )
