"""Rows: costs that should stay flat as partitions, log, connections and cold readers grow."""

from __future__ import annotations

import os
import resource
from contextlib import ExitStack
from statistics import median

from anchors import Unavailable
from anchors.broker_process import BrokerProcess

from bench import fetch, load, wire
from bench.administration import Connection
from bench.load import Load, LoadResult, RunningLoad
from bench.session import Session, progress, settle, topic_configuration
from bench.table import Growth

GROUP = "growth"
MESSAGE_BYTES = 100
# Flat means that a factor of a thousand in size shows as less than noise does on a shared machine.
FLAT = 1.25
COLD_READ_TARGET = 2.0
PACED_REQUESTS_PER_SECOND = 500
COLD_READ_SECONDS_MAX = 300.0
LOG_SMALL_BYTES = 1_000_000
FILL_BATCH_BYTES = 1_000_000


def run(session: Session) -> None:
    """Culver alone, for a factor is taken on one broker, not between two; Kafka when it runs alone."""
    for name in session.names[:1]:
        steps = (("partitions", _partitions), ("log", _log_and_cold_read), ("connections", _idle_connections))
        for label, step in steps:
            if session.wanted(GROUP, label):
                settle()
                with session.new_broker(name) as broker:
                    step(session, broker)


def _add(session: Session, row: Growth) -> None:
    session.report.growths.append(row)
    progress(f"{GROUP}: {row.broker}: {row.label}: {row.small:.4g} to {row.large:.4g} {row.unit}")


def _target(broker: BrokerProcess, target: float) -> float | None:
    """Only Culver has targets here; Kafka's rows are beside them for scale."""
    return target if broker.name == "Culver" else None


def _partitions(session: Session, broker: BrokerProcess) -> None:
    """The cost of a record in 10 KB batches, spread over one partition and over many."""
    many = session.scale.growth_partitions
    batch, messages = wire.batch_of_bytes(10_240, MESSAGE_BYTES)
    requests = {}
    with Connection(broker.address) as connection:
        for count in (1, many):
            topic = f"spread-{count}"
            connection.create_topic(topic, count, topic_configuration(broker))
            for partition in range(count):
                connection.await_partition(topic, partition)
            requests[count] = [wire.produce_request(topic, partition, batch, 1) for partition in range(count)]
    costs_ns: dict[int, list[float]] = {1: [], many: []}
    for count, prepared in requests.items():  # unmeasured, every partition a few times
        warming = Load(prepared, wire.PRODUCE_ERROR_OFFSET + len(f"spread-{count}"), 5, requests_max=3 * many)
        load.run(broker, warming, session.directory)
    for _ in range(session.scale.rounds):
        for count, prepared in requests.items():
            settle()
            offset = wire.PRODUCE_ERROR_OFFSET + len(f"spread-{count}")
            measured = Load(prepared, offset, 5, seconds_max=session.scale.seconds)
            result = load.run(broker, measured, session.directory)
            costs_ns[count].append(result.seconds / (result.requests * messages) * 1e9)
    row = Growth(
        broker.name,
        f"produce, 1 to {many} partitions",
        "ns/record",
        median(costs_ns[1]),
        median(costs_ns[many]),
        _target(broker, FLAT),
    )
    _add(session, row)


