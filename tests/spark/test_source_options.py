"""Options of a read: what is understood, and what is refused with its name and a remedy."""

from __future__ import annotations

import pytest

from culver.spark.fetching import EARLIEST, LATEST
from culver.spark.option_values import InvalidOption
from culver.spark.options import ReadOptions, read_options

BASE = {"kafka.bootstrap.servers": "127.0.0.1:9092", "subscribe": "orders"}


def parsed(streaming: bool = True, **options: str) -> ReadOptions:
    return read_options({**BASE, **options}, streaming=streaming)


def test_defaults_are_those_of_sparks_kafka_source() -> None:
    stream, batch = parsed(), parsed(streaming=False)
    assert stream.starting.everywhere == LATEST
    assert batch.starting.everywhere == EARLIEST
    assert batch.ending.everywhere == LATEST
    assert stream.settings.fail_on_data_loss
    assert not stream.settings.read_committed
    assert not stream.include_headers
    assert stream.trigger_delay_max_s == 15 * 60
    assert stream.commit_group is None


def test_names_are_in_any_case_and_values_keep_theirs() -> None:
    options = read_options(
        {"KAFKA.bootstrap.SERVERS": "b:1", "Subscribe": "Orders, Bills ,Orders", "COMMITGROUP": "Job"},
        streaming=True,
    )
    assert options.subscription.topics == ("Orders", "Bills")
    assert options.commit_group == "Job"


def test_positions() -> None:
    by_offset = parsed(startingOffsets='{"orders": {"0": 23, "1": -2, "2": -1}}').starting
    assert by_offset.offsets == {("orders", 0): 23, ("orders", 1): EARLIEST, ("orders", 2): LATEST}
    by_time = parsed(
        startingOffsetsByTimestamp='{"orders": {"0": 1000}}', startingOffsets="earliest"
    ).starting
    assert by_time.timestamps_ms == {("orders", 0): 1000}
    assert parsed(startingTimestamp="5", startingOffsets="earliest").starting.timestamp_ms == 5
    assert parsed(startingOffsets="EARLIEST").starting.everywhere == EARLIEST


def test_limits_and_groups() -> None:
    options = parsed(
        maxOffsetsPerTrigger="10", minOffsetsPerTrigger="5", maxTriggerDelay="90s", minPartitions="3"
    )
    assert (options.offsets_per_trigger_max, options.offsets_per_trigger_min) == (10, 5)
    assert (options.trigger_delay_max_s, options.partitions_min) == (90, 3)
    assert parsed(**{"kafka.group.id": "seen"}).commit_group == "seen"
    assert parsed(commitGroup="job", **{"kafka.group.id": "seen"}).commit_group == "job"


def test_options_of_the_java_consumer_are_ignored() -> None:
    parsed(**{"kafka.fetch.min.bytes": "1", "kafka.security.protocol": "PLAINTEXT", "groupIdPrefix": "x"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"kafka.bootstrap.servers": ""}, "must be given"),
        ({"kafka.bootstrap.servers": "host:port"}, "no broker address"),
        ({"assign": '{"orders": [0]}'}, "only one of these"),
        ({"subscribe": " , "}, "names no topic"),
        ({"subscribe": ""}, "is empty"),
        ({"startingOffsets": "first"}, "neither a word nor JSON"),
        ({"startingOffsets": "[]"}, "no JSON object"),
        ({"startingOffsets": '{"orders": 5}'}, "by partition for orders"),
        ({"startingOffsets": '{"orders": {"0": -3}}'}, "-2 is earliest, -1 is latest"),
        ({"startingOffsets": '{"orders": {"0": "5"}}'}, "is no number"),
        ({"startingTimestamp": "-1"}, "milliseconds since 1970"),
        ({"startingTimestamp": "yesterday"}, "no whole number"),
        ({"startingOffsetsByTimestamp": '{"orders": {"0": -1}}'}, "milliseconds since 1970"),
        ({"startingOffsetsByTimestampStrategy": "guess"}, "error or latest"),
        ({"endingOffsets": "latest"}, "a stream has no end"),
        ({"failOnDataLoss": "maybe"}, "true or false"),
        ({"maxOffsetsPerTrigger": "0"}, "above 0"),
        ({"maxOffsetsPerTrigger": "1", "minOffsetsPerTrigger": "2"}, "above maxOffsetsPerTrigger"),
        ({"maxTriggerDelay": "soon"}, "no duration"),
        ({"kafka.isolation.level": "serializable"}, "read_committed"),
        ({"kafka.auto.offset.reset": "latest"}, "use startingOffsets"),
        ({"kafka.security.protocol": "SASL_SSL"}, "not supported"),
        ({"maxOffsetPerTrigger": "1"}, "did you mean maxOffsetsPerTrigger"),
        ({"colour": "red"}, "docs/spark.md"),
    ],
)
def test_what_cannot_be_used_is_refused(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parsed(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"startingOffsets": "latest"}, "nothing to read"),
        ({"startingOffsets": '{"orders": {"0": -1}}'}, "nothing to read"),
        ({"endingOffsets": "earliest"}, "nothing to read"),
        ({"endingOffsets": '{"orders": {"0": -2}}'}, "nothing to read"),
    ],
)
def test_what_a_batch_query_cannot_use(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        parsed(streaming=False, **options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"subscribePattern": "("}, "no regular expression"),
        ({"assign": "orders"}, "neither a word nor JSON"),
        ({"assign": '{"orders": "0"}'}, "a list of partition numbers"),
        ({}, "one of these must be given"),
    ],
)
def test_what_cannot_be_subscribed(options: dict[str, str], message: str) -> None:
    with pytest.raises(InvalidOption, match=message):
        read_options({"kafka.bootstrap.servers": "127.0.0.1:9092", **options}, streaming=True)
