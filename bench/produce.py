"""Rows: pre-encoded produce on the wire, and the processor time that the broker spends on it."""

from __future__ import annotations

from dataclasses import dataclass

from anchors.broker_process import BrokerProcess

from bench import load, wire
from bench.administration import Connection
from bench.load import Load
from bench.session import Session, topic_configuration

GROUP = "produce"
CPU_GROUP = "broker CPU"
TOPIC = "produce"
MESSAGE_BYTES = 100
# As many as Kafka's own producer keeps in flight by default.
BATCHES_IN_FLIGHT = 5


@dataclass(frozen=True)
class Case:
    """One shape of request; targets are None where only the value is wanted."""

    label: str
    batch_bytes: int
    in_flight: int
    unit: str
    target: float | None
    target_fsync: float | None
    cpu_target: float | None = None


CASES = (
    Case("1 MB batches", 1_000_000, BATCHES_IN_FLIGHT, "MB/s", 1.3, None, 0.6),
    Case("10 KB batches of 100 B", 10_240, BATCHES_IN_FLIGHT, "MB/s", 3.0, 4.0, 0.3),
    Case("single messages, 1 in flight", 0, 1, "requests/s", None, None),
    Case("single messages, 16 in flight", 0, 16, "requests/s", 5.0, 6.0),
)


@dataclass(frozen=True)
class Outcome:
    rate: float
    cpu_seconds_per_gb: float


def label_of(case: Case, acks: int, fsync: bool) -> str:
    return f"{case.label}, acks={'all' if acks == -1 else acks}{', fsync' if fsync else ''}"


CELLS = [(case, acks, fsync) for fsync in (False, True) for case in CASES for acks in (1, -1)]


def labels() -> list[str]:
    return [label_of(*cell) for cell in CELLS]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    cells = [cell for cell in CELLS if session.wanted(GROUP, label_of(*cell))]
    for case, acks, fsync in cells:
        label = label_of(case, acks, fsync)

        def measure(
            broker: BrokerProcess, case: Case = case, acks: int = acks, fsync: bool = fsync
        ) -> Outcome:
            return _measure(session, broker, case, acks, fsync)

        outcomes = session.alternate(brokers, session.scale.rounds, measure)
        rates = {name: [outcome.rate for outcome in rounds] for name, rounds in outcomes.items()}
        target = case.target_fsync if fsync else case.target
        session.compare(GROUP, label, case.unit, rates, higher_is_better=True, target=target)
        if case.cpu_target is not None and acks == 1 and not fsync:
            costs = {
                name: [outcome.cpu_seconds_per_gb for outcome in rounds] for name, rounds in outcomes.items()
            }
            session.compare(
                CPU_GROUP, case.label, "s/GB in", costs, higher_is_better=False, target=case.cpu_target
            )


def _measure(session: Session, broker: BrokerProcess, case: Case, acks: int, fsync: bool) -> Outcome:
    batch, _ = wire.batch_of_bytes(case.batch_bytes, MESSAGE_BYTES)
    request = wire.produce_request(TOPIC, 0, batch, acks)
    with Connection(broker.address) as connection:
        # A new topic each time: every round writes to fresh blocks of an empty log.
        connection.create_topic(TOPIC, 1, topic_configuration(broker, fsync))
        cpu_before = broker.cpu_seconds()
        result = load.run(
            broker,
            Load(
                [request],
                wire.PRODUCE_ERROR_OFFSET + len(TOPIC),
                case.in_flight,
                seconds_max=session.scale.seconds,
            ),
            session.directory,
        )
        cpu_seconds = broker.cpu_seconds() - cpu_before
        connection.delete_topic(TOPIC)
    rate = result.requests_per_second if case.unit == "requests/s" else result.sent_mb_per_second
    return Outcome(rate, cpu_seconds / result.sent_bytes * 1e9)


def warm_up(session: Session, broker: BrokerProcess) -> None:
    """Every shape of request for a while, unmeasured: a JVM compiles what it runs often."""
    name = "warm-up"
    with Connection(broker.address) as connection:
        connection.create_topic(name, 1, topic_configuration(broker))
        for case in CASES:
            batch, _ = wire.batch_of_bytes(case.batch_bytes, MESSAGE_BYTES)
            request = wire.produce_request(name, 0, batch, 1)
            offset = wire.PRODUCE_ERROR_OFFSET + len(name)
            warming = Load([request], offset, case.in_flight, seconds_max=session.scale.warm_up_seconds)
            load.run(broker, warming, session.directory)
        connection.delete_topic(name)
