"""Rows: fetch from the page cache."""

from __future__ import annotations

from anchors.broker_process import BrokerProcess

from bench import load, wire
from bench.administration import Connection
from bench.load import Load
from bench.session import Session, topic_configuration

GROUP = "fetch"
MESSAGE_BYTES = 100
RESPONSE_BYTES = 1_000_000
# The next fetch is on its way while the last one is read, as a client that reads ahead does.
IN_FLIGHT = 2
CASES = (("1 MB batches", 1_000_000, 1.3), ("10 KB batches of 100 B", 10_240, 1.2))


def labels() -> list[str]:
    return [label for label, _, _ in CASES]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    for label, batch_bytes, target in CASES:
        if not session.wanted(GROUP, label):
            continue
        topic = f"fetch-{batch_bytes}"
        batch, messages = wire.batch_of_bytes(batch_bytes, MESSAGE_BYTES)
        batches = session.scale.fetch_log_bytes // len(batch)
        for broker in brokers:
            fill(session, broker, topic, batch, batches)
        # Every request asks for whole batches only, so that no broker sends a part that nobody can use.
        per_response = max(1, RESPONSE_BYTES // len(batch))
        size = per_response * len(batch)
        # Offset 0 holds the message that found the partition ready.
        offsets = range(1, 1 + (batches - per_response) * messages, per_response * messages)
        requests = [wire.fetch_request(topic, 0, offset, size) for offset in offsets]

        def measure(
            broker: BrokerProcess, requests: list[bytes] = requests, size: int = size, topic: str = topic
        ) -> float:
            return load.run(
                broker,
                Load(
                    requests,
                    wire.FETCH_ERROR_OFFSET + len(topic),
                    IN_FLIGHT,
                    seconds_max=session.scale.seconds,
                    response_bytes_min=size,
                ),
                session.directory,
            ).received_mb_per_second

        session.alternate(brokers, 1, measure)  # unmeasured: page cache and JVM warm
        rates = session.alternate(brokers, session.scale.rounds, measure)
        session.compare(GROUP, label, "MB/s", rates, higher_is_better=True, target=target)
        for broker in brokers:
            with Connection(broker.address) as connection:
                connection.delete_topic(topic)


def fill(session: Session, broker: BrokerProcess, topic: str, batch: bytes, batches: int) -> None:
    """A new topic of one partition that holds one message and then `batches` times the batch."""
    with Connection(broker.address) as connection:
        connection.create_topic(topic, 1, topic_configuration(broker))
    append(session, broker, topic, batch, batches)


def append(session: Session, broker: BrokerProcess, topic: str, batch: bytes, batches: int) -> None:
    request = wire.produce_request(topic, 0, batch, 1)
    offset = wire.PRODUCE_ERROR_OFFSET + len(topic)
    load.run(broker, Load([request], offset, 5, requests_max=batches), session.directory)
