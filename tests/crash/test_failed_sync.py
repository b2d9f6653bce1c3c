"""A failed fsync: the partition takes no more writes until a restart has looked at what reached the disk.

strace makes the kernel's answer up, so the broker is the real one. Skipped where it cannot be traced.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from workload import read_all

from culver.testing import Broker


@contextmanager
def failing_syncs(broker: Broker) -> Iterator[None]:
    """Every fdatasync of the broker fails with EIO."""
    program = shutil.which("strace")
    if program is None:
        pytest.skip("no strace on the path (Debian: apt install strace)")
    command = [program, "-f", "-p", str(broker.pid), "-e", "trace=fdatasync,fsync"]
    command += ["-e", "inject=fdatasync,fsync:error=EIO"]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as tracer:
        try:
            assert tracer.stderr is not None
            first_line = tracer.stderr.readline()
            if "attached" not in first_line:
                pytest.skip(f"the broker cannot be traced here: {first_line.strip()}")
            yield
        finally:
            tracer.terminate()
            tracer.communicate()


def produce(broker: Broker, partition: int, *values: bytes, acks: str = "all") -> list[str | None]:
    """What became of each value."""
    outcomes: list[str | None] = []

    def report(error: KafkaError | None, _message: object) -> None:
        outcomes.append(None if error is None else error.name())

    settings = {
        "bootstrap.servers": broker.bootstrap_servers,
        "message.send.max.retries": 0,
        "acks": acks,
        "log_level": 0,
    }
    with confluent_kafka.Producer(settings) as producer:
        for value in values:
            producer.produce("t", value, partition=partition, on_delivery=report)
            assert producer.flush(20) == 0
    return outcomes


def values(broker: Broker, partition: int) -> list[bytes]:
    return [value for _, value in read_all(broker.bootstrap_servers, "t", [partition])[partition]]


def test_a_failed_fsync_is_refused_never_retried_and_healed_by_a_restart() -> None:
    kept = [b"%d" % number for number in range(10)]
    with Broker(topics={"t": 2}) as broker:
        for partition in range(2):
            assert produce(broker, partition, *kept) == [None] * 10
        with failing_syncs(broker):
            assert produce(broker, 0, b"not on disk") == ["KAFKA_STORAGE_ERROR"]
        # The disk is well again, but nobody knows which pages of this log reached it.
        assert produce(broker, 0, b"after") == ["KAFKA_STORAGE_ERROR"]
        assert produce(broker, 0, b"after", acks="1") == ["KAFKA_STORAGE_ERROR"]
        assert values(broker, 0) == kept, "what was acknowledged is served; what was not is not shown"
        assert produce(broker, 1, b"after") == [None], "other partitions are not concerned"
        assert "a flush failed" in broker.log_text
        assert "Input/output error" in broker.log_text

        broker.restart()
        found = values(broker, 0)
        assert found[:10] == kept
        assert found[10:] in ([], [b"not on disk"]), "an unacknowledged write may have happened or not"
        assert produce(broker, 0, b"healed") == [None]
        assert values(broker, 0) == [*found, b"healed"]
        assert values(broker, 1) == [*kept, b"after"]
