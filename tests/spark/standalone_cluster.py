"""A Spark cluster of its own kind, "standalone": a master and workers, each a process, started and ended."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

START_SECONDS = 90
STOP_SECONDS = 30
POLL_SECONDS = 0.05
HOST = "127.0.0.1"


@contextmanager
def standalone_cluster(directory: Path, workers: int) -> Iterator[str]:
    """The address of the master, once all workers have joined it."""
    home = Path(pyspark.__file__).parent
    address = f"spark://{HOST}:{_free_port()}"
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "SPARK_DAEMON_MEMORY": "256m",
        "SPARK_DAEMON_JAVA_OPTS": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "SPARK_LOCAL_DIRS": str(directory / "local"),
        "PYSPARK_PYTHON": sys.executable,
    }
    started: list[subprocess.Popen[bytes]] = []

    def start(name: str, classname: str, *arguments: str) -> Path:
        log = directory / f"{name}.log"
        command = [str(home / "bin" / "spark-class"), f"org.apache.spark.deploy.{classname}", "--host", HOST]
        with log.open("wb") as output:
            started.append(
                subprocess.Popen(
                    [*command, "--webui-port", "0", *arguments],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env=environment,
                )
            )
        return log

    try:
        _wait_for(
            start("master", "master.Master", "--port", address.rpartition(":")[2]),
            "I have been elected leader",
        )
        logs = [
            start(
                f"worker-{number}",
                "worker.Worker",
                "--cores",
                "1",
                "--memory",
                "1g",
                "--work-dir",
                str(directory / f"work-{number}"),
                address,
            )
            for number in range(workers)
        ]
        for log in logs:
            _wait_for(log, "Successfully registered with master")
        yield address
    finally:
        # Workers first: a worker that is told to stop ends its executors.
        for process in reversed(started):
            process.terminate()
        for process in started:
            try:
                process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(log: Path, text: str) -> None:
    deadline = time.monotonic() + START_SECONDS
    while text not in log.read_text():
        if time.monotonic() > deadline:
            raise TimeoutError(f"{log.name} does not say {text!r}:\n{log.read_text()[-2000:]}")
        time.sleep(POLL_SECONDS)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port
