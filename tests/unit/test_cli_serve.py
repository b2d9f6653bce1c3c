"""`culver serve` as a process: when it is ready, how it ends, and what it says when it cannot start."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from culver.cli.failure import ExitCode
from culver.testing import Broker

STOP_SECONDS = 2.0
TIMEOUT_SECONDS = 30


def serve(directory: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "culver", "serve", "--no-http", *arguments],
        cwd=directory,
        env=os.environ | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@contextmanager
def served(
    directory: Path, *arguments: str, **environment: str
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A broker that is ready, and the line in which it said so."""
    with serve(directory, *arguments, **environment) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline()
        finally:
            process.kill()


def refused(directory: Path, *arguments: str, **environment: str) -> tuple[int, str]:
    """The exit code and the complaint of a broker that does not start."""
    with serve(directory, *arguments, **environment) as process:
        out, complaint = process.communicate(timeout=TIMEOUT_SECONDS)
    assert out == ""
    assert "Traceback" not in complaint
    assert complaint.startswith("culver: ")
    return process.returncode, complaint


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_broker_cleanly_and_soon(tmp_path: Path, number: signal.Signals) -> None:
    with served(tmp_path, "--listen", "127.0.0.1:0") as (process, line):
        ready, address, *_ = line.split()
        assert ready == "ready"
        host, port = address.split(":")
        with socket.create_connection((host, int(port))):
            begun = time.monotonic()
            process.send_signal(number)
            out, log = process.communicate(timeout=TIMEOUT_SECONDS)
            assert time.monotonic() - begun < STOP_SECONDS
    assert (process.returncode, out, log) == (0, "", "")
    assert (tmp_path / "culver-data").is_dir()


def test_the_file_the_environment_and_the_flags_beat_one_another(tmp_path: Path) -> None:
    (tmp_path / "culver.toml").write_text(
        'data.dir = "from-file"\nnum.partitions = 2\nlisten = "127.0.0.1:0"\n'
    )
    with served(tmp_path, "--config", "culver.toml") as (_, line):
        assert line.startswith("ready 127.0.0.1:")
    assert (tmp_path / "from-file").is_dir()
    with served(tmp_path, CULVER_CONFIG="culver.toml", CULVER_DATA_DIR="from-environment"):
        assert (tmp_path / "from-environment").is_dir()
    with served(
        tmp_path, "--config", "culver.toml", "--data-dir", "flag", CULVER_DATA_DIR="from-environment"
    ):
        assert (tmp_path / "flag").is_dir()


def test_the_advertised_address_is_the_one_to_give_to_clients(tmp_path: Path) -> None:
    arguments = ["--listen", "127.0.0.1:0", "--advertise", "broker.example:19092"]
    with served(tmp_path, *arguments) as (_, line):
        assert line.startswith("ready broker.example:19092 ")


def test_a_data_directory_in_use_is_refused(tmp_path: Path) -> None:
    with Broker() as broker:
        code, complaint = refused(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", str(broker.data_dir))
    assert code == ExitCode.IN_USE
    assert str(broker.bootstrap_servers) not in complaint
    assert "another broker is running on the data directory" in complaint


def test_a_port_in_use_is_refused(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        code, complaint = refused(tmp_path, "--listen", address)
    assert code == ExitCode.IN_USE
    assert complaint.startswith(f"culver: cannot listen on {address}: another process does\n")
    assert "--listen" in complaint.splitlines()[1]


def test_an_address_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    code, complaint = refused(tmp_path, "--listen", "192.0.2.1:0")
    assert code == ExitCode.FAILED
    assert complaint.startswith("culver: cannot listen on 192.0.2.1:0: ")


def test_a_data_directory_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    code, complaint = refused(tmp_path, "--listen", "127.0.0.1:0", "--data-dir", "file/data")
    assert code == ExitCode.FAILED
    assert complaint.startswith("culver: cannot use the data directory file/data: ")


@pytest.mark.parametrize(
    ("arguments", "environment", "complaint"),
    [
        (["--set", "num.partitoins=3"], {}, "did you mean num.partitions?"),
        (["--set", "num.partitions=many"], {}, "num.partitions: 'many' is not a whole number"),
        (["--set", "num.partitions=0"], {}, "num.partitions: 0 is too small"),
        (["--listen", "nonsense"], {}, "listen: 'nonsense' is not HOST:PORT"),
        (["--config", "missing.toml"], {}, "missing.toml"),
        (["--config", "broken.toml"], {}, "broken.toml"),
        ([], {"CULVER_NUM_PARTITIONS": "x"}, "CULVER_NUM_PARTITIONS"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_configuration_that_cannot_be_used_is_refused_with_the_reason(
    tmp_path: Path, arguments: list[str], environment: dict[str, str], complaint: str
) -> None:
    (tmp_path / "broken.toml").write_text("= nonsense")
    code, text = refused(tmp_path, *arguments, **environment)
    assert code == ExitCode.USAGE
    assert text.startswith("culver: the configuration cannot be used: ")
    assert complaint in text


def test_a_data_directory_of_another_broker_is_refused(tmp_path: Path) -> None:
    with served(tmp_path, "--listen", "127.0.0.1:0") as (process, _):
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
    code, complaint = refused(tmp_path, "--listen", "127.0.0.1:0", "--broker-id", "7")
    assert code == ExitCode.USAGE
    assert "belongs to broker 1, and this is broker 7" in complaint


def test_a_metadata_file_that_cannot_be_used_is_refused(tmp_path: Path) -> None:
    code, complaint = refused(
        tmp_path, "--listen", "127.0.0.1:0", "--coordination", "local:no/such/directory/metadata.sqlite"
    )
    assert code == ExitCode.FAILED
    assert "no/such/directory/metadata.sqlite" in complaint
