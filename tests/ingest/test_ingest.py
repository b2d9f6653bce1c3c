"""`culver ingest` as a process, with a real broker: outages, kills and spikes lose nothing."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from confluent_kafka import Consumer, TopicPartition

from culver.testing import Broker

DEADLINE_SECONDS = 30


def until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + DEADLINE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"never came about: {what}"
        time.sleep(0.02)


@pytest.fixture
def broker() -> Iterator[Broker]:
    with Broker(topics={"logs": 1}) as broker:
        yield broker


_started: list[Process] = []


@pytest.fixture(autouse=True)
def nothing_goes_on() -> Iterator[None]:
    """A test that fails leaves no process behind."""
    yield
    while _started:
        process = _started.pop().process
        if process.poll() is None:
            process.kill()
            process.communicate()


class Process:
    """The command, started and ended by the test."""

    def __init__(self, broker: Broker, state: Path, *arguments: str, stdin: int | None = None) -> None:
        command = [sys.executable, "-m", "culver", "ingest", "logs", "-b", broker.bootstrap_servers]
        self.process = subprocess.Popen(
            [*command, "--state", str(state), *arguments],
            stdin=stdin if stdin is not None else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        _started.append(self)

    def end(self, how: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(how)
        return self.finish()

    def finish(self) -> int:
        _, errors = self.process.communicate(timeout=DEADLINE_SECONDS)
        self.errors = errors.decode()
        return self.process.returncode


def topic_lines(broker: Broker) -> list[tuple[bytes, bytes]]:
    """(source, line) of all that the topic holds, in order."""
    consumer = Consumer({"bootstrap.servers": broker.bootstrap_servers, "group.id": "reader"})
    partition = TopicPartition("logs", 0, 0)
    _, end = consumer.get_watermark_offsets(partition, timeout=10)
    consumer.assign([partition])
    lines: list[tuple[bytes, bytes]] = []
    while len(lines) < end:
        for message in consumer.consume(1000, timeout=1):
            assert message.error() is None
            lines.append((message.key() or b"", message.value() or b""))
    consumer.close()
    return lines


def in_order_without_repeats(lines: list[bytes]) -> list[bytes]:
    """A crash may send the last lines a second time, in order; the first time is what counts."""
    return list(dict.fromkeys(lines))


def test_files_and_a_second_start(broker: Broker, tmp_path: Path) -> None:
    for name in ("a.log", "b.log"):
        (tmp_path / name).write_text("".join(f"{name} {number}\n" for number in range(100)))
    first = Process(broker, tmp_path / "state", "--file", f"{tmp_path}/*.log", "--once")
    assert first.finish() == 0, first.errors
    with (tmp_path / "a.log").open("a") as file:
        file.write("a.log 100\n")
    assert Process(broker, tmp_path / "state", "--file", f"{tmp_path}/*.log", "--once").finish() == 0
    for name, count in (("a.log", 101), ("b.log", 100)):
        source = str(tmp_path / name).encode()
        lines = [line for key, line in topic_lines(broker) if key == source]
        assert lines == [f"{name} {number}".encode() for number in range(count)]


def test_stdin(broker: Broker, tmp_path: Path) -> None:
    running = Process(broker, tmp_path, "--stdin", "--once", stdin=subprocess.PIPE)
    assert running.process.stdin is not None
    running.process.stdin.write(b"".join(b"%d\n" % number for number in range(1000)))
    running.process.stdin.close()
    running.process.stdin = None
    assert running.finish() == 0, running.errors
    assert topic_lines(broker) == [(b"stdin", b"%d" % number) for number in range(1000)]


def test_an_outage_of_the_broker_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    address = ("127.0.0.1", port)
    running = Process(broker, tmp_path, "--syslog-tcp", f"127.0.0.1:{port}")

    def listening() -> bool:
        try:
            socket.create_connection(address).close()
        except ConnectionRefusedError:
            return False
        return True

    until(listening, "it listens")
    with socket.create_connection(address) as sender:
        sender.sendall(b"".join(b"before %d\n" % number for number in range(100)))
        until(lambda: len(topic_lines(broker)) == 100, "the first lines arrive")
        broker.kill()
        sender.sendall(b"".join(b"during %d\n" % number for number in range(5_000)))
        spool = tmp_path / "spool"
        size = 5_000 * len(b"during 0000")
        until(lambda: sum(file.stat().st_size for file in spool.iterdir()) > size, "they are on disk")
        # Not even the ingest itself is needed to keep them.
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
    broker.start()
    again = Process(broker, tmp_path, "--syslog-tcp", f"127.0.0.1:{port}")
    expected = [b"before %d" % number for number in range(100)]
    expected += [b"during %d" % number for number in range(5_000)]

    def arrived() -> bool:
        return in_order_without_repeats([line for _, line in topic_lines(broker)]) == expected

    until(arrived, "all lines arrive")
    assert again.end() == 0, again.errors


def test_killed_at_any_moment_it_loses_nothing(broker: Broker, tmp_path: Path) -> None:
    path = tmp_path / "app.log"
    positions = tmp_path / "state" / "positions.json"
    for number in range(3):
        with path.open("a") as file:
            file.writelines(f"line {number}.{count:06d} {'x' * 80}\n" for count in range(20_000))
        before = positions.stat().st_mtime_ns if positions.exists() else 0
        running = Process(broker, tmp_path / "state", "--file", str(path))
        until(
            lambda before=before: positions.exists() and positions.stat().st_mtime_ns > before,  # type: ignore[misc]
            "something is saved",
        )
        running.end(signal.SIGKILL)
    expected = path.read_bytes().splitlines()
    assert Process(broker, tmp_path / "state", "--file", str(path), "--once").finish() == 0
    lines = in_order_without_repeats([line for _, line in topic_lines(broker)])
    assert lines == expected


def test_one_process_for_one_state(broker: Broker, tmp_path: Path) -> None:
    first = Process(broker, tmp_path, "--file", "nothing-here")
    until(lambda: (tmp_path / "lock").exists(), "it has begun")
    second = Process(broker, tmp_path, "--file", "nothing-here", "--once")
    assert second.finish() == 6
    assert "another process uses" in second.errors
    assert first.end() == 0


def test_nothing_to_read_and_a_topic_that_is_not_there(broker: Broker, tmp_path: Path) -> None:
    nothing = Process(broker, tmp_path)
    assert nothing.finish() == 2
    assert "nothing to read" in nothing.errors
    command = [sys.executable, "-m", "culver", "ingest", "absent", "-b", broker.bootstrap_servers, "--stdin"]
    done = subprocess.run(
        [*command, "--state", str(tmp_path)], stdin=subprocess.DEVNULL, capture_output=True, timeout=30
    )
    assert done.returncode == 4
