"""Fetch sessions: what a client may leave out of its requests, and what an answer may leave out."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count

import pytest

from culver.clock import ManualClock
from culver.core.fetch_session import NO_SESSION, FetchContext, FetchSessions, Found
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

TOPIC_ID = b"i" * 16
MINUTE_MS = 60_000


def fetch(
    *partitions: tuple[str, int, int],
    session: int = 0,
    epoch: int = 0,
    forget: list[tuple[str, list[int]]] | None = None,
) -> FetchRequest:
    return FetchRequest(
        max_wait_ms=500,
        min_bytes=1,
        session_id=session,
        session_epoch=epoch,
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


def data(index: int, *, hw: int = 0, start: int = 0, error: int = 0, records: bytes = b"") -> PartitionData:
    return PartitionData(
        partition_index=index,
        error_code=error,
        high_watermark=hw,
        log_start_offset=start,
        aborted_transactions=None,
        records=records,
    )


def read(context: FetchContext) -> list[tuple[object, int, int]]:
    return [(state.topic, state.partition, state.fetch_offset) for state in context.partitions()]


def answer(context: FetchContext, *results: PartitionData) -> list[int]:
    """Answer with these results, or with nothing new; which partitions go out."""
    by_index = {result.partition_index: result for result in results}
    found: list[Found] = [
        (state, by_index.get(state.partition, data(state.partition))) for state in context.partitions()
    ]
    return [result.partition_index for _, result in context.to_send(found)]


class Setting:
    """A cache of sessions with a clock and topics of its own."""

    def __init__(self, slots: int = 10, ids: Iterator[int] | None = None, partitions: int = 1000) -> None:
        self.clock = ManualClock()
        self.topics = {TOPIC_ID: "t"}
        self.sessions = FetchSessions(
            slots,
            now_ms=self.clock.monotonic_ms,
            new_session_id=(ids or count(1)).__next__,
            topic_name=self.topics.get,
            max_partitions=partitions,
        )

    def resolve(self, request: FetchRequest, version: int = 12) -> FetchContext:
        return self.sessions.resolve(request, version)

    def open(self, *partitions: tuple[str, int, int]) -> int:
        context = self.resolve(fetch(*partitions))
        answer(context)
        return context.session_id


def test_a_fetch_without_a_session_reads_what_it_lists_and_leaves_no_trace() -> None:
    setting = Setting()
    context = setting.resolve(fetch(("t", 0, 5), ("u", 1, 6), epoch=-1))
    assert read(context) == [("t", 0, 5), ("u", 1, 6)]
    assert answer(context) == [0, 1]
    assert (context.session_id, context.error, len(setting.sessions)) == (NO_SESSION, ErrorCode.NONE, 0)


def test_an_incremental_fetch_reads_all_and_answers_only_with_news() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0), ("t", 1, 0))
    context = setting.resolve(fetch(session=session, epoch=1))
    assert read(context) == [("t", 0, 0), ("t", 1, 0)]
    assert answer(context) == []
    assert context.session_id == session

    context = setting.resolve(fetch(("t", 1, 7), session=session, epoch=2))
    assert read(context) == [("t", 0, 0), ("t", 1, 7)]
    assert answer(context, data(1, hw=8, records=b"x")) == [1]


@pytest.mark.parametrize(
    "news",
    [
        data(0, hw=1),
        data(0, start=1),
        data(0, records=b"x"),
        data(0, error=ErrorCode.OFFSET_OUT_OF_RANGE),
    ],
)
def test_a_partition_is_answered_when_something_about_it_changed(news: PartitionData) -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    assert answer(setting.resolve(fetch(session=session, epoch=1)), news) == [0]


def test_a_preferred_replica_or_a_diverging_epoch_is_news() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    preferred = data(0)
    preferred.preferred_read_replica = 2
    assert answer(setting.resolve(fetch(session=session, epoch=1)), preferred) == [0]
    diverging = data(0)
    diverging.diverging_epoch = EpochEndOffset(epoch=1, end_offset=2)
    assert answer(setting.resolve(fetch(session=session, epoch=2)), diverging) == [0]


def test_the_end_of_an_error_is_news() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    failed = data(0, error=ErrorCode.NOT_LEADER_OR_FOLLOWER)
    assert answer(setting.resolve(fetch(session=session, epoch=1)), failed) == [0]
    assert answer(setting.resolve(fetch(session=session, epoch=2))) == [0]
    assert answer(setting.resolve(fetch(session=session, epoch=3))) == []


def test_partitions_that_had_data_go_to_the_end() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    answer(setting.resolve(fetch(session=session, epoch=1)), data(0, records=b"x"), data(1, hw=4))
    context = setting.resolve(fetch(session=session, epoch=2))
    assert [state.partition for state in context.partitions()] == [1, 2, 0]


def test_forgotten_partitions_are_not_read_and_an_empty_session_is_closed() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0), ("t", 1, 0))
    context = setting.resolve(fetch(session=session, epoch=1, forget=[("t", [0])]))
    assert read(context) == [("t", 1, 0)]
    context = setting.resolve(fetch(session=session, epoch=2, forget=[("t", [1])]))
    assert (read(context), context.session_id, len(setting.sessions)) == ([], NO_SESSION, 0)


def test_an_unknown_session_and_a_wrong_epoch_are_errors() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    for request, error in [
        (fetch(session=99, epoch=1), ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (fetch(session=session, epoch=2), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (fetch(session=session, epoch=7), ErrorCode.INVALID_FETCH_SESSION_EPOCH),
    ]:
        context = setting.resolve(request)
        assert (context.error, context.session_id, context.partitions()) == (error, NO_SESSION, [])
        assert context.to_send([]) == []


def test_a_session_cannot_change_between_names_and_ids() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    context = setting.resolve(fetch(session=session, epoch=1), 13)
    assert context.error == ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR


def test_from_version_13_on_topics_are_known_by_id_and_may_come_and_go() -> None:
    setting = Setting()
    context = setting.resolve(fetch(("", 0, 3)), 13)
    assert read(context) == [("t", 0, 3)]
    answer(context)
    session = context.session_id
    del setting.topics[TOPIC_ID]
    assert read(setting.resolve(fetch(session=session, epoch=1), 13)) == [(None, 0, 3)]
    setting.topics[TOPIC_ID] = "t"
    context = setting.resolve(fetch(session=session, epoch=2, forget=[("", [7])]), 13)
    assert read(context) == [("t", 0, 3)]
    assert answer(context, data(0, records=b"x")) == [0]


def test_a_request_that_overtakes_its_predecessor_makes_that_one_an_error() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    first = setting.resolve(fetch(session=session, epoch=1))
    setting.resolve(fetch(session=session, epoch=2))
    assert answer(first, data(0, records=b"x")) == []
    assert (first.error, first.session_id) == (ErrorCode.INVALID_FETCH_SESSION_EPOCH, session)


def test_a_full_fetch_closes_the_session_it_names() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    context = setting.resolve(fetch(("t", 0, 0), session=session, epoch=0))
    answer(context)
    assert context.session_id not in (NO_SESSION, session)
    assert len(setting.sessions) == 1
    setting.resolve(fetch(session=context.session_id, epoch=-1))
    assert len(setting.sessions) == 0


def test_the_epoch_starts_over_after_the_last_number() -> None:
    setting = Setting()
    session = setting.open(("t", 0, 0))
    setting.sessions._sessions[session].epoch = 2**31 - 1
    assert setting.resolve(fetch(session=session, epoch=2**31 - 1)).error == ErrorCode.NONE
    assert setting.resolve(fetch(session=session, epoch=1)).error == ErrorCode.NONE


def test_a_full_cache_leaves_newcomers_without_a_session() -> None:
    setting = Setting(slots=1)
    assert setting.open(("t", 0, 0)) != NO_SESSION
    assert setting.open(("t", 0, 0), ("t", 1, 0)) == NO_SESSION


def test_a_silent_session_gives_way_after_two_minutes() -> None:
    setting = Setting(slots=1)
    setting.open(("t", 0, 0), ("t", 1, 0))
    setting.clock.advance_ms(2 * MINUTE_MS)
    assert setting.open(("t", 0, 0)) == NO_SESSION
    setting.clock.advance_ms(1)
    assert setting.open(("t", 0, 0)) != NO_SESSION
    assert (len(setting.sessions), setting.sessions.evictions) == (1, 1)


def test_the_partitions_of_all_sessions_are_bounded() -> None:
    setting = Setting(partitions=5)
    first = setting.open(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    assert setting.open(("t", 0, 0), ("t", 1, 0), ("t", 2, 0)) == NO_SESSION
    second = setting.open(("t", 0, 0), ("t", 1, 0))
    assert second != NO_SESSION
    assert setting.sessions.partition_count == 5
    grown = setting.resolve(fetch(("t", 5, 0), session=second, epoch=1))
    assert grown.error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND, "the client starts over, without a session"
    assert setting.sessions.partition_count == 3
    setting.clock.advance_ms(2 * MINUTE_MS + 1)
    assert setting.open(*[("t", index, 0) for index in range(4)]) != NO_SESSION, "nobody uses the first"
    assert setting.resolve(fetch(session=first, epoch=1)).error is ErrorCode.FETCH_SESSION_ID_NOT_FOUND
    assert setting.sessions.partition_count == 4


def test_a_partition_that_is_named_twice_is_read_once_as_last_asked() -> None:
    setting = Setting()
    context = setting.resolve(fetch(("t", 0, 3), ("t", 0, 7), epoch=-1))
    assert read(context) == [("t", 0, 7)]


def test_an_old_busy_session_gives_way_only_to_a_larger_one() -> None:
    setting = Setting(slots=2)
    small = setting.open(("t", 0, 0))
    large = setting.open(("t", 0, 0), ("t", 1, 0), ("t", 2, 0))
    setting.clock.advance_ms(3 * MINUTE_MS)
    for session in (small, large):
        setting.resolve(fetch(session=session, epoch=1))
    assert setting.open(("t", 5, 0)) == NO_SESSION
    assert setting.open(("t", 5, 0), ("t", 6, 0)) != NO_SESSION
    assert setting.resolve(fetch(session=small, epoch=2)).error == ErrorCode.FETCH_SESSION_ID_NOT_FOUND


def test_session_ids_are_never_zero_and_never_taken() -> None:
    setting = Setting(ids=iter([0, 4, 4, 0, 5]))
    assert [setting.open(("t", 0, 0)) for _ in range(2)] == [4, 5]
    assert setting.sessions.partition_count == 2
