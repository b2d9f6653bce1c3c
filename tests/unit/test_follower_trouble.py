"""Followers in trouble: damaged records, failing disks, lost connections, and limits that spare others."""

from __future__ import annotations

import pytest
from log_batches import batch
from replica_world import ReplicaWorld, in_agreement, sent_requests

from culver.broker.partition import Partition


@pytest.fixture
def world() -> ReplicaWorld:
    world = ReplicaWorld(2)
    world.make_topic()
    world.run()
    return world


# -- errors -------------------------------------------------------------------------------------------------


def test_damaged_records_are_never_appended(world: ReplicaWorld) -> None:
    world[1].append(b"sound")
    world.run()
    world[2].fetchers.unfollow(world[2].partition())
    world[1].append(b"damaged on the way")
    path = world[1].partition().log._active.path
    position = world[1].filesystem.size(path) - 3
    world[1].filesystem.flip_bit(path, position)
    world[2].fetchers.follow(world[2].partition())
    world.run(500)
    assert world[2].values() == [b"sound"]
    world[1].filesystem.flip_bit(path, position)
    world.run(2000)
    assert world[2].values() == [b"sound", b"damaged on the way"]


def test_one_partition_in_trouble_does_not_hold_up_others() -> None:
    world = ReplicaWorld(2)
    world.make_topic(partitions=2)
    world.run()
    world[1].partition(index=0).state = None  # it does not lead it any more, and the follower does not know
    world[1].partitions.appended(world[1].partition(index=0))
    world[1].after_requests()
    for number in range(50):
        world[1].append(b"%d" % number, index=1)
        world.run(10)
    assert len(world[2].values(index=1)) == 50
    assert world[1].partition(index=1).log.high_watermark == 50


@pytest.mark.parametrize("follower_epoch", [0, 9])
def test_another_leader_epoch_makes_a_partition_rest_until_it_is_followed_anew(
    world: ReplicaWorld, follower_epoch: int
) -> None:
    world.lead(1, epoch=5)
    world.run()
    follower = world[2].partition()
    follower.leader_epoch = follower_epoch
    world[2].fetchers.follow(follower)
    world[1].append(b"a")
    before = sent_requests(world)
    world.run(3000)
    assert world[2].values() == []
    assert sent_requests(world) - before < 14, "it waits longer each time, up to a second"
    follower.leader_epoch = 5
    world[2].fetchers.follow(follower)
    world.run()
    assert world[2].values() == [b"a"]


def test_a_log_that_fails_is_given_up(world: ReplicaWorld) -> None:
    world[2].filesystem.fail("write")
    world[1].append(b"a")
    world.run(100)
    assert world[2].replication.failed == [world[2].partition()]
    before = sent_requests(world)
    world[1].append(b"b")
    world.run(500)
    assert sent_requests(world) == before


def test_a_full_disk_heals(world: ReplicaWorld) -> None:
    fs = world[2].filesystem
    fs.space_bytes = 10
    world[1].append(b"a" * 100)
    world.run(1000)
    assert world[2].values() == []
    assert world[2].replication.failed == []
    fs.space_bytes = None
    world.run(1500)
    assert world[2].values() == [b"a" * 100]


def test_what_the_leader_must_read_from_disk_is_loaded_first(world: ReplicaWorld) -> None:
    world[2].fetchers.unfollow(world[2].partition())
    world.run(5000)
    for number in range(5):
        world[1].append(b"%d" % number)
    world[1].filesystem.chill()
    world[2].fetchers.follow(world[2].partition())
    world.run(600)
    assert len(world[2].values()) == 5


def test_a_leader_that_cannot_read_its_disk_says_so(world: ReplicaWorld) -> None:
    world[2].fetchers.unfollow(world[2].partition())
    world.run(5000)
    world[1].append(b"a")
    world[1].filesystem.chill()
    world[1].filesystem.fail("read", sticky=True)
    world[2].fetchers.follow(world[2].partition())
    world.run(100)
    assert world[2].values() == []
    world[1].filesystem.heal()
    world.run(2000)
    assert world[2].values() == [b"a"]


# -- connections --------------------------------------------------------------------------------------------


def test_after_a_cut_everything_goes_on(world: ReplicaWorld) -> None:
    for number in range(10):
        world[1].append(b"%d" % number)
        world.network.cut()
        world.run(100)
    assert len(world[2].values()) == 10
    assert in_agreement(world)
    feeds = world[1].partition().replica_waiters
    assert len(feeds) == 1, "what was fed over lost connections is forgotten"


