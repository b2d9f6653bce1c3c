"""The options of a read: named, meant and refused as by Spark's own Kafka source, so that a job moves by one word.

Culver's own: `maxBytesPerTrigger`, and `commitGroup`, the consumer group that a stream's progress is stored for.
Options of Kafka's consumer (`kafka.…`) that have no meaning here are accepted and ignored; those that would promise
something that is not kept are refused.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches

from culver.spark.option_values import (
    InvalidOption,
    boolean,
    duration_s,
    offsets_by_partition,
    partitions_by_topic,
    positive,
    timestamp_ms,
    timestamps_by_partition,
)
from culver.spark.position import EARLIEST_EVERYWHERE, LATEST_EVERYWHERE, Position
from culver.spark.read_settings import FETCH_BYTES, ReadSettings
from culver.wire_client import host_and_port

BOOTSTRAP = "kafka.bootstrap.servers"
STRATEGIES = ("assign", "subscribe", "subscribePattern")
_KNOWN = (
    *STRATEGIES,
    "startingOffsets",
    "startingTimestamp",
    "startingOffsetsByTimestamp",
    "startingOffsetsByTimestampStrategy",
    "endingOffsets",
    "endingTimestamp",
    "endingOffsetsByTimestamp",
    "failOnDataLoss",
    "minPartitions",
    "maxRecordsPerPartition",
    "maxOffsetsPerTrigger",
    "minOffsetsPerTrigger",
    "maxTriggerDelay",
    "maxBytesPerTrigger",
    "includeHeaders",
    "commitGroup",
    "groupIdPrefix",
    "kafkaConsumer.pollTimeoutMs",
    "fetchOffset.numRetries",
    "fetchOffset.retryIntervalMs",
)
# Refused as Spark's Kafka source refuses them, each with what to use instead.
_REFUSED = {
    "kafka.auto.offset.reset": "use startingOffsets; a stream remembers its own position",
    "kafka.key.deserializer": "keys are binary columns; convert them in the query",
    "kafka.value.deserializer": "values are binary columns; convert them in the query",
    "kafka.enable.auto.commit": "a stream keeps its offsets in its checkpoint; commitGroup shows them to lag tools",
    "kafka.interceptor.classes": "there is no consumer to intercept",
}


@dataclass(frozen=True)
class Subscription:
    """Which partitions: those assigned, those of the topics, or those of all topics that match the pattern."""

    assigned: Mapping[str, tuple[int, ...]] | None = None
    topics: tuple[str, ...] | None = None
    pattern: str | None = None


@dataclass(frozen=True)
class ReadOptions:
    """What a read was asked to do. A limit of None is no limit."""

    bootstrap: str
    subscription: Subscription
    starting: Position
    ending: Position
    settings: ReadSettings
    latest_when_no_timestamp: bool
    partitions_min: int
    records_per_partition_max: int | None
    offsets_per_trigger_max: int | None
    offsets_per_trigger_min: int | None
    trigger_delay_max_s: float
    bytes_per_trigger_max: int | None
    commit_group: str | None

    @property
    def include_headers(self) -> bool:
        return self.settings.include_headers


def read_options(options: Mapping[str, str], *, streaming: bool) -> ReadOptions:
    """The options of a read, checked as far as that goes without asking a broker. Raises InvalidOption."""
    given = {name.lower(): value for name, value in options.items()}
    _refuse_unknown(given)
    minimum, maximum = positive(given, "minOffsetsPerTrigger"), positive(given, "maxOffsetsPerTrigger")
    if minimum is not None and maximum is not None and minimum > maximum:
        raise InvalidOption("minOffsetsPerTrigger", f"is above maxOffsetsPerTrigger ({minimum} > {maximum})")
    strategy = given.get("startingoffsetsbytimestampstrategy", "error").lower()
    if strategy not in ("error", "latest"):
        raise InvalidOption("startingOffsetsByTimestampStrategy", "must be error or latest")
    return ReadOptions(
        bootstrap=_bootstrap(given),
        subscription=_subscription(given),
        starting=_starting(given, streaming),
        ending=_ending(given, streaming),
        settings=_settings(given),
        latest_when_no_timestamp=strategy == "latest",
        partitions_min=positive(given, "minPartitions") or 0,
        records_per_partition_max=positive(given, "maxRecordsPerPartition"),
        offsets_per_trigger_max=maximum,
        offsets_per_trigger_min=minimum,
        trigger_delay_max_s=duration_s(given, "maxTriggerDelay", default="15m"),
        bytes_per_trigger_max=positive(given, "maxBytesPerTrigger"),
        commit_group=(given.get("commitgroup") or given.get("kafka.group.id") or "").strip() or None,
    )


def include_headers(options: Mapping[str, str]) -> bool:
    """Known before the rest: the schema depends on it, and writers ask for the schema, too."""
    return boolean({name.lower(): value for name, value in options.items()}, "includeHeaders", default=False)


def _refuse_unknown(given: Mapping[str, str]) -> None:
    known = {name.lower(): name for name in _KNOWN}
    for name in given:
        if name in _REFUSED:
            raise InvalidOption(name, f"cannot be set: {_REFUSED[name]}")
        if name not in known and not name.startswith("kafka."):
            close = [known[match] for match in get_close_matches(name, known, n=1)]
            hint = f"did you mean {close[0]}?" if close else "see docs/spark.md for those there are"
            raise InvalidOption(name, f"is not known; {hint}")
    protocol = given.get("kafka.security.protocol", "PLAINTEXT")
    if protocol.upper() != "PLAINTEXT":
        raise InvalidOption(
            "kafka.security.protocol", f"{protocol} is not supported; brokers are read in plain text"
        )


def _bootstrap(given: Mapping[str, str]) -> str:
    addresses = given.get(BOOTSTRAP, "").strip()
    if not addresses:
        raise InvalidOption(BOOTSTRAP, "must be given: HOST:PORT of one or more brokers, separated by commas")
    try:
        for address in addresses.split(","):
            host_and_port(address)
    except ValueError as error:
        raise InvalidOption(BOOTSTRAP, str(error)) from None
    return addresses


def _subscription(given: Mapping[str, str]) -> Subscription:
    chosen = [name for name in STRATEGIES if name.lower() in given]
    if len(chosen) != 1:
        how = "one of these must be given" if not chosen else "only one of these can be given"
        raise InvalidOption(", ".join(chosen or STRATEGIES), how)
    value = given[chosen[0].lower()].strip()
    if not value:
        raise InvalidOption(chosen[0], "is empty")
    if chosen[0] == "assign":
        return Subscription(assigned=partitions_by_topic("assign", value))
    if chosen[0] == "subscribe":
        topics = tuple(dict.fromkeys(name.strip() for name in value.split(",") if name.strip()))
        if not topics:
            raise InvalidOption("subscribe", f"names no topic: {value!r}")
        return Subscription(topics=topics)
    try:
        re.compile(value)
    except re.error as error:
        raise InvalidOption("subscribePattern", f"{value!r} is no regular expression: {error}") from None
    return Subscription(pattern=value)


def _starting(given: Mapping[str, str], streaming: bool) -> Position:
    position = _position(given, "starting", LATEST_EVERYWHERE if streaming else EARLIEST_EVERYWHERE)
    if not streaming and position.mentions_latest:
        raise InvalidOption("startingOffsets", "latest (-1) leaves nothing to read in a batch query")
    return position


def _ending(given: Mapping[str, str], streaming: bool) -> Position:
    if streaming:
        for name in ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"):
            if name.lower() in given:
                raise InvalidOption(name, "is for batch queries; a stream has no end")
    position = _position(given, "ending", LATEST_EVERYWHERE)
    if position.mentions_earliest:
        raise InvalidOption("endingOffsets", "earliest (-2) leaves nothing to read")
    return position


def _position(given: Mapping[str, str], side: str, default: Position) -> Position:
    """A timestamp for all comes before timestamps by partition, and these before offsets."""
    if f"{side}timestamp" in given:
        return Position(timestamp_ms=timestamp_ms(given, f"{side}Timestamp"))
    if (by_timestamp := given.get(f"{side}offsetsbytimestamp")) is not None:
        return Position(timestamps_ms=timestamps_by_partition(f"{side}OffsetsByTimestamp", by_timestamp))
    value = given.get(f"{side}offsets")
    if value is None:
        return default
    words = {"earliest": EARLIEST_EVERYWHERE, "latest": LATEST_EVERYWHERE}
    found = words.get(value.strip().lower())
    return found if found is not None else Position(offsets=offsets_by_partition(f"{side}Offsets", value))


def _settings(given: Mapping[str, str]) -> ReadSettings:
    isolation = given.get("kafka.isolation.level", "read_uncommitted").strip().lower()
    if isolation not in ("read_uncommitted", "read_committed"):
        raise InvalidOption("kafka.isolation.level", "must be read_uncommitted or read_committed")
    stall_ms = positive(given, "kafkaConsumer.pollTimeoutMs")
    return ReadSettings(
        include_headers=boolean(given, "includeHeaders", default=False),
        read_committed=isolation == "read_committed",
        fail_on_data_loss=boolean(given, "failOnDataLoss", default=True),
        stall_s=120.0 if stall_ms is None else stall_ms / 1000,
        fetch_bytes=positive(given, "kafka.max.partition.fetch.bytes") or FETCH_BYTES,
    )
