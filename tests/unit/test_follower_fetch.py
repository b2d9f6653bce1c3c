"""Followers and leaders: what is written at one is at the others, whoever led before."""

from __future__ import annotations

import pytest
from replica_world import ReplicaWorld, cuts_of, in_agreement, plug_in, sent_requests, unplug


@pytest.fixture
def world() -> ReplicaWorld:
    world = ReplicaWorld(2)
    world.make_topic()
    world.run()
    return world


# -- the common way -----------------------------------------------------------------------------------------


def test_what_the_leader_appends_is_at_the_follower_byte_for_byte(world: ReplicaWorld) -> None:
    for number in range(20):
        world[1].append(b"%d" % number, b"more")
    world.run()
    assert in_agreement(world)
    assert world[2].partition().log.end_offset == 40


def test_a_fetch_acknowledges_what_came_before(world: ReplicaWorld) -> None:
    world[1].append(b"a", b"b")
    assert world[1].partition().log.high_watermark == 0
    world.run()
    assert world[1].replication.fetched[-1] == (world[1].partition(), 2, 1, 2)
    assert world[1].partition().log.high_watermark == 2


def test_the_high_watermark_comes_with_the_next_records_or_after_a_while(world: ReplicaWorld) -> None:
    world[1].append(b"a")
    world.run()
    assert world[2].partition().log.high_watermark == 0
    world[1].append(b"b")
    world.run()
    assert world[2].partition().log.high_watermark == 1
    world.run(600)
    assert world[2].partition().log.high_watermark == 2


def test_an_idle_follower_asks_twice_a_second(world: ReplicaWorld) -> None:
    before = sent_requests(world)
    world.run(10_000)
    assert 19 <= sent_requests(world) - before <= 21


def test_a_thousand_idle_partitions_make_no_request_larger() -> None:
    world = ReplicaWorld(2)
    world.make_topic(partitions=1000)
    world.run(2000)
    [connection] = world.network.connections
    already = len(connection.sent)
    for number in range(10):
        world[1].append(b"%d" % number, index=7)
        world.run()
    assert len(connection.sent) > already
    assert max(map(len, connection.sent[already:])) < 200
    assert in_agreement(world, index=7)
    # And all of them still count as fetched, now and then.
    world[1].replication.fetched.clear()
    world.run(1000)
    assert len({call[0] for call in world[1].replication.fetched}) == 1000


def test_a_new_partition_does_not_wait_for_the_long_poll_of_others(world: ReplicaWorld) -> None:
    world.make_topic("new")
    world[1].append(b"a", topic="new")
    world.run(5)
    assert world[1].partition("new").log.high_watermark == 1


def test_large_answers_arrive_in_pieces(world: ReplicaWorld) -> None:
    world.network.piece_bytes = 10_000
    for number in range(10):
        world[1].append(bytes([number]) * 300_000)
    world.run()
    assert in_agreement(world)


def test_each_leader_has_a_connection_of_its_own() -> None:
    world = ReplicaWorld(3)
    world.make_topic("a", leader=1)
    world.make_topic("b", leader=2)
    world.run()
    world[1].append(b"a", topic="a")
    world[2].append(b"b", topic="b")
    world.run()
    assert in_agreement(world, "a")
    assert in_agreement(world, "b")
    assert len(world.network.connections) == 4


def test_the_high_watermark_does_not_end_a_long_poll() -> None:
    world = ReplicaWorld(3)
    world.make_topic()
    world.run()
    world[1].append(b"a")
    world.run()
    answered = [len(connection.other.sent) for connection in world.network.connections]
    world[1].partition().log.high_watermark = 1
    world[1].partitions.changed(world[1].partition())
    world[1].after_requests()
    world.run(10)
    assert [len(connection.other.sent) for connection in world.network.connections] == answered


def test_a_topic_that_flushes_always_is_acknowledged_when_it_is_on_disk() -> None:
    world = ReplicaWorld(2)
    world.make_topic("t", flush="always")
    world.make_topic("other")
    world.run()
    world.scheduler.hold_blocking = True
    world[1].append(b"a")
    world[1].append(b"b", topic="other")
    world.run(1000)
    assert world[2].values() == [b"a"]
    assert world[1].partition().log.high_watermark == 0
    [connection] = world.network.connections
    already = len(connection.other.sent)
    world[1].append(bytes(1000))
    world.run(2000)
    assert max(map(len, connection.other.sent[already:])) < 1000, "nothing is sent before it is asked for"
    assert world[1].partition("other").log.high_watermark == 1, "others go on meanwhile"
    world.scheduler.release_blocking()
    world.run(5)
    assert world[1].partition().log.high_watermark == 2
    assert world[2].partition().log.flushed_offset == 2


# -- leaders change -----------------------------------------------------------------------------------------


def test_leadership_goes_back_and_forth(world: ReplicaWorld) -> None:
    for number in range(10):
        leader = 1 + number % 2
        world.lead(leader)
        world[leader].append(b"%d" % number)
        world.run()
    assert in_agreement(world)
    assert world[1].values() == [b"%d" % number for number in range(10)]


def test_what_only_the_old_leader_had_is_cut_off(world: ReplicaWorld) -> None:
    world[1].append(b"committed")
    world.run()
    unplug(world)
    world[1].append(b"only here")
    world.lead(2)
    world[2].append(b"instead")
    plug_in(world)
    assert world[1].values() == [b"committed", b"instead"]
    assert in_agreement(world)


