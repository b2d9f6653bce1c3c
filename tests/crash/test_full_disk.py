"""A full disk: produce is refused with KAFKA_STORAGE_ERROR, reads go on, and it heals when space returns."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka import KafkaError
from workload import read_all

from culver.testing import Broker

DISK_BYTES = 16 * 1024 * 1024
BALLAST_BYTES = 6 * 1024 * 1024
VALUE_BYTES = 100_000


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MB, most of a third of it taken by a file that can be removed."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "culver-tests", str(directory)]
    try:
        mounted = subprocess.run(mount, capture_output=True, text=True, timeout=30)
    except FileNotFoundError:
        pytest.skip("no mount program here")
    if mounted.returncode != 0:
        pytest.skip(f"a small tmpfs cannot be mounted here: {mounted.stderr.strip()}")
    try:
        (directory / "ballast").write_bytes(bytes(BALLAST_BYTES))
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True, timeout=30)


def produce(bootstrap: str, numbers: range, partition: int = 0) -> list[KafkaError | None]:
    """One request for each number; stops after the first that is refused."""
    outcomes: list[KafkaError | None] = []
    settings = {"bootstrap.servers": bootstrap, "message.send.max.retries": 0, "log_level": 0}
    with confluent_kafka.Producer(settings) as producer:
        for number in numbers:
            producer.produce(
                "t",
                b"%d " % number + bytes(VALUE_BYTES),
                partition=partition,
                on_delivery=lambda error, _message: outcomes.append(error),
            )
            assert producer.flush(20) == 0
            if outcomes[-1] is not None:
                break
    return outcomes


def numbers(broker: Broker, partition: int = 0) -> list[int]:
    found = read_all(broker.bootstrap_servers, "t", [partition])[partition]
    assert [offset for offset, _ in found] == list(range(len(found)))
    return [int(value.split(b" ")[0]) for _, value in found]


def fill(broker: Broker) -> int:
    """Produce until the disk is full; how many records were acknowledged."""
    outcomes = produce(broker.bootstrap_servers, range(1000))
    refusal = outcomes.pop()
    assert refusal is not None, "the disk never got full"
    assert refusal.code() == KafkaError.KAFKA_STORAGE_ERROR
    assert outcomes == [None] * len(outcomes)
    return len(outcomes)


def test_a_full_disk_refuses_writes_serves_reads_and_heals(small_disk: Path) -> None:
    with Broker(topics={"t": 2}, data_dir=small_disk / "data") as broker:
        taken = fill(broker)
        assert taken * VALUE_BYTES > BALLAST_BYTES / 2
        assert numbers(broker) == list(range(taken)), "reads go on, and nothing half-written is seen"
        for partition in range(2):
            [refusal] = produce(broker.bootstrap_servers, range(1), partition)
            assert refusal is not None
            assert refusal.code() == KafkaError.KAFKA_STORAGE_ERROR
        assert "disk full" in broker.log_text

        (small_disk / "ballast").unlink()
        more = range(taken, taken + 10)
        assert produce(broker.bootstrap_servers, more) == [None] * 10, "no restart is needed"
        assert produce(broker.bootstrap_servers, range(5), 1) == [None] * 5
        assert numbers(broker) == list(range(taken + 10))
        broker.kill()
        broker.start()
        assert numbers(broker) == list(range(taken + 10))
        assert numbers(broker, 1) == list(range(5))


def test_a_crash_on_a_full_disk_keeps_what_was_acknowledged(small_disk: Path) -> None:
    with Broker(topics={"t": 1}, data_dir=small_disk / "data") as broker:
        taken = fill(broker)
        broker.kill()
        broker.start()
        assert numbers(broker) == list(range(taken))
        broker.stop()
        (small_disk / "ballast").unlink()
        broker.start()
        assert produce(broker.bootstrap_servers, range(taken, taken + 3)) == [None] * 3
        assert numbers(broker) == list(range(taken + 3))
