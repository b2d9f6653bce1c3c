"""Fetch sessions: what a client may leave out of its requests, and what an answer may leave out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from culver.core.fetch_session import NO_SESSION, FetchContext, FetchSessions, Result
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
    ReplicaState,
)

TOPIC_ID = b"i" * 16
MINUTE_MS = 60_000


def fetch(
    *partitions: tuple[str, int, int],
    session: int = 0,
    epoch: int = 0,
    forget: list[tuple[str, list[int]]] | None = None,
    replica: int = -1,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
        replica_state=ReplicaState(replica_id=replica),
        topics=[
            FetchTopic(
                topic=topic,
                topic_id=TOPIC_ID,
                partitions=[FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1000)],
            )
            for topic, index, offset in partitions
        ],
        forgotten_topics_data=[
            ForgottenTopic(topic=topic, topic_id=TOPIC_ID, partitions=indexes)
            for topic, indexes in forget or []
        ],
    )


def result(
    topic: str, index: int, *, hw: int = 0, start: int = 0, error: int = 0, data: bytes = b""
) -> Result:
    return topic, PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=hw,
        log_start_offset=start,
        aborted_transactions=None,
        records=data,
    )


def read(context: FetchContext) -> list[tuple[object, int, int]]:
    return [(item.topic, item.partition, item.fetch_offset) for item in context.partitions()]


def names(results: list[Result]) -> list[tuple[object, int]]:
    return [(topic, data.partition_index) for topic, data in results]


@pytest.fixture
def sessions() -> FetchSessions:
    return FetchSessions(10, session_ids().__next__)


def session_ids() -> Iterator[int]:
    return count(1)


def open_session(
    sessions: FetchSessions, *partitions: tuple[str, int, int], now_ms: float = 0, replica: int = -1
) -> int:
    context = sessions.resolve(fetch(*partitions, replica=replica), 12, now_ms)
    context.update([result(topic, index) for topic, index, _ in partitions], now_ms)
    return context.session_id


def test_a_fetch_without_a_session_reads_what_it_lists_and_leaves_no_trace(sessions: FetchSessions) -> None:
    context = sessions.resolve(fetch(("t", 0, 5), ("u", 1, 6), epoch=-1), 12, 0)
    assert read(context) == [("t", 0, 5), ("u", 1, 6)]
    results = [result("t", 0), result("u", 1)]
    assert context.update(results, 0) == results
    assert (context.session_id, context.error, len(sessions)) == (NO_SESSION, ErrorCode.NONE, 0)


def test_an_incremental_fetch_reads_all_and_answers_only_with_news(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0), ("t", 1, 0))
    context = sessions.resolve(fetch(session=session, epoch=1), 12, 0)
    assert read(context) == [("t", 0, 0), ("t", 1, 0)]
    assert context.update([result("t", 0), result("t", 1)], 0) == []
    assert context.session_id == session

    context = sessions.resolve(fetch(("t", 1, 7), session=session, epoch=2), 12, 0)
    assert read(context) == [("t", 0, 0), ("t", 1, 7)]
    assert names(context.update([result("t", 0), result("t", 1, hw=8, data=b"x")], 0)) == [("t", 1)]


@pytest.mark.parametrize(
    "news",
    [
        result("t", 0, hw=1),
        result("t", 0, start=1),
        result("t", 0, data=b"x"),
        result("t", 0, error=ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_partition_is_answered_when_something_about_it_changed(
    sessions: FetchSessions, news: Result
) -> None:
    session = open_session(sessions, ("t", 0, 0))
    context = sessions.resolve(fetch(session=session, epoch=1), 12, 0)
    assert context.update([news], 0) == [news]


def test_a_preferred_replica_or_a_diverging_epoch_is_news(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    for epoch, field in enumerate(("preferred_read_replica", "diverging_epoch"), 1):
        context = sessions.resolve(fetch(session=session, epoch=epoch), 12, 0)
        news = result("t", 0)
        setattr(news[1], field, 2 if epoch == 1 else EpochEndOffset(epoch=1, end_offset=2))
        assert context.update([news], 0) == [news]


def test_the_end_of_an_error_is_news(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    first = sessions.resolve(fetch(session=session, epoch=1), 12, 0)
    first.update([result("t", 0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)], 0)
    second = sessions.resolve(fetch(session=session, epoch=2), 12, 0)
    assert names(second.update([result("t", 0)], 0)) == [("t", 0)]


def test_partitions_that_had_data_go_to_the_end(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    context = sessions.resolve(fetch(session=session, epoch=1), 12, 0)
    context.update([result("t", 0, data=b"x"), result("t", 1, hw=4), result("t", 2)], 0)
    context = sessions.resolve(fetch(session=session, epoch=2), 12, 0)
    assert [item.partition for item in context.partitions()] == [1, 2, 0]


def test_forgotten_partitions_are_not_read_and_an_empty_session_is_closed(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0), ("t", 1, 0))
    context = sessions.resolve(fetch(session=session, epoch=1, forget=[("t", [0])]), 12, 0)
    assert read(context) == [("t", 1, 0)]
    context = sessions.resolve(fetch(session=session, epoch=2, forget=[("t", [1])]), 12, 0)
    assert (read(context), context.session_id, len(sessions)) == ([], NO_SESSION, 0)


def test_an_unknown_session_and_a_wrong_epoch_are_errors(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    for request, error in [
        (fetch(session=99, epoch=1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (fetch(session=session, epoch=2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (fetch(session=session, epoch=7), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ]:
        context = sessions.resolve(request, 12, 0)
        assert (context.error, context.session_id, context.partitions()) == (error, NO_SESSION, [])
        assert context.update([], 0) == []


def test_a_session_cannot_change_between_names_and_ids(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    context = sessions.resolve(fetch(session=session, epoch=1), 13, 0)
    assert context.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_from_version_13_on_topics_are_known_by_id(sessions: FetchSessions) -> None:
    context = sessions.resolve(fetch(("", 0, 3)), 13, 0)
    assert read(context) == [(TOPIC_ID, 0, 3)]
    context.update([(TOPIC_ID, result("", 0)[1])], 0)
    context = sessions.resolve(fetch(session=context.session_id, epoch=1), 13, 0)
    assert read(context) == [(TOPIC_ID, 0, 3)]


def test_a_request_that_overtakes_its_predecessor_makes_that_one_an_error(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    first = sessions.resolve(fetch(session=session, epoch=1), 12, 0)
    sessions.resolve(fetch(session=session, epoch=2), 12, 0)
    assert first.update([result("t", 0, data=b"x")], 0) == []
    assert (first.error, first.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session)


def test_a_full_fetch_closes_the_session_it_names(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    context = sessions.resolve(fetch(("t", 0, 0), session=session, epoch=0), 12, 0)
    context.update([result("t", 0)], 0)
    assert context.session_id not in (NO_SESSION, session)
    assert len(sessions) == 1
    sessions.resolve(fetch(session=context.session_id, epoch=-1), 12, 0)
    assert len(sessions) == 0


def test_the_epoch_starts_over_after_the_last_number(sessions: FetchSessions) -> None:
    session = open_session(sessions, ("t", 0, 0))
    sessions._sessions[session].epoch = 2**31 - 1
    assert sessions.resolve(fetch(session=session, epoch=2**31 - 1), 12, 0).error == ErrorCode.NONE
    assert sessions.resolve(fetch(session=session, epoch=1), 12, 0).error == ErrorCode.NONE


def test_a_full_cache_leaves_newcomers_without_a_session() -> None:
    sessions = FetchSessions(1, session_ids().__next__)
    assert open_session(sessions, ("t", 0, 0)) != NO_SESSION
    assert open_session(sessions, ("t", 0, 0), ("t", 1, 0)) == NO_SESSION


def test_a_silent_session_gives_way_after_two_minutes() -> None:
    sessions = FetchSessions(1, session_ids().__next__)
    open_session(sessions, ("t", 0, 0), ("t", 1, 0))
    assert open_session(sessions, ("t", 0, 0), now_ms=2 * MINUTE_MS) == NO_SESSION
    assert open_session(sessions, ("t", 0, 0), now_ms=2 * MINUTE_MS + 1) != NO_SESSION
    assert (len(sessions), sessions.evictions) == (1, 1)


def test_an_old_busy_session_gives_way_only_to_a_larger_one() -> None:
    sessions = FetchSessions(2, session_ids().__next__)
    small = open_session(sessions, ("t", 0, 0))
    large = open_session(sessions, ("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    for session in (small, large):
        sessions.resolve(fetch(session=session, epoch=1), 12, 3 * MINUTE_MS)
    assert open_session(sessions, ("t", 5, 0), now_ms=3 * MINUTE_MS) == NO_SESSION
    assert open_session(sessions, ("t", 5, 0), ("t", 6, 0), now_ms=3 * MINUTE_MS) != NO_SESSION
    context = sessions.resolve(fetch(session=small, epoch=2), 12, 3 * MINUTE_MS)
    assert context.error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_a_follower_takes_a_consumers_place_at_once_but_not_the_other_way_round() -> None:
    sessions = FetchSessions(1, session_ids().__next__)
    open_session(sessions, ("t", 0, 0), ("t", 1, 0))
    follower = open_session(sessions, ("t", 0, 0), replica=2)
    assert follower != NO_SESSION
    sessions.resolve(fetch(session=follower, epoch=1), 12, 3 * MINUTE_MS)
    assert open_session(sessions, ("t", 0, 0), ("t", 1, 0), now_ms=3 * MINUTE_MS) == NO_SESSION


def test_session_ids_are_never_zero_and_never_taken() -> None:
    sessions = FetchSessions(10, iter([0, 4, 4, 0, 5]).__next__)
    assert [open_session(sessions, ("t", 0, 0)) for _ in range(2)] == [4, 5]
    assert sessions.partition_count == 2
