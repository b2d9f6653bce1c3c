"""BrokerHello and fetches of replicas: who is let in, and who is told why not."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any

import pytest
from replica_world import ReplicaWorld

from culver.broker.handlers import broker_hello, fetch
from culver.errors import ErrorCode
from culver.protocol.messages.broker_hello import BrokerHelloRequest, BrokerHelloResponse
from culver.protocol.messages.fetch import (
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ReplicaState,
)


class Caller:
    """A connection that somebody has made to broker 1."""

    def __init__(self, world: ReplicaWorld) -> None:
        self.world = world
        self.aborted = False
        self.connection = SimpleNamespace(
            peer_broker=None, sends_files=False, peer_host="10.0.0.9", abort=self._abort
        )
        self.replies: list[Any] = []

    def _abort(self) -> None:
        self.aborted = True

    def _exchange(self, version: int) -> Any:
        return SimpleNamespace(
            connection=self.connection,
            version=version,
            client_host="10.0.0.9",
            on_abandon=None,
            abandoned=False,
            reply=self.replies.append,
        )

    def hello(self, **fields: Any) -> BrokerHelloResponse:
        request = BrokerHelloRequest(
            **{"cluster_id": "cluster", "broker_id": 2, "broker_epoch": 1, "secret": "secret"} | fields
        )
        return broker_hello.handle(self.world[1], self._exchange(0), request)  # type: ignore[arg-type]

    def fetch(
        self, broker_id: int = 2, epoch: int = 1, version: int = 18, **fields: Any
    ) -> FetchResponse | None:
        topic = self.world.image.topics["t"]
        asked = FetchPartition(
            partition=0, fetch_offset=0, current_leader_epoch=0, partition_max_bytes=1 << 20
        )
        by_id = version >= 13
        request = FetchRequest(
            **{
                "replica_id": -1 if version >= 15 else broker_id,
                "replica_state": ReplicaState(replica_id=broker_id, replica_epoch=epoch)
                if version >= 15
                else None,
                "max_wait_ms": 0,
                "min_bytes": 1,
                "session_epoch": 0,
                "topics": [
                    FetchTopic(
                        topic="" if by_id else "t",
                        topic_id=topic.topic_id if by_id else bytes(16),
                        partitions=[asked],
                    )
                ],
            }
            | fields
        )
        return fetch.handle(self.world[1], self._exchange(version), request)  # type: ignore[arg-type]


@pytest.fixture
def caller() -> Caller:
    world = ReplicaWorld(3)
    world.make_topic()
    world[1].append(b"a")
    return Caller(world)


def error_of(response: FetchResponse | None) -> ErrorCode:
    assert response is not None
    return ErrorCode(response.error_code)


def test_a_broker_of_the_cluster_is_let_in(caller: Caller) -> None:
    assert caller.hello() == BrokerHelloResponse(broker_id=1)
    response = caller.fetch()
    assert error_of(response) is ErrorCode.NONE
    assert response is not None
    assert response.responses[0].partitions[0].records


def test_a_connection_takes_the_place_of_an_earlier_one_with_the_same_sole_purpose(caller: Caller) -> None:
    """What was sent on the earlier one and not done yet is never done: its sender may have sent it again."""
    others = [Caller(caller.world) for _ in range(4)]
    purposes = [
        {"sole_purpose": "markers"},
        {},
        {"sole_purpose": "other"},
        {"sole_purpose": "markers", "broker_id": 3},
    ]
    for other, fields in zip(others, purposes, strict=True):
        assert not other.hello(**fields).error_code
    assert caller.hello(sole_purpose="markers", secret="guess").error_code
    assert not any(other.aborted for other in others)
    assert not caller.hello(sole_purpose="markers").error_code
    assert [other.aborted for other in others] == [True, False, False, False]
    assert not caller.hello(sole_purpose="markers").error_code
    assert not caller.aborted


def test_a_broker_that_the_image_does_not_know_yet_is_let_in(caller: Caller) -> None:
    assert not caller.hello(broker_epoch=5).error_code
    assert error_of(caller.fetch(epoch=5)) is ErrorCode.NONE


@pytest.mark.parametrize(
    ("fields", "code", "reason"),
    [
        ({"cluster_id": "another"}, ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster 'another'"),
        ({"cluster_id": ""}, ErrorCode.INCONSISTENT_CLUSTER_ID, "cluster ''"),
        ({"secret": "guess"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "secret"),
        ({"secret": ""}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "secret"),
        ({"secret": "sécret"}, ErrorCode.CLUSTER_AUTHORIZATION_FAILED, "secret"),
        ({"broker_epoch": 0}, ErrorCode.STALE_BROKER_EPOCH, "epoch 1"),
        ({"broker_id": 1}, ErrorCode.DUPLICATE_BROKER_REGISTRATION, "broker.id 1"),
    ],
)
def test_whoever_is_refused_hears_why_and_the_log_says_it_too(
    caller: Caller, caplog: pytest.LogCaptureFixture, fields: dict[str, Any], code: ErrorCode, reason: str
) -> None:
    with caplog.at_level(logging.WARNING, "culver.replication"):
        response = caller.hello(**fields)
    assert ErrorCode(response.error_code) is code
    assert reason in str(response.error_message)
    assert "refused" in caplog.text
    assert "guess" not in caplog.text
    assert caller.connection.peer_broker is None
    assert error_of(caller.fetch()) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_without_a_secret_in_the_store_nobody_is_let_in(caller: Caller) -> None:
    caller.world[1].cluster_secret = ""
    assert ErrorCode(caller.hello(secret="").error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


def test_a_bad_hello_takes_back_a_good_one(caller: Caller) -> None:
    caller.hello()
    caller.fetch()
    assert caller.world[1].partition().replica_waiters
    caller.hello(secret="guess")
    assert not caller.world[1].partition().replica_waiters
    assert error_of(caller.fetch()) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED


@pytest.mark.parametrize("version", [4, 6, 7, 12, 13, 14, 15, 18])
def test_a_client_that_poses_as_a_replica_gets_nothing(caller: Caller, version: int) -> None:
    response = caller.fetch(version=version)
    assert response is not None
    assert response.error_code == (ErrorCode.CLUSTER_AUTHORIZATION_FAILED if version >= 7 else 0)
    [topic] = response.responses
    assert [data.error_code for data in topic.partitions] == [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    assert not topic.partitions[0].records
    assert caller.world[1].replication.fetched == []


def test_a_replica_speaks_only_for_itself(caller: Caller) -> None:
    caller.hello()
    assert error_of(caller.fetch(broker_id=3)) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert error_of(caller.fetch(epoch=2)) is ErrorCode.STALE_BROKER_EPOCH
    assert error_of(caller.fetch(version=14)) is ErrorCode.UNSUPPORTED_VERSION
    assert caller.world[1].replication.fetched == []


def test_a_session_is_known_by_its_name_and_its_epoch(caller: Caller) -> None:
    caller.hello()
    response = caller.fetch()
    assert response is not None
    session_id = response.session_id
    assert session_id > 0
    for name, epoch, code in (
        (session_id, 2, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id + 1, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (0, 1, ErrorCode.FETCH_SESSION_ID_NOT_FOUND),
        (session_id, -1, ErrorCode.INVALID_FETCH_SESSION_EPOCH),
        (session_id, 1, ErrorCode.NONE),
    ):
        assert error_of(caller.fetch(session_id=name, session_epoch=epoch, topics=[])) is code
    again = caller.fetch()
    assert again is not None
    assert again.session_id == session_id + 1


def test_a_broker_that_is_no_replica_of_the_partition_is_not_fed(caller: Caller) -> None:
    caller.hello(broker_id=9)
    response = caller.fetch(broker_id=9)
    assert response is not None
    [data] = response.responses[0].partitions
    assert data.error_code == ErrorCode.NOT_LEADER_OR_FOLLOWER
    assert caller.world[1].replication.fetched == []


@pytest.mark.parametrize(
    ("topic_id", "index", "code"),
    [
        (bytes(16), 0, ErrorCode.UNKNOWN_TOPIC_ID),
        (None, 7, ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
    ],
)
def test_what_is_not_there_is_said(
    caller: Caller, topic_id: bytes | None, index: int, code: ErrorCode
) -> None:
    caller.hello()
    wanted = caller.world.image.topics["t"].topic_id if topic_id is None else topic_id
    asked = FetchPartition(partition=index, fetch_offset=0, partition_max_bytes=1)
    response = caller.fetch(topics=[FetchTopic(topic_id=wanted, partitions=[asked])])
    assert response is not None
    assert [data.error_code for data in response.responses[0].partitions] == [code]
