"""Who may lead a partition, and what becomes of its entry when brokers die, stop, come back or are asked to."""

from __future__ import annotations

from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from culver.core import elections, reassignment
from culver.core.image import PartitionImage

ALL = {1, 2, 3, 4}


def partition(
    leader: int,
    isr: tuple[int, ...],
    elr: tuple[int, ...] = (),
    *,
    replicas: tuple[int, ...] = (1, 2, 3),
    adding: tuple[int, ...] = (),
    removing: tuple[int, ...] = (),
) -> PartitionImage:
    return PartitionImage(0, leader, 5, replicas, isr, elr, 9, adding, removing)


def brief(
    image: PartitionImage | None,
) -> tuple[int, int, tuple[int, ...], tuple[int, ...]] | None:
    return None if image is None else (image.leader, image.leader_epoch, image.isr, image.elr)


# --- settle ---


@pytest.mark.parametrize(
    ("before", "alive", "min_insync", "after"),
    [
        # Nothing to do.
        (partition(1, (1, 2, 3)), {1, 2, 3}, 2, None),
        (partition(1, (1,), (2,)), {1, 3}, 2, None),
        # A dead follower leaves; it stays eligible when too few are left.
        (partition(1, (1, 2, 3)), {1, 2}, 2, (1, 5, (1, 2), ())),
        (partition(1, (1, 2)), {1}, 2, (1, 5, (1,), (2,))),
        (partition(1, (1, 2)), {1}, 1, (1, 5, (1,), ())),
        (partition(1, (1, 2), (3,)), {1}, 3, (1, 5, (1,), (2, 3))),
        # A dead leader is replaced by the next of the replicas that is in sync.
        (partition(1, (3, 2, 1)), {2, 3}, 1, (2, 6, (3, 2), ())),
        (partition(1, (1, 3)), {2, 3}, 2, (3, 6, (3,), (1,))),
        # Nobody in sync is alive: one of the eligible leads, alone.
        (partition(1, (1,), (2, 3)), {3}, 2, (3, 6, (3,), (1, 2))),
        (partition(-1, (1,), (2, 3)), {2, 3}, 2, (2, 6, (2,), (1, 3))),
        # Nobody at all: all stay what they are.
        (partition(1, (1, 2, 3)), set(), 2, (-1, 6, (1, 2, 3), ())),
        (partition(1, (1,), (2,)), {3}, 2, (-1, 6, (1,), (2,))),
        (partition(-1, (1,), (2,)), {3}, 2, None),
        # One of them is back.
        (partition(-1, (1, 2, 3)), {2}, 2, (2, 6, (2,), (1, 3))),
        (partition(-1, (1, 2, 3)), {2}, 1, (2, 6, (2,), ())),
        # With enough in sync the ELR does not count any more, not even to elect from it.
        (partition(1, (1,), (2,)), {1}, 1, (1, 5, (1,), ())),
        (partition(1, (1,), (2,)), {2}, 1, (-1, 6, (1,), ())),
    ],
)
def test_settle(
    before: PartitionImage,
    alive: set[int],
    min_insync: int,
    after: tuple[int, int, tuple[int, ...], tuple[int, ...]] | None,
) -> None:
    assert brief(elections.settle(before, alive, min_insync=min_insync, unclean_allowed=False)) == after


def test_an_unclean_election_only_where_it_is_allowed_and_needed() -> None:
    before = partition(1, (1,), (2,))
    assert brief(elections.settle(before, {3}, min_insync=2, unclean_allowed=True)) == (3, 6, (3,), ())
    assert brief(elections.settle(before, {2, 3}, min_insync=2, unclean_allowed=True)) == (2, 6, (2,), (1,))
    assert brief(elections.settle(before, {4}, min_insync=2, unclean_allowed=True)) == (-1, 6, (1,), (2,))


def test_an_operator_gets_a_leader_at_any_price_but_not_another_one() -> None:
    before = partition(-1, (1,))
    assert brief(elections.elect_unclean(before, {2, 3}, 1)) == (2, 6, (2,), ())
    assert brief(elections.elect_unclean(before, {1, 3}, 1)) == (1, 6, (1,), ())
    assert elections.elect_unclean(partition(1, (1, 2)), {1, 2}, 1) is None
    assert elections.elect_unclean(before, set(), 1) is None


