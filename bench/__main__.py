"""`python -m bench`: runs every group of rows and prints the table."""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import time
from pathlib import Path

from anchors import Unavailable, kafka

from bench import (
    cluster,
    fetch,
    footprint,
    growth,
    http,
    latency,
    librdkafka,
    limits,
    load,
    produce,
    push,
    search,
    spark,
    transactions,
)
from bench.session import FULL, QUICK, Session, progress
from bench.table import Report

QUIET_LOAD_AVERAGE = 0.5


def main() -> int:
    options = _options()
    report = Report()
    scale = QUICK if options.quick else FULL
    with_kafka = not options.no_kafka and _kafka_available(report)
    report.settings = {**_machine(), **_settings(with_kafka, options.quick), **report.settings}
    begun = time.monotonic()
    busy_before = os.getloadavg()[0]
    with tempfile.TemporaryDirectory(prefix="culver-bench-", dir=options.directory) as directory:
        session = Session(
            scale,
            Path(directory),
            report,
            options.only,
            with_culver=not options.no_culver,
            with_kafka=with_kafka,
        )
        _measure(session)
    report.settings["took"] = f"{time.monotonic() - begun:.0f} s; load average before it {busy_before:.1f}"
    if busy_before > QUIET_LOAD_AVERAGE:
        report.notes.append(
            "The machine was busy with something else when this began: do not trust the ratios."
        )
    print(report.markdown())
    for label in report.missed():
        print(f"missed: {label}")
    if options.json:
        Path(options.json).write_text(json.dumps(report.as_json(), indent=2) + "\n")
    return 0


def _measure(session: Session) -> None:
    footprint.run(session)
    machine = None
    loads = (produce, latency, fetch, librdkafka, http, push)
    if any(session.wanted(group.GROUP, label) for group in loads for label in group.labels()):
        with session.brokers() as brokers:
            for broker in brokers:
                produce.warm_up(session, broker)
            # Beside the rows that it bounds: memory that a virtual machine has never touched is slower.
            machine = limits.measure(session)
            for group in loads:
                group.run(session, brokers)
            footprint.memory_loaded(session, brokers)
    else:
        limits.measure(session)
    transactions.run(session)
    growth.run(session)
    cluster.run(session)
    spark.run(session)
    search.run(session)
    if machine is not None:
        limits.distances(session, machine)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench", description="Culver and Apache Kafka, same machine, same load, one table."
    )
    parser.add_argument("--quick", action="store_true", help="one short round, under three minutes")
    parser.add_argument("--only", default="", metavar="PATTERN", help="rows whose 'group: label' matches")
    parser.add_argument("--no-kafka", action="store_true", help="Culver alone")
    parser.add_argument("--no-culver", action="store_true", help="Kafka alone")
    parser.add_argument("--json", metavar="FILE", help="also write every row and setting there")
    parser.add_argument("--directory", metavar="DIR", help="where data is written (default: $TMPDIR)")
    return parser.parse_args()


def _kafka_available(report: Report) -> bool:
    try:
        kafka.jars()
    except Unavailable as reason:
        report.notes.append(f"Kafka left out: {reason}")
        progress(f"Kafka left out: {reason}")
        return False
    return True


def _machine() -> dict[str, str]:
    return {
        "machine": f"{os.cpu_count()} cores, {_cpu_model()}, {_memory_gb():.0f} GB",
        "system": f"{platform.system()} {platform.release()}, Python {platform.python_version()}",
    }


def _settings(with_kafka: bool, quick: bool) -> dict[str, str]:
    settings = {
        "command": "python -m bench " + " ".join(sys.argv[1:]),
        "load": f"one connection from the same machine, generator in {load.generator()}; messages of 100 B; "
        f"batches with {produce.BATCHES_IN_FLIGHT} requests in flight, fetches with {fetch.IN_FLIGHT}",
        "flush": "without fsync: Culver culver.flush=os, Kafka its defaults; "
        "with fsync: Culver culver.flush=always, Kafka log.flush.interval.messages=1 "
        "(through its topic setting flush.messages)",
        "rounds": "one short round" if quick else f"median of {FULL.rounds} rounds, the brokers in turn",
    }
    if with_kafka:
        settings["Kafka"] = f"{kafka.VERSION}, one KRaft node, {' '.join(kafka.BROKER_JVM_FLAGS)}"
    return settings


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _memory_gb() -> float:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 1e9


if __name__ == "__main__":
    sys.exit(main())
