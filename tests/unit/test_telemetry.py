"""What the broker counts and tells: durations, errors, what changes of the cluster mean, one report of it all."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from culver.broker.loop_lag import LoopLag
from culver.broker.partition import Intake, Partition, PartitionTable
from culver.broker.request_statistics import ApiStatistics, error_counter
from culver.core.broker_report import BrokerReport, decode
from culver.core.cluster_events import EVENTS_MAX, ClusterEvents
from culver.core.histogram import BOUNDS_MS, Histogram
from culver.core.image import BrokerInfo, ClusterImage, PartitionImage, TopicImage
from culver.core.image_builder import ImageChange
from culver.errors import ErrorCode
from culver.protocol.messages.api_versions import ApiVersionsResponse
from culver.protocol.messages.broker_report import BrokerReportRequest
from culver.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from culver.protocol.messages.delete_groups import DeletableGroupResult, DeleteGroupsResponse
from culver.protocol.messages.produce import (
    PartitionProduceData,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
)
from culver.protocol.records import Record, encode_batch
from culver.testing import Broker
from raw_connection import RawConnection

# -- durations ------------------------------------------------------------------------------------------


def test_a_duration_counts_in_the_first_bucket_that_is_not_below_it() -> None:
    histogram = Histogram()
    for took_ms in (0.0, 0.05, 0.051, 30_000.0, 40_000.0):
        histogram.record(took_ms)
    assert histogram.counts[0] == 2
    assert histogram.counts[1] == 1
    assert histogram.counts[len(BOUNDS_MS) - 1] == 1
    assert histogram.counts[-1] == 1, "beyond all bounds"
    assert histogram.count == 5


def test_those_that_were_answered_together_are_recorded_together() -> None:
    histogram = Histogram()
    histogram.record(3.0, times=16)
    assert histogram.count == 16
    assert histogram.sum_ms == 48.0


def test_loop_lag_is_how_much_later_than_planned_a_timer_runs() -> None:
    now_ms = 1_000.0
    timers: list[Any] = []

    def call_later(delay_ms: float, callback: Any) -> Any:
        timers.append((now_ms + delay_ms, callback))
        return SimpleNamespace(cancel=timers.clear)

    lag = LoopLag(SimpleNamespace(call_later=call_later), lambda: now_ms)  # type: ignore[arg-type]
    lag.start()
    planned_ms, look = timers.pop()
    now_ms = planned_ms + 15
    look()
    assert lag.lags.count == 1
    assert lag.lags.sum_ms == 15
    lag.stop()
    assert not timers, "and the next look was planned, until it stopped"


# -- errors ---------------------------------------------------------------------------------------------


def test_errors_are_counted_wherever_in_a_response_they_stand() -> None:
    statistics = ApiStatistics()
    count = error_counter(DeleteGroupsResponse, statistics)
    assert count is not None
    codes = (ErrorCode.NONE, ErrorCode.NON_EMPTY_GROUP, ErrorCode.NON_EMPTY_GROUP)
    count(
        DeleteGroupsResponse(results=[DeletableGroupResult(group_id="g", error_code=code) for code in codes])
    )
    assert statistics.named_errors() == {"NON_EMPTY_GROUP": 2}


def test_an_error_without_a_name_is_told_by_its_number() -> None:
    statistics = ApiStatistics()
    count = error_counter(ApiVersionsResponse, statistics)
    assert count is not None
    count(ApiVersionsResponse(error_code=31_999, api_keys=[]))
    assert statistics.named_errors() == {"ERROR_31999": 1}


def test_produce_counts_its_own_errors() -> None:
    assert error_counter(ProduceResponse, ApiStatistics()) is None


# -- what came in ---------------------------------------------------------------------------------------


class Log:
    end_offset = 100


def a_partition(topic: str = "t") -> Partition:
    return Partition(topic, 0, bytes(16), Log())  # type: ignore[arg-type]


def test_only_what_producers_sent_while_it_led_counts_as_produced() -> None:
    partition = a_partition()
    log: Any = partition.log
    partition.leadership_begins()
    partition.state = SimpleNamespace()  # type: ignore[assignment]
    log.end_offset += 7
    partition.internal_records += 2  # a marker, an offset commit
    assert partition.produced_records == 5
    partition.leadership_ends()
    log.end_offset += 1_000  # fetched from the next leader
    assert partition.produced_records == 5
    partition.leadership_begins()
    partition.state = SimpleNamespace()  # type: ignore[assignment]
    log.end_offset += 1
    assert partition.produced_records == 6


def test_counters_do_not_go_back_when_a_partition_is_moved_away() -> None:
    table = PartitionTable()
    for replicated_bytes in (10, 20):
        partition = a_partition()
        partition.appended_bytes = 100
        partition.replicated_bytes = replicated_bytes
        table.add(partition)
        table.remove(partition)
    assert table.former_intake == {"t": Intake(0, 170, 30)}


# -- events ---------------------------------------------------------------------------------------------

ONE = BrokerInfo(1, "one.example", 9092, epoch=3)
TWO = BrokerInfo(2, "two.example", 9092, epoch=5)
PARTITION = PartitionImage(0, 1, 4, (1, 2, 3), (1, 2, 3), partition_epoch=9)
TOPIC = TopicImage("orders", bytes(15) + b"\1", (PARTITION,))
IMAGE = ClusterImage("c", controller_id=1, brokers={1: ONE, 2: TWO}).with_topic(TOPIC)


def changed(**fields: Any) -> ClusterImage:
    partition = replace(PARTITION, partition_epoch=10, **fields)
    return IMAGE.with_topic(TOPIC.with_partitions([partition]))


class Events:
    """Broker 2's, with what one change adds to them."""

    def __init__(self) -> None:
        self.events = ClusterEvents(2)

    def of(self, before: ClusterImage, after: ClusterImage) -> list[tuple[str, str]]:
        number = self.events.last_number
        topics = tuple(sorted({*before.topics, *after.topics}))
        self.events.image_changed(ImageChange(before, after, topics, brokers=True), 1_000)
        return [(event.kind, event.text) for event in self.events.since(number)]


