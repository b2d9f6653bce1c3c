"""`culver serve --brokers N`: several processes under one that starts the dead again and leaves none behind."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from culver.cli.failure import ExitCode
from culver.cli.serve import coordination_fault

TIMEOUT_SECONDS = 30


class Supervised:
    """A running supervisor; its log is read as it comes."""

    def __init__(self, process: subprocess.Popen[str], ready_line: str) -> None:
        self.process = process
        self.ready_line = ready_line
        self.log: list[str] = []

    def wait_for_log(self, pattern: str) -> str:
        assert self.process.stderr is not None
        while line := self.process.stderr.readline():
            self.log.append(line)
            if re.search(pattern, line):
                return line
        raise AssertionError(f"{pattern!r} never came; the log:\n{''.join(self.log)}")

    def brokers(self) -> dict[int, int]:
        """Process ids by broker id."""
        children = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text().split()
        found = {}
        for pid in map(int, children):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")
            found[int(words[words.index("--broker-id") + 1])] = pid
        return found

    def end(self, number: signal.Signals) -> int:
        self.process.send_signal(number)
        out, log = self.process.communicate(timeout=TIMEOUT_SECONDS)
        assert out == ""
        self.log.append(log)
        return self.process.returncode


@contextmanager
def supervised(directory: Path, *arguments: str) -> Iterator[Supervised]:
    command = [sys.executable, "-m", "culver", "serve", "--no-http", *arguments]
    with subprocess.Popen(
        command, cwd=directory, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        give_up = threading.Timer(TIMEOUT_SECONDS, process.kill)  # a readline that never comes fails the test
        give_up.start()
        try:
            yield Supervised(process, process.stdout.readline())
        finally:
            process.kill()
            give_up.cancel()
            give_up.join()


def ended(pids: list[int]) -> bool:
    """Whether these processes, which are not ours to wait for, have all gone in good time."""
    for pid in pids:
        try:
            descriptor = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not select.select([descriptor], [], [], TIMEOUT_SECONDS)[0]:
                return False
        finally:
            os.close(descriptor)
    return True


def test_one_ready_line_names_every_broker_and_a_signal_ends_them_all(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "3", "--listen", "127.0.0.1:0", "--broker-id", "5") as supervisor:
        ready, addresses, ids, data = supervisor.ready_line.split()
        assert (ready, ids, data) == ("ready", "brokers=5,6,7", "data=./culver-data")
        assert len(set(addresses.split(","))) == 3
        for address in addresses.split(","):
            host, port = address.split(":")
            socket.create_connection((host, int(port))).close()
        brokers = supervisor.brokers()
        assert sorted(brokers) == [5, 6, 7]
        assert supervisor.end(signal.SIGTERM) == 0
    assert ended(list(brokers.values()))
    for broker_id in (5, 6, 7):
        assert (tmp_path / "culver-data" / f"broker-{broker_id}" / "clean-shutdown").exists()


def test_a_dead_broker_is_started_again_at_the_same_address(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "2", "--listen", "127.0.0.1:0") as supervisor:
        _, address = supervisor.ready_line.split()[1].split(",")
        before = supervisor.brokers()
        os.kill(before[2], signal.SIGKILL)
        assert "broker=2" in supervisor.wait_for_log("died and is started again .*SIGKILL")
        assert address in supervisor.wait_for_log("is ready again")
        after = supervisor.brokers()
        assert after[1] == before[1]
        assert after[2] != before[2]
        assert supervisor.end(signal.SIGINT) == 0


def test_the_brokers_die_with_the_supervisor(tmp_path: Path) -> None:
    with supervised(tmp_path, "--brokers", "2", "--listen", "127.0.0.1:0") as supervisor:
        brokers = list(supervisor.brokers().values())
        assert len(brokers) == 2
        supervisor.end(signal.SIGKILL)
    assert ended(brokers)


def test_a_broker_that_cannot_start_ends_everything_with_its_exit_code(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with supervised(tmp_path, "--brokers", "2", "--listen", f"127.0.0.1:{port - 1}") as supervisor:
            assert supervisor.ready_line == ""
            _, log = supervisor.process.communicate(timeout=TIMEOUT_SECONDS)
    assert supervisor.process.returncode == ExitCode.IN_USE
    assert f"cannot listen on 127.0.0.1:{port}: another process does" in log
    assert "Traceback" not in log


def refused(directory: Path, *arguments: str) -> str:
    command = [sys.executable, "-m", "culver", "serve", "--no-http", *arguments]
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == ExitCode.USAGE
    return done.stderr


def test_a_directory_of_one_broker_is_not_taken_for_one_of_several_nor_the_reverse(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "lock").touch()
    assert "one holds the data of a single broker" in refused(
        tmp_path, "--brokers", "2", "--data-dir", "one", "--listen", "127.0.0.1:0"
    )
    for name in ("broker-1", "broker-2"):
        (tmp_path / "several" / name).mkdir(parents=True)
        (tmp_path / "several" / name / "lock").touch()
    assert "several holds the data of several brokers: broker-1, broker-2" in refused(
        tmp_path, "--data-dir", "several", "--listen", "127.0.0.1:0"
    )


def test_ports_end_somewhere(tmp_path: Path) -> None:
    assert "would be 65536" in refused(tmp_path, "--brokers", "2", "--listen", "127.0.0.1:65535")


def test_a_store_that_nobody_knows_is_refused_with_what_could_be_meant(tmp_path: Path) -> None:
    complaint = refused(tmp_path, "--coordination", "zk://here:2181", "--listen", "127.0.0.1:0")
    assert "culver.coordination: 'zk://here:2181' is none of local, local:FILE and zookeeper://" in complaint


def test_what_a_metadata_store_may_be_called() -> None:
    for good in (
        "local",
        "local:/var/lib/culver/metadata.sqlite",
        "zookeeper://a:1,[::1]:2/x",
        "zookeeper://a:1",
    ):
        assert coordination_fault(good) is None
    for bad in (
        "",
        "local:",
        "zookeeper:a:1",
        "zookeeper://",
        "zookeeper://a:b",
        "zookeeper://a:1,/x",
        "http://a:1",
    ):
        assert coordination_fault(bad) is not None
