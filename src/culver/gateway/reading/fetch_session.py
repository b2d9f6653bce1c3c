"""A fetch session: the broker remembers which partitions a poll is about, and hears only of what has changed.

A poll of a thousand partitions, one of which has something new, then takes a request and an answer of one partition.
"""

from __future__ import annotations

from collections.abc import Mapping

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


class FetchSession:
    """One session at one broker. What is sent must be answered, or the session `reset`, before the next."""

    def __init__(self, *, partition_max_bytes: int) -> None:
        self._partition_max_bytes = partition_max_bytes
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known: dict[TopicPartition, int] = {}

    def reset(self) -> None:
        """Nobody knows what the broker knows: begin a new session."""
        self._id = _NO_SESSION
        self._epoch = _FIRST_EPOCH
        self._known = {}

    def put_into(self, request: FetchRequest, wanted: Mapping[TopicPartition, int]) -> None:
        """Have the request ask for these partitions from these offsets on, and for no others."""
        changed = {place: at for place, at in wanted.items() if self._known.get(place) != at}
        forgotten: dict[str, list[int]] = {}
        for place in self._known:
            if place not in wanted:
                forgotten.setdefault(place.topic, []).append(place.partition)
        request.session_id = self._id
        request.session_epoch = self._epoch
        request.topics = topics_of(changed, self._partition_max_bytes)
        request.forgotten_topics_data = [
            ForgottenTopic(topic=topic, partitions=partitions) for topic, partitions in forgotten.items()
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
    request: FetchRequest, wanted: Mapping[TopicPartition, int], partition_max_bytes: int
) -> None:
    """Have the request ask for these partitions from these offsets on, and the broker remember nothing."""
    request.session_epoch = _WITHOUT_SESSION_EPOCH
    request.topics = topics_of(wanted, partition_max_bytes)


def topics_of(wanted: Mapping[TopicPartition, int], partition_max_bytes: int) -> list[FetchTopic]:
    topics: dict[str, list[FetchPartition]] = {}
    for place, offset in wanted.items():
        entry = FetchPartition(
            partition=place.partition, fetch_offset=offset, partition_max_bytes=partition_max_bytes
        )
        topics.setdefault(place.topic, []).append(entry)
    return [FetchTopic(topic=topic, partitions=entries) for topic, entries in topics.items()]
