"""Two transcripts of one script, field by field: what is different, and whether that is known."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any, NamedTuple

from differential.play import Transcript

KEY_FIELDS = (
    "name",
    "topic",
    "topic_name",
    "group_id",
    "transactional_id",
    "key",
    "topic_id",
    "api_key",
    "member_id",
    "partition_index",
    "partition",
    "index",
)
ABSENT = "absent"
PRESENT = "present"


class Found(NamedTuple):
    """One field that has two values."""

    script: str
    step: str
    field: str
    kafka: str
    culver: str

    def __str__(self) -> str:
        return f"{self.script} | {self.step} | {self.field}: Kafka {self.kafka}, Culver {self.culver}"


@dataclass(frozen=True)
class Difference:
    """A difference that is meant to be. In each pattern `*` stands for anything."""

    script: str
    step: str
    field: str
    kafka: str
    culver: str
    reason: str

    def covers(self, found: Found) -> bool:
        patterns = (self.script, self.step, self.field, self.kafka, self.culver)
        return all(_pattern(pattern).fullmatch(value) for pattern, value in zip(patterns, found, strict=True))


@cache
def _pattern(pattern: str) -> re.Pattern[str]:
    return re.compile(".*".join(re.escape(part) for part in pattern.split("*")), re.DOTALL)


def differences(script: str, kafka: Transcript, culver: Transcript) -> Iterator[Found]:
    """Everything in which the two transcripts differ, step by step."""
    for step in [*kafka, *(step for step in culver if step not in kafka)]:
        for field, left, right in _compare(kafka.get(step, ABSENT), culver.get(step, ABSENT), ""):
            yield Found(script, step, field or "answer", left, right)


def unexpected(found: Iterable[Found], known: Iterable[Difference]) -> list[Found]:
    known = list(known)
    return [one for one in found if not any(difference.covers(one) for difference in known)]


def vanished(found: Iterable[Found], known: Iterable[Difference]) -> list[Difference]:
    """Listed differences that are not there any more."""
    found = list(found)
    return [difference for difference in known if not any(difference.covers(one) for one in found)]


def _compare(left: Any, right: Any, path: str) -> Iterator[tuple[str, str, str]]:
    if isinstance(left, dict) and isinstance(right, dict):
        for name in [*left, *(name for name in right if name not in left)]:
            below = f"{path}.{name}" if path else name
            yield from _compare(left.get(name, ABSENT), right.get(name, ABSENT), below)
    elif isinstance(left, list) and isinstance(right, list):
        yield from _compare_lists(left, right, path)
    elif left != right or type(left) is not type(right):
        yield path, _shown(left), _shown(right)


def _compare_lists(left: list[Any], right: list[Any], path: str) -> Iterator[tuple[str, str, str]]:
    left_by_key, right_by_key = _by_key(left), _by_key(right)
    for key, value in left_by_key.items():
        if key in right_by_key:
            yield from _compare(value, right_by_key[key], f"{path}[{key}]")
        else:
            yield f"{path}[{key}]", _member(value), ABSENT
    for key, value in right_by_key.items():
        if key not in left_by_key:
            yield f"{path}[{key}]", ABSENT, _member(value)
    if left_by_key.keys() == right_by_key.keys() and list(left_by_key) != list(right_by_key):
        yield f"{path}[order]", ", ".join(left_by_key), ", ".join(right_by_key)


def _by_key(items: list[Any]) -> dict[str, Any]:
    """Elements by what identifies them, or by their place in the list."""
    keyed: dict[str, Any] = {}
    for place, item in enumerate(items):
        key = str(place)
        if isinstance(item, dict):
            key = next((str(item[name]) for name in KEY_FIELDS if item.get(name) not in (None, "")), key)
        repeat = 2
        unique = key
        while unique in keyed:
            unique = f"{key} again" if repeat == 2 else f"{key} again {repeat}"
            repeat += 1
        keyed[unique] = item
    return keyed


def _member(value: Any) -> str:
    return PRESENT if isinstance(value, dict | list) else _shown(value)


def _shown(value: Any) -> str:
    if isinstance(value, str):
        return value
    text = "null" if value is None else str(value)
    return text if len(text) <= 200 else f"{text[:200]}…"
