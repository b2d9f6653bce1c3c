"""Rows: librdkafka, a real client with its defaults, producing and consuming from a small C program."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from anchors import Unavailable, debian
from anchors.broker_process import BrokerProcess

from bench import load
from bench.administration import Connection
from bench.session import Session, topic_configuration

GROUP = "librdkafka"
CASES = (("100 B", 100, 1.15), ("1 KB", 1024, 1.3))
TIMEOUT_SECONDS = 180


def labels() -> list[str]:
    return [f"{mode}, {size}" for size, _, _ in CASES for mode in ("produce", "consume")]


def run(session: Session, brokers: list[BrokerProcess]) -> None:
    for size_label, message_bytes, target in CASES:
        pair = [label for label in labels() if label.endswith(f" {size_label}")]
        if not any(session.wanted(GROUP, label) for label in pair):
            continue
        try:
            version = debian.librdkafka_version()
            program = load.program("rdkafka_load", "rdkafka")
        except Unavailable as reason:
            for label in pair:
                session.skip(GROUP, label, str(reason))
            continue
        session.report.settings["librdkafka"] = (
            f"{version}, its defaults (acks=all, linger 5 ms), one partition"
        )
        messages = session.scale.librdkafka_bytes // (message_bytes + 100)

        def measure(
            broker: BrokerProcess,
            program: Path = program,
            messages: int = messages,
            message_bytes: int = message_bytes,
        ) -> tuple[float, float]:
            topic = f"librdkafka-{message_bytes}"
            with Connection(broker.address) as connection:
                connection.create_topics([topic], 1, topic_configuration(broker))
                produced = _rate(program, "produce", broker, topic, messages, message_bytes)
                consumed = _rate(program, "consume", broker, topic, messages, message_bytes)
                connection.delete_topic(topic)
            return produced, consumed

        results = session.alternate(brokers, session.scale.rounds, measure)
        for index, label in enumerate(pair):
            rates = {name: [pair[index] / 1000 for pair in rounds] for name, rounds in results.items()}
            session.compare(GROUP, label, "k messages/s", rates, higher_is_better=True, target=target)


def _rate(
    program: Path, mode: str, broker: BrokerProcess, topic: str, messages: int, message_bytes: int
) -> float:
    """Messages per second."""
    command = [str(program), mode, broker.bootstrap, topic, str(messages), str(message_bytes)]
    result = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    if result.returncode != 0:
        raise load.LoadFailed(f"{mode} on {broker.name}: {result.stderr.strip()[-400:]}")
    measured = json.loads(result.stdout)
    rate: float = measured["messages"] / measured["seconds"]
    return rate
