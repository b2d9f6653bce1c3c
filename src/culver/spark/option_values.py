"""Values of options: numbers, words, durations and JSON, each refused with the option's name and what is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from culver.spark.fetching import EARLIEST, LATEST, TopicPartition

_DURATION = re.compile(r"\s*(\d+)\s*([a-z]*)\s*")
_UNIT_SECONDS = {
    "us": 1e-6,
    "ms": 1e-3,
    "": 1e-3,
    "s": 1.0,
    "m": 60.0,
    "min": 60.0,
    "h": 3600.0,
    "d": 86400.0,
}


class InvalidOption(ValueError):
    """An option that is missing, unknown, or has a value that cannot be used; the message says which and why."""

    def __init__(self, name: str, why: str) -> None:
        super().__init__(f"option {name}: {why}")


def whole_number(given: Mapping[str, str], name: str) -> int:
    value = given[name.lower()]
    try:
        return int(value)
    except ValueError:
        raise InvalidOption(name, f"{value!r} is no whole number") from None


def timestamp_ms(given: Mapping[str, str], name: str) -> int:
    timestamp = whole_number(given, name)
    if timestamp < 0:
        raise InvalidOption(name, f"must be milliseconds since 1970, not {timestamp}")
    return timestamp


def positive(given: Mapping[str, str], name: str) -> int | None:
    """A number above zero; None when the option is not given."""
    if name.lower() not in given:
        return None
    number = whole_number(given, name)
    if number <= 0:
        raise InvalidOption(name, f"must be above 0, not {number}")
    return number


def boolean(given: Mapping[str, str], name: str, *, default: bool) -> bool:
    value = str(given.get(name.lower(), default)).strip().lower()
    if value not in ("true", "false"):
        raise InvalidOption(name, f"must be true or false, not {value!r}")
    return value == "true"


def duration_s(given: Mapping[str, str], name: str, *, default: str) -> float:
    """As Spark writes them: 500ms, 10s, 15m, 1h; a bare number is milliseconds."""
    value = given.get(name.lower(), default)
    match = _DURATION.fullmatch(value.lower())
    if match is None or match[2] not in _UNIT_SECONDS:
        raise InvalidOption(name, f"{value!r} is no duration such as 500ms, 10s, 15m or 1h")
    return int(match[1]) * _UNIT_SECONDS[match[2]]


def partitions_by_topic(name: str, text: str) -> dict[str, tuple[int, ...]]:
    example = '{"orders": [0, 1]}'
    found: dict[str, tuple[int, ...]] = {}
    for topic, partitions in _json_object(name, text, example).items():
        if not isinstance(partitions, list) or not all(_is_number(each) for each in partitions):
            raise InvalidOption(name, f"expected a list of partition numbers for {topic}, as in {example}")
        found[topic] = tuple(sorted(set(partitions)))
    return found


def offsets_by_partition(name: str, text: str) -> dict[TopicPartition, int]:
    found = _numbers_by_partition(name, text, '{"orders": {"0": 23, "1": -2}}')
    for (topic, partition), offset in found.items():
        if offset < 0 and offset not in (EARLIEST, LATEST):
            raise InvalidOption(
                name, f"{offset} for {topic}-{partition}: no offset; -2 is earliest, -1 is latest"
            )
    return found


def timestamps_by_partition(name: str, text: str) -> dict[TopicPartition, int]:
    found = _numbers_by_partition(name, text, '{"orders": {"0": 1700000000000}}')
    for (topic, partition), timestamp in found.items():
        if timestamp < 0:
            raise InvalidOption(name, f"{timestamp} for {topic}-{partition} is not milliseconds since 1970")
    return found


def _numbers_by_partition(name: str, text: str, example: str) -> dict[TopicPartition, int]:
    found = {}
    for topic, partitions in _json_object(name, text, example).items():
        if not isinstance(partitions, dict):
            raise InvalidOption(name, f"expected numbers by partition for {topic}, as in {example}")
        for partition, number in partitions.items():
            if not partition.isdecimal() or not _is_number(number):
                raise InvalidOption(
                    name, f"{topic}: {partition!r}: {number!r} is no number, expected {example}"
                )
            found[topic, int(partition)] = number
    return found


def _json_object(name: str, text: str, example: str) -> dict[str, Any]:
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        raise InvalidOption(name, f"{text!r} is neither a word nor JSON such as {example}: {error}") from None
    if not isinstance(value, dict) or not value:
        raise InvalidOption(name, f"{text!r} is no JSON object such as {example}")
    return value


def _is_number(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)
