"""`culver txn` without brokers: what it asks of whom, what it makes of the answers, and what it refuses."""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from culver.cli import txn, txn_wire
from culver.cli.failure import ExitCode
from culver.cli.main import run
from culver.cli.session import Session
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.errors import ErrorCode
from culver.protocol.messages import describe_configs, find_coordinator, init_producer_id
from culver.protocol.messages import describe_producers as producers
from culver.protocol.messages import describe_transactions as describing
from culver.protocol.messages import list_transactions as listing
from culver.protocol.messages import write_txn_markers as markers
from culver.protocol.schema import Message


def now_ms() -> int:
    return int(time.time() * 1000)


HOUR_MS = 3_600_000
NOBODY = "127.0.0.1:1"


def topic(name: str, *leaders: int) -> TopicImage:
    partitions = (PartitionImage(index, leader, 0, (1, 2), (1, 2)) for index, leader in enumerate(leaders))
    return TopicImage(name, bytes(16), tuple(partitions))


class World:
    """Two brokers that answer from tables, in place of the wire. The tests say what is in the tables."""

    timeout_s = 5.0

    def __init__(self) -> None:
        brokers = {id: BrokerInfo(id, f"host{id}", 9092) for id in (1, 2)}
        self.topics = [topic("orders", 1, 2), topic("__transaction_state", 1)]
        self.base = ClusterImage("cluster", controller_id=1, brokers=brokers, registrations=brokers)
        # Transactional id: the broker that coordinates it, and what that tells of it.
        self.transactions: dict[str, tuple[int, describing.TransactionState]] = {}
        self.open: dict[tuple[str, int], list[producers.ProducerState]] = {}
        self.asked: list[tuple[int, Message]] = []
        self.refusals: dict[type[Message], list[ErrorCode]] = {}

    def image(self) -> ClusterImage:
        return self.base.with_topics(self.topics)

    def ask(self, request: Message, response: type[Any]) -> Any:
        return self.ask_broker(self.base.brokers[1], request, response)

    def ask_broker(
        self, broker: BrokerInfo, request: Message, response: type[Any], *, least_version: int = 0
    ) -> Any:
        self.asked.append((broker.id, request))
        refusals = self.refusals.get(type(request), [])
        return self._answer(broker.id, request, refusals.pop(0) if refusals else ErrorCode.NONE)

    def sent(self, kind: type[Message]) -> list[tuple[int, Any]]:
        return [(broker, request) for broker, request in self.asked if type(request) is kind]

    def _answer(self, broker: int, request: Any, code: ErrorCode) -> Message:
        match request:
            case listing.ListTransactionsRequest():
                found = [
                    listing.TransactionState(
                        transactional_id=name,
                        producer_id=state.producer_id,
                        transaction_state=state.transaction_state,
                    )
                    for name, (coordinator, state) in self.transactions.items()
                    if coordinator == broker
                    and (not request.producer_id_filters or state.producer_id in request.producer_id_filters)
                ]
                return listing.ListTransactionsResponse(
                    error_code=code, unknown_state_filters=[], transaction_states=found
                )
            case find_coordinator.FindCoordinatorRequest():
                (name,) = request.coordinator_keys
                coordinator, _ = self.transactions.get(name, (1, None))
                found_one = find_coordinator.Coordinator(
                    key=name,
                    node_id=coordinator,
                    host="host",
                    port=1,
                    error_code=code,
                    error_message=None,
                )
                return find_coordinator.FindCoordinatorResponse(coordinators=[found_one])
            case describing.DescribeTransactionsRequest():
                (name,) = request.transactional_ids
                coordinator, state = self.transactions.get(name, (0, described(name, "")))
                if coordinator != broker:
                    state = described(name, "", error_code=ErrorCode.TRANSACTIONAL_ID_NOT_FOUND)
                return describing.DescribeTransactionsResponse(transaction_states=[state])
            case init_producer_id.InitProducerIdRequest():
                return init_producer_id.InitProducerIdResponse(
                    error_code=code, producer_id=7, producer_epoch=4
                )
            case producers.DescribeProducersRequest():
                return producers.DescribeProducersResponse(
                    topics=[
                        producers.TopicResponse(
                            name=each.name,
                            partitions=[
                                producers.PartitionResponse(
                                    partition_index=index,
                                    error_code=code,
                                    active_producers=self.open.get((each.name, index), []),
                                )
                                for index in each.partition_indexes
                            ],
                        )
                        for each in request.topics
                    ]
                )
            case describe_configs.DescribeConfigsRequest():
                setting = describe_configs.DescribeConfigsResourceResult(
                    name="transaction.max.timeout.ms", value="900000", synonyms=[]
                )
                result = describe_configs.DescribeConfigsResult(
                    error_code=0, error_message=None, resource_type=4, resource_name="1", configs=[setting]
                )
                return describe_configs.DescribeConfigsResponse(results=[result])
            case markers.WriteTxnMarkersRequest():
                (marker,) = request.markers
                results = [
                    markers.WritableTxnMarkerTopicResult(
                        name=each.name,
                        partitions=[
                            markers.WritableTxnMarkerPartitionResult(partition_index=index, error_code=code)
                            for index in each.partition_indexes
                        ],
                    )
                    for each in marker.topics
                ]
                return markers.WriteTxnMarkersResponse(
                    markers=[markers.WritableTxnMarkerResult(producer_id=marker.producer_id, topics=results)]
                )
        raise AssertionError(request)


