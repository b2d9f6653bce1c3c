"""Positions in many partitions as one short text: the ids of events, and where a subscriber wants to start.

    orders:17,4            partition 0 at offset 17, partition 1 at 4
    orders:3=17,4;logs:0   partitions 3 and 4 of orders, partition 0 of logs

A position is the offset of the record that comes next. A number without `P=` belongs to the partition after the one
before it. Names of topics hold none of these signs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from culver.gateway.cluster.view import TopicPartition

TEXT_MAX = 64 * 1024
OFFSET_MAX = 2**63 - 1
_TOPIC = re.compile(r"[A-Za-z0-9._-]{1,249}")
_NUMBER = re.compile(r"[0-9]{1,19}")


class BadPosition(ValueError):
    """The text names no positions, or no record."""


def is_topic_name(text: str) -> bool:
    """May a topic be called that?"""
    return _TOPIC.fullmatch(text) is not None


def encode(positions: Mapping[TopicPartition, int]) -> str:
    """The text of the positions, partitions in order."""
    return "".join(before + str(positions[partition]) for partition, before in _places(sorted(positions)))


def around(positions: Mapping[TopicPartition, int], partition: TopicPartition) -> tuple[str, str]:
    """What stands before and after the position of one partition.

    Ids of the records of one read differ in this one number only, so the rest is written once for all of them.
    """
    head: list[str] = []
    tail: list[str] = []
    part = head
    for place, before in _places(sorted(positions)):
        part.append(before)
        if place == partition:
            part = tail
        else:
            part.append(str(positions[place]))
    return "".join(head), "".join(tail)


def _places(partitions: Iterable[TopicPartition]) -> Iterable[tuple[TopicPartition, str]]:
    """Each partition with the text that leads to its position."""
    topic, expected = "", 0
    for place in partitions:
        if place.topic != topic:
            before = (";" if topic else "") + place.topic + ":"
            topic, expected = place.topic, 0
        else:
            before = ","
        yield place, before if place.partition == expected else f"{before}{place.partition}="
        expected = place.partition + 1


def decode(text: str) -> dict[TopicPartition, int]:
    """The positions that the text names. Raises BadPosition."""
    if len(text) > TEXT_MAX:
        raise BadPosition(f"positions are at most {TEXT_MAX} characters long, not {len(text)}")
    positions: dict[TopicPartition, int] = {}
    for part in text.split(";"):
        topic, colon, numbers = part.partition(":")
        if not colon or not is_topic_name(topic):
            raise BadPosition(f"positions look like topic:17,4 and not like {part[:80]!r}")
        partition = -1
        for number in numbers.split(","):
            named, equals, position = number.rpartition("=")
            partition = _whole(named) if equals else partition + 1
            place = TopicPartition(topic, partition)
            if place in positions:
                raise BadPosition(f"partition {partition} of {topic} is named twice")
            positions[place] = _whole(position)
    return positions


def record_id(partition: TopicPartition, offset: int) -> str:
    """The name of one record: topic:partition:offset."""
    return f"{partition.topic}:{partition.partition}:{offset}"


def decode_record_id(text: str) -> tuple[TopicPartition, int]:
    """The partition and offset of a record's name. Raises BadPosition."""
    topic, _, rest = text.partition(":")
    partition, _, offset = rest.partition(":")
    if not is_topic_name(topic):
        raise BadPosition(f"the id of a record looks like topic:0:17 and not like {text[:80]!r}")
    return TopicPartition(topic, _whole(partition)), _whole(offset)


def _whole(text: str) -> int:
    if not _NUMBER.fullmatch(text) or (number := int(text)) > OFFSET_MAX:
        raise BadPosition(f"a partition or an offset is a whole number from 0 on, not {text[:80]!r}")
    return number
