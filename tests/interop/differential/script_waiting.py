"""Scripts about requests that wait: long polls, rebalances that time out, members that fall silent."""

from __future__ import annotations

import time

from culver.protocol.messages.delete_topics import DeleteTopicsRequest
from culver.protocol.messages.describe_groups import DescribeGroupsRequest
from culver.protocol.messages.fetch import FetchRequest
from differential import batches
from differential.play import Play, produce_request, script
from differential.script_fetch import fetch_request, part
from differential.script_groups import beat, describe, join, stable_member, sync

LONG_WAIT_MS = 30_000


@script
def long_polls(play: Play) -> None:
    topic_id = play.topic("polled", 2)
    waiting = play.connect()

    def polling(title: str, request: FetchRequest, version: int, *appends: tuple[int, int]) -> None:
        """Begin to poll, append batches (partition, records), and record what comes of it."""
        begun = waiting.begin(request, version)
        for partition, count in appends:
            play.produce("polled", batches.batch(count), partition)
        play.finish(title, begun, on=waiting)

    def poll(
        offsets: tuple[int, ...], min_bytes: int = 1, wait_ms: int = LONG_WAIT_MS, **how: tuple[int, int]
    ) -> FetchRequest:
        partitions = [part(index, offset) for index, offset in enumerate(offsets)]
        return fetch_request([("polled", partitions)], min_bytes=min_bytes, max_wait_ms=wait_ms, **how)  # type: ignore[arg-type]

    polling("woken by an append", poll((0,)), 11, (0, 2))
    polling("woken by the second of two partitions", poll((2, 0)), 11, (1, 1))
    size = len(batches.batch(1))
    polling("woken when there is enough", poll((2, 1), min_bytes=3 * size), 11, (0, 1), (1, 1), (0, 1))
    polling("what is there is enough", poll((0, 0), min_bytes=size), 11)
    polling("time is over before there is enough", poll((0, 0), min_bytes=1 << 20, wait_ms=200), 11)
    polling("time is over and nothing came", poll((4, 2), wait_ms=200), 11)
    by_id = fetch_request([(topic_id, [part(0, 4)])], max_wait_ms=LONG_WAIT_MS)
    polling("woken by an append, by id", by_id, 13, (0, 1))
    made = play.quiet(poll((5, 2), wait_ms=0, session=(0, 0)), 11)
    session = fetch_request([], max_wait_ms=LONG_WAIT_MS, session=(made.session_id, 1))
    polling("woken within a session", session, 11, (1, 3))
    read_committed = poll((5, 5))
    read_committed.isolation_level = 1
    polling("woken at read_committed", read_committed, 11, (0, 1))


@script
def requests_behind_a_long_poll(play: Play) -> None:
    play.topic("behind", 1)
    connection = play.connect()
    first = connection.begin(fetch_request([("behind", [part()])], max_wait_ms=300), 11)
    second = connection.begin(produce_request("behind", batches.batch(2)), 9)
    third = connection.begin(fetch_request([("behind", [part()])]), 11)
    # Kafka takes a connection's requests one by one: the append is made when the poll is over.
    answer = connection.finish(first)
    play.note("the poll's error", answer.responses[0].partitions[0].error_code)
    play.finish("the append behind it", second, on=connection)
    play.finish("the fetch behind that", third, on=connection)


@script
def what_is_left_of_a_deleted_topic(play: Play) -> None:
    topic_id = play.topic("short.lived", 1)
    play.produce("short.lived", batches.batch(2))
    play.quiet(DeleteTopicsRequest(topic_names=["short.lived"], timeout_ms=9000), 5)
    play.until(lambda: not play.topic_id_if_ready("short.lived"))
    play.step("produce by its id", produce_request("", batches.batch(), topic_id=topic_id), 13)
    play.step("fetch by its id", fetch_request([(topic_id, [part()])]), 13)
    play.step("fetch by its name", fetch_request([("short.lived", [part()])]), 12)
    again = play.topic("short.lived", 1)
    play.step("fetch the next of its name", fetch_request([(again, [part()])]), 13)
    play.step("produce to the next of its name", produce_request("", batches.batch(), topic_id=again), 13)


@script
def a_member_that_does_not_join_again(play: Play) -> None:
    group = "left.behind"
    play.coordinator(group)
    joined = play.quiet(join(group, rebalance_ms=500), 3)
    request = sync(group, joined.generation_id, joined.member_id, {joined.member_id: b"all"})
    assert play.quiet(request, 3).error_code == 0
    play.normal.member_is_known(joined.member_id)
    other = play.connect()
    first = other.call(join(group, rebalance_ms=500), 5)
    play.normal.member_is_known(first.member_id)
    waiting = other.begin(join(group, first.member_id, rebalance_ms=500), 5)
    play.finish("the second is alone when the first's time is over", waiting, on=other)
    play.step("the first is gone", beat(group, joined.generation_id, joined.member_id), 4)
    describe(play, "described", group)


@script
def a_follower_that_waits_for_its_assignment(play: Play) -> None:
    group = "no.assignment"
    member, _ = stable_member(play, group)
    other = play.connect()
    second = other.call(join(group), 5).member_id
    play.normal.member_is_known(second)
    waiting = other.begin(join(group, second), 5)
    play.until(lambda: play.quiet(beat(group, 1, member), 4).error_code)
    leader = play.quiet(join(group, member), 5)
    follower = other.finish(waiting)
    parked = other.begin(sync(group, follower.generation_id, second), 5)
    # The leader goes on to join again instead of handing in an assignment.
    describe(play, "described while the follower waits", group)
    again = play.connect()
    rejoining = again.begin(join(group, leader.member_id, protocols=("range", "sticky")), 5)
    play.finish("the follower is told of the rebalance", parked, on=other)
    begun = other.begin(join(group, second), 5)
    play.finish("the follower has joined again", begun, on=other)
    play.finish("the leader has joined again", rejoining, on=again)


@script
def a_member_that_falls_silent(play: Play) -> None:
    group = "silent"
    play.coordinator(group)
    joined = play.quiet(join(group, session_ms=6000), 3)
    request = sync(group, joined.generation_id, joined.member_id, {joined.member_id: b"all"})
    assert play.quiet(request, 3).error_code == 0
    play.normal.member_is_known(joined.member_id)
    began = time.monotonic()

    def state() -> str:
        found: str = play.quiet(DescribeGroupsRequest(groups=[group]), 5).groups[0].group_state
        return found

    play.until(lambda: state() != "Stable")
    play.note("it had its session timeout", 5.5 < time.monotonic() - began < 9)
    play.until(lambda: state() == "Empty")
    describe(play, "described", group)
    play.step("its heartbeat comes too late", beat(group, joined.generation_id, joined.member_id), 4)
    play.step("it joins under its old id", join(group, joined.member_id), 5)
