"""Rows: from a producer to the receivers of push, one of them and a thousand of which a tenth stall.

The same gateway stands in front of both brokers, and everything shares the machine.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import uvloop
from anchors.broker_process import BrokerProcess

from bench.administration import Connection
from bench.push_receivers import MARK, Receivers, sse_request, websocket_request
from bench.session import Session, progress, topic_configuration
from bench.table import Growth
from culver.protocol.records import Record, encode_batch
from culver.testing import Gateway

GROUP = "push"
TOPIC = "push"
KINDS = {"server-sent events": sse_request, "WebSocket": websocket_request}
ONE_LABEL = "one record to one receiver"
MANY_LABEL = "p99 of 900 receivers, 0 to 100 stalled beside them"
MEMORY_LABEL = "memory of the gateway, 0 to 100 stalled receivers beside 900"
# The others shall not notice them: what is left is the noise of a p99.
STALLED_TARGET = 1.25
RECEIVERS = 900
STALLED = 100
RECORD_BYTES = 100
# One by one, with pauses long enough that the machine is idle between them.
ONE_RECORDS = 1000
ONE_PAUSE_SECONDS = 0.002
MANY_RECORDS = 50
MANY_PAUSE_SECONDS = 0.1
# What stalled receivers have before them: far more than anybody holds for them.
BACKLOG_BATCHES = 16
BACKLOG_RECORDS = 500
BACKLOG_RECORD_BYTES = 1000
DRAIN_SECONDS = 30


@dataclass(frozen=True)
class Measured:
    """One round."""

    p50_ms: float
    p99_ms: float
    memory_mb: float


def labels() -> list[str]:
    return [f"{ONE_LABEL}, {kind}, {name}" for kind in KINDS for name in ("p50", "p99")] + [
        MANY_LABEL,
        MEMORY_LABEL,
    ]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    for kind in KINDS:
        if session.wanted(GROUP, f"{ONE_LABEL}, {kind}, p99"):
            rounds = session.alternate(
                brokers, session.scale.rounds, lambda broker, kind=kind: _one(session, broker, kind)
            )
            for name in ("p50", "p99"):
                values = {
                    broker: [getattr(each, f"{name}_ms") for each in found]
                    for broker, found in rounds.items()
                }
                session.compare(GROUP, f"{ONE_LABEL}, {kind}, {name}", "ms", values, higher_is_better=False)
    if session.wanted(GROUP, MANY_LABEL) or session.wanted(GROUP, MEMORY_LABEL):
        for broker in brokers:
            if broker.name == "Culver":  # the gateway's own cost, whatever stands behind it
                _stalled(session, broker)


def _one(session: Session, broker: BrokerProcess, kind: str) -> Measured:
    async def measure(gateway: Gateway, receivers: Receivers) -> None:
        await receivers.connect(1, KINDS[kind](gateway.url, TOPIC))
        await _produce(broker, 200, ONE_PAUSE_SECONDS)  # unmeasured
        await receivers.all_arrived(200, DRAIN_SECONDS)
        receivers.latencies_ns.clear()
        await _produce(broker, ONE_RECORDS, ONE_PAUSE_SECONDS)
        await receivers.all_arrived(ONE_RECORDS, DRAIN_SECONDS)

    return _with_gateway(broker, measure)


def _stalled(session: Session, broker: BrokerProcess) -> None:
    def measure(stalled: int) -> Measured:
        async def load(gateway: Gateway, receivers: Receivers) -> None:
            await asyncio.to_thread(_backlog, broker)
            await receivers.connect_stalled(stalled, sse_request(gateway.url, TOPIC, "earliest"))
            await receivers.connect(RECEIVERS, sse_request(gateway.url, TOPIC))
            await _produce(broker, MANY_RECORDS, MANY_PAUSE_SECONDS)
            await receivers.all_arrived(MANY_RECORDS * RECEIVERS, DRAIN_SECONDS)

        return _with_gateway(broker, load)

    rounds = [(measure(0), measure(STALLED)) for _ in range(session.scale.rounds)]
    rows = ((MANY_LABEL, "ms", "p99_ms", STALLED_TARGET), (MEMORY_LABEL, "MB", "memory_mb", None))
    for label, unit, attribute, target in rows:
        alone, beside = (median(getattr(pair[side], attribute) for pair in rounds) for side in (0, 1))
        session.report.growths.append(Growth(broker.name, f"{GROUP}: {label}", unit, alone, beside, target))
        progress(f"{GROUP}: {label}: {alone:.3g} {unit}, {beside:.3g} {unit}")


def _with_gateway(broker: BrokerProcess, load: Callable[[Gateway, Receivers], Awaitable[None]]) -> Measured:
    async def measure(gateway: Gateway) -> Measured:
        receivers = Receivers(gateway.url)
        try:
            await load(gateway, receivers)
            memory_mb = _resident_bytes(gateway.pid) / 1e6
        finally:
            receivers.close()
        found = sorted(receivers.latencies_ns)
        return Measured(found[len(found) // 2] / 1e6, found[len(found) * 99 // 100] / 1e6, memory_mb)

    with Connection(broker.address) as connection:
        connection.create_topic(TOPIC, 1, topic_configuration(broker))
        try:
            with Gateway(broker.bootstrap) as gateway:
                return uvloop.run(measure(gateway))
        finally:
            connection.delete_topic(TOPIC)


async def _produce(broker: BrokerProcess, count: int, pause_seconds: float) -> None:
    """Write records one by one, each with the time of its making, from a thread of its own."""

    def produce() -> None:
        with Connection(broker.address) as connection:
            for _ in range(count):
                time.sleep(pause_seconds)
                made = MARK + b"%d" % time.monotonic_ns()
                connection.produce(TOPIC, 0, _batch([made.ljust(RECORD_BYTES, b".")]))

    await asyncio.to_thread(produce)


def _backlog(broker: BrokerProcess) -> None:
    with Connection(broker.address) as connection:
        for _ in range(BACKLOG_BATCHES):
            connection.produce(TOPIC, 0, _batch([b"x" * BACKLOG_RECORD_BYTES] * BACKLOG_RECORDS))


def _batch(values: list[bytes]) -> bytes:
    now_ms = time.time_ns() // 1_000_000
    return bytes(encode_batch([Record(at, now_ms, None, value, ()) for at, value in enumerate(values)]))


def _resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * 4096
