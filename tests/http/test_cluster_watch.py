"""The cluster's events as the gateway merges them, throughput, and lag in seconds."""

from __future__ import annotations

import asyncio
from collections import Counter

from culver.core.broker_report import BrokerReport, ClusterEvent, HistogramReport
from culver.gateway.cluster.view import TopicPartition as Place
from culver.gateway.metrics.events import Event, Events
from culver.gateway.metrics.lag_time import LagTimes
from culver.gateway.metrics.throughput import Throughput
from culver.gateway.services import Services
from culver.gateway.settings import GatewaySettings
from culver.testing import Broker, Cluster

DEADLINE_SECONDS = 30.0


def an_event(number: int, at_ms: int, key: str) -> ClusterEvent:
    return ClusterEvent(number, at_ms, "election", f"{key} happened", key)


def test_what_two_brokers_tell_is_one_event() -> None:
    async def run() -> None:
        events = Events(first_number=100)
        events.add([an_event(1, 1_000, "a"), an_event(2, 3_000, "b")])
        events.add([an_event(7, 1_010, "a"), an_event(8, 2_000, "c")])
        assert [(event.number, event.text[0]) for event in events.recent()] == [
            (100, "a"),
            (101, "b"),
            (102, "c"),
        ]
        events.add([an_event(9, 60_000, "a")])
        assert events.recent(after=102)[0].text == "a happened", "later it is another"
        assert [event.number for event in events.recent(limit=2)] == [102, 103]

    asyncio.run(run())


def test_whoever_waits_hears_of_the_next_event() -> None:
    async def run() -> None:
        events = Events(first_number=100)
        for after, key in ((0, "a"), (100, "b")):
            waiting = asyncio.ensure_future(events.wait(after))
            await asyncio.sleep(0)
            assert not waiting.done()
            events.add([an_event(1, 1_000, key)])
            await asyncio.wait_for(waiting, DEADLINE_SECONDS)

    asyncio.run(run())


def a_report(broker: int, at_ms: int, messages_in: int, started_at_ms: int = 1) -> BrokerReport:
    nothing = HistogramReport([], 0.0)
    counters = dict.fromkeys(
        (
            *("received_bytes", "sent_bytes", "bytes_in", "replicated_bytes_in", "connections"),
            *("connections_opened", "isr_shrinks", "isr_expansions", "elections", "groups"),
            *("open_transactions", "last_event"),
        ),
        0,
    )
    return BrokerReport(
        broker=broker,
        cluster_id="c",
        version="",
        at_ms=at_ms,
        started_at_ms=started_at_ms,
        controller=False,
        messages_in=messages_in,
        bounds_ms=[],
        flushes=nothing,
        loop_lag=nothing,
        apis={},
        events=[],
        **counters,
    )


def test_throughput_is_how_the_counters_of_all_brokers_grow() -> None:
    throughput = Throughput(1.0)
    throughput.add(1_000, [a_report(1, 1_000, 100), a_report(2, 1_000, 7)])
    assert throughput.series() == [], "one look tells nothing"
    throughput.add(3_000, [a_report(1, 3_000, 120), a_report(2, 3_000, 17)])
    throughput.add(4_000, [a_report(1, 4_000, 0, started_at_ms=3_500), a_report(2, 4_000, 18)])
    assert [(point.at_ms, point.messages_in_s) for point in throughput.series()] == [
        (3_000, 15.0),
        (4_000, 1.0),
    ]


def test_the_gateway_hears_what_happens_in_the_cluster() -> None:
    topic = "new"

    async def run(broker: Broker) -> list[str]:
        services = Services(GatewaySettings(bootstrap=broker.bootstrap_servers))
        await services.start()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                last = 0
                while not any(event.topic == topic for event in services.events.recent(after=last)):
                    last = services.events.last_number
                    await services.events.wait(last)
            return [each.kind for each in services.events.recent(limit=1_000) if each.topic in (None, topic)]
        finally:
            await services.close()

    with Broker(topics={topic: 1}) as broker:
        kinds = asyncio.run(run(broker))
    assert {"broker_up", "controller", "topic_created"} <= set(kinds)


def test_what_all_brokers_saw_is_told_once_and_outlives_the_one_that_died() -> None:
    async def run(cluster: Cluster) -> list[Event]:
        services = Services(GatewaySettings(bootstrap=cluster.bootstrap_servers))
        await services.start()
        try:
            async with asyncio.timeout(DEADLINE_SECONDS):
                await services.events.wait(0)
                cluster.broker(cluster.leader("orders")).kill()
                while not any(event.kind == "isr" for event in services.events.recent(limit=1_000)):
                    await services.events.wait(services.events.last_number)
            return services.events.recent(limit=1_000)
        finally:
            await services.close()

    with Cluster(brokers=2, topics={"orders": 1}, config={"default.replication.factor": 2}) as cluster:
        dead = cluster.leader("orders")
        events = asyncio.run(run(cluster))
    told = Counter((event.kind, event.topic, event.broker) for event in events)
    assert told["broker_down", None, dead] == 1
    assert told["topic_created", "orders", None] == 1
    assert told["election", "orders", 3 - dead] == 1
    assert told["isr", "orders", 3 - dead] == 1
    assert [event.number for event in events] == sorted({event.number for event in events})


# -- lag in time ----------------------------------------------------------------------------------------

PLACE = Place("t", 0)


def test_a_record_came_when_the_end_went_past_it() -> None:
    times = LagTimes()
    for at_ms, end in ((1_000, 10), (2_000, 20), (3_000, 20), (4_000, 30)):
        times.look(at_ms, [(PLACE, end)])
    assert times.came_at_ms(PLACE, 9) is None, "before the first look"
    assert times.came_at_ms(PLACE, 10) == 1_100, "one of ten that came evenly in a second"
    assert times.came_at_ms(PLACE, 19) == 2_000
    assert times.came_at_ms(PLACE, 20) == 3_100, "not before the last look at which it was not there"
    assert times.came_at_ms(PLACE, 30) is None, "not there yet"


def test_what_was_read_is_remembered_until_the_group_moves_on() -> None:
    times = LagTimes()
    times.look(1_000, [(PLACE, 10)])
    times.has_been_read(PLACE, 4, 250.0)
    times.forget_reads_but([(PLACE, 4)])
    assert times.came_at_ms(PLACE, 4) == 250.0
    times.forget_reads_but([(PLACE, 5)])
    assert times.came_at_ms(PLACE, 4) is None


def test_a_topic_made_anew_begins_anew() -> None:
    times = LagTimes()
    times.look(1_000, [(PLACE, 10)])
    times.look(2_000, [(PLACE, 20)])
    times.look(3_000, [(PLACE, 5)])
    times.look(4_000, [(PLACE, 15)])
    assert times.came_at_ms(PLACE, 14) == 4_000
    assert times.came_at_ms(PLACE, 4) is None


def test_memory_for_looks_is_bounded_and_reaches_far_back() -> None:
    times = LagTimes()
    for number in range(1, 10_001):
        times.look(number * 1_000, [(PLACE, number)])
    came_at_ms = times.came_at_ms(PLACE, 9_990)
    assert came_at_ms is not None
    assert abs(came_at_ms - 9_991_000) < 2_000
    assert times.came_at_ms(PLACE, 100) is not None