@pytest.fixture
def events() -> Events:
    return Events()


def test_an_election_is_told_with_who_led_before_and_counts_for_the_elected(events: Events) -> None:
    told = events.of(IMAGE, changed(leader=2, leader_epoch=5))
    assert told == [("election", "broker 2 leads orders-0, epoch 5; broker 1 before")]
    assert events.events.elections == 1


def test_a_partition_without_a_leader_is_told_and_is_no_election(events: Events) -> None:
    told = events.of(IMAGE, changed(leader=-1, leader_epoch=5))
    assert told == [("leaderless", "orders-0 has no leader, broker 1 was it")]
    assert events.events.elections == 0


def test_changes_of_the_in_sync_replicas_count_where_the_leader_is(events: Events) -> None:
    shrunk = changed(leader=2, leader_epoch=5, isr=(2,))
    kinds = [kind for kind, _ in events.of(IMAGE, shrunk)]
    assert kinds == ["election", "isr"]
    grown = shrunk.with_topic(
        TOPIC.with_partitions([replace(PARTITION, leader=2, leader_epoch=5, isr=(2, 3), partition_epoch=11)])
    )
    assert events.of(shrunk, grown) == [("isr", "in-sync replicas of orders-0: 2 -> 2,3 (gained 3)")]
    assert (events.events.isr_shrinks, events.events.isr_expansions) == (1, 1)
    elsewhere = Events()
    elsewhere.of(IMAGE, changed(isr=(1,)))
    assert elsewhere.events.isr_shrinks == 0, "broker 1 leads it, and counts it"


def test_brokers_and_controllers_come_and_go(events: Events) -> None:
    without = replace(IMAGE.without_broker(1), controller_id=2)
    assert events.of(IMAGE, without) == [
        ("broker_down", "broker 1 is gone"),
        ("controller", "broker 2 is the controller now"),
    ]
    again = without.with_broker(replace(ONE, epoch=4))
    assert events.of(without, again) == [("broker_up", "broker 1 has joined, at one.example:9092")]


def test_a_broker_that_came_back_unseen_has_been_away(events: Events) -> None:
    again = IMAGE.with_broker(replace(ONE, epoch=4))
    assert [kind for kind, _ in events.of(IMAGE, again)] == ["broker_down", "broker_up"]


def test_topics_come_change_and_go(events: Events) -> None:
    other = TopicImage("paid", bytes(15) + b"\2", (replace(PARTITION, isr=(1,), replicas=(1,)),))
    more = IMAGE.with_topic(other)
    assert events.of(IMAGE, more) == [
        ("topic_created", "topic paid was created: 1 partition, replication factor 1")
    ]
    configured = more.with_topic(other.with_config({"retention.ms": "1"}))
    assert events.of(more, configured) == [
        ("topic_settings", "settings of topic paid were changed: retention.ms")
    ]
    assert events.of(configured, IMAGE) == [("topic_deleted", "topic paid was deleted")]


def test_a_topic_made_anew_under_its_name_was_deleted_and_created(events: Events) -> None:
    anew = IMAGE.with_topic(replace(TOPIC, topic_id=bytes(15) + b"\3"))
    assert [kind for kind, _ in events.of(IMAGE, anew)] == ["topic_deleted", "topic_created"]


def test_a_move_is_told_when_it_begins_and_when_it_is_over(events: Events) -> None:
    moving = changed(replicas=(1, 2, 3, 4), adding=(4,), removing=(3,))
    assert events.of(IMAGE, moving) == [("reassignment", "orders-0 is being moved: comes to 4, goes from 3")]
    after = changed(replicas=(1, 2, 4), isr=(1, 2, 4))
    assert ("reassignment", "orders-0 has been moved, it is on 1,2,4") in events.of(moving, after)


