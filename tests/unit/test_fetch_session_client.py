"""The follower's side of fetch sessions: what a leader is told, and when everything must be said again."""

from __future__ import annotations

import pytest

from culver.core.fetch_session_client import FetchSessionClient
from culver.errors import ErrorCode
from culver.protocol.messages.fetch import FetchPartition, FetchTopic, ForgottenTopic

A, B = bytes([1]) * 16, bytes([2]) * 16


def partition(index: int, offset: int = 0) -> FetchPartition:
    return FetchPartition(partition=index, fetch_offset=offset, partition_max_bytes=1)


def opened(*keys: tuple[bytes, int]) -> FetchSessionClient:
    client = FetchSessionClient()
    client.begin([(key, partition(key[1])) for key in keys])
    assert client.answered(0, 7)
    return client


def test_the_first_request_names_everything_by_topic() -> None:
    client = FetchSessionClient()
    assert client.opening
    asked = [((A, 0), partition(0)), ((B, 0), partition(0)), ((A, 1), partition(1))]
    assert client.begin(asked) == (
        0,
        0,
        [
            FetchTopic(topic_id=A, partitions=[partition(0), partition(1)]),
            FetchTopic(topic_id=B, partitions=[partition(0)]),
        ],
        [],
    )
    assert not client.opening
    assert not client.established


def test_later_requests_name_only_what_changed_and_count_up() -> None:
    client = opened((A, 0), (A, 1))
    assert client.established
    assert client.begin([((A, 1), partition(1, 5))]) == (
        7,
        1,
        [FetchTopic(topic_id=A, partitions=[partition(1, 5)])],
        [],
    )
    assert client.begin([]) == (7, 2, [], [])


def test_several_requests_may_be_under_way() -> None:
    client = opened((A, 0))
    assert client.begin([])[1] == 1
    assert client.begin([((A, 1), partition(1))])[1] == 2
    assert client.answered(0, 7)
    assert client.answered(0, 7)
    assert client.begin([])[1] == 3


def test_what_is_forgotten_is_told_once_and_only_if_the_leader_knew_of_it() -> None:
    client = opened((A, 0), (A, 1), (B, 0))
    assert client.forget((A, 1))
    assert client.forget((B, 0))
    assert not client.forget((B, 9))
    assert client.begin([])[3] == [
        ForgottenTopic(topic_id=A, partitions=[1]),
        ForgottenTopic(topic_id=B, partitions=[0]),
    ]
    assert client.begin([])[3] == []


def test_what_is_wanted_again_before_it_was_forgotten_stays() -> None:
    client = opened((A, 0))
    client.forget((A, 0))
    _, _, topics, forgotten = client.begin([((A, 0), partition(0, 3))])
    assert topics == [FetchTopic(topic_id=A, partitions=[partition(0, 3)])]
    assert forgotten == []


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.FETCH_SESSION_ID_NOT_FOUND,
        ErrorCode.INVALID_FETCH_SESSION_EPOCH,
        ErrorCode.FETCH_SESSION_TOPIC_ID_ERROR,
    ],
)
def test_a_session_that_the_leader_does_not_know_begins_anew(error: ErrorCode) -> None:
    client = opened((A, 0))
    client.begin([])
    assert not client.answered(error, 0)
    assert client.opening
    assert client.begin([((A, 0), partition(0))])[:2] == (0, 0)
    assert not client.forget((A, 1)), "nothing of the old session is left"


def test_a_leader_that_keeps_no_session_is_told_everything_every_time() -> None:
    client = FetchSessionClient()
    client.begin([((A, 0), partition(0))])
    assert not client.answered(0, 0)
    assert client.opening


def test_the_epoch_goes_on_at_one_after_the_largest() -> None:
    client = opened((A, 0))
    client.epoch = 2**31 - 1
    assert client.begin([])[1] == 2**31 - 1
    assert client.begin([])[1] == 1