def _log_and_cold_read(session: Session, broker: BrokerProcess) -> None:
    """Produce and fetch with 1 MB and with gigabytes in the log, then a cold read of it beside a producer."""
    short, long = "short", "long"
    batch, messages = wire.batch_of_bytes(FILL_BATCH_BYTES, MESSAGE_BYTES)
    batches = session.scale.growth_log_bytes // len(batch)
    progress(f"{GROUP}: {broker.name}: filling {session.scale.growth_log_bytes / 1e9:g} GB")
    fetch.fill(session, broker, long, batch, batches)
    fetch.fill(session, broker, short, batch, max(1, LOG_SMALL_BYTES // len(batch)))
    # Near the end, where an offset takes an index look-up in the last segment and is still in memory.
    offsets = {short: 1, long: 1 + max(0, batches - 100) * messages}
    fetches: dict[str, list[float]] = {short: [], long: []}
    produces: dict[str, list[float]] = {short: [], long: []}
    # In turn on the same broker, so that only the length of the log differs. The first round is unmeasured.
    for _ in range(1 + session.scale.rounds):
        for topic in (short, long):
            fetches[topic].append(_fetch_cost_us(session, broker, topic, offsets[topic], len(batch)))
    for _ in range(1 + session.scale.rounds):
        for topic in (short, long):
            produces[topic].append(_produce_cost_us(session, broker, topic))
    size = f"1 MB to {session.scale.growth_log_bytes / 1e9:g} GB of log"
    for label, costs in (("produce 10 KB", produces), ("fetch 1 MB", fetches)):
        small, large = median(costs[short][1:]), median(costs[long][1:])
        _add(session, Growth(broker.name, f"{label}, {size}", "us", small, large, _target(broker, FLAT)))
    try:
        _cold_read(session, broker, long, len(batch), messages)
    except Unavailable as reason:
        session.report.notes.append(f"cold read left out: two loads at once need the C generator: {reason}")


def _produce_cost_us(session: Session, broker: BrokerProcess, topic: str) -> float:
    """The time per 10 KB request."""
    batch, _ = wire.batch_of_bytes(10_240, MESSAGE_BYTES)
    request = wire.produce_request(topic, 0, batch, 1)
    once = Load([request], wire.PRODUCE_ERROR_OFFSET + len(topic), 5, seconds_max=session.scale.seconds / 2)
    settle()
    result = load.run(broker, once, session.directory)
    return result.seconds / result.requests * 1e6


def _fetch_cost_us(session: Session, broker: BrokerProcess, topic: str, offset: int, size: int) -> float:
    """The median time of the same fetch, again and again."""
    request = wire.fetch_request(topic, 0, offset, size)
    error_offset = wire.FETCH_ERROR_OFFSET + len(topic)
    seconds = session.scale.seconds / 2
    again = Load([request], error_offset, 1, seconds_max=seconds, response_bytes_min=size)
    return load.run(broker, again, session.directory).p50_us


def _cold_read(session: Session, broker: BrokerProcess, topic: str, size: int, messages: int) -> None:
    """p99 of a paced producer on another topic, alone and while a consumer reads gigabytes from disk."""
    other = "others"
    with Connection(broker.address) as connection:
        connection.create_topic(other, 1, topic_configuration(broker))
    _paced(session, broker, other, session.scale.seconds).result()  # unmeasured
    idle = _paced(session, broker, other, session.scale.seconds * 4).result()
    count = session.scale.cold_read_bytes // size
    offsets = range(1, 1 + count * messages, messages)
    reading = Load(
        [wire.fetch_request(topic, 0, offset, size) for offset in offsets],
        wire.FETCH_ERROR_OFFSET + len(topic),
        1,
        requests_max=count,
        response_bytes_min=size,
    )
    drop_from_page_cache(broker)
    producer = _paced(session, broker, other, COLD_READ_SECONDS_MAX)
    read = load.run(broker, reading, session.directory)
    beside = producer.stop()
    gigabytes = session.scale.cold_read_bytes / 1e9
    label = f"produce p99, alone to beside a cold read of {gigabytes:g} GB"
    _add(
        session,
        Growth(broker.name, label, "us", idle.p99_us, beside.p99_us, _target(broker, COLD_READ_TARGET)),
    )
    session.report.notes.append(
        f"{broker.name} read {gigabytes:g} GB from cold disk at {read.received_mb_per_second:,.0f} MB/s; "
        f"p50 of the producer beside it {beside.p50_us:,.0f} us (alone {idle.p50_us:,.0f} us)."
    )


def _paced(session: Session, broker: BrokerProcess, topic: str, seconds: float) -> RunningLoad:
    request = wire.produce_request(topic, 0, wire.record_batch(MESSAGE_BYTES, 1), 1)
    offset = wire.PRODUCE_ERROR_OFFSET + len(topic)
    # Many may be in flight: a slow answer delays the next one only as far as the broker does.
    paced = Load([request], offset, 64, seconds_max=seconds, rate=PACED_REQUESTS_PER_SECOND)
    return RunningLoad(broker, paced, session.directory)


def drop_from_page_cache(broker: BrokerProcess) -> None:
    """Writes back and drops every log file of the broker; the owner of the files needs no root for it."""
    os.sync()
    for path in broker.data_dir.rglob("*.log"):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def _idle_connections(session: Session, broker: BrokerProcess) -> None:
    """Memory per idle connection, and the round trip of one message with and without them."""
    count = session.scale.idle_connections
    _allow_open_files(count + 200)
    topic = "quiet"
    with Connection(broker.address) as connection:
        connection.create_topic(topic, 1, topic_configuration(broker))
    _round_trip(session, broker, topic)  # unmeasured
    alone: list[LoadResult] = []
    beside: list[LoadResult] = []
    grown_bytes: list[int] = []
    for _ in range(session.scale.rounds):
        alone.append(_round_trip(session, broker, topic))
        before_bytes = broker.resident_bytes()
        with ExitStack() as idle:
            for _ in range(count):
                connection = idle.enter_context(Connection(broker.address))
                connection.request(wire.metadata_request(topic))
            grown_bytes.append(broker.resident_bytes() - before_bytes)
            beside.append(_round_trip(session, broker, topic))
    for name, attribute in (("p50", "p50_us"), ("p99", "p99_us")):
        small, large = (
            median(getattr(result, attribute) for result in results) for results in (alone, beside)
        )
        label = f"round trip {name}, 0 to {count} idle connections"
        _add(session, Growth(broker.name, label, "us", small, large, _target(broker, FLAT)))
    # Later rounds find the memory of the first already there.
    grown = max(grown_bytes)
    session.report.notes.append(
        f"{broker.name}: {count} idle connections cost {grown / 1e6:.1f} MB of resident memory, "
        f"{grown / count / 1000:.1f} KB each."
    )


def _round_trip(session: Session, broker: BrokerProcess, topic: str) -> LoadResult:
    request = wire.produce_request(topic, 0, wire.record_batch(MESSAGE_BYTES, 1), 1)
    single = Load([request], wire.PRODUCE_ERROR_OFFSET + len(topic), 1, seconds_max=session.scale.seconds)
    return load.run(broker, single, session.directory)


def _allow_open_files(count: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft < count:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(count, hard), hard))