def test_the_same_event_has_the_same_key_on_every_broker() -> None:
    keys = []
    for broker_id in (1, 2):
        events = ClusterEvents(broker_id)
        events.image_changed(ImageChange(IMAGE, changed(leader=2, leader_epoch=5), ("orders",)), broker_id)
        keys.append([event.key for event in events.since(-1)])
    assert keys[0] == keys[1]


def test_a_failed_log_is_told_once(events: Events) -> None:
    for _ in range(3):
        events.events.log_failed("orders", TOPIC.topic_id, 0, "no such device", 1_000)
    (event,) = events.events.since(-1)
    assert event.text == "the log of orders-0 on broker 2 has failed: no such device"
    assert (event.topic, event.partition, event.broker) == ("orders", 0, 2)


def test_thousands_of_elections_at_once_do_not_drown_what_came_before(events: Events) -> None:
    count = 5_000
    led = [replace(PARTITION, index=index) for index in range(count)]
    many = IMAGE.with_topic(replace(TOPIC, partitions=tuple(led)))
    events.of(IMAGE, IMAGE.without_broker(1))
    told = events.of(
        many,
        many.with_topic(
            replace(
                TOPIC, partitions=tuple(replace(partition, leader=2, leader_epoch=5) for partition in led)
            )
        ),
    )
    assert len(told) == 51
    assert told[-1][1].startswith("and 4950 more of 1 topics: broker 2 leads orders-50,")
    assert events.events.elections == count
    assert events.events.since(-1)[0].kind == "broker_down"


def test_a_thousand_events_are_kept_and_told_from_any_of_them_on(events: Events) -> None:
    for number in range(EVENTS_MAX + 10):
        events.events.log_failed("orders", TOPIC.topic_id, number, "why", 1_000)
    kept = events.events.since(-1)
    assert len(kept) == EVENTS_MAX
    assert kept[0].number == 11
    assert [event.number for event in events.events.since(kept[-3].number)] == [1_009, 1_010]
    assert events.events.since(events.events.last_number) == []


# -- the report -----------------------------------------------------------------------------------------


def ask(connection: RawConnection, *, since_event: int = -1, detailed: bool = False) -> BrokerReport:
    response = connection.call(BrokerReportRequest(since_event=since_event, detailed=detailed), 0)
    assert response.error_code == 0
    return decode(response.report)


def produce(connection: RawConnection, topic: str, records: int, acks: int = -1) -> int:
    batch = encode_batch([Record(offset, 0, None, b"v" * 50) for offset in range(records)])
    data = [TopicProduceData(name=topic, partition_data=[PartitionProduceData(index=0, records=batch)])]
    response = connection.call(ProduceRequest(acks=acks, timeout_ms=10_000, topic_data=data), 9)
    code: int = response.responses[0].partition_responses[0].error_code
    return code


def test_a_broker_reports_what_it_has_done() -> None:
    with Broker() as broker:
        host, _, port = broker.bootstrap_servers.rpartition(":")
        with RawConnection((host, int(port))) as connection:
            topic = CreatableTopic(
                name="orders", num_partitions=1, replication_factor=1, assignments=[], configs=[]
            )
            connection.call(CreateTopicsRequest(topics=[topic], timeout_ms=10_000), 5)
            assert produce(connection, "orders", 3) == ErrorCode.NONE
            assert produce(connection, "orders", 4) == ErrorCode.NONE
            assert produce(connection, "nowhere", 1) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
            light = ask(connection)
            many = CreatableTopic(
                name="many", num_partitions=450, replication_factor=1, assignments=[], configs=[]
            )
            connection.call(CreateTopicsRequest(topics=[many], timeout_ms=10_000), 5)
            report = ask(connection, detailed=True)
            later = ask(connection, since_event=report.last_event)
    assert report.controller
    assert report.connections >= 1
    assert report.messages_in == 7
    assert 7 * 50 < report.bytes_in < report.received_bytes
    assert report.sent_bytes > 0
    assert report.apis["Produce"].errors == {"UNKNOWN_TOPIC_OR_PARTITION": 1}
    assert sum(report.apis["Produce"].latency.counts) == 3
    assert report.apis["Produce"].latency.sum_ms > 0
    assert sum(report.flushes.counts) >= 2, "each acknowledgement waited for the disk"
    assert report.leaders == report.partitions >= 451, "looked at in several steps"
    assert len(report.topics["many"].log_bytes) == 450
    assert (report.under_replicated, report.under_min_isr, report.failed_logs) == (0, 0, 0)
    assert report.topics["orders"].messages_in == 7
    assert report.topics["orders"].log_bytes[0] == report.topics["orders"].bytes_in
    kinds = [event.kind for event in report.events]
    assert {"broker_up", "controller", "topic_created"} <= set(kinds)
    assert (light.detailed, light.topics, light.messages_in) == (False, {}, 7)
    assert later.events == [], "none after the last"
