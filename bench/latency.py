"""Rows: the round trip of one message, asked one after the other, acks=1."""

from __future__ import annotations

from anchors.broker_process import BrokerProcess

from bench import load, wire
from bench.administration import Connection
from bench.load import Load, LoadResult
from bench.session import Session, topic_configuration

GROUP = "round trip"
TOPIC = "latency"
MESSAGE_BYTES = 100
# At 99.9 % a round needs some thousands of requests to have a tail at all.
SECONDS_FACTOR = 2


def labels() -> list[str]:
    return ["one message, acks=1", "one message, acks=1, fsync"]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    for row, fsync, target in zip(labels(), (False, True), (0.75, 1.0), strict=True):
        if not session.wanted(GROUP, row):
            continue

        def measure(broker: BrokerProcess, fsync: bool = fsync) -> LoadResult:
            return _measure(session, broker, fsync)

        session.alternate(brokers, 1, measure)  # unmeasured
        results = session.alternate(brokers, session.scale.rounds, measure)
        for name, attribute in (("p50", "p50_us"), ("p99", "p99_us"), ("p99.9", "p999_us")):
            values: dict[str, list[float]] = {
                broker: [getattr(result, attribute) for result in rounds]
                for broker, rounds in results.items()
            }
            label = f"{row}, {name}"
            session.compare(GROUP, label, "us", values, higher_is_better=False, target=target)


def _measure(session: Session, broker: BrokerProcess, fsync: bool) -> LoadResult:
    request = wire.produce_request(TOPIC, 0, wire.record_batch(MESSAGE_BYTES, 1), 1)
    with Connection(broker.address) as connection:
        connection.create_topic(TOPIC, 1, topic_configuration(broker, fsync))
        seconds = session.scale.seconds * SECONDS_FACTOR
        single = Load([request], wire.PRODUCE_ERROR_OFFSET + len(TOPIC), 1, seconds_max=seconds)
        result = load.run(broker, single, session.directory)
        connection.delete_topic(TOPIC)
    return result
