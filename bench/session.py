"""One run of the benchmarks: how much is measured, which brokers take part, and where the rows go."""

from __future__ import annotations

import os
import re
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import TypeVar

from anchors.broker_process import BrokerProcess
from anchors.culver import Culver
from anchors.kafka import Kafka

from bench.table import Comparison, Report

T = TypeVar("T")


@dataclass(frozen=True)
class Scale:
    """How long and how much: the full scale takes about ten minutes, the quick one two or three."""

    rounds: int
    seconds: float
    warm_up_seconds: float
    fetch_log_bytes: int
    librdkafka_bytes: int
    starts: int
    topics: int
    partitions: int
    restarts: int
    growth_partitions: int
    growth_log_bytes: int
    cold_read_bytes: int
    idle_connections: int
    spark_bytes: int


FULL = Scale(
    rounds=3,
    seconds=1.5,
    warm_up_seconds=3.0,
    fetch_log_bytes=500_000_000,
    librdkafka_bytes=400_000_000,
    starts=3,
    topics=1000,
    partitions=1200,
    restarts=3,
    growth_partitions=1000,
    growth_log_bytes=10_000_000_000,
    cold_read_bytes=5_000_000_000,
    idle_connections=1000,
    spark_bytes=1_000_000_000,
)
QUICK = Scale(
    rounds=1,
    seconds=0.5,
    warm_up_seconds=1.0,
    fetch_log_bytes=100_000_000,
    librdkafka_bytes=100_000_000,
    starts=1,
    topics=100,
    partitions=300,
    restarts=1,
    growth_partitions=1000,
    growth_log_bytes=500_000_000,
    cold_read_bytes=400_000_000,
    idle_connections=1000,
    spark_bytes=100_000_000,
)

# Both sides without an fsync per acknowledgement, and with one. Kafka's are the topic-level names of
# log.flush.interval.messages; deleted files go at once on both sides, so that no round pays for the last one.
FLUSH: dict[str, dict[bool, dict[str, str]]] = {
    "Culver": {False: {"culver.flush": "os"}, True: {"culver.flush": "always"}},
    "Kafka": {False: {}, True: {"flush.messages": "1"}},
}
DELETE_AT_ONCE = {"file.delete.delay.ms": "0"}


def topic_configuration(broker: BrokerProcess, fsync: bool = False) -> dict[str, str]:
    return {**DELETE_AT_ONCE, **FLUSH[broker.name][fsync]}


class Session:
    """What every group of rows is given."""

    def __init__(
        self, scale: Scale, directory: Path, report: Report, pattern: str, with_culver: bool, with_kafka: bool
    ) -> None:
        self.scale = scale
        self.directory = directory
        self.report = report
        self._pattern = re.compile(pattern)
        self._classes: list[type[Culver] | type[Kafka]] = []
        if with_culver:
            self._classes.append(Culver)
        if with_kafka:
            self._classes.append(Kafka)

    @property
    def names(self) -> list[str]:
        return [broker.name for broker in self._classes]

    def wanted(self, group: str, label: str) -> bool:
        return self._pattern.search(f"{group}: {label}") is not None

    def new_broker(self, name: str, settings: Mapping[str, str] | None = None) -> BrokerProcess:
        """A broker of that name, not started yet."""
        kind = next(broker for broker in self._classes if broker.name == name)
        return kind(settings, directory=self.directory)

    @contextmanager
    def brokers(self) -> Iterator[list[BrokerProcess]]:
        """One started broker of each kind, with its defaults."""
        with ExitStack() as stack:
            yield [stack.enter_context(self.new_broker(name)) for name in self.names]

    def alternate(
        self, brokers: list[BrokerProcess], rounds: int, measure: Callable[[BrokerProcess], T]
    ) -> dict[str, list[T]]:
        """Measures the brokers in turn, round by round, so that a slow minute of the machine hits both."""
        results: dict[str, list[T]] = {broker.name: [] for broker in brokers}
        for _ in range(rounds):
            for broker in brokers:
                settle()
                results[broker.name].append(measure(broker))
        return results

    def compare(
        self,
        group: str,
        label: str,
        unit: str,
        values: Mapping[str, list[float]],
        *,
        higher_is_better: bool,
        target: float | None = None,
    ) -> None:
        """Adds a row with the median of each broker's rounds."""
        middle = {name: median(rounds) for name, rounds in values.items() if rounds}
        row = Comparison(
            group, label, unit, middle.get("Culver"), middle.get("Kafka"), higher_is_better, target
        )
        self.report.comparisons.append(row)
        shown = ", ".join(f"{name} {value:.4g}" for name, value in middle.items())
        progress(f"{group}: {label}: {shown} {unit}")

    def skip(self, group: str, label: str, reason: str) -> None:
        self.report.comparisons.append(Comparison(group, label, "", None, None, True, skipped=reason))
        progress(f"{group}: {label}: left out: {reason}")


def settle() -> None:
    """Waits for the disk to be idle: what the last load left dirty must not slow the next one."""
    os.sync()


_BEGUN = time.monotonic()


def progress(text: str) -> None:
    print(f"[{time.monotonic() - _BEGUN:5.0f} s] {text}", file=sys.stderr, flush=True)
