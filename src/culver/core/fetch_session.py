"""Incremental fetch sessions: a client says once what it reads, and then only what changes.

A client opens a session with a full fetch (id 0, epoch 0). The answer names the session; from then on every
request carries that name and an epoch one higher than the last, and lists only the partitions that changed.
The answer, too, leaves out partitions of which there is nothing new. The epoch makes a lost or repeated
request visible: the client hears INVALID_FETCH_SESSION_EPOCH and starts over with a full fetch.

Topics are known by name up to version 12 of Fetch and by id from 13 on; a session keeps to what it began
with. These are the sessions of consumers: a follower's belongs to its connection (`broker/follower_feed.py`).
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable
from typing import TypeAlias

from culver.errors import ErrorCode
from culver.protocol.messages.fetch import FetchPartition, FetchRequest, PartitionData

NO_SESSION = 0
INITIAL_EPOCH = 0
FINAL_EPOCH = -1
_MAX_EPOCH = 2**31 - 1
# In all sessions together. One takes about 250 bytes.
PARTITIONS_MAX = 1 << 18

_EvictionKey: TypeAlias = tuple[int, int]
_PartitionKey: TypeAlias = tuple[str | bytes, int]


class FetchPartitionState:
    """One partition that a fetch wants, and what the session remembers of its last answer.

    `topic` is None where the request names a topic by an id that is not known (yet).
    """

    __slots__ = (
        "current_leader_epoch",
        "fetch_offset",
        "last_fetched_epoch",
        "max_bytes",
        "partition",
        "sent_high_watermark",
        "sent_log_start_offset",
        "topic",
        "topic_id",
    )

    def __init__(self, topic: str | None, topic_id: bytes, asked: FetchPartition) -> None:
        self.topic = topic
        self.topic_id = topic_id
        self.partition = asked.partition
        # What the client has been told. It has been told nothing so far.
        self.sent_high_watermark = -1
        self.sent_log_start_offset = -1
        self.ask(asked)

    def ask(self, asked: FetchPartition) -> None:
        """Take over what the client wants now."""
        self.fetch_offset = asked.fetch_offset
        self.max_bytes = asked.partition_max_bytes
        self.current_leader_epoch = asked.current_leader_epoch
        self.last_fetched_epoch = asked.last_fetched_epoch

    def note_sent(self, data: PartitionData) -> None:
        self.sent_high_watermark = data.high_watermark
        self.sent_log_start_offset = data.log_start_offset

    def is_news(self, data: PartitionData) -> bool:
        """Whether the client has to hear of this, given what it knows; and if so, note that it did."""
        news = (
            bool(data.records)
            or data.preferred_read_replica >= 0
            or data.diverging_epoch is not None
            or self.sent_high_watermark != data.high_watermark
            or self.sent_log_start_offset != data.log_start_offset
        )
        self.note_sent(data)
        if data.error_code:
            # When the error goes away the client has to hear that, even if nothing else changed.
            self.sent_high_watermark = -1
            return True
        return news

    def __repr__(self) -> str:
        topic = self.topic or self.topic_id.hex()
        return f"FetchPartitionState({topic}-{self.partition}, fetch_offset={self.fetch_offset})"


Found: TypeAlias = tuple[FetchPartitionState, PartitionData]
"""What was read from a partition that a fetch wants."""


class FetchContext:
    """One fetch request, seen through its session. This base is the fetch without one: it keeps nothing."""

    def __init__(self, sessions: FetchSessions, request: FetchRequest, by_id: bool) -> None:
        self._sessions = sessions
        self._request = request
        self._by_id = by_id
        self.error = ErrorCode.NONE
        self.session_id = NO_SESSION

    def partitions(self) -> list[FetchPartitionState]:
        """What to read, in the order that is fair to all partitions."""
        states: dict[_PartitionKey, FetchPartitionState] = {}
        for topic in self._request.topics:
            name = self._sessions.topic_name(topic.topic_id) if self._by_id else topic.topic
            topic_id = topic.topic_id
            key = topic_id if self._by_id else topic.topic
            for asked in topic.partitions:  # of a partition that is named twice the last word counts
                states[key, asked.partition] = FetchPartitionState(name, topic_id, asked)
        return list(states.values())

    def to_send(self, found: list[Found]) -> list[Found]:
        """Which of the results belong into the answer. After this, `session_id` and `error` are the answer's."""
        return found