def test_the_high_watermark_decides_nothing_when_logs_part(world: ReplicaWorld) -> None:
    """KIP-101: a follower that knows a low watermark keeps what its new leader has, too."""
    world[1].append(b"a")
    world[1].append(b"b")
    world.run()
    log = world[2].partition().log
    log.high_watermark = 0
    cuts = cuts_of(log)
    world.lead(1)
    world[1].append(b"c")
    world.run()
    assert world[2].values() == [b"a", b"b", b"c"]
    assert cuts == []
    unplug(world)
    log.high_watermark = 0
    world.lead(2)
    world[2].append(b"only here")
    log.high_watermark = 0
    world.lead(1)
    plug_in(world)
    assert cuts == [3]


def test_the_cut_is_where_the_first_of_both_logs_left_the_epoch(world: ReplicaWorld) -> None:
    """KIP-279: the leader went on in an epoch that the follower left early."""
    world[1].append(b"0")
    world.run()
    unplug(world)
    world[1].append(b"1 of epoch 0")
    world[1].append(b"2 of epoch 0")
    world.lead(2)
    for number in range(5):
        world[2].append(b"%d of epoch 1" % number)
    world.lead(1)
    world[1].append(b"3 of epoch 2")
    cuts = cuts_of(world[2].partition().log)
    plug_in(world)
    assert cuts == [1]
    assert in_agreement(world)


def test_logs_that_parted_more_than_once_find_what_they_share(world: ReplicaWorld) -> None:
    """KIP-279: each side wrote in epochs that the other never saw."""
    world[1].append(b"shared")
    world.run()
    unplug(world)
    for number in range(4):
        leader = 1 + number % 2
        world.lead(leader)
        world[leader].append(b"%d" % number, b"x" * number)
        world.run()
    plug_in(world)
    assert in_agreement(world)
    assert world[1].values()[0] == b"shared"


def test_an_epoch_without_records_is_no_divergence(world: ReplicaWorld) -> None:
    world[1].append(b"a")
    world.run()
    for _ in range(3):
        world.lead(2)
        world.run()
        world.lead(1)
        world.run()
    world[1].append(b"b")
    world.run()
    assert in_agreement(world)
    assert world[2].values() == [b"a", b"b"]


def test_an_answer_about_a_leadership_that_is_over_is_ignored(world: ReplicaWorld) -> None:
    world[1].append(b"a")
    world.run()
    follower = world[2].partition()
    world[1].append(b"b")
    follower.leader_epoch += 1  # before the answer is there
    world.run()
    assert world[2].values() == [b"a"]
    follower.leader_epoch -= 1
    world[2].fetchers.unfollow(follower)
    world[2].fetchers.follow(follower)
    world.run(600)
    assert world[2].values() == [b"a", b"b"]


def test_a_partition_that_is_not_followed_any_more_stays_as_it_is(world: ReplicaWorld) -> None:
    world[2].fetchers.unfollow(world[2].partition())
    world[1].append(b"a")
    world.run(2000)
    assert world[2].values() == []
    assert all(connection.closed for connection in world.network.connections), "and nobody keeps a connection"


# -- logs that do not fit -----------------------------------------------------------------------------------


def test_a_follower_that_is_too_far_behind_starts_where_the_leader_does(world: ReplicaWorld) -> None:
    world[2].fetchers.unfollow(world[2].partition())
    for number in range(5):
        world[1].append(b"%d" % number)
    log = world[1].partition().log
    log.high_watermark = 5
    log.delete_records(3)
    world[2].fetchers.follow(world[2].partition())
    world.run()
    assert world[2].partition().log.start_offset == 3
    assert world[2].values() == [b"3", b"4"]


def test_a_leader_whose_log_begins_inside_a_batch_is_followed_all_the_same(world: ReplicaWorld) -> None:
    world[2].fetchers.unfollow(world[2].partition())
    world[1].append(b"0", b"1", b"2", b"3")
    log = world[1].partition().log
    log.high_watermark = 4
    log.delete_records(2)
    world[2].fetchers.follow(world[2].partition())
    world.run()
    assert (world[2].partition().log.start_offset, world[2].partition().log.end_offset) == (2, 4)
    assert world[1].partition().log.high_watermark == 4


def test_a_start_that_moves_at_the_leader_moves_at_the_follower(world: ReplicaWorld) -> None:
    for number in range(5):
        world[1].append(b"%d" % number)
    world.run(600)
    world[1].partition().log.delete_records(3)
    world.run(600)
    assert world[2].partition().log.start_offset == 3


def test_a_log_that_shares_nothing_with_its_leader_s_starts_over(world: ReplicaWorld) -> None:
    unplug(world)
    world.lead(2)
    world[2].append(b"of nobody", b"else")
    world.lead(1)
    world[1].append(b"a")
    plug_in(world)
    assert world[2].values() == [b"a"]


def test_an_empty_log_beyond_the_leader_s_end_starts_over(world: ReplicaWorld) -> None:
    follower = world[2].partition()
    world[2].fetchers.unfollow(follower)
    follower.log.truncate_fully_and_start_at(100)
    world[1].append(b"a")
    world[2].fetchers.follow(follower)
    world.run()
    assert world[2].values() == [b"a"]