def test_a_reassignment_ends_when_all_its_target_is_in_sync_and_alive() -> None:
    moving = {"replicas": (4, 2, 1, 3), "adding": (4,), "removing": (1, 3)}
    waiting = partition(1, (1, 2, 3), **moving)
    assert elections.settle(waiting, ALL, min_insync=2) is None
    ready = partition(1, (1, 2, 3, 4), **moving)
    assert brief(elections.settle(ready, ALL - {4}, min_insync=2)) == (1, 5, (1, 2, 3), ())
    done = elections.settle(ready, ALL, min_insync=2)
    assert done == PartitionImage(0, 4, 6, (4, 2), (2, 4), (), 9)


def test_the_end_of_a_reassignment_begins_an_epoch_also_for_the_same_leader() -> None:
    ready = partition(2, (1, 2), replicas=(2, 1), removing=(1,))
    done = elections.settle(ready, {1, 2}, min_insync=1)
    assert done == PartitionImage(0, 2, 6, (2,), (2,), (), 9)


def test_replicas_that_are_being_added_do_not_count_towards_the_minimum() -> None:
    growing = partition(1, (1,), replicas=(1, 2, 3), adding=(2, 3))
    assert elections.effective_min_insync(growing, 2) == 1
    assert elections.effective_min_insync(partition(1, (1,)), 2) == 2
    assert elections.effective_min_insync(partition(1, (1,), replicas=(1, 2)), 3) == 2


# --- the others ---


def test_the_leader_s_word_on_the_isr() -> None:
    before = partition(1, (1, 2, 3))
    assert brief(elections.with_isr(before, (1, 2), min_insync=2)) == (1, 5, (1, 2), ())
    assert brief(elections.with_isr(before, (1,), min_insync=2)) == (1, 5, (1,), (2, 3))
    assert elections.with_isr(before, (1, 2, 3), min_insync=2) is None
    below = partition(1, (1,), (2, 3))
    assert brief(elections.with_isr(below, (1, 3), min_insync=3)) == (1, 5, (1, 3), (2,))
    assert brief(elections.with_isr(below, (1, 3), min_insync=2)) == (1, 5, (1, 3), ())
    with pytest.raises(AssertionError):
        elections.with_isr(before, (2, 3), min_insync=1)


def test_a_broker_that_lost_bytes_leaves_everything_but_as_the_last() -> None:
    assert brief(elections.leave(partition(1, (1, 2, 3)), 1, min_insync=2)) == (-1, 6, (2, 3), ())
    assert brief(elections.leave(partition(1, (1, 2, 3)), 3, min_insync=2)) == (1, 5, (1, 2), ())
    assert brief(elections.leave(partition(1, (1, 2)), 2, min_insync=2)) == (1, 5, (1,), ())
    assert brief(elections.leave(partition(1, (1,), (2, 3)), 2, min_insync=2)) == (1, 5, (1,), (3,))
    # Those eligible take its place.
    assert brief(elections.leave(partition(1, (1,), (2,)), 1, min_insync=2)) == (-1, 6, (2,), ())
    # Nobody has more. But what it writes from now on is of another epoch.
    assert brief(elections.leave(partition(1, (1,)), 1, min_insync=2)) == (-1, 6, (1,), ())
    assert elections.leave(partition(-1, (1,)), 1, min_insync=2) is None
    assert elections.leave(partition(1, (1, 2)), 3, min_insync=2) is None


def test_a_broker_that_stops_hands_over_to_a_living_member_of_the_isr() -> None:
    before = partition(1, (1, 2, 3))
    assert brief(elections.hand_over(before, 1, ALL, min_insync=2)) == (2, 6, (2, 3), ())
    assert brief(elections.hand_over(before, 1, {1, 3}, min_insync=2)) == (3, 6, (2, 3), ())
    assert brief(elections.hand_over(before, 2, ALL, min_insync=2)) == (1, 5, (1, 3), ())
    assert brief(elections.hand_over(partition(1, (1, 2)), 1, ALL, min_insync=2)) == (2, 6, (2,), (1,))
    assert elections.hand_over(before, 1, {1}, min_insync=2) is None
    assert elections.hand_over(partition(1, (1,), (2,)), 1, ALL, min_insync=2) is None
    assert elections.hand_over(partition(1, (1, 2)), 3, ALL, min_insync=2) is None