class _ErrorContext(FetchContext):
    """The session cannot be used; what it was to read is not known."""

    def __init__(self, sessions: FetchSessions, request: FetchRequest, by_id: bool, error: ErrorCode) -> None:
        super().__init__(sessions, request, by_id)
        self.error = error

    def partitions(self) -> list[FetchPartitionState]:
        return []

    def to_send(self, found: list[Found]) -> list[Found]:
        return []


class _FullContext(FetchContext):
    """A full fetch that opens a session, if there is room for one, when it is answered."""

    def to_send(self, found: list[Found]) -> list[Found]:
        partitions: dict[_PartitionKey, FetchPartitionState] = {}
        for state, data in found:
            state.note_sent(data)
            partitions[state.topic_id if self._by_id else state.topic or "", state.partition] = state
        self.session_id = self._sessions.open_session(partitions, self._by_id)
        return found


class _IncrementalContext(FetchContext):
    """A fetch within a session."""

    def __init__(self, sessions: FetchSessions, request: FetchRequest, session: _Session) -> None:
        super().__init__(sessions, request, session.by_id)
        self._session = session
        self._epoch = session.epoch
        self.session_id = session.id

    def partitions(self) -> list[FetchPartitionState]:
        states = list(self._session.partitions.values())
        if self._by_id:
            # Asked every time: a topic can be made after the client knows its id, and deleted before.
            topic_name = self._sessions.topic_name
            for state in states:
                state.topic = topic_name(state.topic_id)
        return states

    def to_send(self, found: list[Found]) -> list[Found]:
        session = self._session
        if session.epoch != self._epoch:
            # The client did not wait for this answer but asked again.
            self.error = ErrorCode.INVALID_FETCH_SESSION_EPOCH
            return []
        partitions = session.partitions
        news: list[Found] = []
        for one in found:
            state, data = one
            if not state.is_news(data):
                continue
            news.append(one)
            if data.records:
                # Next time the others come first: an answer's bytes are limited, and a busy partition
                # at the front would leave nothing for those behind it.
                key = (state.topic_id if self._by_id else state.topic or "", state.partition)
                partitions[key] = partitions.pop(key)
        return news


class _Session:
    """What is remembered of one client between its fetches."""

    __slots__ = (
        "by_id",
        "created_ms",
        "epoch",
        "evictable",
        "id",
        "last_used_ms",
        "partitions",
        "size",
    )

    def __init__(
        self,
        session_id: int,
        partitions: dict[_PartitionKey, FetchPartitionState],
        by_id: bool,
        now_ms: float,
    ) -> None:
        self.id = session_id
        self.partitions = partitions
        self.by_id = by_id
        self.created_ms = now_ms
        self.last_used_ms = now_ms
        self.epoch = INITIAL_EPOCH + 1
        # The size that the cache has this session filed under.
        self.size = -1
        self.evictable = False

    def change(self, request: FetchRequest) -> None:
        """Take in what an incremental request adds, changes and forgets."""
        by_id = self.by_id
        partitions = self.partitions
        for topic in request.topics:
            name: str | bytes = topic.topic_id if by_id else topic.topic
            for asked in topic.partitions:
                key = (name, asked.partition)
                state = partitions.get(key)
                if state is None:
                    partitions[key] = FetchPartitionState(topic.topic, topic.topic_id, asked)
                else:
                    state.ask(asked)
        for forgotten in request.forgotten_topics_data:
            name = forgotten.topic_id if by_id else forgotten.topic
            for index in forgotten.partitions:
                partitions.pop((name, index), None)

    def eviction_key(self) -> _EvictionKey:
        """Small sessions go before large ones: they cost least to begin anew."""
        return (self.size, self.id)


