"""Starting and stopping: one broker a directory, a quick clean end under load, and no rescan after it."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import confluent_kafka
import pytest
from workload import Writer, check, eventually, read_all

from culver.testing import Broker

PARTITIONS = 3
LOG_BYTES = 60_000_000
RECORD_BYTES = 500_000


def test_a_second_broker_on_the_same_directory_is_refused() -> None:
    with Broker(topics={"t": 1}) as broker:
        command = [sys.executable, "-m", "culver", "serve", "--no-http", "--listen", "127.0.0.1:0"]
        command += ["--data-dir", str(broker.data_dir)]
        second = subprocess.run(command, capture_output=True, text=True, timeout=30)
        assert second.returncode != 0
        assert "ready" not in second.stdout
        assert "another broker is running on the data directory" in second.stderr
        assert str(broker.data_dir) in second.stderr
        assert "Traceback" not in second.stderr
        # The first has not noticed.
        assert broker.running
        assert read_all(broker.bootstrap_servers, "t", [0]) == {0: []}


def test_a_killed_broker_leaves_no_lock_behind() -> None:
    with Broker(topics={"t": 1}) as broker:
        for _ in range(3):
            broker.kill()
            broker.start()


@pytest.mark.parametrize("flush", ["always", "os"])
def test_sigterm_under_load_ends_cleanly_in_under_two_seconds(flush: str) -> None:
    with Broker(config={"group.initial.rebalance.delay.ms": 0}) as broker:
        broker.create_topic("t", PARTITIONS, {"culver.flush": flush})
        idler = confluent_kafka.Consumer(
            {"bootstrap.servers": broker.bootstrap_servers, "group.id": "g", "log_level": 0}
        )
        try:
            # A group member and its waiting fetch are there too when the signal comes.
            idler.subscribe(["t"])
            settings = {"enable.idempotence": True}
            with Writer(broker.bootstrap_servers, "t", PARTITIONS, settings) as writer:
                for _ in range(3):
                    writer.wait_for_progress(3000)
                    eventually("the member has joined", lambda: bool(poll_assignment(idler)))
                    begun = time.monotonic()
                    broker.stop()  # raises unless the exit code is 0
                    assert time.monotonic() - begun < 2.0
                    broker.start()
                writer.wait_for_progress(1000)
        finally:
            idler.close()
        check(writer, read_all(broker.bootstrap_servers, "t", range(PARTITIONS)), once=True)


def poll_assignment(consumer: confluent_kafka.Consumer) -> bool:
    consumer.poll(0.01)
    return bool(consumer.assignment())


def bytes_read(pid: int) -> int:
    """What the process has asked the kernel to read so far, from anywhere."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("rchar:"):
            return int(line.split()[1])
    raise AssertionError("no rchar in /proc")


def test_a_clean_restart_does_not_read_the_log_again() -> None:
    """And one after a crash does, which shows that the measure measures."""
    with Broker() as broker:
        broker.create_topic("t", 1)
        with confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for _ in range(LOG_BYTES // RECORD_BYTES):
                producer.produce("t", bytes(RECORD_BYTES), partition=0)
                producer.poll(0)
            assert producer.flush(30) == 0
        broker.kill()
        broker.start()
        after_a_crash = bytes_read(broker.pid)
        assert after_a_crash > LOG_BYTES
        broker.restart()
        after_a_clean_stop = bytes_read(broker.pid)
        assert after_a_clean_stop < LOG_BYTES / 2, "only the program itself has been read"
        [[*records]] = read_all(broker.bootstrap_servers, "t", [0]).values()
        assert len(records) == LOG_BYTES // RECORD_BYTES


def test_what_a_clean_stop_left_must_still_be_there() -> None:
    """A log that has changed since its clean stop is scanned like after a crash."""
    with Broker(topics={"t": 1}) as broker:
        with confluent_kafka.Producer({"bootstrap.servers": broker.bootstrap_servers}) as producer:
            for number in range(10):
                producer.produce("t", b"%d" % number, partition=0)
                assert producer.flush(20) == 0
        broker.stop()
        [segment] = (broker.data_dir / "t-0").glob("*.log")
        with segment.open("ab") as file:
            file.write(b"not a batch")
        broker.start()
        assert [value for _, value in read_all(broker.bootstrap_servers, "t", [0])[0]] == [
            b"%d" % number for number in range(10)
        ]
        assert "log is not as the clean stop left it" in broker.log_text
        assert segment.read_bytes()[-11:] != b"not a batch"