def test_the_preferred_replica_leads_if_it_can() -> None:
    assert brief(elections.prefer(partition(2, (2, 1)), ALL)) == (1, 6, (2, 1), ())
    assert elections.prefer(partition(2, (2, 3)), ALL) is None
    assert elections.prefer(partition(2, (2, 1)), {2, 3}) is None
    assert elections.prefer(partition(1, (2, 1)), ALL) is None
    # While it moves, the first of those that are to stay.
    moving = partition(2, (1, 2, 3), replicas=(3, 1, 2), removing=(1, 2))
    assert brief(elections.prefer(moving, ALL)) == (3, 6, (1, 2, 3), ())


# --- for all entries ---


def subsets(brokers: tuple[int, ...]) -> list[tuple[int, ...]]:
    return list(chain.from_iterable(combinations(brokers, size) for size in range(len(brokers) + 1)))


@st.composite
def entries(draw: st.DrawFn) -> PartitionImage:
    replicas = tuple(draw(st.permutations((1, 2, 3, 4)))[: draw(st.integers(1, 4))])
    isr = draw(st.sampled_from([members for members in subsets(replicas) if members]))
    elr = draw(st.sampled_from(subsets(tuple(broker for broker in replicas if broker not in isr))))
    leader = draw(st.sampled_from([*isr, -1]))
    adding = draw(st.sampled_from(subsets(replicas[1:])))
    removing = draw(
        st.sampled_from(subsets(tuple(broker for broker in replicas[1:] if broker not in adding)))
    )
    return partition(leader, isr, elr, replicas=replicas, adding=adding, removing=removing)


alive_sets = st.sampled_from([set(brokers) for brokers in subsets((1, 2, 3, 4))])


@given(entries(), alive_sets, st.integers(1, 4), st.integers(1, 4))
def test_every_change_makes_a_sensible_entry_of_those_that_had_everything(
    before: PartitionImage, alive: set[int], min_insync: int, broker: int
) -> None:
    changes = {
        "settle": elections.settle(before, alive, min_insync=min_insync, unclean_allowed=False),
        "leave": elections.leave(before, broker, min_insync=min_insync),
        "hand over": elections.hand_over(before, broker, alive, min_insync=min_insync),
        "prefer": elections.prefer(before, alive),
    }
    trusted = {*before.isr, *before.elr}
    for name, after in changes.items():
        if after is None:
            continue
        assert after != before, name
        assert after.isr, name
        assert {*after.isr, *after.elr} <= trusted & set(after.replicas), name
        assert not set(after.isr) & set(after.elr), name
        assert after.leader == -1 or after.leader in after.isr, name
        assert after.partition_epoch == before.partition_epoch, name
        changed = after.leader != before.leader or after.replicas != before.replicas
        assert after.leader_epoch == before.leader_epoch + changed, name
        if name != "prefer" and len(after.isr) >= elections.effective_min_insync(after, min_insync):
            assert not after.elr, name


@given(entries(), alive_sets, st.integers(1, 4), st.booleans())
def test_settled_is_settled_and_led_if_anyone_can(
    before: PartitionImage, alive: set[int], min_insync: int, unclean: bool
) -> None:
    after = elections.settle(before, alive, min_insync=min_insync, unclean_allowed=unclean) or before
    # A reassignment that ended may leave an entry with fewer replicas, whose minimum is another; then once more.
    after = elections.settle(after, alive, min_insync=min_insync, unclean_allowed=unclean) or after
    assert elections.settle(after, alive, min_insync=min_insync, unclean_allowed=unclean) is None
    assert after.leader == -1 or after.leader in alive
    if alive & set(before.isr) or (unclean and alive & set(before.replicas)):
        assert after.leader in alive


@given(entries(), st.permutations((1, 2, 3, 4)), st.integers(1, 4))
def test_what_was_begun_can_be_cancelled(before: PartitionImage, order: list[int], count: int) -> None:
    calm = partition(before.leader, before.isr, before.elr, replicas=before.replicas)
    begun = reassignment.begin(calm, order[:count])
    if begun is None:
        assert tuple(order[:count]) == calm.replicas
        return
    assert reassignment.target(begun) == tuple(order[:count])
    assert set(reassignment.original(begun)) == set(calm.replicas)
    assert brief(begun) == brief(calm)
    cancelled = reassignment.cancel(begun)
    if cancelled is None:
        assert set(order[:count]) == set(calm.replicas)
        return
    assert set(cancelled.replicas) == set(calm.replicas)
    assert (cancelled.isr, cancelled.elr, cancelled.leader) == (calm.isr, calm.elr, calm.leader)
    assert not reassignment.is_under_way(cancelled)
