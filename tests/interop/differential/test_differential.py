"""The same requests to Apache Kafka and to Culver: no difference in the answers but those that are listed."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest
from anchors import Unavailable
from anchors.kafka import Kafka

from culver.protocol.messages.metadata import MetadataRequest
from culver.testing import Broker
from differential import (  # noqa: F401  (each registers its scripts)
    script_cluster,
    script_configs,
    script_consumer_groups,
    script_fetch,
    script_fetch_sessions,
    script_group_offsets,
    script_groups,
    script_metadata,
    script_offsets,
    script_produce,
    script_producers,
    script_topics,
    script_transaction_admin,
    script_transaction_errors,
    script_transaction_offsets,
    script_transactions,
    script_versions,
    script_waiting,
)
from differential.compare import Found, differences, unexpected, vanished
from differential.differences import DIFFERENCES
from differential.play import SCRIPTS, play
from raw_connection import RawConnection

pytestmark = pytest.mark.interop

# A first generation would otherwise wait for more members to come.
SETTINGS = {"group.initial.rebalance.delay.ms": "0"}
# Kafka would assign once a second, and in another thread, after it has answered.
KAFKA_SETTINGS = {
    "group.consumer.assignment.interval.ms": "0",
    "group.consumer.assignor.offload.enable": "false",
}


@dataclass
class Pair:
    """Both brokers, and every difference found between them so far."""

    kafka: tuple[str, int, int]
    culver: tuple[str, int, int]
    found: dict[str, list[Found]] = field(default_factory=dict)

    def compare(self, script: str) -> list[Found]:
        if script not in self.found:
            kafka, culver = play(script, *self.kafka), play(script, *self.culver)
            self.found[script] = list(differences(script, kafka, culver))
        return self.found[script]


def place(host: str, port: int) -> tuple[str, int, int]:
    """Where a broker is, and its node id."""
    with RawConnection((host, port)) as connection:
        node_id: int = connection.call(MetadataRequest(topics=[]), 9).brokers[0].node_id
    return host, port, node_id


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    try:
        kafka = Kafka({**SETTINGS, **KAFKA_SETTINGS})
    except Unavailable as reason:
        pytest.skip(str(reason))
    with kafka, Broker(config=SETTINGS) as culver:
        host, _, port = culver.bootstrap_servers.rpartition(":")
        yield Pair(place(*kafka.address), place(host, int(port)))


@pytest.mark.parametrize("script", SCRIPTS)
def test_culver_answers_as_kafka_does(pair: Pair, script: str) -> None:
    surprises = unexpected(pair.compare(script), DIFFERENCES)
    assert not surprises, "\n".join(str(one) for one in surprises)


def test_every_listed_difference_is_still_there(pair: Pair) -> None:
    found = [one for script in SCRIPTS for one in pair.compare(script)]
    gone = vanished(found, DIFFERENCES)
    assert not gone, "\n".join(str(one) for one in gone)
