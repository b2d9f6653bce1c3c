"""Rows: producing over HTTP, the same gateway in front of both brokers; and what the gateway costs the broker.

The gateway, the client that makes the load and the broker share the machine, as they do where one machine runs it all.
"""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import dataclass
from statistics import median

from anchors.broker_process import BrokerProcess

from bench import load, wire
from bench.administration import Connection
from bench.load import Load
from bench.session import Session, progress, topic_configuration
from bench.table import Growth
from culver.testing import Gateway

GROUP = "HTTP"
TOPIC = "http"
BESIDE_LABEL = "produce in 10 KB batches, gateway off and on"
BESIDE_TARGET = 1.05
BESIDE_ROUNDS = 5
MESSAGE_BYTES = 100
_RECORD = b'{"at":1794769315,"level":"info","text":"%s"}' % (b"x" * 57)
_TIMEOUT_SECONDS = 60


@dataclass(frozen=True)
class Case:
    """One shape of request. MB/s are those of the bodies."""

    label: str
    media_type: str
    body: bytes
    connections: int
    unit: str


CASES = (
    Case("produce, one JSON record of 100 B, 1 connection", "application/json", _RECORD, 1, "requests/s"),
    Case("produce, one JSON record of 100 B, 64 connections", "application/json", _RECORD, 64, "requests/s"),
    Case("produce, 1000 JSON lines of 100 B", "application/x-ndjson", (_RECORD + b"\n") * 1000, 8, "MB/s"),
    Case("produce, one record of 100 KB", "application/octet-stream", b"x" * 100_000, 8, "MB/s"),
)


def labels() -> list[str]:
    return [*(case.label for case in CASES), BESIDE_LABEL]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    for case in CASES:
        if session.wanted(GROUP, case.label):
            rates = session.alternate(
                brokers, session.scale.rounds, lambda broker, case=case: _rate(session, broker, case)
            )
            session.compare(GROUP, case.label, case.unit, rates, higher_is_better=True)
    if session.wanted(GROUP, BESIDE_LABEL):
        for broker in brokers:
            _beside(session, broker)


def _rate(session: Session, broker: BrokerProcess, case: Case) -> float:
    head = (
        f"POST /topics/{TOPIC} HTTP/1.1\r\nHost: localhost\r\nContent-Type: {case.media_type}\r\n"
        f"Content-Length: {len(case.body)}\r\n\r\n"
    )
    file = session.directory / "http-request"
    file.write_bytes(head.encode() + case.body)
    with Connection(broker.address) as connection:
        connection.create_topic(TOPIC, 1, topic_configuration(broker))
        with Gateway(broker.bootstrap) as gateway:
            _load(gateway, case.connections, session.scale.seconds / 3, str(file))
            measured = _load(gateway, case.connections, session.scale.seconds, str(file))
        connection.delete_topic(TOPIC)
    rate = measured["requests"] / measured["seconds"]
    progress(
        f"{GROUP}: {case.label}: {broker.name}: {rate:.0f} requests/s, "
        f"p50 {measured['p50_us'] / 1000:.2f} ms, p99 {measured['p99_us'] / 1000:.2f} ms"
    )
    return rate if case.unit == "requests/s" else rate * len(case.body) / 1e6


def _load(gateway: Gateway, connections: int, seconds: float, file: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.http_load", gateway.url, str(connections), str(seconds), file]
    done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    if done.returncode != 0:
        raise load.LoadFailed(f"HTTP: {done.stderr.strip()[-400:]}")
    measured: dict[str, float] = json.loads(done.stdout)
    if measured["failures"]:
        raise load.LoadFailed(f"HTTP: {measured['failures']} requests failed; {gateway.log_text[-400:]}")
    return measured


def _beside(session: Session, broker: BrokerProcess) -> None:
    """What a message costs the clients of the broker without a gateway, and beside one that serves nobody."""
    costs: dict[bool, list[float]] = {False: [], True: []}
    for _ in range(BESIDE_ROUNDS):
        costs[False].append(_microseconds_per_megabyte(session, broker))
        with Gateway(broker.bootstrap):
            costs[True].append(_microseconds_per_megabyte(session, broker))
    off, on = median(costs[False]), median(costs[True])
    target = BESIDE_TARGET if broker.name == "Culver" else None
    session.report.growths.append(Growth(broker.name, BESIDE_LABEL, "us/MB", off, on, target))
    progress(f"{GROUP}: {BESIDE_LABEL}: {broker.name}: {off:.0f} and {on:.0f} us/MB")


def _microseconds_per_megabyte(session: Session, broker: BrokerProcess) -> float:
    batch, _ = wire.batch_of_bytes(10_240, MESSAGE_BYTES)
    request = wire.produce_request(TOPIC, 0, batch, -1)
    error_offset = wire.PRODUCE_ERROR_OFFSET + len(TOPIC)
    with Connection(broker.address) as connection:
        connection.create_topic(TOPIC, 1, topic_configuration(broker))
        result = load.run(
            broker, Load([request], error_offset, 5, seconds_max=session.scale.seconds), session.directory
        )
        connection.delete_topic(TOPIC)
    return 1e6 / result.sent_mb_per_second