def described(
    name: str, state: str, producer_id: int = 7, *, error_code: int = 0, partitions: tuple[int, ...] = ()
) -> describing.TransactionState:
    return describing.TransactionState(
        error_code=error_code,
        transactional_id=name,
        transaction_state=state,
        transaction_timeout_ms=60_000,
        transaction_start_time_ms=now_ms() - 90_000 if partitions else -1,
        producer_id=producer_id,
        producer_epoch=3,
        topics=[describing.TopicData(topic="orders", partitions=list(partitions))] if partitions else [],
    )


def open_since(producer_id: int, start_offset: int, age_ms: int) -> producers.ProducerState:
    return producers.ProducerState(
        producer_id=producer_id,
        producer_epoch=3,
        last_timestamp=now_ms() - age_ms,
        coordinator_epoch=-1,
        current_txn_start_offset=start_offset,
    )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    made = World()

    @contextlib.contextmanager
    def connected(session: Session) -> Iterator[World]:
        yield made

    monkeypatch.setattr(txn, "connected", connected)
    monkeypatch.setattr(txn_wire, "_POLL_SECONDS", 0.0)
    return made


@pytest.fixture
def culver(capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    """Runs `culver txn` with -o json and gives what it printed."""

    def call(*arguments: str) -> Any:
        assert run(["txn", *arguments, "-o", "json"]) == ExitCode.OK
        return json.loads(capsys.readouterr().out)

    return call


# --- list and describe ---


def test_every_broker_is_asked_for_what_it_coordinates(world: World, culver: Callable[..., Any]) -> None:
    world.transactions = {
        "b": (1, described("b", "Ongoing")),
        "a": (2, described("a", "PrepareCommit", producer_id=8)),
    }
    assert culver("list") == [
        {"transactional_id": "a", "coordinator": 2, "producer_id": 8, "state": "prepare-commit"},
        {"transactional_id": "b", "coordinator": 1, "producer_id": 7, "state": "ongoing"},
    ]


def test_filters_are_the_brokers_business(world: World, culver: Callable[..., Any]) -> None:
    assert (
        culver("list", "--state", "ongoing", "--producer-id", "5", "--duration", "1.5m", "--pattern", "a.*")
        == []
    )
    expected = listing.ListTransactionsRequest(
        state_filters=["Ongoing"],
        producer_id_filters=[5],
        duration_filter=90_000,
        transactional_id_pattern="a.*",
    )
    assert world.sent(listing.ListTransactionsRequest) == [(1, expected), (2, expected)]


def test_a_filter_needs_a_broker_that_knows_it() -> None:
    assert txn_wire.Filter(states=("Ongoing",), producer_ids=(1,)).least_version == 0
    assert txn_wire.Filter(longer_than_ms=0).least_version == 1
    assert txn_wire.Filter(longer_than_ms=5, pattern="a").least_version == 2


def test_a_coordinator_that_is_loading_is_asked_again(world: World, culver: Callable[..., Any]) -> None:
    world.refusals[listing.ListTransactionsRequest] = [ErrorCode.COORDINATOR_LOAD_IN_PROGRESS] * 3
    assert culver("list") == []
    assert [broker for broker, _ in world.sent(listing.ListTransactionsRequest)] == [1, 1, 1, 1, 2]


def test_describe_shows_what_the_coordinator_tells(
    world: World, culver: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    world.transactions = {
        "copy": (2, described("copy", "Ongoing", partitions=(1, 0))),
        "idle": (1, described("idle", "Empty")),
    }
    copy, idle = culver("describe", "copy", "idle")
    assert 90 <= copy.pop("open_seconds") < 600
    assert 0 <= now_ms() - 90_000 - copy.pop("started_ms") < 600_000
    assert copy == {
        "transactional_id": "copy",
        "state": "ongoing",
        "producer_id": 7,
        "producer_epoch": 3,
        "coordinator": 2,
        "timeout_ms": 60_000,
        "partitions": ["orders:0", "orders:1"],
    }
    assert (idle["started_ms"], idle["open_seconds"], idle["partitions"]) == (None, None, [])
    assert run(["txn", "describe", "copy"]) == ExitCode.OK
    printed = capsys.readouterr().out
    assert printed.startswith("copy  (ongoing, open for 1m ")
    assert "orders:0,orders:1" in printed


def test_an_unknown_transactional_id_is_not_found(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["txn", "describe", "nobody"]) == ExitCode.NOT_FOUND
    assert "nothing is known of transactional id nobody" in capsys.readouterr().err


# --- abort ---


def test_abort_takes_a_new_epoch_from_the_coordinator(world: World, culver: Callable[..., Any]) -> None:
    world.transactions = {"copy": (2, described("copy", "Ongoing", partitions=(0,)))}
    world.refusals[init_producer_id.InitProducerIdRequest] = [
        ErrorCode.CONCURRENT_TRANSACTIONS,
        ErrorCode.NOT_COORDINATOR,
    ]
    assert culver("abort", "copy", "--yes") == {
        "transactional_id": "copy",
        "aborted": True,
        "producer_id": 7,
        "producer_epoch": 4,
    }
    expected = init_producer_id.InitProducerIdRequest(transactional_id="copy", transaction_timeout_ms=60_000)
    assert world.sent(init_producer_id.InitProducerIdRequest) == [(2, expected)] * 3


@pytest.mark.parametrize("state", ["Empty", "PrepareCommit", "CompleteAbort"])
def test_what_is_not_open_is_not_aborted(
    world: World, capsys: pytest.CaptureFixture[str], state: str
) -> None:
    world.transactions = {"copy": (2, described("copy", state))}
    assert run(["txn", "abort", "copy", "--yes"]) == ExitCode.FAILED
    assert "copy has no open transaction: it is in state" in capsys.readouterr().err
    assert world.sent(init_producer_id.InitProducerIdRequest) == []


def test_a_hanging_transaction_is_ended_at_the_leader(world: World, culver: Callable[..., Any]) -> None:
    world.open = {("orders", 1): [open_since(5, 100, HOUR_MS), open_since(6, 120, HOUR_MS)]}
    answer = culver("abort", "--topic", "orders", "--partition", "1", "--start-offset", "120", "--yes")
    assert (answer["producer_id"], answer["aborted"]) == (6, True)
    ((broker, request),) = world.sent(markers.WriteTxnMarkersRequest)
    assert broker == 2
    assert request.markers == [
        markers.WritableTxnMarker(
            producer_id=6,
            producer_epoch=3,
            transaction_result=False,
            topics=[markers.WritableTxnMarkerTopic(name="orders", partition_indexes=[1])],
            coordinator_epoch=0,
        )
    ]


@pytest.mark.parametrize(
    ("place", "complaint", "code"),
    [
        (["orders", "1", "7"], "they begin at 100", ExitCode.NOT_FOUND),
        (["orders", "0", "7"], "none is open there", ExitCode.NOT_FOUND),
        (["orders", "9", "7"], "topic orders has no partition 9, only 0 to 1", ExitCode.NOT_FOUND),
        (["others", "0", "7"], "there is no topic others", ExitCode.NOT_FOUND),
        (["orders", "1", "100"], "open for longer than transaction.max.timeout.ms", ExitCode.FAILED),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_no_marker_for_what_does_not_hang(
    world: World, capsys: pytest.CaptureFixture[str], place: list[str], complaint: str, code: ExitCode
) -> None:
    world.open = {("orders", 1): [open_since(5, 100, 0)]}
    world.refusals[markers.WriteTxnMarkersRequest] = [ErrorCode.CLUSTER_AUTHORIZATION_FAILED]
    name, index, offset = place
    arguments = ["txn", "abort", "--topic", name, "--partition", index, "--start-offset", offset, "-y"]
    assert run(arguments) == code
    assert complaint in capsys.readouterr().err


def test_abort_asks_first(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.transactions = {"copy": (2, described("copy", "Ongoing", partitions=(0,)))}
    assert run(["txn", "abort", "copy"]) == ExitCode.USAGE
    assert "Not without --yes" in capsys.readouterr().err
    assert world.sent(init_producer_id.InitProducerIdRequest) == []


# --- find-hanging ---


def test_hanging_is_what_is_old_and_what_no_coordinator_knows(
    world: World, culver: Callable[..., Any]
) -> None:
    world.open = {
        ("orders", 0): [
            open_since(1, 10, 1_000),  # young
            open_since(2, 11, HOUR_MS),  # nobody's
            open_since(3, 12, HOUR_MS),  # its coordinator is about to end it
        ],
        ("orders", 1): [open_since(3, 20, HOUR_MS)],  # its coordinator has forgotten this partition
    }
    world.transactions = {"slow": (2, described("slow", "PrepareAbort", producer_id=3, partitions=(0,)))}
    found = culver("find-hanging")
    assert [(each["topic"], each["partition"], each["start_offset"]) for each in found] == [
        ("orders", 0, 11),
        ("orders", 1, 20),
    ]
    assert found[0]["producer_id"] == 2
    assert found[0]["idle_seconds"] >= 3600
    asked = {broker: request.topics for broker, request in world.sent(producers.DescribeProducersRequest)}
    assert {(each.name, *each.partition_indexes) for each in asked[1]} == {
        ("orders", 0),
        ("__transaction_state", 0),
    }
    assert [each["start_offset"] for each in culver("find-hanging", "--older-than", "2h")] == []
    assert [each["start_offset"] for each in culver("find-hanging", "--older-than", "500ms")] == [10, 11, 20]


def test_partitions_that_nobody_leads_are_told(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    world.topics = [topic("orders", 1, -1)]
    assert run(["txn", "find-hanging", "--topic", "orders"]) == ExitCode.OK
    printed = capsys.readouterr()
    assert "no hanging transactions" in printed.err
    assert "1 partition could not be looked at: orders-1" in printed.err


def test_without_all_coordinators_nothing_is_called_hanging(
    world: World, capsys: pytest.CaptureFixture[str]
) -> None:
    world.topics = [topic("orders", 1, 2), topic("__transaction_state", 1, -1)]
    world.open = {("orders", 0): [open_since(2, 11, HOUR_MS)]}
    assert run(["txn", "find-hanging"]) == ExitCode.FAILED
    assert "__transaction_state-1 has no leader" in capsys.readouterr().err


# --- what is refused before anything is asked ---


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["abort"], "give either an ID, or --topic"),
        (["abort", "--topic", "a", "--partition", "1"], "give either an ID, or --topic"),
        (["abort", "copy", "--topic", "a"], "not both"),
        (["list", "--state", "open"], "'open' is not one of 'empty', 'ongoing'"),
        (["list", "--duration", "long"], "'long' is no length of time"),
        (["find-hanging", "--older-than", "5"], "'5' is no length of time"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_wrong_usage_is_told_at_once(
    capsys: pytest.CaptureFixture[str], arguments: list[str], complaint: str
) -> None:
    assert run(["txn", *arguments, "-b", NOBODY]) == ExitCode.USAGE
    assert complaint in " ".join(capsys.readouterr().err.split())