def test_a_leader_that_is_gone_is_tried_again_and_again_but_not_all_the_time(world: ReplicaWorld) -> None:
    world.network.listeners.clear()
    world.network.cut()
    world.network.attempts.clear()
    world.run(10_000)
    assert 10 <= len(world.network.attempts) <= 20
    world[1].listen()
    world[1].append(b"a")
    world.run(1100)
    assert world[2].values() == [b"a"]


def test_a_leader_that_is_said_to_be_back_is_tried_at_once(world: ReplicaWorld) -> None:
    world.network.listeners.clear()
    world.network.cut()
    world.run(10_000)
    world[1].listen()
    world[1].append(b"a")
    world[2].fetchers.follow(world[2].partition())
    world.run(5)
    assert world[2].values() == [b"a"]


def test_a_broker_that_joins_anew_introduces_itself_anew(world: ReplicaWorld) -> None:
    world[2].broker_epoch = 2
    world[1].append(b"a")
    world.run(100)
    assert world[1].replication.fetched[-1][1:] == (2, 2, 1)


def test_a_broker_s_earlier_life_is_not_served(world: ReplicaWorld) -> None:
    broker = world.image.brokers[2]
    world.image = world.image.with_broker(type(broker)(2, broker.host, broker.port, broker.rack, epoch=7))
    world[1].append(b"a")
    world[1].append(b"b")
    world.run(3000)
    assert world[1].partition().log.high_watermark == 0
    assert len(world[2].values()) <= 2


# -- limits -------------------------------------------------------------------------------------------------


def test_a_follower_that_is_behind_may_be_slowed_down() -> None:
    world = ReplicaWorld(2, follower_replication_throttled_rate=10_000, replica_fetch_max_bytes=1100)
    world.make_topic("behind")
    world.make_topic("in-sync")
    world.lead(1, "behind", isr=(1,))
    for _ in range(50):
        world[1].append(bytes(1000), topic="behind")
    world.run(1000)
    assert 10 <= len(world[2].values("behind")) <= 22
    world[1].append(b"a", topic="in-sync")
    world.run(5)
    assert world[2].values("in-sync") == [b"a"], "those in sync are not"
    world.run(6000)
    assert len(world[2].values("behind")) == 50


def test_a_leader_may_be_spared() -> None:
    world = ReplicaWorld(2, leader_replication_throttled_rate=10_000, replica_fetch_max_bytes=1100)
    world.make_topic("behind", leader=1)
    world.make_topic("in-sync", leader=1)
    world.lead(1, "behind", isr=(1,))
    for _ in range(50):
        world[1].append(bytes(1000), topic="behind")
    world.run(1000)
    first = len(world[2].values("behind"))
    assert 10 <= first <= 22
    world[1].append(b"a", topic="in-sync")
    world.run(5)
    assert world[2].values("in-sync") == [b"a"]
    world.run(6000)
    assert len(world[2].values("behind")) == 50


def test_an_answer_has_what_is_in_sync_first_and_only_a_little_of_what_is_not() -> None:
    world = ReplicaWorld(2)
    world.make_topic("behind", 12)
    world.make_topic("in-sync")
    world.run()
    for index in range(12):
        world.lead(1, "behind", index, isr=(1,), follow=False)
        world[2].fetchers.unfollow(world[2].partition("behind", index))
        for _ in range(4):
            world[1].append(bytes(250_000), topic="behind", index=index)
    for index in range(12):
        world[2].fetchers.follow(world[2].partition("behind", index))
    world[1].append(b"a", topic="in-sync")
    [connection] = world.network.connections
    already = len(connection.other.sent)
    world.run(600)
    sizes = [len(data) for data in connection.other.sent[already:]]
    assert max(sizes) < 3 << 20
    assert all(len(world[2].values("behind", index)) == 4 for index in range(12))


def test_a_batch_that_is_larger_than_an_answer_s_rest_does_not_wait_for_ever() -> None:
    world = ReplicaWorld(2, replica_fetch_max_bytes=10_000)
    world.make_topic("busy")
    world.make_topic("large")
    world.lead(1, "large", isr=(1,))
    world.run()
    leader, busy = world[1], world[1].partition("busy")
    note = leader.replication.follower_fetched
    left = 20

    def note_and_append(partition: Partition, broker_id: int, broker_epoch: int, offset: int) -> None:
        """Whenever the follower asks, there is something of the other partition, which comes first."""
        nonlocal left
        note(partition, broker_id, broker_epoch, offset)
        if partition is busy and left and not world[2].values("large"):
            left -= 1
            busy.append(batch(b"more"))

    leader.replication.follower_fetched = note_and_append  # type: ignore[method-assign]
    leader.append(b"first", topic="busy")
    leader.append(bytes(50_000), topic="large")
    world.run()
    assert len(world[2].values("large")) == 1
    assert left > 10
