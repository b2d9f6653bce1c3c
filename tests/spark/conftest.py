"""One Spark session for all tests of this directory: starting a JVM takes longer than most of them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from pyspark import SparkContext
from pyspark.sql import SparkSession

from culver.testing import leaks

SETTINGS = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.driver.memory": "1g",
    # Short queries end before the better compiler has paid for itself.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.shuffle.partitions": "2",
    "spark.default.parallelism": "2",
    "spark.sql.session.timeZone": "UTC",
    # Streams look for new data at once, and wait for little when there is none.
    "spark.sql.streaming.pollingDelay": "10ms",
    "spark.sql.streaming.noDataProgressEventInterval": "1s",
}


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    """A session on local[2]."""
    # Spark starts Python workers with whatever `python3` is on the path, unless told otherwise.
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master("local[2]").appName("culver-tests")
    for name, value in SETTINGS.items():
        builder = builder.config(name, value)
    session = builder.config(
        "spark.sql.warehouse.dir", str(tmp_path_factory.mktemp("warehouse"))
    ).getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
    end_gateway()


def end_gateway() -> None:
    """Spark leaves its JVM running until the interpreter ends; the next session may need another."""
    gateway: Any = SparkContext._gateway
    if gateway is not None:
        gateway.shutdown()
        gateway.proc.stdin.close()
        gateway.proc.wait(30)
        SparkContext._gateway = None
        SparkContext._jvm = None


@pytest.fixture(autouse=True)
def no_leaks() -> Iterator[None]:
    """As everywhere, but the connections that Py4J keeps to the JVM, and its threads, are the session's."""
    before = leaks.Resources.now()
    yield
    if SparkContext._gateway is None:
        with leaks.forbidden():
            return
    after = leaks.Resources.now()
    new = after.processes.keys() - before.processes.keys()
    assert not new, f"left behind: {[after.processes[pid] for pid in new]}"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The first query of a session may take a minute when other work keeps the machine busy."""
    for item in items:
        if "spark" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.timeout(300))
