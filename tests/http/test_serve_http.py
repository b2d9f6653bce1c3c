"""`culver serve` and its gateway: started beside it, started again, ended with it, and never in its way."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from http_client import TIMEOUT_SECONDS, call, post_json

from culver.cli.failure import ExitCode
from culver.testing import Broker
from culver.testing.cluster import free_port


def serve(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "culver", "serve", "--listen", "127.0.0.1:0", *arguments],
        cwd=directory,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def served(directory: Path, *arguments: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process that serves, and the address of its gateway."""
    with serve(directory, "--http", "127.0.0.1:0", *arguments) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline().startswith("ready ")
            word, url = process.stdout.readline().split()
            assert word == "http"
            yield process, url
        finally:
            process.kill()


def gateways(parent: int) -> list[psutil.Process]:
    return [child for child in psutil.Process(parent).children() if "gateway" in child.cmdline()]


def wait_until(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + TIMEOUT_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not in time: {what}"
        time.sleep(0.02)


def test_the_gateway_ends_with_the_broker_and_leaves_no_process(tmp_path: Path) -> None:
    with served(tmp_path) as (process, url):
        assert post_json(url, "/topics/orders", 1).status == 200
        (gateway,) = gateways(process.pid)
        process.send_signal(signal.SIGTERM)
        _, log = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, log) == (0, "")
        assert not gateway.is_running()


def test_a_reader_that_wants_the_first_line_only_does_not_end_the_gateway(tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_port()}"
    with serve(tmp_path, "--http", address) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        process.stdout.close()
        assert post_json(f"http://{address}", "/topics/orders", 1).status == 200
        process.terminate()
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_told_to_stop_while_the_gateway_is_still_starting_both_end(tmp_path: Path) -> None:
    with serve(tmp_path, "--http", "127.0.0.1:0") as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        wait_until(lambda: gateways(process.pid) != [], "the gateway is started")
        (gateway,) = gateways(process.pid)
        process.terminate()
        _, log = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, log) == (0, "")
        assert not gateway.is_running()


def test_a_broker_that_is_killed_takes_its_gateway_along(tmp_path: Path) -> None:
    with served(tmp_path) as (process, _):
        (gateway,) = gateways(process.pid)
        process.kill()
        wait_until(lambda: not gateway.is_running(), "the gateway is gone")


def test_a_gateway_that_dies_and_a_broker_that_is_restarted_serve_at_the_same_address() -> None:
    with Broker(http=True) as broker:
        url = broker.http_url
        (first,) = gateways(broker.pid)
        first.kill()
        # The socket outlives the process: the request waits for the next one.
        assert post_json(url, "/topics/orders", 1).status == 200
        (second,) = gateways(broker.pid)
        assert second.pid != first.pid
        assert "gateway died and is started again" in broker.log_text
        broker.restart()
        assert broker.http_url == url
        assert post_json(url, "/topics/orders", 1).json["offsets"][0]["offset"] == 1


def test_several_brokers_have_one_gateway(tmp_path: Path) -> None:
    with served(tmp_path, "--brokers", "2") as (process, url):
        assert call(url, "GET", "/brokers").json == {"brokers": [1, 2]}
        (gateway,) = gateways(process.pid)
        brokers = [child for child in psutil.Process(process.pid).children() if child.pid != gateway.pid]
        assert len(brokers) == 2
        assert not any(gateways(broker.pid) for broker in brokers)
        process.send_signal(signal.SIGTERM)
        assert process.wait(TIMEOUT_SECONDS) == 0
        assert not gateway.is_running()


def test_an_address_that_was_asked_for_and_is_taken_stops_the_start(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        for arguments, environment in ((["--http", address], {}), ([], {"CULVER_HTTP_LISTEN": address})):
            with serve(tmp_path, *arguments, **environment) as process:
                _, complaint = process.communicate(timeout=TIMEOUT_SECONDS)
            assert process.returncode == ExitCode.IN_USE
            assert complaint.startswith(
                f"culver: cannot listen on {address} for HTTP: another process does\n"
            )


def test_a_default_address_that_is_taken_means_a_warning_and_no_http(tmp_path: Path) -> None:
    # Nobody else may be using the default port while this test does.
    try:
        taken = socket.create_server(("127.0.0.1", 8080))
    except OSError:
        taken = None  # somebody is, which serves as well
    try:
        with serve(tmp_path) as process:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("ready ")
            assert gateways(process.pid) == []
            process.terminate()
            out, log = process.communicate(timeout=TIMEOUT_SECONDS)
    finally:
        if taken is not None:
            taken.close()
    assert (process.returncode, out) == (0, "")
    assert "no HTTP API and no console" in log
    assert "address=127.0.0.1:8080" in log


@pytest.mark.parametrize(
    "arguments", [["--no-http"], ["--set", "culver.http.enable=false"]], ids=["flag", "setting"]
)
def test_no_http_is_no_gateway(tmp_path: Path, arguments: list[str]) -> None:
    with serve(tmp_path, *arguments) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("ready ")
        assert psutil.Process(process.pid).children() == []
        process.terminate()
        out, _ = process.communicate(timeout=TIMEOUT_SECONDS)
        assert (process.returncode, out) == (0, "")


def test_the_broker_loads_nothing_of_the_gateway() -> None:
    script = (
        "import sys, culver.cli.main, culver.cli.serve, culver.cli.gateway_process, culver.broker.process;"
        "print(*sys.modules)"
    )
    loaded = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True).stdout
    heavy = {"starlette", "uvicorn", "aiohttp", "confluent_kafka", "culver.gateway"}
    assert heavy & set(loaded.split()) == set()


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (
            ["--set", "culver.http.body.max.bytes=much"],
            "the configuration cannot be used: culver.http.body.max.bytes: 'much' is not a whole number",
        ),
        (
            ["-X", "no.such.setting=1"],
            'the Kafka client cannot be used: No such configuration property: "no.such',
        ),
        (["-b", "nowhere:port"], "'nowhere:port' is no broker address"),
    ],
    ids=["setting", "client setting", "cluster"],
)
def test_a_gateway_that_cannot_work_with_what_it_is_told_says_so(
    arguments: list[str], complaint: str
) -> None:
    command = [sys.executable, "-m", "culver", "gateway", "--http", "127.0.0.1:0", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=TIMEOUT_SECONDS)
    assert done.returncode == ExitCode.USAGE
    assert f"culver: {complaint}" in done.stderr
    assert "Traceback" not in done.stderr
