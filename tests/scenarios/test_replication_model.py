"""An acknowledged record is in the log of every broker that may be elected: searched for a way round it.

Small clusters are searched whole, larger ones by random walks. CULVER_WALKS=100000 walks longer. That a search
finds nothing means something only because it finds each of the known mistakes, which are tried here too.
"""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from dataclasses import replace

import pytest
from replica_cluster import ReplicaCluster
from replication_moves import Play, random_play
from replication_search import search

from culver.core import elections, reassignment
from culver.core.image import PartitionImage
from culver.core.leader_state import LeaderState

WALKS = int(os.environ.get("CULVER_WALKS", "1500"))
# Each of the mistakes below shows within fewer walks than this.
WALKS_TO_A_MISTAKE = 12_000

Patch = Callable[[pytest.MonkeyPatch], None]


def walk(seed: int) -> str:
    """What goes wrong on one random walk, and when everyone comes back after it; "" if nothing."""
    rng = random.Random(seed)
    play = random_play(rng)
    way = play.walk(rng, rng.randint(10, 120))
    wrong = play.cluster.broken_promise() or play.heal() or play.cluster.broken_promise()
    return wrong and f"seed {seed}: {wrong}\nafter {way}"


def cluster(replicas: tuple[int, ...], min_insync: int) -> ReplicaCluster:
    return ReplicaCluster(PartitionImage(0, 1, 0, replicas, replicas), replicas, min_insync)


def small(replicas: tuple[int, ...], min_insync: int, **limits: int) -> Play:
    nothing = {"appends": 0, "crashes": 0, "losses": 0, "expiries": 0, "shrinks": 0, "plans": 0}
    return Play(cluster(replicas, min_insync), stale_views=False, late_messages=False, **nothing | limits)


def broken(play: Play) -> str:
    return play.cluster.broken_promise()


@pytest.mark.parametrize(
    "play",
    [
        small((1, 2), 1, appends=2, crashes=1, shrinks=1),
        small((1, 2), 2, appends=1, crashes=1, losses=1, shrinks=2),
        small((1, 2), 2, appends=1, crashes=1, plans=1),
    ],
    ids=["alone", "with-loss", "planned"],
)
def test_no_way_to_lose_a_record_with_two_brokers(play: Play) -> None:
    found = search(play, 50_000, broken)
    assert not found.wrong, f"{found.wrong}\nafter {found.way}"
    assert found.states < 50_000, "not all states were seen"


def test_no_short_way_to_lose_a_record_with_three_brokers() -> None:
    found = search(small((1, 2, 3), 2, appends=1, crashes=1, losses=1, shrinks=1), 6_000, broken)
    assert not found.wrong, f"{found.wrong}\nafter {found.way}"


@pytest.mark.parametrize("tenth", range(10))
def test_no_random_way_to_lose_a_record_and_all_comes_to_rest(tenth: int) -> None:
    for seed in range(tenth * WALKS // 10, (tenth + 1) * WALKS // 10):
        assert not walk(seed)


# --- the search has teeth ---


def wait_for_the_current_isr_only(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "maximal_isr", property(lambda state: state.isr))


def acknowledge_with_too_few_in_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(LeaderState, "below_min", property(lambda state: False))
    acknowledge_while_others_are_eligible(patch)


def acknowledge_while_others_are_eligible(patch: pytest.MonkeyPatch) -> None:
    regate = LeaderState._regate

    def without_freezing(state: LeaderState) -> None:
        regate(state)
        state._frozen = state.below_min

    patch.setattr(LeaderState, "_regate", without_freezing)


def truncate_to_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    learn = ReplicaCluster.learn

    def truncating(self: ReplicaCluster, broker: int, version: int | None = None) -> None:
        replica = self.replicas[broker]
        epoch = replica.view.leader_epoch
        learn(self, broker, version)
        if replica.state is None and replica.view.leader_epoch > epoch:
            del replica.log[replica.high_watermark :]

    patch.setattr(ReplicaCluster, "learn", truncating)


def let_in_whoever_passes_the_high_watermark(patch: pytest.MonkeyPatch) -> None:
    expand = LeaderState.to_expand

    def from_the_start(state: LeaderState, follower: int, alive_epoch: int) -> tuple[int, ...] | None:
        start, state.epoch_start_offset = state.epoch_start_offset, 0
        isr = expand(state, follower, alive_epoch)
        state.epoch_start_offset = start
        return isr

    patch.setattr(LeaderState, "to_expand", from_the_start)


def let_in_a_former_life(patch: pytest.MonkeyPatch) -> None:
    expand = LeaderState.to_expand

    def whoever(state: LeaderState, follower: int, _alive_epoch: int) -> tuple[int, ...] | None:
        return expand(state, follower, state._followers[follower].broker_epoch)

    propose = ReplicaCluster.propose

    def without_check(self: ReplicaCluster, broker: int, isr: tuple[int, ...]) -> str:
        trouble = propose(self, broker, isr)
        replica = self.replicas[broker]
        if replica.proposal is not None:
            replica.proposal = replica.proposal._replace(registrations=())
        return trouble

    patch.setattr(LeaderState, "to_expand", whoever)
    patch.setattr(ReplicaCluster, "propose", without_check)


def stay_eligible_after_a_loss(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(elections, "leave", lambda partition, broker_id, min_insync: None)


def remove_replicas_in_the_same_epoch(patch: pytest.MonkeyPatch) -> None:
    led_by, without = elections._led_by, reassignment._without

    def same_epoch(before: PartitionImage, after: PartitionImage, leader: int) -> PartitionImage | None:
        changed = led_by(before, after, leader)
        if changed is not None and changed.leader == before.leader:
            changed = replace(changed, leader_epoch=before.leader_epoch)
        return changed

    def without_bump(partition: PartitionImage, gone: set[int]) -> PartitionImage:
        after = without(partition, gone)
        return replace(after, leader_epoch=partition.leader_epoch + (after.leader != partition.leader))

    patch.setattr(elections, "_led_by", same_epoch)
    patch.setattr(reassignment, "_without", without_bump)


# With the first seed that shows it, or one shortly before.
MISTAKES: list[tuple[Patch, int]] = [
    (wait_for_the_current_isr_only, 0),
    (acknowledge_with_too_few_in_sync, 0),
    (acknowledge_while_others_are_eligible, 360),
    (truncate_to_the_high_watermark, 0),
    (let_in_whoever_passes_the_high_watermark, 3_060),
    (let_in_a_former_life, 150),
    (stay_eligible_after_a_loss, 0),
    (remove_replicas_in_the_same_epoch, 1_550),
]


@pytest.mark.parametrize(
    ("mistake", "first_seed"), MISTAKES, ids=[mistake.__name__ for mistake, _ in MISTAKES]
)
def test_a_mistake_is_found(mistake: Patch, first_seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    mistake(monkeypatch)
    wrong = next(filter(None, map(walk, range(first_seed, first_seed + WALKS_TO_A_MISTAKE))), "")
    assert "acknowledged" in wrong
