"""The follower's side of an incremental fetch session: what the leader knows of our wishes, and what it must be told.

The first request of a session names everything that is wanted and is answered at once, so that the session has a
name. After that a request names only what has changed. Several may be under way: each carries the next epoch, and a
leader answers one that waits as soon as the next arrives. A partition that the leader has answered with records or
an error stays silent until it is asked for again; so nothing is sent twice, and one that rests need not be taken back.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeAlias

from culver.core.fetch_session import INITIAL_EPOCH, NO_SESSION
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

PartitionKey: TypeAlias = tuple[bytes, int]
"""A topic's id and a partition's index."""

_MAX_EPOCH = 2**31 - 1
_SESSION_ERRORS = frozenset(
    (
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    )
)


class FetchSessionClient:
    """One session with one leader. `reset` when its connection is lost."""

    __slots__ = ("_forgotten", "_known", "epoch", "session_id")

    def __init__(self) -> None:
        self._known: set[PartitionKey] = set()  # what the leader's session holds
        self._forgotten: set[PartitionKey] = set()
        self.reset()

    def reset(self) -> None:
        """The session is gone: the next request begins another, and must name everything that is wanted."""
        self.session_id = NO_SESSION
        self.epoch = INITIAL_EPOCH
        self._known.clear()
        self._forgotten.clear()

    @property
    def opening(self) -> bool:
        """Whether the next request begins a session. Until it is answered no other can be sent."""
        return self.epoch == INITIAL_EPOCH

    @property
    def established(self) -> bool:
        return self.session_id != NO_SESSION

    def forget(self, key: PartitionKey) -> bool:
        """A partition is not wanted any more; whether the leader has to hear of it, with the next request."""
        if key not in self._known:
            return False
        self._known.discard(key)
        self._forgotten.add(key)
        return True

    def begin(
        self, asked: Iterable[tuple[PartitionKey, FetchPartition]]
    ) -> tuple[int, int, list[FetchTopic], list[ForgottenTopic]]:
        """Session id, epoch, topics and forgotten topics of the next request, which asks for these partitions."""
        topics: dict[bytes, FetchTopic] = {}
        for key, partition in asked:
            topic = topics.get(key[0])
            if topic is None:
                topic = topics[key[0]] = FetchTopic(topic_id=key[0], partitions=[])
            topic.partitions.append(partition)
            self._known.add(key)
            self._forgotten.discard(key)
        forgotten: dict[bytes, ForgottenTopic] = {}
        for topic_id, index in sorted(self._forgotten):
            if topic_id not in forgotten:
                forgotten[topic_id] = ForgottenTopic(topic_id=topic_id, partitions=[])
            forgotten[topic_id].partitions.append(index)
        self._forgotten.clear()
        epoch = self.epoch
        self.epoch = 1 if epoch == _MAX_EPOCH else epoch + 1
        return self.session_id, epoch, list(topics.values()), list(forgotten.values())

    def answered(self, error: int, session_id: int) -> bool:
        """Take in the head of an answer; whether the session goes on. If not, everything has to be asked for anew."""
        if error in _SESSION_ERRORS or session_id == NO_SESSION:
            self.reset()
            return False
        self.session_id = session_id
        return True