class FetchSessions:
    """A bounded number of sessions.

    When it is full, a new session takes the place of one that has been silent for `eviction_ms`; failing
    that, of the smallest one that is smaller than itself and has had its `eviction_ms` of life. If there is none,
    the client has to do without a session.

    The partitions of all sessions are bounded as well: it is they that take up memory.
    """

    def __init__(
        self,
        max_sessions: int,
        *,
        now_ms: Callable[[], float],
        new_session_id: Callable[[], int],
        topic_name: Callable[[bytes], str | None],
        eviction_ms: float = 120_000,
        max_partitions: int = PARTITIONS_MAX,
    ) -> None:
        self.topic_name = topic_name
        self._max_sessions = max_sessions
        self._max_partitions = max_partitions
        self._now_ms = now_ms
        self._new_session_id = new_session_id
        self._eviction_ms = eviction_ms
        # In the order of their last use, longest ago first.
        self._sessions: dict[int, _Session] = {}
        # Sorted, the smallest first.
        self._evictable: list[_EvictionKey] = []
        self.evictions = 0
        # Partitions in all sessions, as of their last use.
        self.partition_count = 0

    def __len__(self) -> int:
        return len(self._sessions)

    def resolve(self, request: FetchRequest, version: int) -> FetchContext:
        """What this request means. Hot; without a session it costs next to nothing."""
        by_id = version >= 13
        epoch = request.session_epoch
        if epoch == FINAL_EPOCH:
            if request.session_id != NO_SESSION:
                self._close(request.session_id)
            return FetchContext(self, request, by_id)
        if epoch == INITIAL_EPOCH:
            # A full fetch with a session's name starts over in its place.
            self._close(request.session_id)
            return _FullContext(self, request, by_id)
        session = self._sessions.get(request.session_id)
        if session is None:
            return _ErrorContext(self, request, by_id, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        if session.epoch != epoch:
            return _ErrorContext(self, request, by_id, ErrorCode.INVALID_FETCH_SESSION_EPOCH)
        if session.by_id != by_id:
            return _ErrorContext(self, request, by_id, ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR)
        session.change(request)
        if not session.partitions:
            self._close(session.id)
            return FetchContext(self, request, by_id)
        if self.partition_count - session.size + len(session.partitions) > self._max_partitions:
            self._close(session.id)
            return _ErrorContext(self, request, by_id, ErrorCode.FETCH_SESSION_ID_NOT_FOUND)
        self._touch(session, self._now_ms())
        session.epoch = 1 if session.epoch == _MAX_EPOCH else session.epoch + 1
        return _IncrementalContext(self, request, session)

    def open_session(self, partitions: dict[_PartitionKey, FetchPartitionState], by_id: bool) -> int:
        """The id of a new session, or NO_SESSION if there is no room for it."""
        now_ms = self._now_ms()
        if len(self._sessions) >= self._max_sessions and not self._evict((len(partitions), 0), now_ms):
            return NO_SESSION
        if not self._has_room_for(len(partitions), now_ms):
            return NO_SESSION
        session_id = self._new_session_id()
        while session_id == NO_SESSION or session_id in self._sessions:
            session_id = self._new_session_id()
        session = _Session(session_id, partitions, by_id, now_ms)
        self._sessions[session_id] = session
        self._touch(session, now_ms)
        return session_id

    def _has_room_for(self, partition_count: int, now_ms: float) -> bool:
        """Whether so many more partitions may be kept, if need be in place of sessions that nobody uses."""
        while self.partition_count + partition_count > self._max_partitions:
            oldest = next(iter(self._sessions.values()), None)
            if oldest is None or now_ms - oldest.last_used_ms <= self._eviction_ms:
                return False
            self._close(oldest.id)
            self.evictions += 1
        return True

    def _evict(self, newcomer: _EvictionKey, now_ms: float) -> bool:
        oldest = next(iter(self._sessions.values()), None)
        if oldest is None:
            return False
        victim: int | None = None
        if now_ms - oldest.last_used_ms > self._eviction_ms:
            victim = oldest.id
        elif self._evictable and newcomer > self._evictable[0]:
            victim = self._evictable[0][1]
        if victim is None:
            return False
        self._close(victim)
        self.evictions += 1
        return True

    def _touch(self, session: _Session, now_ms: float) -> None:
        session.last_used_ms = now_ms
        del self._sessions[session.id]
        self._sessions[session.id] = session
        is_old = now_ms - session.created_ms > self._eviction_ms
        if session.size == len(session.partitions) and session.evictable == is_old:
            return
        self._unfile(session)
        self.partition_count += len(session.partitions) - max(session.size, 0)
        session.size = len(session.partitions)
        session.evictable = is_old
        if is_old:
            insort(self._evictable, session.eviction_key())

    def _close(self, session_id: int) -> None:
        session = self._sessions.pop(session_id, None)
        if session is not None:
            self._unfile(session)
            self.partition_count -= session.size

    def _unfile(self, session: _Session) -> None:
        if session.evictable:
            _remove_sorted(self._evictable, session.eviction_key())
            session.evictable = False


def _remove_sorted(keys: list[_EvictionKey], key: _EvictionKey) -> None:
    index = bisect_left(keys, key)
    assert keys[index] == key
    del keys[index]
