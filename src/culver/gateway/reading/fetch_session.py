"""A fetch session: the broker remembers which partitions a poll is about, and hears only of what has changed.

A poll of a thousand partitions, one of which has something new, then takes a request and an answer of one partition.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from culver.errors import ErrorCode
from culver.gateway.cluster.view import TopicPartition
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

_NO_SESSION = 0
_FIRST_EPOCH = 0
_WITHOUT_SESSION_EPOCH = -1
_EPOCH_MAX = 0x7FFFFFFF
_LOST = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


class Wanted(NamedTuple):
    """What is wanted of a partition: from which offset on, and of which topic. A name may be another's tomorrow."""

    offset: int
    topic_id: bytes


class FetchSession:
    """One session at one broker. What is sent must be answered, or the session `reset`, before the next."""

    def __init__(self, *, partition_max_bytes: int) -> None:
        self._partition_max_bytes = partition_max_bytes
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known: dict[TopicPartition, Wanted] = {}

    def reset(self) -> None:
        """Nobody knows what the broker knows: begin a new session."""
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known = {}

    def put_into(self, request: FetchRequest, wanted: Mapping[TopicPartition, Wanted]) -> None:
        """Have the request ask for these partitions from these offsets on, and for no others."""
        known = self._known
        if any(place in known and known[place].topic_id != each.topic_id for place, each in wanted.items()):
            self.reset()  # a topic was made again
        changed = {place: each for place, each in wanted.items() if self._known.get(place) != each}
        forgotten: dict[tuple[str, bytes], list[int]] = {}
        for place, each in self._known.items():
            if place not in wanted:
                forgotten.setdefault((place.topic, each.topic_id), []).append(place.partition)
        request.session_id = self._id
        request.session_epoch = self._epoch
        request.topics = topics_of(changed, self._partition_max_bytes)
        request.forgotten_topics_data = [
            ForgottenTopic(topic=topic, topic_id=topic_id, partitions=partitions)
            for (topic, topic_id), partitions in forgotten.items()
        ]
        self._known = dict(wanted)

    def answered(self, answer: FetchResponse) -> bool:
        """Whether the broker knew the session. If not, the next request begins a new one."""
        if answer.error_code in _LOST:
            self.reset()
            return False
        if answer.session_id == _NO_SESSION:
            self.reset()  # it has no room for one: everything is said every time
        else:
            self._id = answer.session_id
            self._epoch = self._epoch + 1 if self._epoch < _EPOCH_MAX else 1
        return True


def put_without_session(
    request: FetchRequest, wanted: Mapping[TopicPartition, Wanted], partition_max_bytes: int
) -> None:
    """Have the request ask for these partitions from these offsets on, and the broker remember nothing."""
    request.session_epoch = _WITHOUT_SESSION_EPOCH
    request.topics = topics_of(wanted, partition_max_bytes)


def topics_of(wanted: Mapping[TopicPartition, Wanted], partition_max_bytes: int) -> list[FetchTopic]:
    """By name and id: the version decides which of them is sent."""
    topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
    for place, (offset, topic_id) in wanted.items():
        entry = FetchPartition(
            partition=place.partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        topics.setdefault((place.topic, topic_id), []).append(entry)
    return [
        FetchTopic(topic=topic, topic_id=topic_id, partitions=entries)
        for (topic, topic_id), entries in topics.items()
    ]
