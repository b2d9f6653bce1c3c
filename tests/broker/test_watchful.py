"""A broker that looks out for requests before it sleeps: it serves, and it does go to sleep."""

from __future__ import annotations

import time
from pathlib import Path

from culver.protocol.messages.metadata import MetadataRequest
from culver.testing import Broker
from raw_connection import RawConnection


def voluntary_switches(broker: Broker) -> int:
    status = Path(f"/proc/{broker.pid}/status").read_text()
    return int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])


def test_a_watchful_broker_answers_and_then_sleeps() -> None:
    with Broker(config={"culver.watchful.us": 1000}) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with RawConnection((host, int(port))) as connection:
            for _ in range(20):
                assert connection.call(MetadataRequest(topics=[]), 9).brokers
        # A loop that looked out for ever would never give its processor up by itself.
        before = voluntary_switches(broker)
        deadline = time.monotonic() + 20
        while voluntary_switches(broker) == before:
            assert time.monotonic() < deadline, "the broker never sleeps"
