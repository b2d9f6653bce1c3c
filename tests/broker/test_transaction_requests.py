"""Transactions over a raw connection: what each request does in order, and what it is told out of order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from itertools import count

import pytest

from culver.errors import ErrorCode
from culver.protocol.messages.add_partitions_to_txn import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from culver.protocol.messages.offset_fetch import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from culver.protocol.messages.write_txn_markers import (
    WritableTxnMarker,
    WritableTxnMarkerTopic,
    WriteTxnMarkersRequest,
)
from culver.testing import Broker
from raw_connection import RawConnection
from wire_transactions import READ_COMMITTED, READ_UNCOMMITTED, WireProducer, latest_offset, read

OK = ErrorCode.NONE
_names = count()


@pytest.fixture(scope="module")
def broker() -> Iterator[Broker]:
    with Broker(
        topics={"source": 2}, config={"culver.flush": "os", "transaction.max.timeout.ms": 60_000}
    ) as broker:
        yield broker


@pytest.fixture
def connection(broker: Broker) -> Iterator[RawConnection]:
    host, _, port = broker.bootstrap_servers.rpartition(":")
    with RawConnection((host, int(port))) as connection:
        yield connection


@pytest.fixture
def topic(broker: Broker) -> str:
    name = f"topic-{next(_names)}"
    broker.create_topic(name, partitions=2)
    return name


@pytest.fixture
def producer(connection: RawConnection) -> WireProducer:
    return ready(connection, f"id-{next(_names)}")


def ready(connection: RawConnection, transactional_id: str) -> WireProducer:
    producer = WireProducer(connection, transactional_id)
    producer.find(until)
    assert producer.init() is OK
    return producer


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline, "it never came about"
        time.sleep(0.005)


# -- in order -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("generation", [1, 2])
def test_records_are_read_once_they_are_committed(
    connection: RawConnection, producer: WireProducer, topic: str, generation: int
) -> None:
    for number in range(3):
        value = b"%d" % number
        before = [b"%d" % earlier for earlier in range(number)]
        if generation == 1:
            assert producer.add(topic, 0, 1) == [OK, OK]
        version = 11 if generation == 1 else 12
        assert producer.produce(topic, 0, value, version=version) is OK
        assert producer.produce(topic, 1, value, value, version=version) is OK
        assert read(connection, topic, 0) == before
        assert read(connection, topic, 0, isolation=READ_UNCOMMITTED) == [*before, value]
        stable = latest_offset(connection, topic, 0, READ_COMMITTED)
        assert stable < latest_offset(connection, topic, 0, READ_UNCOMMITTED)
        assert producer.end(commit=True, version=4 if generation == 1 else 5) is OK
        until(lambda: read(connection, topic, 0) == [*before, value])  # noqa: B023
        until(lambda: len(read(connection, topic, 1)) == 2 * number + 2)  # noqa: B023
        assert latest_offset(connection, topic, 0, READ_COMMITTED) == latest_offset(
            connection, topic, 0, READ_UNCOMMITTED
        )


@pytest.mark.parametrize("generation", [1, 2])
def test_aborted_records_are_skipped(
    connection: RawConnection, producer: WireProducer, topic: str, generation: int
) -> None:
    produce_version, end_version = (11, 4) if generation == 1 else (12, 5)
    for number, commit in enumerate([False, True, False, True]):
        if generation == 1:
            assert producer.add(topic, 0) == [OK]
        assert producer.produce(topic, 0, b"%d" % number, version=produce_version) is OK
        assert producer.end(commit=commit, version=end_version) is OK
    until(lambda: read(connection, topic) == [b"1", b"3"])
    assert read(connection, topic, isolation=READ_UNCOMMITTED) == [b"0", b"1", b"2", b"3"]


def test_every_end_raises_the_epoch_in_the_second_generation(producer: WireProducer, topic: str) -> None:
    first = producer.epoch
    for number in range(1, 4):
        assert producer.produce(topic, 0, b"x", version=12) is OK
        assert producer.end(commit=True, version=5) is OK
        assert producer.epoch == first + number


@pytest.mark.parametrize("generation", [1, 2])
def test_offsets_count_with_the_commit(
    connection: RawConnection, producer: WireProducer, generation: int
) -> None:
    group = f"group-{next(_names)}"
    producer.find(until, group=group)

    def committed(*, stable: bool = True) -> tuple[int, ErrorCode]:
        topics = [OffsetFetchRequestTopics(name="source", partition_indexes=[0])]
        request = OffsetFetchRequest(
            groups=[OffsetFetchRequestGroup(group_id=group, topics=topics)], require_stable=stable
        )
        (answer,) = connection.call(request, 8).groups
        (partition,) = answer.topics[0].partitions
        return partition.committed_offset, ErrorCode(partition.error_code)

    for offset, commit in ((5, True), (7, False), (9, True)):
        before = committed()[0]
        if generation == 1:
            assert producer.add_offsets(group) is OK
        version = 3 if generation == 1 else 5
        assert producer.commit_offset(group, "source", 0, offset, version=version) is OK
        assert committed() == (-1, ErrorCode.UNSTABLE_OFFSET_COMMIT)
        assert committed(stable=False) == (before, OK)
        assert producer.end(commit=commit, version=4 if generation == 1 else 5) is OK
        until(lambda: committed() == (offset if commit else before, OK))  # noqa: B023


def test_a_new_owner_of_the_id_ends_what_the_old_one_left(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"lost") is OK
    successor = ready(connection, producer.transactional_id)
    assert successor.producer_id == producer.producer_id
    assert successor.epoch > producer.epoch
    assert successor.add(topic, 0) == [OK]
    assert successor.produce(topic, 0, b"kept") is OK
    assert successor.end(commit=True) is OK
    until(lambda: read(connection, topic) == [b"kept"])

    assert producer.produce(topic, 0, b"late") is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(topic, 0) == [ErrorCode.PRODUCER_FENCED]
    assert producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert producer.add_offsets("group") is ErrorCode.PRODUCER_FENCED
    assert read(connection, topic) == [b"kept"]


def test_a_transaction_that_takes_too_long_is_aborted(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    assert producer.init(timeout_ms=200) is OK
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"slow") is OK
    until(lambda: producer.state() == "CompleteAbort")
    assert latest_offset(connection, topic, 0, READ_COMMITTED) == 2  # the record and its marker
    assert read(connection, topic) == []
    assert producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
    assert producer.init() is OK
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"again") is OK
    assert producer.end(commit=True) is OK
    until(lambda: read(connection, topic) == [b"again"])


def test_it_outlives_the_broker_that_coordinates_it(topic: str) -> None:
    with Broker(topics={"t": 1}) as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with RawConnection((host, int(port))) as connection:
            committed, open_one = ready(connection, "committed"), ready(connection, "open")
            for producer in (committed, open_one):
                assert producer.add("t", 0) == [OK]
                assert producer.produce("t", 0, producer.transactional_id.encode()) is OK
            assert committed.end(commit=True) is OK
        broker.kill()
        broker.start()
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with RawConnection((host, int(port))) as connection:
            assert read(connection, "t") == [b"committed"]
            open_one.connection = connection
            open_one.find(until)
            assert open_one.state() == "Ongoing"
            assert open_one.produce("t", 0, b"more") is OK
            assert open_one.end(commit=True) is OK
            until(lambda: read(connection, "t") == [b"committed", b"open", b"more"])


# -- out of order -------------------------------------------------------------------------------------------


def test_commit_without_begin(connection: RawConnection, producer: WireProducer, topic: str) -> None:
    assert producer.end(commit=True) is ErrorCode.INVALID_TXN_STATE
    assert producer.state() == "Empty"
    assert producer.produce(topic, 0, b"x") is ErrorCode.TRANSACTION_ABORTABLE  # it was not added
    assert producer.produce(topic, 0, b"x", version=10) is ErrorCode.INVALID_TXN_STATE
    producer.find(until, group="group")
    assert producer.commit_offset("group", "source", 0, 1) is ErrorCode.INVALID_TXN_STATE
    assert producer.commit_offset("group", "source", 0, 1, version=4) is ErrorCode.TRANSACTION_ABORTABLE
    assert latest_offset(connection, topic, 0, READ_UNCOMMITTED) == 0


def test_ending_twice_the_same_way_is_one_end_and_another_way_is_refused(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"x") is OK
    assert producer.end(commit=True) is OK
    until(lambda: producer.state() == "CompleteCommit")
    assert producer.end(commit=True) is OK
    assert producer.end(commit=False) is ErrorCode.INVALID_TXN_STATE
    assert read(connection, topic) == [b"x"]


def test_wrong_epochs_and_ids(connection: RawConnection, producer: WireProducer, topic: str) -> None:
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"x") is OK
    epoch, producer_id = producer.epoch, producer.producer_id
    for wrong in (epoch + 1, epoch + 100):
        producer.epoch = wrong
        assert producer.end(commit=True) is ErrorCode.PRODUCER_FENCED
        assert producer.add(topic, 1) == [ErrorCode.PRODUCER_FENCED]
        assert producer.add_offsets("group") is ErrorCode.PRODUCER_FENCED
        assert producer.produce(topic, 1, b"y") is ErrorCode.INVALID_PRODUCER_EPOCH
    producer.epoch, producer.producer_id = epoch, producer_id + 1
    assert producer.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert producer.add(topic, 1) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert producer.produce(topic, 1, b"y") is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    producer.producer_id = producer_id
    assert producer.state() == "Ongoing"
    assert read(connection, topic, 1, isolation=READ_UNCOMMITTED) == []
    assert producer.end(commit=True) is OK
    until(lambda: read(connection, topic) == [b"x"])


def test_old_versions_hear_of_fencing_in_their_own_words(producer: WireProducer, topic: str) -> None:
    producer.epoch += 1
    assert producer.end(commit=True, version=1) is ErrorCode.INVALID_PRODUCER_EPOCH
    assert producer.add(topic, 0, version=1) == [ErrorCode.INVALID_PRODUCER_EPOCH]


def test_ids_that_nobody_has(connection: RawConnection, topic: str) -> None:
    stranger = WireProducer(connection, "stranger")
    stranger.find(until)
    stranger.producer_id, stranger.epoch = 12345, 0
    assert stranger.state() == "TRANSACTIONAL_ID_NOT_FOUND"
    assert stranger.end(commit=True) is ErrorCode.INVALID_PRODUCER_ID_MAPPING
    assert stranger.add(topic, 0) == [ErrorCode.INVALID_PRODUCER_ID_MAPPING]
    assert stranger.produce(topic, 0, b"x") is ErrorCode.INVALID_PRODUCER_ID_MAPPING


@pytest.mark.parametrize("timeout_ms", [0, -1, 60_001, 2**31 - 1, -(2**31)])
def test_absurd_timeouts(producer: WireProducer, timeout_ms: int) -> None:
    before = producer.producer_id, producer.epoch
    assert producer.init(timeout_ms=timeout_ms) is ErrorCode.INVALID_TRANSACTION_TIMEOUT
    assert (producer.producer_id, producer.epoch) == before
    assert producer.add("source", 0) == [OK]
    assert producer.end(commit=False) is OK


def test_an_empty_transactional_id(connection: RawConnection) -> None:
    assert WireProducer(connection, "").init() is ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [3, 5])
def test_offsets_of_no_transaction_or_no_group(
    connection: RawConnection, producer: WireProducer, version: int
) -> None:
    nameless = WireProducer(connection, "")
    nameless.producer_id, nameless.epoch = producer.producer_id, producer.epoch
    assert nameless.commit_offset("group", "source", 0, 1, version=version) is ErrorCode.INVALID_REQUEST
    assert producer.commit_offset("", "source", 0, 1, version=version) is ErrorCode.INVALID_GROUP_ID


def test_partitions_that_are_not_there(producer: WireProducer, topic: str) -> None:
    assert producer.add(topic, 0, 7) == [
        ErrorCode.OPERATION_NOT_ATTEMPTED,
        ErrorCode.UNKNOWN_TOPIC_OR_PARTITION,
    ]
    assert producer.state() == "Empty"


def test_records_without_the_id_that_their_transaction_has(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    assert producer.add(topic, 0) == [OK]
    producer_id = producer.transactional_id
    producer.transactional_id = None  # type: ignore[assignment]
    assert producer.produce(topic, 0, b"x") is ErrorCode.TRANSACTIONAL_ID_AUTHORIZATION_FAILED
    producer.transactional_id = producer_id
    assert latest_offset(connection, topic, 0, READ_UNCOMMITTED) == 0


def test_records_outside_of_the_transaction_that_is_open(producer: WireProducer, topic: str) -> None:
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"x") is OK
    assert producer.produce(topic, 0, b"y", transactional=False) is ErrorCode.INVALID_TXN_STATE


@pytest.mark.parametrize("commit", [True, False])
@pytest.mark.parametrize("version", [1, 2])
def test_markers_from_a_client(
    connection: RawConnection, producer: WireProducer, topic: str, commit: bool, version: int
) -> None:
    assert producer.add(topic, 0) == [OK]
    assert producer.produce(topic, 0, b"x") is OK
    for epoch in (producer.epoch, producer.epoch + 1):
        marker = WritableTxnMarker(
            producer_id=producer.producer_id,
            producer_epoch=epoch,
            transaction_result=commit,
            topics=[WritableTxnMarkerTopic(name=topic, partition_indexes=[0])],
            coordinator_epoch=0,
        )
        answer = connection.call(WriteTxnMarkersRequest(markers=[marker]), version)
        (result,) = answer.markers[0].topics[0].partitions
        assert ErrorCode(result.error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert latest_offset(connection, topic, 0, READ_COMMITTED) == 0
    assert producer.end(commit=True) is OK
    until(lambda: read(connection, topic) == [b"x"])


def test_what_only_brokers_may_ask(connection: RawConnection, producer: WireProducer, topic: str) -> None:
    request = AddPartitionsToTxnRequest(
        transactions=[
            AddPartitionsToTxnTransaction(
                transactional_id=producer.transactional_id,
                producer_id=producer.producer_id,
                producer_epoch=producer.epoch,
                topics=[AddPartitionsToTxnTopic(name=topic, partitions=[0])],
            )
        ]
    )
    answer = connection.call(request, 4)
    assert ErrorCode(answer.error_code) is ErrorCode.CLUSTER_AUTHORIZATION_FAILED
    assert producer.state() == "Empty"


def test_requests_behind_one_that_waits_for_its_coordinator_keep_their_order(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    """The second generation adds partitions by writing: many batches at once, the first of them begins it."""
    from culver.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData

    begun = []
    for number in range(20):
        records = producer.batch((topic, 0), b"%d" % number)
        producer.sequences[topic, 0] = number + 1
        data = TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=records)])
        request = ProduceRequest(
            transactional_id=producer.transactional_id, acks=-1, timeout_ms=5_000, topic_data=[data]
        )
        begun.append(connection.begin(request, 12))
    for one in begun:
        answer = connection.finish(one)
        assert answer.responses[0].partition_responses[0].error_code == 0
    assert producer.end(commit=True, version=5) is OK
    until(lambda: read(connection, topic) == [b"%d" % number for number in range(20)])


def test_a_transaction_of_the_second_generation_begins_with_sequence_0(
    connection: RawConnection, producer: WireProducer, topic: str
) -> None:
    producer.sequences[topic, 0] = 5
    assert producer.produce(topic, 0, b"x", version=12) is ErrorCode.OUT_OF_ORDER_SEQUENCE_NUMBER
    producer.sequences[topic, 0] = 0
    assert producer.produce(topic, 0, b"x", version=12) is OK
    assert producer.end(commit=True, version=5) is OK
    until(lambda: read(connection, topic) == [b"x"])
