"""Transactions on three real brokers: none of their steps waits for a clock."""

from __future__ import annotations

import time
from collections.abc import Callable

from culver.errors import ErrorCode
from culver.protocol.messages.find_coordinator import FindCoordinatorRequest
from culver.testing import Cluster
from raw_connection import RawConnection
from wire_transactions import WireProducer

# Followers may be kept waiting for longer than a test does: they must be told of what is appended, whoever appends it.
FETCH_WAIT_MS = 20_000
PARTITIONS = 3
TRANSACTIONS = 3


def connect(cluster: Cluster, broker_id: int) -> RawConnection:
    host, _, port = cluster.broker(broker_id).bootstrap_servers.rpartition(":")
    return RawConnection((host, int(port)))


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


def test_followers_are_told_of_what_an_acknowledgement_of_theirs_has_led_to() -> None:
    """A coordinator that also leads the partition appends the records when its own record has been replicated."""
    config = {"replica.fetch.wait.max.ms": FETCH_WAIT_MS}
    with Cluster(brokers=3, topics={"t": PARTITIONS}, config=config) as cluster:
        leaders = [cluster.leader("t", index) for index in range(PARTITIONS)]
        connections = {broker_id: connect(cluster, broker_id) for broker_id in (1, 2, 3)}
        try:
            producer = WireProducer(connections[1], "id")
            producer.find(until)
            coordinator = connections[1].call(FindCoordinatorRequest(key="id", key_type=1), 3).node_id
            assert coordinator in leaders, "every broker leads one of as many partitions"
            producer.connection = connections[coordinator]
            until(lambda: producer.init() is ErrorCode.NONE)
            begun = time.monotonic()
            for _ in range(TRANSACTIONS):
                for index, leader in enumerate(leaders):
                    producer.connection = connections[leader]
                    assert producer.produce("t", index, b"value", version=12) is ErrorCode.NONE
                producer.connection = connections[coordinator]
                assert producer.end(commit=True, version=5) is ErrorCode.NONE
            assert time.monotonic() - begun < FETCH_WAIT_MS / 1000 / 2
        finally:
            for connection in connections.values():
                connection.close()
