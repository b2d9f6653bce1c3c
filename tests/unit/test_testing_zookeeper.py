"""culver.testing.ZooKeeper: a real server that starts fast, keeps its data, and says what it lacks."""

from __future__ import annotations

import importlib.util
import os
import signal
import subprocess
import sys
import time

import psutil
import pytest
from kazoo.client import KazooClient

from culver.testing import ZooKeeper, ZooKeeperFailed


def ask(zookeeper: ZooKeeper, *, set_to: bytes | None = None) -> bytes:
    client = KazooClient(zookeeper.address, timeout=5)
    client.start()
    try:
        if set_to is not None:
            client.create("/kept", set_to)
        value: bytes = client.get("/kept")[0]
        return value
    finally:
        client.stop()
        client.close()


def test_port_and_data_stay_through_kill_and_stop() -> None:
    with ZooKeeper() as zookeeper:
        address = zookeeper.address
        ask(zookeeper, set_to=b"1")
        zookeeper.kill()
        zookeeper.start()
        assert ask(zookeeper) == b"1"
        zookeeper.stop()
        zookeeper.start()
        assert ask(zookeeper) == b"1"
        assert zookeeper.address == address
        zookeeper.suspend()
        assert psutil.Process(zookeeper.pid).status() == psutil.STATUS_STOPPED
        zookeeper.resume()
        assert ask(zookeeper) == b"1"
        zookeeper.suspend()  # it is ended all the same


def test_it_dies_with_the_process_that_started_it() -> None:
    program = (
        "from culver.testing import ZooKeeper; z = ZooKeeper().start(); print(z.pid, flush=True); input()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as starter:
        assert starter.stdout is not None
        server = psutil.Process(int(starter.stdout.readline()))
        directory = server.cwd()
        os.kill(starter.pid, signal.SIGKILL)
        server.wait(10)
    subprocess.run(["rm", "-r", directory], check=True)


def test_without_java_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ZooKeeperFailed, match="needs Java"):
        ZooKeeper().start()


def test_without_pyspark_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _name: None)
    with pytest.raises(ZooKeeperFailed, match="pip install pyspark"):
        ZooKeeper().start()


def test_a_server_that_cannot_start_says_why() -> None:
    with ZooKeeper() as first:
        second = ZooKeeper()
        second._port = int(first.address.rpartition(":")[2])
        started = time.monotonic()
        with pytest.raises(ZooKeeperFailed, match="Address already in use"):
            second.start()
        assert time.monotonic() - started < 20
        second.close()


def test_a_broker_without_zookeeper_does_not_load_its_client() -> None:
    program = "import sys, culver.cli.main, culver.broker.process; print('kazoo' in sys.modules)"
    run = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
